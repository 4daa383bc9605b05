//! exec, attach and port-forward by upstream's own client code (`tools/streamclient`), through the secure port.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mainstay_testkit::{capture, patient, tool, wait_until};

use crate::{SOON, World};

/// How long any client may run; none takes nearly as long.
const PATIENCE: Duration = Duration::from_secs(300);

/// What the client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// SPDY/3.1.
    Spdy,
    /// WebSocket; for port-forward SPDY inside of it.
    WebSocket,
}

impl Transport {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Spdy, Self::WebSocket];

    fn word(self) -> &'static str {
        match self {
            Self::Spdy => "spdy",
            Self::WebSocket => "websocket",
        }
    }
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// May do everything.
    Admin,
    /// May `get` everything.
    Viewer,
    /// Has no token.
    Nobody,
}

/// How a client ended.
#[derive(Debug)]
pub struct Ran {
    /// The remote command's exit code; 125 for failures of the client itself.
    pub code: Option<i32>,
    /// What it wrote.
    pub stdout: Vec<u8>,
    /// What it and the client wrote as errors.
    pub stderr: String,
}

impl Ran {
    /// The output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// Upstream's client for one node, with users that the node knows.
#[derive(Debug)]
pub struct StreamClient {
    program: PathBuf,
    base: String,
    root: PathBuf,
}

impl StreamClient {
    /// Makes the users, and waits until the node lets them in.
    ///
    /// # Errors
    /// When the client was not built, or the node does not let the users in.
    pub fn new(world: &World) -> Result<Self> {
        let root = world.node.root().to_owned();
        let mut access = "apiVersion: access.mainstay.io/v1\nkind: LocalAccess\nusers:\n".to_owned();
        for user in ["admin", "viewer"] {
            let file = root.join(format!("{user}-token"));
            fs::write(&file, format!("{user}-token"))?;
            let sum = capture(Command::new("sha256sum").arg(&file), SOON)?;
            let sum = sum.split(' ').next().unwrap_or_default();
            access += &format!("- {{name: {user}, tokenSHA256: {sum}}}\n");
        }
        access += "rules:\n\
            - {users: [admin], verbs: ['*'], subresources: ['*']}\n\
            - {users: [viewer], verbs: [get], subresources: ['*']}\n";
        fs::write(root.join("access.yaml"), access)?;
        let base = format!("https://localhost:{}", world.node.secure().port());
        let client = Self { program: tool("streamclient")?, base, root };
        wait_until(SOON, "the node to let its users in", || {
            // Nobody has that pod, which only those are told who are let in.
            let ran = client.exec(User::Admin, Transport::Spdy, "/exec/no/pod/c?output=1", &["-stdout"], b"");
            match ran {
                Ok(ran) if ran.stderr.contains("pod does not exist") => Ok(()),
                Ok(ran) => Err(ran.stderr),
                Err(error) => Err(format!("{error:#}")),
            }
        })?;
        Ok(client)
    }

    /// Starts the client for exec or attach: a path with its query, and what the streams are (`-stdin`, `-tty` …).
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn begin(&self, user: User, transport: Transport, path: &str, flags: &[&str]) -> Result<Child> {
        self.start("exec", user, path, &[&["-transport", transport.word()], flags].concat())
    }

    /// Starts the client that speaks plain WebSocket, message by message (`tools/streamclient/frames.go`).
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn frames(&self, path: &str, flags: &[&str]) -> Result<Child> {
        self.start("frames", User::Admin, path, flags)
    }

    /// The same to its end, with that input.
    ///
    /// # Errors
    /// When it cannot be started, or does not end.
    pub fn exec(
        &self,
        user: User,
        transport: Transport,
        path: &str,
        flags: &[&str],
        input: &[u8],
    ) -> Result<Ran> {
        finish(self.begin(user, transport, path, flags)?, input)
    }

    /// Starts the client for port-forward: the path of a pod, and pairs of ports `LOCAL:REMOTE`; the local ports it listens on. It ends when its
    /// input does.
    ///
    /// # Errors
    /// When it does not listen.
    pub fn forward(&self, transport: Transport, path: &str, ports: &[u16]) -> Result<(Child, Vec<u16>)> {
        let pairs: Vec<String> = ports.iter().map(|port| format!("0:{port}")).collect();
        let flags = ["-transport", transport.word(), "-ports", &pairs.join(",")];
        let mut child = self.start("forward", User::Admin, path, &flags)?;
        let mut local = Vec::new();
        let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        while local.len() < ports.len() {
            let Some(line) = lines.next() else { break };
            // Forwarding from 127.0.0.1:35183 -> 8001
            let port: Option<u16> =
                line?.split_once("127.0.0.1:").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
            local.extend(port);
        }
        if local.len() < ports.len() {
            let ran = finish(child, b"")?;
            anyhow::bail!("the forwarder does not listen: {}", ran.stderr);
        }
        // It goes on to write a line for each connection, which somebody has to read.
        std::thread::spawn(move || lines.for_each(drop));
        Ok((child, local))
    }

    fn start(&self, verb: &str, user: User, path: &str, flags: &[&str]) -> Result<Child> {
        let mut command = Command::new(&self.program);
        command.args([verb, "-url", &format!("{}{path}", self.base)]);
        command.arg("-ca").arg(self.root.join("pki/kubelet.crt"));
        let token = match user {
            User::Admin => Some("admin-token"),
            User::Viewer => Some("viewer-token"),
            User::Nobody => None,
        };
        if let Some(token) = token {
            command.arg("-token-file").arg(self.root.join(token));
        }
        command.args(flags).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().with_context(|| format!("cannot run {command:?}"))
    }
}

/// A script for a container to which somebody attaches: it says that it waits until it is spoken to, and ends with code 3 at
/// the line after `bye`, without another word: containerd 1.6 may drop what a container says as it ends. Who attaches hears
/// only what is said from then on.
pub const LISTENER: &str = "while :; do if read -t 1 line; then echo \"got $line\"; \
                            [ \"$line\" = bye ] && read line && exit 3; else echo waiting; sleep 0.2; fi; done";

/// Speaks to a [`LISTENER`] once it is heard, up to `bye`, and waits for its end; what it answered.
///
/// # Errors
/// When it is not heard, or does not end.
pub fn speak(mut child: Child, input: &[u8]) -> Result<(Ran, String)> {
    // Where input ends, containerd takes the client for gone, so it stays open.
    let mut stdin = child.stdin.take().context("no input")?;
    let stdout = child.stdout.take().context("no output")?;
    let (sender, lines) = mpsc::channel();
    // Ends with the client's output.
    std::thread::spawn(move || {
        BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| sender.send(line)).ok();
    });
    let mut said: Vec<String> = Vec::new();
    let mut converse = || -> Result<()> {
        let deadline = Instant::now() + patient(PATIENCE);
        // It says that it waits for as long as it does: all together has a deadline.
        let next = || {
            let left = deadline.saturating_duration_since(Instant::now());
            lines.recv_timeout(left).context("nothing more is heard")
        };
        // The runtime puts input through as soon as it has it, also before it listens: so first it has to be heard.
        said.push(next()?);
        stdin.write_all(input).context("it takes no input")?;
        while said.last().is_none_or(|line| line != "got bye") {
            said.push(next()?);
        }
        stdin.write_all(b"\n").context("it takes no input")
    };
    let heard = converse();
    if heard.is_err() {
        child.kill().ok();
    }
    let mut ran = finish(child, b"")?;
    heard.with_context(|| format!("after {said:?} {}", ran.stderr))?;
    said.extend(lines.iter());
    let answers: Vec<&str> = said.iter().map(String::as_str).filter(|line| *line != "waiting").collect();
    let answers = answers.join("\n");
    ran.stdout = said.join("\n").into_bytes();
    Ok((ran, answers))
}

/// Gives a client its input and waits for its end.
///
/// # Errors
/// When it does not end.
pub fn finish(mut child: Child, input: &[u8]) -> Result<Ran> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if let Some(mut stdin) = stdin {
                // A command that ends before its input does is no failure.
                stdin.write_all(input).ok();
            }
        });
        let out = scope.spawn(|| read(stdout));
        let err = scope.spawn(|| read(stderr));
        let ended = wait_until(patient(PATIENCE), "the client's end", || match child.try_wait() {
            Ok(Some(status)) => Ok(status),
            Ok(None) => Err("it runs".to_owned()),
            Err(error) => Err(error.to_string()),
        });
        if ended.is_err() {
            child.kill().ok();
        }
        let (stdout, stderr) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
        let stderr = String::from_utf8_lossy(&stderr).into_owned();
        ensure!(
            ended.is_ok(),
            "the client hangs; it said {:?} and {stderr}",
            String::from_utf8_lossy(&stdout).get(..200)
        );
        Ok(Ran { code: ended?.code(), stdout, stderr })
    })
}

fn read(stream: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        stream.read_to_end(&mut bytes).ok();
    }
    bytes
}

/// Bytes that repeat only after a long time.
pub fn noise(length: usize) -> Vec<u8> {
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
