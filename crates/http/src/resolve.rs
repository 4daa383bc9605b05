//! Host names to addresses.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// So many lookups at once for one asker: a pod that names hosts whose name server is silent holds up its own only.
const EACH: usize = 2;
/// And for all of them. Each has a thread of its own for as long as the name server is silent.
const ALL: usize = 256;
/// What a lookup needs of a stack is some tens of kilobytes.
const STACK_BYTES: usize = 256 << 10;

static LOOKUPS: Lookups = Lookups(Mutex::new(None));

/// The addresses of a host, which may be an address itself, for `asker`: a pod by its UID, or a part of the agent by its name.
/// Waits while two others of the same asker are looked up, so call it within a deadline. Cancel safe: dropping it gives up the place in
/// the queue; a lookup that was begun goes on and keeps its place until the resolver gives up.
///
/// # Errors
/// What the resolver says; or that too many are under way.
pub async fn resolve(asker: &str, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    LOOKUPS.resolve(asker, host, port, |host, port| Ok((host, port).to_socket_addrs()?.collect())).await
}

/// Who is looking up how many.
#[derive(Debug)]
struct Lookups(Mutex<Option<Places>>);

#[derive(Debug)]
struct Places {
    all: Arc<Semaphore>,
    askers: HashMap<Box<str>, Weak<Semaphore>>,
}

impl Lookups {
    async fn resolve(
        &self,
        asker: &str,
        host: &str,
        port: u16,
        look_up: impl FnOnce(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + 'static,
    ) -> io::Result<Vec<SocketAddr>> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        let places = self.place(asker).await?;
        let host = host.to_owned();
        let (found, answer) = oneshot::channel();
        let work = move || {
            // They are the thread's, not the caller's, who may stop waiting long before the thread does.
            let _places = places;
            // Nobody waits any more: then nobody needs it.
            found.send(look_up(&host, port)).ok();
        };
        std::thread::Builder::new().name("lookup".into()).stack_size(STACK_BYTES).spawn(work)?;
        answer.await.map_err(|_| io::Error::other("the resolver gave no answer"))?
    }

    async fn place(&self, asker: &str) -> io::Result<[OwnedSemaphorePermit; 2]> {
        let (own, all) = {
            let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let places = places
                .get_or_insert_with(|| Places { all: Arc::new(Semaphore::new(ALL)), askers: HashMap::new() });
            let known = places.askers.get(asker).and_then(Weak::upgrade);
            let own = known.unwrap_or_else(|| {
                places.askers.retain(|_, others| others.strong_count() > 0);
                let own = Arc::new(Semaphore::new(EACH));
                places.askers.insert(asker.into(), Arc::downgrade(&own));
                own
            });
            (own, Arc::clone(&places.all))
        };
        let own = own.acquire_owned().await.map_err(io::Error::other)?;
        let all = all.try_acquire_owned().map_err(|_| {
            io::Error::other(format!("{ALL} other names are being looked up; is the name server silent?"))
        })?;
        Ok([own, all])
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use tokio::time::timeout;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn names_and_addresses() {
        for (host, address) in [("127.0.0.1", "127.0.0.1:80"), ("fd00::1", "[fd00::1]:80")] {
            assert_eq!(resolve("me", host, 80).await.unwrap(), [address.parse().unwrap()]);
        }
        assert!(
            resolve("me", "localhost", 80).await.unwrap().iter().all(|address| address.ip().is_loopback())
        );
    }

    #[tokio::test]
    async fn a_silent_name_server_holds_up_only_whom_it_was_asked_for() {
        let lookups = Lookups(Mutex::new(None));
        let (release, silence) = mpsc::channel::<()>();
        let silence = Arc::new(Mutex::new(silence));
        for _ in 0..EACH {
            let silence = Arc::clone(&silence);
            let hangs = lookups.resolve("a", "dead.example", 80, move |_, _| {
                silence.lock().unwrap().recv().ok();
                Ok(Vec::new())
            });
            assert!(timeout(SHORT, hangs).await.is_err());
        }

        let (begun, heard) = mpsc::channel();
        for _ in 0..3 {
            let begun = begun.clone();
            let look_up = move |_: &str, _| {
                begun.send(()).ok();
                Ok(Vec::new())
            };
            assert!(timeout(SHORT, lookups.resolve("a", "b.example", 80, look_up)).await.is_err());
        }
        assert!(
            heard.try_recv().is_err(),
            "nobody waits for them any more, but their threads are still busy"
        );
        let address = lookups.resolve("a", "10.0.0.1", 80, |_, _| Ok(Vec::new()));
        assert_eq!(address.await.unwrap().len(), 1, "addresses wait for nobody");
        let found = |_: &str, port| Ok(vec![([10, 0, 0, 1], port).into()]);
        let other = lookups.resolve("b", "b.example", 80, found);
        assert_eq!(timeout(LONG, other).await.unwrap().unwrap().len(), 1, "another asker");

        for _ in 0..EACH {
            release.send(()).unwrap();
        }
        let own = lookups.resolve("a", "b.example", 80, found);
        assert_eq!(timeout(LONG, own).await.unwrap().unwrap().len(), 1);
        drop(silence);
    }

    #[tokio::test]
    async fn there_are_not_more_threads_than_are_bearable() {
        let lookups = Lookups(Mutex::new(None));
        let (release, silence) = mpsc::channel::<()>();
        let silence = Arc::new(Mutex::new(silence));
        let hanging: Vec<_> = (0..ALL)
            .map(|number| {
                let (lookups, silence) = (&lookups, Arc::clone(&silence));
                async move {
                    let name = format!("pod-{number}");
                    lookups
                        .resolve(&name, "dead.example", 80, move |_, _| {
                            silence.lock().unwrap().recv().ok();
                            Ok(Vec::new())
                        })
                        .await
                }
            })
            .collect();
        let all = futures_util::future::join_all(hanging);
        assert!(timeout(SHORT, all).await.is_err());
        let error = lookups.resolve("one more", "c.example", 80, |_, _| Ok(Vec::new())).await.unwrap_err();
        assert!(error.to_string().contains("name server"), "{error}");
        drop(release);
    }
}
