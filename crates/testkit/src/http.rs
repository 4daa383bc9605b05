//! A small HTTP/1.1 client for unix and TCP sockets, independent of the code under test.

use crate::patient;
use anyhow::{Context, Result, bail, ensure};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Nothing takes nearly as long, but machines are shared.
const TIMEOUT: Duration = Duration::from_secs(60);

trait Stream: Read + Write + Send {}
impl Stream for UnixStream {}
impl Stream for TcpStream {}
impl Stream for StreamOwned<ClientConnection, TcpStream> {}

/// Where a server listens.
#[derive(Debug, Clone)]
pub enum Http {
    /// A unix socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
    /// A TCP address behind which TLS is spoken, to its own IP address.
    Tls(SocketAddr, Arc<ClientConfig>),
}

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Names in lower case, in the order they came.
    pub headers: Vec<(String, String)>,
    /// The decoded body.
    pub body: Vec<u8>,
}

impl Response {
    /// The body as text; bytes that are not UTF-8 are replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The first header of that name (in lower case).
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }
}

impl Http {
    /// Sends a GET and reads the whole answer, whatever its status.
    ///
    /// # Errors
    /// When there is no connection, a minute passes without a byte, or the answer is not HTTP.
    pub fn get(&self, path: &str) -> Result<Response> {
        self.request("GET", path, &[])
    }

    /// Sends a request with extra headers and no body, and reads the whole answer.
    ///
    /// # Errors
    /// As [`Http::get`].
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Result<Response> {
        self.send(method, path, headers, &[])
    }

    /// Sends a request with extra headers and a body, and reads the whole answer.
    ///
    /// # Errors
    /// As [`Http::get`].
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Response> {
        let mut body = self.open(method, path, headers, body, TIMEOUT)?;
        let mut bytes = Vec::new();
        body.read_to_end(&mut bytes).with_context(|| format!("{method} {path}: the answer broke off"))?;
        Ok(Response { status: body.status, headers: body.headers, body: bytes })
    }

    /// Sends a GET and returns once the headers are there; the body is read as it comes. A read fails after
    /// `idle` without a byte.
    ///
    /// # Errors
    /// As [`Http::get`].
    pub fn stream(&self, path: &str, idle: Duration) -> Result<Body> {
        self.begin("GET", path, idle)
    }

    /// The same with another method, for answers that take their time.
    ///
    /// # Errors
    /// As [`Http::get`].
    pub fn begin(&self, method: &str, path: &str, idle: Duration) -> Result<Body> {
        self.open(method, path, &[], &[], idle)
    }

    fn open(
        &self,
        method: &str,
        path: &str,
        extra: &[(&str, &str)],
        content: &[u8],
        idle: Duration,
    ) -> Result<Body> {
        let connection = self.connect(idle).with_context(|| format!("cannot connect to {self}"))?;
        let mut reader = BufReader::new(connection);
        let mut request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
        if !extra.iter().any(|(name, _)| name.eq_ignore_ascii_case("connection")) {
            request.push_str("connection: close\r\n");
        }
        for (name, value) in extra {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        if !content.is_empty() {
            request.push_str(&format!("content-length: {}\r\n", content.len()));
        }
        request.push_str("\r\n");
        let send = |reader: &mut BufReader<Box<dyn Stream>>| -> Result<Body> {
            reader.get_mut().write_all(request.as_bytes())?;
            reader.get_mut().write_all(content)?;
            reader.get_mut().flush()?;
            let (status, headers) = read_head(reader)?;
            let framing = framing(method, status, &headers)?;
            Ok(Body { status, headers, framing, reader: BufReader::new(Box::new(io::empty())) })
        };
        let body = send(&mut reader).with_context(|| format!("{method} {path} on {self}"))?;
        Ok(Body { reader: BufReader::new(Box::new(reader)), ..body })
    }

    fn connect(&self, idle: Duration) -> io::Result<Box<dyn Stream>> {
        let (idle, deadline) = (patient(idle), patient(TIMEOUT));
        match self {
            Self::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(idle))?;
                stream.set_write_timeout(Some(deadline))?;
                Ok(Box::new(stream))
            }
            Self::Tcp(address) | Self::Tls(address, _) => {
                let stream = TcpStream::connect_timeout(address, deadline)?;
                stream.set_read_timeout(Some(idle))?;
                stream.set_write_timeout(Some(deadline))?;
                let Self::Tls(_, config) = self else { return Ok(Box::new(stream)) };
                let name = ServerName::from(address.ip());
                let session = ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
                Ok(Box::new(StreamOwned::new(session, stream)))
            }
        }
    }
}

impl fmt::Display for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp(address) | Self::Tls(address, _) => write!(f, "{address}"),
        }
    }
}

/// How the end of a body is told.
#[derive(Debug, Clone, Copy)]
enum Framing {
    Length(u64),
    /// Bytes left in the current chunk; `None` before its size line.
    Chunked(Option<u64>),
    UntilClose,
    Done,
}

/// A body that is still coming in; dropping it closes the connection.
pub struct Body {
    /// The status code.
    pub status: u16,
    /// Names in lower case, in the order they came.
    pub headers: Vec<(String, String)>,
    framing: Framing,
    reader: BufReader<Box<dyn Read + Send>>,
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body")
            .field("status", &self.status)
            .field("framing", &self.framing)
            .finish_non_exhaustive()
    }
}

impl Read for Body {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        match self.framing {
            Framing::Done => Ok(0),
            Framing::UntilClose => self.reader.read(out),
            Framing::Length(0) => {
                self.framing = Framing::Done;
                Ok(0)
            }
            Framing::Length(left) => {
                let read = self.read_some(out, left)?;
                self.framing = Framing::Length(left - read);
                Ok(to_usize(read))
            }
            Framing::Chunked(Some(left)) => {
                let read = self.read_some(out, left)?;
                self.framing = Framing::Chunked(Some(left - read));
                if left == read {
                    // Each chunk ends with an empty line of its own.
                    read_line(&mut self.reader)?;
                    self.framing = Framing::Chunked(None);
                }
                Ok(to_usize(read))
            }
            Framing::Chunked(None) => {
                let line = read_line(&mut self.reader)?;
                let digits = line.split(';').next().unwrap_or_default().trim();
                let size = u64::from_str_radix(digits, 16).map_err(|_| {
                    io::Error::new(io::ErrorKind::InvalidData, format!("bad chunk size {line:?}"))
                })?;
                if size == 0 {
                    while !read_line(&mut self.reader)?.is_empty() {}
                    self.framing = Framing::Done;
                    return Ok(0);
                }
                self.framing = Framing::Chunked(Some(size));
                self.read(out)
            }
        }
    }
}

impl Body {
    /// Reads at most `left` bytes; an end before that is an error, so a cut answer never looks whole.
    fn read_some(&mut self, out: &mut [u8], left: u64) -> io::Result<u64> {
        let want = out.len().min(to_usize(left));
        let read = self.reader.read(out.get_mut(..want).unwrap_or_default())?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(read as u64)
    }
}

fn to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

fn read_head(reader: &mut impl BufRead) -> Result<(u16, Vec<(String, String)>)> {
    let line = read_line(reader)?;
    let mut words = line.split(' ');
    ensure!(words.next().is_some_and(|word| word.starts_with("HTTP/1.")), "not HTTP/1: {line:?}");
    let status = words.next().and_then(|word| word.parse().ok()).context("no status code")?;
    let mut headers = Vec::new();
    loop {
        let line = read_line(reader)?;
        if line.is_empty() {
            return Ok((status, headers));
        }
        let Some((name, value)) = line.split_once(':') else { bail!("bad header {line:?}") };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

fn framing(method: &str, status: u16, headers: &[(String, String)]) -> Result<Framing> {
    if method == "HEAD" || status == 204 || status == 304 || status < 200 {
        return Ok(Framing::Done);
    }
    if find(headers, "transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        return Ok(Framing::Chunked(None));
    }
    match find(headers, "content-length") {
        Some(length) => Ok(Framing::Length(length.parse().context("bad content-length")?)),
        None => Ok(Framing::UntilClose),
    }
}

fn read_line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    /// Answers one request with raw bytes and closes.
    fn answer(raw: &'static str) -> Http {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap());
            while !read_line(&mut lines).unwrap().is_empty() {}
            stream.write_all(raw.as_bytes()).unwrap();
        });
        Http::Tcp(address)
    }

    #[test]
    fn bodies() {
        let rows = [
            ("length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloEXTRA", Some("hello")),
            ("close", "HTTP/1.1 500 Oops\r\n\r\nwhy", Some("why")),
            (
                "chunks",
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;x=y\r\n!\r\n0\r\nT: v\r\n\r\n",
                Some("hello!"),
            ),
            ("no body", "HTTP/1.1 204 No Content\r\n\r\n", Some("")),
            ("cut length", "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello", None),
            ("cut chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", None),
            ("not HTTP", "SSH-2.0\r\n", None),
        ];
        for (name, raw, expected) in rows {
            let got = answer(raw).get("/x");
            assert_eq!(got.as_ref().ok().map(Response::text).as_deref(), expected, "{name}: {got:?}");
        }
    }

    #[test]
    fn headers_and_status() {
        let got =
            answer("HTTP/1.1 404 Not Found\r\nX-Why: none\r\ncontent-length: 0\r\n\r\n").get("/").unwrap();
        assert_eq!((got.status, got.header("x-why")), (404, Some("none")));
    }
}
