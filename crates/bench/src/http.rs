//! `/pods` beside nginx serving the same bytes from a file, and a thousand watchers.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use mainstay_testkit::{Containerd, Http, Node};

use crate::{
    Plan,
    agent::{self, kib_to_mb},
    process,
    targets::Target,
};

/// Keep-alive connections of the load.
const CONNECTIONS: usize = 8;
const LOAD: Duration = Duration::from_secs(5);
const WATCHERS: usize = 1000;
/// How often a change is made.
const ROUNDS: usize = 5;
const PATIENCE: Duration = Duration::from_secs(60);

/// What one server did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    /// Whole lists a second, eight connections.
    pub(crate) lists: f64,
    /// One list, one connection, median.
    pub(crate) p50: Duration,
    /// `304 Not Modified` a second, eight connections.
    pub(crate) unchanged: f64,
}

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpFigures {
    pub(crate) bytes: usize,
    pub(crate) mainstay: Served,
    pub(crate) nginx: Served,
    /// What the watchers added to resident memory, in KiB.
    pub(crate) watchers_kib: u64,
    /// From a file that is put in place until a watcher who is alone knows of the pod, median.
    pub(crate) alone: Duration,
    /// The same until the last of a thousand does, median.
    pub(crate) last: Duration,
}

pub(crate) fn measure(plan: &Plan) -> Result<HttpFigures> {
    let containerd = Containerd::start(plan.flavor)?;
    containerd.instance().make_cgroup()?;
    let node =
        Node::builder().containerd(&containerd).config("maxPods: 1000\n").program(&plan.mainstay).start()?;
    for number in 0..plan.pods {
        let name = format!("all-{number}");
        std::fs::rename(agent::stage(&node, &name)?, node.manifests().join(format!("{name}.json")))?;
    }
    agent::wait_for_running(&node.http(), plan.pods)?;
    thread::sleep(Duration::from_secs(5));
    let http = Http::Tcp(node.read_only());
    let list = http.get("/pods")?;
    let mainstay = served(node.read_only(), "/pods")?;

    let dir = containerd.dir().join("nginx");
    std::fs::create_dir_all(&dir)?;
    std::fs::write(dir.join("pods"), &list.body)?;
    let nginx = Nginx::start(&dir)?;
    let beside = served(nginx.address, "/pods")?;
    drop(nginx);

    let pid = node.pid().context("the agent has ended")?;
    let open =
        |count: usize| -> Result<Vec<TcpStream>> { (0..count).map(|_| watch(node.read_only())).collect() };
    let alone = told(&node, open(1)?, "alone")?;
    let (before, _) = process::memory_kib(pid)?;
    let watchers = open(WATCHERS)?;
    thread::sleep(Duration::from_secs(2));
    let (after, _) = process::memory_kib(pid)?;
    let last = told(&node, watchers, "late")?;
    let figures = HttpFigures {
        bytes: list.body.len(),
        mainstay,
        nginx: beside,
        watchers_kib: after.saturating_sub(before),
        alone,
        last,
    };
    drop(node);
    containerd.remove()?;
    Ok(figures)
}

impl HttpFigures {
    /// How much later the last of a thousand watchers knows than one who is alone.
    fn delay(&self) -> Duration {
        self.last.saturating_sub(self.alone)
    }

    /// The lines for people.
    pub(crate) fn text(&self) -> String {
        let line = |what: &str, ours: f64, theirs: f64, unit: &str| {
            format!("  {what}: {ours:.0}{unit}, nginx {theirs:.0}{unit}: {:.2} x\n", ours / theirs)
        };
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        line(&format!("/pods, {} KB", self.bytes / 1000), self.mainstay.lists, self.nginx.lists, "/s")
            + &line("one /pods, p50", micros(self.mainstay.p50), micros(self.nginx.p50), " us")
            + &line("304", self.mainstay.unchanged, self.nginx.unchanged, "/s")
            + &format!(
                "  {WATCHERS} watchers: {:.1} MB; the last knows of a new file after {:.1} ms, one who is alone after {:.1} ms\n",
                kib_to_mb(self.watchers_kib),
                self.last.as_secs_f64() * 1e3,
                self.alone.as_secs_f64() * 1e3
            )
    }

    /// What must be reached, and whether it was.
    pub(crate) fn targets(&self) -> Vec<Target> {
        let (ours, theirs) = (&self.mainstay, &self.nginx);
        let target = |what, bound: String, measured: String, met| Target { what, bound, measured, met };
        let at_least = |what, share: f64, ours: f64, theirs: f64| {
            let bound = format!("≥ {:.0} /s, {share} of nginx's", share * theirs);
            target(
                what,
                bound,
                format!("{ours:.0} /s, {:.2} of nginx's", ours / theirs),
                ours >= share * theirs,
            )
        };
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let (one, beside) = (micros(ours.p50), micros(theirs.p50));
        let megabytes = kib_to_mb(self.watchers_kib);
        let delay = self.delay().as_secs_f64() * 1e3;
        vec![
            at_least("`/pods`, eight connections", 0.7, ours.lists, theirs.lists),
            target(
                "`/pods`, one connection, median",
                format!("≤ {:.0} µs, 1.5 of nginx's", 1.5 * beside),
                format!("{one:.0} µs, {:.2} of nginx's", one / beside),
                one <= 1.5 * beside,
            ),
            at_least("`/pods` unchanged (304), eight connections", 0.5, ours.unchanged, theirs.unchanged),
            target(
                "memory of a thousand watchers",
                "≤ 20.0 MB".into(),
                format!("{megabytes:.1} MB"),
                megabytes <= 20.0,
            ),
            target(
                "the last of a thousand watchers knows later than one who is alone would",
                "≤ 50 ms".into(),
                format!("{delay:.0} ms"),
                delay <= 50.0,
            ),
        ]
    }
}

fn served(address: SocketAddr, path: &str) -> Result<Served> {
    let plain = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    let tag = Client::new(address)?.ask(&plain)?.1.context("no ETag")?;
    let known = format!("GET {path} HTTP/1.1\r\nHost: x\r\nIf-None-Match: {tag}\r\n\r\n");
    let lists = load(address, &plain, 200)?;
    let unchanged = load(address, &known, 304)?;
    let mut client = Client::new(address)?;
    let mut times = Vec::new();
    for _ in 0..1000 {
        let begun = Instant::now();
        client.ask(&plain)?;
        times.push(begun.elapsed());
    }
    Ok(Served { lists, p50: agent::median(&mut times), unchanged })
}

/// Requests a second over eight connections.
fn load(address: SocketAddr, request: &str, status: u16) -> Result<f64> {
    let begun = Instant::now();
    let workers: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let request = request.to_owned();
            thread::spawn(move || -> Result<u32> {
                let mut client = Client::new(address)?;
                let mut done = 0;
                while begun.elapsed() < LOAD {
                    let (found, _) = client.ask(&request)?;
                    ensure!(found == status, "{found} instead of {status}");
                    done += 1;
                }
                Ok(done)
            })
        })
        .collect();
    let mut all = 0;
    for worker in workers {
        all += worker.join().map_err(|_| anyhow::anyhow!("a worker died"))??;
    }
    Ok(f64::from(all) / begun.elapsed().as_secs_f64())
}

/// One keep-alive connection that reads and forgets.
struct Client {
    stream: BufReader<TcpStream>,
    body: Vec<u8>,
}

impl Client {
    fn new(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::with_capacity(64 << 10, stream), body: Vec::new() })
    }

    /// Status and `ETag`.
    fn ask(&mut self, request: &str) -> Result<(u16, Option<String>)> {
        self.stream.get_mut().write_all(request.as_bytes())?;
        let (status, length, tag) = head(&mut self.stream)?;
        self.body.resize(length, 0);
        self.stream.read_exact(&mut self.body)?;
        Ok((status, tag))
    }
}

fn head(stream: &mut BufReader<TcpStream>) -> Result<(u16, usize, Option<String>)> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|text| text.parse().ok()).context("no status")?;
    let (mut length, mut tag) = (0, None);
    loop {
        line.clear();
        ensure!(stream.read_line(&mut line)? > 0, "the connection ended");
        let Some((name, value)) = line.trim_end().split_once(':') else { return Ok((status, length, tag)) };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse()?;
        } else if name.eq_ignore_ascii_case("etag") {
            tag = Some(value.trim().to_owned());
        }
    }
}

/// A watcher that has read the initial pods.
pub(crate) fn watch(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::with_capacity(4096, stream);
    reader.get_mut().write_all(b"GET /pods?watch=1 HTTP/1.1\r\nHost: x\r\n\r\n")?;
    let (status, ..) = head(&mut reader)?;
    ensure!(status == 200, "a watch was answered with {status}");
    let mut line = String::new();
    while !line.contains("\"BOOKMARK\"") {
        line.clear();
        ensure!(reader.read_line(&mut line)? > 0, "the watch ended");
    }
    Ok(reader.into_inner())
}

/// How long it takes from a file that is put in place until the last watcher knows of its pod; the median of some.
fn told(node: &Node, watchers: Vec<TcpStream>, name: &str) -> Result<Duration> {
    // One thread, as a thousand of them would mostly wait for one another.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut times = Vec::new();
    runtime.block_on(async {
        let mut watchers: Vec<Watcher> = watchers.into_iter().map(Watcher::new).collect::<Result<_>>()?;
        for round in 0..ROUNDS {
            let pod = format!("{name}-{round}");
            let staged = agent::stage(node, &pod)?;
            let begun = Instant::now();
            std::fs::rename(staged, node.manifests().join(format!("{pod}.json")))?;
            let word = format!("\"{pod}-");
            let mut last = begun;
            // In turn: what has come for one meanwhile is read at once.
            for watcher in &mut watchers {
                last = last.max(tokio::time::timeout(PATIENCE, watcher.until(&word)).await??);
            }
            times.push(last.duration_since(begun));
            // The pod starts, which is told as well.
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        anyhow::Ok(())
    })?;
    Ok(agent::median(&mut times))
}

/// One watch, and what of it has been read and not looked at.
pub(crate) struct Watcher {
    stream: tokio::net::TcpStream,
    rest: Vec<u8>,
}

impl Watcher {
    pub(crate) fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream: tokio::net::TcpStream::from_std(stream)?, rest: Vec::new() })
    }

    /// When the word came.
    pub(crate) async fn until(&mut self, word: &str) -> Result<Instant> {
        loop {
            if self.rest.windows(word.len()).any(|window| window == word.as_bytes()) {
                self.rest.clear();
                return Ok(Instant::now());
            }
            self.stream.readable().await?;
            match self.stream.try_read_buf(&mut self.rest) {
                Ok(0) => bail!("the watch ended"),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

struct Nginx {
    child: Child,
    address: SocketAddr,
}

impl Nginx {
    fn start(dir: &Path) -> Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let root = dir.display();
        let config = format!(
            "worker_processes auto;\nuser root;\npid {root}/pid;\nerror_log {root}/error.log;\nevents {{ worker_connections 1024; }}\n\
             http {{\n  access_log off;\n  sendfile on;\n  tcp_nopush on;\n  keepalive_requests 100000000;\n  etag on;\n\
             default_type application/json;\n  server {{ listen {address}; root {root}; }}\n}}\n"
        );
        std::fs::write(dir.join("nginx.conf"), config)?;
        let child = Command::new("nginx")
            .args(["-p", &root.to_string(), "-c", "nginx.conf", "-g", "daemon off;"])
            .stdin(Stdio::null())
            .spawn()
            .context("cannot start nginx; install Debian's nginx-light (scripts/setup.sh bench does)")?;
        let nginx = Self { child, address };
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            ensure!(begun.elapsed() < PATIENCE, "nginx does not listen on {address}");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(nginx)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Its workers go with it when it is told to end; killing it would leave them.
        let pid = self.child.id().to_string();
        drop(Command::new("kill").args(["-TERM", &pid]).status());
        drop(self.child.wait());
    }
}
