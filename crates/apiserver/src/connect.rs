//! From a kubeconfig to a stream of bytes: names, proxy, TLS.

use std::{io, sync::Arc};

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

/// Connects; the caller has the deadline.
pub(crate) async fn connect(material: &Material, config: &Arc<ClientConfig>) -> Result<Connected, ApiError> {
    let server = &material.server;
    let failed = |problem: String| ApiError::Connect { server: server.to_string(), problem };
    let stream = match &material.proxy {
        None => tcp(&server.host, server.port).await.map_err(failed)?,
        Some((host, port)) => {
            let mut stream =
                tcp(host, *port).await.map_err(|problem| failed(format!("proxy-url: {problem}")))?;
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

/// Tries the host's addresses one after the other.
async fn tcp(host: &str, port: u16) -> Result<TcpStream, String> {
    let addresses = mainstay_http::resolve("API server", host, port)
        .await
        .map_err(|error| format!("{host} cannot be resolved: {error}"))?;
    let mut problem = format!("{host} has no address");
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // Only saves a delay; a socket that refuses it works too.
                stream.set_nodelay(true).ok();
                return Ok(stream);
            }
            Err(error) => problem = format!("{address}: {error}"),
        }
    }
    Err(problem)
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
