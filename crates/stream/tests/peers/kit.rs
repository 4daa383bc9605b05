//! A small server whose commands live in this process, and the Go program.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use mainstay_stream::negotiate::{self, PortForwardProtocol, Refusal};
use mainstay_stream::remotecommand::{self, CommandStreams, Outcome, Wanted};
use mainstay_stream::{Limits, Stream, StreamError, portforward};
use mainstay_task::TaskGroup;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::sync::mpsc;

/// No test takes nearly as long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// The server under test.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// How many commands and forwarded connections are alive.
    pub(crate) alive: Arc<AtomicUsize>,
    /// How each connection ended.
    pub(crate) ends: mpsc::Receiver<Result<(), StreamError>>,
    _tasks: TaskGroup,
}

#[derive(Clone)]
struct Shared {
    alive: Arc<AtomicUsize>,
    ends: mpsc::Sender<Result<(), StreamError>>,
    tasks: TaskGroup,
}

/// Counts what is alive, whatever way it ends.
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(count))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tasks = TaskGroup::new();
        let alive = Arc::new(AtomicUsize::new(0));
        let (sender, ends) = mpsc::channel(1024);
        let shared = Shared { alive: Arc::clone(&alive), ends: sender, tasks: tasks.clone() };
        tasks.spawn("accept", accept(listener, shared));
        Self { address, alive, ends, _tasks: tasks }
    }

    pub(crate) fn url(&self, path_and_query: &str) -> String {
        format!("http://{}{path_and_query}", self.address)
    }

    pub(crate) async fn end(&mut self) -> Result<(), StreamError> {
        tokio::time::timeout(PATIENCE, self.ends.recv()).await.unwrap().unwrap()
    }

    /// Waits until so many commands and connections are alive.
    pub(crate) async fn wait_alive(&self, count: usize) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while self.alive.load(Ordering::SeqCst) != count {
            let now = self.alive.load(Ordering::SeqCst);
            assert!(tokio::time::Instant::now() < deadline, "{now} are alive, not {count}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

async fn accept(listener: TcpListener, shared: Shared) {
    while let Ok((socket, _)) = listener.accept().await {
        let shared_here = shared.clone();
        shared.tasks.spawn("connection", async move {
            let service = service_fn(move |request| {
                let shared = shared_here.clone();
                async move { Ok::<_, Infallible>(answer(request, shared)) }
            });
            let connection =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service);
            drop(connection.with_upgrades().await);
        });
    }
}

fn answer(request: Request<Incoming>, shared: Shared) -> Response<Full<Bytes>> {
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let agreed = match request.uri().path() {
        "/exec" => {
            let agreed = negotiate::remote_command(request.method(), request.headers());
            agreed.map(|agreed| (agreed.response, exec(request, agreed.protocol, query, shared)))
        }
        _ => {
            let agreed = negotiate::port_forward(request.method(), request.headers());
            agreed.map(|agreed| (agreed.response, forward(request, agreed.protocol, query, shared)))
        }
    };
    match agreed {
        Ok((response, ())) => response.map(|()| Full::default()),
        Err(refusal) => {
            Response::<String>::from(Refusal::clone(&refusal)).map(|body| Full::new(Bytes::from(body)))
        }
    }
}

fn exec(request: Request<Incoming>, protocol: remotecommand::Protocol, query: Query, shared: Shared) {
    let wanted = Wanted {
        stdin: query.is_on("stdin"),
        stdout: query.is_on("stdout"),
        stderr: query.is_on("stderr"),
        tty: query.is_on("tty"),
    };
    shared.tasks.clone().spawn("exec", async move {
        let io = TokioIo::new(hyper::upgrade::on(request).await.unwrap());
        let alive = Arc::clone(&shared.alive);
        let end = remotecommand::serve(io, protocol, wanted, Limits::default(), |streams| async move {
            let _alive = Alive::new(&alive);
            run(query.all("cmd"), streams).await
        });
        let end = end.await;
        shared.ends.send(end).await.unwrap();
    });
}

/// The commands: `cat`, `exit N`, `fail`, `sizes N`, `yes` (output without end), `hang` (reads nothing, says nothing).
async fn run(command: Vec<String>, streams: CommandStreams) -> Outcome {
    let CommandStreams { stdin, stdout, stderr, resize } = streams;
    match command[0].as_str() {
        "cat" => {
            let copied = tokio::io::copy(&mut stdin.unwrap(), &mut stdout.unwrap()).await;
            match copied {
                Ok(_) => Outcome::Success,
                Err(error) => Outcome::Failed { message: error.to_string() },
            }
        }
        "exit" => {
            let code = command[1].parse().unwrap();
            if let Some(mut stderr) = stderr {
                stderr.write_all(format!("exiting with {code}\n").as_bytes()).await.unwrap();
            }
            match code {
                0 => Outcome::Success,
                _ => Outcome::Exited { code, message: format!("command terminated with exit code {code}") },
            }
        }
        "fail" => Outcome::Failed { message: "no such thing".to_owned() },
        "sizes" => {
            let (mut resize, mut stdout) = (resize.unwrap(), stdout.unwrap());
            for _ in 0..command[1].parse().unwrap() {
                let size = resize.next().await.unwrap();
                stdout.write_all(format!("{}x{}\n", size.width, size.height).as_bytes()).await.unwrap();
            }
            Outcome::Success
        }
        "yes" => {
            let mut stdout = stdout.unwrap();
            while stdout.write_all(&[b'y'; 4096]).await.is_ok() {}
            Outcome::Failed { message: "nobody listens".to_owned() }
        }
        "hang" => std::future::pending().await,
        other => Outcome::Failed { message: format!("no command {other}") },
    }
}

fn forward(request: Request<Incoming>, protocol: PortForwardProtocol, query: Query, shared: Shared) {
    shared.tasks.clone().spawn("forward", async move {
        let io = TokioIo::new(hyper::upgrade::on(request).await.unwrap());
        let alive = Arc::clone(&shared.alive);
        let echo = move |port, stream| echo(port, stream, Arc::clone(&alive));
        let limits = Limits::for_port_forward();
        let end = match protocol {
            PortForwardProtocol::Spdy => portforward::serve_spdy(io, limits, echo).await,
            PortForwardProtocol::Tunnel => portforward::serve_tunnel(io, limits, echo).await,
            PortForwardProtocol::WebSocket(codec) => {
                let values = query.all("port");
                let ports = negotiate::ports(values.iter().map(String::as_str)).unwrap();
                portforward::serve_websocket(io, codec, &ports, limits, echo).await
            }
        };
        shared.ends.send(end).await.unwrap();
    });
}

/// Says its port, then echoes. Nobody listens on port 1.
async fn echo(port: u16, mut stream: Stream, alive: Arc<AtomicUsize>) -> Result<(), String> {
    let _alive = Alive::new(&alive);
    if port == 1 {
        return Err("connection refused".to_owned());
    }
    let text = |error: std::io::Error| error.to_string();
    stream.write_all(format!("port {port}\n").as_bytes()).await.map_err(text)?;
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let length = stream.read(&mut buffer).await.map_err(text)?;
        if length == 0 {
            stream.shutdown().await.map_err(text)?;
            return Ok(());
        }
        stream.write_all(&buffer[..length]).await.map_err(text)?;
    }
}

/// The parameters of a request.
struct Query(Vec<(String, String)>);

impl Query {
    fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
        Self(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    fn is_on(&self, key: &str) -> bool {
        self.0.iter().any(|(known, value)| known == key && value == "1")
    }

    fn all(&self, key: &str) -> Vec<String> {
        self.0.iter().filter(|(known, _)| known == key).map(|(_, value)| value.clone()).collect()
    }
}

/// The Go program with some arguments.
pub(crate) fn streamclient(args: &[&str]) -> Command {
    let program: PathBuf = mainstay_testkit::tool("streamclient").unwrap();
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// What came of a run of the Go program.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

/// Runs the Go program with some input to its end.
pub(crate) async fn run_client(args: &[&str], input: &[u8]) -> Ran {
    let mut child = streamclient(args).spawn().unwrap();
    let (mut stdin, mut stdout, mut stderr) =
        (child.stdin.take().unwrap(), child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (mut out, mut err) = (Vec::new(), String::new());
    let all = async {
        let feed = async {
            // A command that ends before its input does is no failure.
            drop(stdin.write_all(input).await);
            drop(stdin);
        };
        let (_, read, read_errors) =
            tokio::join!(feed, stdout.read_to_end(&mut out), stderr.read_to_string(&mut err));
        read.unwrap();
        read_errors.unwrap();
        child.wait().await.unwrap()
    };
    let status = tokio::time::timeout(PATIENCE, all).await.expect("the client hangs");
    Ran { status, stdout: out, stderr: err }
}

/// A GET request to the Go program's server; the answer's body.
pub(crate) async fn get(address: &str, path: &str) -> String {
    let socket = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.unwrap();
    let request = Request::get(path)
        .header("host", address)
        .header("connection", "close")
        .body(Empty::<Bytes>::new())
        .unwrap();
    let exchange = async {
        let response = sender.send_request(request).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    };
    let (body, _) = tokio::join!(exchange, async { drop(connection.await) });
    body
}

/// Bytes that repeat only after a long time.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
