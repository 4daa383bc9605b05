//! From a kubeconfig to a stream of bytes: names, proxy, TLS.

use std::{io, net::SocketAddr, sync::Arc};

use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use crate::{ApiError, credentials::Material, tls};

/// A proxy's answer to `CONNECT` is short.
const MAX_PROXY_HEAD: usize = 8 << 10;

/// Bytes in both directions.
pub(crate) trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// A connection, and whether HTTP/2 was agreed on.
pub(crate) struct Connected {
    pub(crate) stream: Box<dyn Io>,
    pub(crate) http2: bool,
}

/// Which of the server's addresses (or its proxy's) to try first: a name may have some that are silent, and some where somebody
/// answers who is of no use.
#[derive(Debug, Default)]
pub(crate) struct Route {
    /// Everything went well there the last time.
    good: Option<SocketAddr>,
    /// A connection was had there since, and came to nothing; the latest is last.
    bad: Vec<SocketAddr>,
    /// Where the attempt that is under way has a connection.
    now: Option<SocketAddr>,
}

impl Route {
    /// The good one first, those that were bad last, the longest ago of them before the others.
    fn order(&mut self, mut addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
        // If nobody said how the attempt before ended, it took too long for whoever wanted it.
        self.ended(false);
        self.bad.retain(|bad| addresses.contains(bad));
        let place = |address: &SocketAddr| self.bad.iter().position(|bad| bad == address);
        addresses.sort_by_key(|address| (place(address), self.good != Some(*address)));
        addresses
    }

    /// The attempt that was begun last has ended.
    pub(crate) fn ended(&mut self, well: bool) {
        let Some(now) = self.now.take() else { return };
        self.bad.retain(|bad| *bad != now);
        if well {
            self.good = Some(now);
            self.bad.clear();
        } else {
            self.good = self.good.filter(|good| *good != now);
            self.bad.push(now);
        }
    }
}

/// Connects; the caller has the deadline, and says by [`Route::ended`] how it ended.
pub(crate) async fn connect(
    material: &Material,
    config: &Arc<ClientConfig>,
    route: &mut Route,
) -> Result<Connected, ApiError> {
    let server = &material.server;
    let failed = |problem: String| ApiError::Connect { server: server.to_string(), problem };
    let stream = match &material.proxy {
        None => tcp(&server.host, server.port, route).await.map_err(failed)?,
        Some((host, port)) => {
            let mut stream =
                tcp(host, *port, route).await.map_err(|problem| failed(format!("proxy-url: {problem}")))?;
            tunnel(&mut stream, &server.host, server.port)
                .await
                .map_err(|error| failed(format!("the proxy {host}:{port} opens no way to it: {error}")))?;
            stream
        }
    };
    if !server.https {
        return Ok(Connected { stream: Box::new(stream), http2: false });
    }
    let name = material.server_name.as_deref().unwrap_or(&server.host);
    let no_tls = |problem: String| ApiError::Tls { server: server.to_string(), problem };
    let name = ServerName::try_from(name.to_owned()).map_err(|_| {
        no_tls(format!("{name:?} is no name of a server; correct it in {}", material.cluster))
    })?;
    let stream = TlsConnector::from(Arc::clone(config))
        .connect(name, stream)
        .await
        .map_err(|error| no_tls(tls::explain(&error, material)))?;
    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    Ok(Connected { stream: Box::new(stream), http2 })
}

/// To the first of the host's addresses that answers.
async fn tcp(host: &str, port: u16, route: &mut Route) -> Result<TcpStream, String> {
    let addresses = mainstay_http::resolve("API server", host, port)
        .await
        .map_err(|error| format!("{host} cannot be resolved: {error}"))?;
    let stream = mainstay_http::reach(&route.order(addresses)).await.map_err(|failures| {
        let failures: Vec<_> =
            failures.iter().map(|(address, error)| format!("{address}: {error}")).collect();
        if failures.is_empty() { format!("{host} has no address") } else { failures.join("; ") }
    })?;
    route.now = stream.peer_addr().ok();
    Ok(stream)
}

/// Asks an HTTP proxy for a way through.
async fn tunnel(stream: &mut TcpStream, host: &str, port: u16) -> io::Result<()> {
    let target = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    // Byte by byte: what follows the head belongs to the server.
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= MAX_PROXY_HEAD {
            return Err(io::Error::other("its answer is too long"));
        }
        head.push(stream.read_u8().await?);
    }
    let text = String::from_utf8_lossy(&head);
    let line = text.lines().next().unwrap_or_default();
    match line.split(' ').nth(1) {
        Some(status) if status.starts_with('2') => Ok(()),
        _ => Err(io::Error::other(line.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_worked_is_tried_first_and_one_that_did_not_last() {
        let [a, b, c]: [SocketAddr; 3] = [1, 2, 3].map(|last| ([10, 0, 0, last], 6443).into());
        let mut route = Route::default();
        let mut ends = |at: SocketAddr, well: bool| {
            route.now = Some(at);
            route.ended(well);
            route.order(vec![a, b, c])
        };
        assert_eq!(ends(b, true), [b, a, c], "the one that worked");
        assert_eq!(ends(b, false), [a, c, b], "until it did not");
        assert_eq!(ends(a, false), [c, b, a], "every one has its turn");
        assert_eq!(ends(c, false), [b, a, c]);
        assert_eq!(ends(a, true), [a, b, c], "what was before is forgotten");
        route.ended(false);
        assert_eq!(route.order(vec![a, b, c]), [a, b, c], "nobody answered: nothing is known by that");
        assert_eq!(route.order(vec![c, b]), [c, b], "one that the name does not have any more");
    }
}
