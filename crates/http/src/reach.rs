//! Of a host's addresses, the first that answers.

use std::{future::Future, io, net::SocketAddr, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep_until},
};

/// An address that says nothing for so long is no longer waited for alone. RFC 8305 recommends 250 ms; Go takes this.
const HEAD_START: Duration = Duration::from_millis(300);

/// Connects to the first of the addresses that answers: each is tried a little after the one before, or at once when an earlier
/// one fails, so that one that drops what is sent to it does not use up the caller's deadline. Without a deadline of its own.
/// Cancel safe: dropping it gives up all attempts.
///
/// # Errors
/// Why each address failed, in the order in which they did; nothing if there was none.
pub async fn reach(addresses: &[SocketAddr]) -> Result<TcpStream, Vec<(SocketAddr, io::Error)>> {
    let stream = first(addresses, TcpStream::connect).await?;
    // Only saves a delay; a socket that refuses it works too.
    stream.set_nodelay(true).ok();
    Ok(stream)
}

async fn first<T, F>(
    addresses: &[SocketAddr],
    connect: impl Fn(SocketAddr) -> F,
) -> Result<T, Vec<(SocketAddr, io::Error)>>
where
    F: Future<Output = io::Result<T>>,
{
    let connect = &connect;
    let mut waiting = addresses.iter().copied();
    let mut trying = FuturesUnordered::new();
    let mut failures = Vec::new();
    let mut next_at = Instant::now();
    loop {
        // Cancel safe: attempts stay where they are, and the other only waits.
        tokio::select! {
            biased;
            Some((address, answer)) = trying.next() => match answer {
                Ok(connection) => return Ok(connection),
                Err(error) => {
                    failures.push((address, error));
                    next_at = Instant::now();
                }
            },
            () = sleep_until(next_at), if waiting.len() > 0 => {
                trying.extend(waiting.next().map(|address| async move { (address, connect(address).await) }));
                next_at = Instant::now() + HEAD_START;
            }
            else => return Err(failures),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpSocket;

    use super::*;

    /// How an address behaves, by its port.
    const SILENT: u16 = 1;
    const REFUSES: u16 = 2;
    const ANSWERS: u16 = 3;
    const SLOW: u16 = 4;

    fn addresses(ports: &[u16]) -> Vec<SocketAddr> {
        let host = |at: usize| [10, 0, 0, u8::try_from(at).unwrap()];
        ports.iter().enumerate().map(|(at, port)| (host(at), *port).into()).collect()
    }

    async fn behaviour(address: SocketAddr) -> io::Result<SocketAddr> {
        match address.port() {
            ANSWERS => Ok(address),
            REFUSES => Err(io::ErrorKind::ConnectionRefused.into()),
            SLOW => {
                tokio::time::sleep(Duration::from_millis(500)).await;
                Ok(address)
            }
            _ => std::future::pending().await,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_that_answers_is_taken_however_others_behave() {
        for (name, ports, taken, after) in [
            ("one", vec![ANSWERS], 0, 0),
            ("the first of two", vec![ANSWERS, ANSWERS], 0, 0),
            ("one that refuses is not waited for", vec![REFUSES, REFUSES, ANSWERS], 2, 0),
            ("one that is silent is, a little", vec![SILENT, ANSWERS], 1, 300),
            ("each of them", vec![SILENT, SILENT, SILENT, ANSWERS], 3, 900),
            ("a refusal beside a silent one", vec![SILENT, REFUSES, ANSWERS], 2, 300),
            ("one that is slow may still win", vec![SLOW, SILENT, SILENT], 0, 500),
            ("but not over one that is quicker", vec![SLOW, ANSWERS], 1, 300),
        ] {
            let (addresses, begun) = (addresses(&ports), Instant::now());
            let found = first(&addresses, behaviour).await.unwrap();
            assert_eq!((found, begun.elapsed().as_millis()), (addresses[taken], after), "{name}");
        }
        assert!(first(&[], behaviour).await.unwrap_err().is_empty());
        let all = addresses(&[REFUSES, REFUSES]);
        let failures = first(&all, behaviour).await.unwrap_err();
        assert!(failures.iter().map(|(address, _)| *address).eq(all), "{failures:?}");
    }

    /// A listener that nobody accepts from, with a backlog that is full: the kernel drops what comes, as a firewall would.
    #[tokio::test]
    async fn a_real_silent_address_is_passed_over() {
        let silent = TcpSocket::new_v4().unwrap();
        silent.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let silent = silent.listen(1).unwrap();
        let dead = silent.local_addr().unwrap();
        let mut fills = Vec::new();
        while let Ok(Ok(stream)) =
            tokio::time::timeout(Duration::from_millis(500), TcpStream::connect(dead)).await
        {
            fills.push(stream);
        }
        let live = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let live_address = live.local_addr().unwrap();
        let both = [dead, live_address];
        let stream = tokio::time::timeout(Duration::from_secs(30), reach(&both)).await.unwrap().unwrap();
        assert_eq!(stream.peer_addr().unwrap(), live_address);
    }
}
