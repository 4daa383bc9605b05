//! Host names to addresses.

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
};

use tokio::sync::Semaphore;

/// So many lookups at once. Each holds one of the agent's few blocking threads for as long as the name server is silent,
/// and files, cgroups and records need those too.
static LOOKUPS: Semaphore = Semaphore::const_new(2);

/// The addresses of a host, which may be an address itself. Waits when others are looked up, so call it within a deadline.
/// Cancel safe: dropping it gives up the place in the queue; a lookup that was begun goes on and keeps its place until the
/// resolver gives up.
///
/// # Errors
/// What the resolver says.
pub async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    resolve_by(&LOOKUPS, host, port, |host, port| Ok((host, port).to_socket_addrs()?.collect())).await
}

async fn resolve_by(
    lookups: &'static Semaphore,
    host: &str,
    port: u16,
    look_up: impl FnOnce(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + 'static,
) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let place = lookups.acquire().await.map_err(io::Error::other)?;
    let host = host.to_owned();
    let work = move || {
        // It is the thread's, not the caller's, who may stop waiting long before the thread does.
        let _place = place;
        look_up(&host, port)
    };
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
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
            assert_eq!(resolve(host, 80).await.unwrap(), [address.parse().unwrap()]);
        }
        assert!(resolve("localhost", 80).await.unwrap().iter().all(|address| address.ip().is_loopback()));
    }

    #[tokio::test]
    async fn a_silent_name_server_holds_no_more_than_the_places_for_lookups() {
        static ONE: Semaphore = Semaphore::const_new(1);
        let (release, silence) = mpsc::channel::<()>();
        let hangs = resolve_by(&ONE, "dead.example", 80, move |_, _| {
            silence.recv().ok();
            Ok(Vec::new())
        });
        assert!(timeout(SHORT, hangs).await.is_err());
        assert_eq!(ONE.available_permits(), 0, "nobody waits for it any more, but its thread is still busy");

        let (begun, heard) = mpsc::channel();
        for _ in 0..3 {
            let begun = begun.clone();
            let look_up = move |_: &str, _| {
                begun.send(()).ok();
                Ok(Vec::new())
            };
            assert!(timeout(SHORT, resolve_by(&ONE, "a.example", 80, look_up)).await.is_err());
        }
        assert!(heard.try_recv().is_err(), "no other thread is taken");
        let address = resolve_by(&ONE, "10.0.0.1", 80, |_, _| Ok(Vec::new()));
        assert_eq!(address.await.unwrap().len(), 1, "addresses wait for nobody");

        release.send(()).unwrap();
        let found = resolve_by(&ONE, "a.example", 80, |_, port| Ok(vec![([10, 0, 0, 1], port).into()]));
        assert_eq!(timeout(LONG, found).await.unwrap().unwrap().len(), 1);
    }
}
