//! The way to a mainstay: the unix socket of this machine, or `--server` with its certificates and tokens.

use std::{io, path::Path, sync::Arc};

use http::Uri;
use mainstay_http::Duplex;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use crate::{args::ConnectArgs, error::ClientError};

/// How a server on the network is reached.
#[derive(Clone)]
pub(crate) struct Server {
    /// As it was given.
    given: String,
    host: String,
    port: u16,
    tls: Option<Arc<ClientConfig>>,
    token: Option<String>,
}

impl Server {
    /// Reads what `--server` and the options beside it say; none without `--server`.
    pub(crate) fn of(args: &ConnectArgs) -> Result<Option<Self>, ClientError> {
        let Some(given) = &args.server else { return Ok(None) };
        let invalid = || ClientError::ServerUrl { url: given.clone() };
        let uri: Uri = given.parse().map_err(|_| invalid())?;
        let https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(invalid()),
        };
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(invalid)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(invalid());
        }
        let port = uri.port_u16().unwrap_or(if https { 10250 } else { 10255 });
        let token = args.token_file.as_deref().map(read).transpose()?;
        let token = token.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned());
        if token.is_some() && !https {
            // A token in the clear is anybody's.
            return Err(ClientError::TokenInTheClear);
        }
        let tls = if https { Some(Arc::new(tls(args)?)) } else { None };
        Ok(Some(Self { given: given.clone(), host, port, tls, token }))
    }

    pub(crate) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    pub(crate) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    pub(crate) async fn connect(&self) -> Result<Box<dyn Duplex>, ClientError> {
        let failed = |source: io::Error| ClientError::Server { url: self.given.clone(), source };
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(failed)?;
        // It only saves a delay.
        stream.set_nodelay(true).ok();
        let Some(tls) = &self.tls else { return Ok(Box::new(stream)) };
        let name =
            ServerName::try_from(self.host.clone()).map_err(|error| failed(io::Error::other(error)))?;
        let stream = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await.map_err(failed)?;
        Ok(Box::new(stream))
    }
}

/// A connection to the socket.
pub(crate) async fn socket(path: &Path) -> Result<Box<dyn Duplex>, ClientError> {
    let stream = UnixStream::connect(path).await.map_err(|source| {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::NotADirectory => {
                ClientError::NobodyAnswers { path }
            }
            io::ErrorKind::PermissionDenied => ClientError::NotPermitted { path },
            _ => ClientError::Connect { path, source },
        }
    })?;
    Ok(Box::new(stream))
}

fn tls(args: &ConnectArgs) -> Result<ClientConfig, ClientError> {
    let mut roots = RootCertStore::empty();
    match &args.certificate_authority {
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| bad(path, &error.to_string()))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| ClientError::Tls { reason: error.to_string() })?
        .with_root_certificates(roots);
    match (&args.client_certificate, &args.client_key) {
        (Some(certificate), Some(key)) => {
            let chain = certificates(certificate)?;
            let bytes = read(key)?;
            let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| bad(key, &error.to_string()))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| bad(certificate, &error.to_string()))
        }
        _ => Ok(builder.with_no_client_auth()),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ClientError> {
    let bytes = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(bad(path, "there is no certificate in it")),
        Err(error) => Err(bad(path, &error.to_string())),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ClientError> {
    std::fs::read(path).map_err(|source| ClientError::File { path: path.to_owned(), source })
}

fn bad(path: &Path, reason: &str) -> ClientError {
    ClientError::Pem { path: path.to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_named_by_a_url_without_a_path() {
        let of = |url: &str| {
            let args = ConnectArgs { server: Some(url.to_owned()), ..ConnectArgs::default() };
            Server::of(&args).map(|server| server.unwrap().authority()).map_err(|error| error.to_string())
        };
        assert_eq!(of("https://node1").unwrap(), "node1:10250");
        assert_eq!(of("https://node1:443/").unwrap(), "node1:443");
        assert_eq!(of("http://127.0.0.1").unwrap(), "127.0.0.1:10255");
        assert_eq!(of("https://[fd00::1]:10250").unwrap(), "[fd00::1]:10250");
        for url in
            ["node1", "node1:10250", "unix:///x", "https://", "https://node1/pods", "https://node1?a=b"]
        {
            assert!(of(url).unwrap_err().contains("https://HOST:PORT"), "{url}");
        }
        let args = ConnectArgs {
            server: Some("http://node1".into()),
            token_file: Some("/dev/null".into()),
            ..ConnectArgs::default()
        };
        assert!(matches!(Server::of(&args), Err(ClientError::TokenInTheClear)));
    }
}
