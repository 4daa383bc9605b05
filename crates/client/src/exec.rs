//! `mainstay exec` and `mainstay attach`.

use std::{io, time::Duration};

use http::HeaderMap;
use k8s_openapi::api::core::v1::Pod;
use mainstay_stream::{
    Limits,
    negotiate::PROTOCOL_VERSION,
    remotecommand::{self, Input, Outcome, Protocol, RemoteCommand, Version, Wanted},
};
use mainstay_types::PodExt;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::{
    args::{AttachArgs, ExecArgs},
    connection::{Connection, escaped},
    error::ClientError,
    logs::{choices, choose_container},
    output::Output,
    select::{Named, all_pods},
    terminal::{self, RawTerminal},
};

/// What is offered, the best first.
const OFFERED: [(&str, Version); 4] = [
    ("v4.channel.k8s.io", Version::V4),
    ("v3.channel.k8s.io", Version::V3),
    ("v2.channel.k8s.io", Version::V2),
    ("channel.k8s.io", Version::V1),
];
/// How often the other end is asked whether it is there, as kubectl does.
const PING: Duration = Duration::from_secs(5);
const BUFFER_BYTES: usize = 32 * 1024;

/// Runs a command in a container; its exit code.
pub(crate) async fn exec(args: ExecArgs, output: &mut Output) -> Result<u8, ClientError> {
    let ExecArgs { streams: args, command } = args;
    let connection = Connection::new(&args.connect)?;
    let pods = all_pods(&connection).await?;
    let pod = Named::parse(&args.pod, args.namespace.as_deref()).find(&pods)?.admitted()?;
    let container = chosen(pod, args.container.as_deref(), output)?;
    let tty = args.tty && has_terminal(output);
    let wanted = Wanted { stdin: args.stdin, stdout: true, stderr: !tty, tty };
    let mut request = path("exec", pod, container);
    request += &query(wanted);
    for word in &command {
        request += &format!("&command={}", escaped(word));
    }
    stream(&connection, &request, wanted, output).await
}

/// Streams to and from a container's own process; 0 when it has ended.
pub(crate) async fn attach(args: AttachArgs, output: &mut Output) -> Result<u8, ClientError> {
    let connection = Connection::new(&args.connect)?;
    let pods = all_pods(&connection).await?;
    let pod = Named::parse(&args.pod, args.namespace.as_deref()).find(&pods)?.admitted()?;
    let container = chosen(pod, args.container.as_deref(), output)?;
    let spec = pod.container(container).map(|(_, container)| container);
    let of_container = spec.is_some_and(|spec| spec.tty == Some(true));
    if args.tty && !of_container {
        output.note(&format!("Unable to use a TTY - container {container} did not allocate one"));
    }
    if args.stdin && spec.is_some_and(|spec| spec.stdin != Some(true)) {
        output.note(&format!("container {container} takes no input (stdin is not set in its pod)"));
    }
    // Where the container has a terminal there is one stream of output, whatever is asked for.
    let tty = of_container && args.tty && has_terminal(output);
    let wanted = Wanted { stdin: args.stdin, stdout: true, stderr: !of_container, tty: of_container };
    let mut request = path("attach", pod, container);
    request += &query(wanted);
    if args.stdin && tty {
        output.note("If you don't see a command prompt, try pressing enter.");
    }
    if of_container && !tty {
        return stream_with(&connection, &request, wanted, None, output).await;
    }
    stream(&connection, &request, wanted, output).await
}

fn chosen<'a>(pod: &'a Pod, given: Option<&'a str>, output: &mut Output) -> Result<&'a str, ClientError> {
    let container = choose_container(pod, given)?;
    if given.is_none() && pod.all_containers().count() > 1 {
        output.note(&format!("Defaulted container {container:?} out of: {}", choices(pod)));
    }
    Ok(container)
}

fn has_terminal(output: &mut Output) -> bool {
    let is_terminal = terminal::is_terminal();
    if !is_terminal {
        output.note("Unable to use a TTY - input is not a terminal or the right kind of file");
    }
    is_terminal
}

fn path(verb: &str, pod: &Pod, container: &str) -> String {
    format!("/{verb}/{}/{}/{}", escaped(pod.namespace_ref()), escaped(pod.name_ref()), escaped(container))
}

fn query(wanted: Wanted) -> String {
    let digit = u8::from;
    format!(
        "?input={}&output={}&error={}&tty={}",
        digit(wanted.stdin),
        digit(wanted.stdout),
        digit(wanted.stderr),
        digit(wanted.tty)
    )
}

async fn stream(
    connection: &Connection,
    request: &str,
    wanted: Wanted,
    output: &mut Output,
) -> Result<u8, ClientError> {
    // Only a terminal that keys come from is made raw.
    let raw = wanted.tty && wanted.stdin;
    stream_with(connection, request, wanted, raw.then_some(()), output).await
}

async fn stream_with(
    connection: &Connection,
    request: &str,
    wanted: Wanted,
    raw: Option<()>,
    output: &mut Output,
) -> Result<u8, ClientError> {
    output.flush()?;
    let (io, headers) = connection.upgrade(request, &OFFERED.map(|(name, _)| name)).await?;
    let protocol = Protocol::Spdy(version(&headers));
    let limits = Limits { idle: None, keepalive: Some(PING), ..Limits::default() };
    let terminal = raw.map(|()| RawTerminal::begin()).transpose()?;
    let work = async {
        let called = remotecommand::call(io, protocol, wanted, limits, carry);
        Box::pin(called).await.map_err(|source| ClientError::Stream { source })
    };
    let ended = match &terminal {
        Some(_) => terminal::unless_killed(work).await,
        // Nothing is to be restored, so signals do what they always do.
        None => Ok(work.await),
    };
    drop(terminal);
    match ended {
        Err(code) => Ok(code),
        Ok(Err(error)) => Err(error),
        Ok(Ok(Ended::ReaderGone)) => Ok(0),
        Ok(Ok(Ended::Outcome(Ok(Outcome::Success)))) => Ok(0),
        Ok(Ok(Ended::Outcome(Ok(Outcome::Exited { code, .. })))) => {
            output.note(&format!("command terminated with exit code {code}"));
            Ok(u8::try_from(code).unwrap_or(1))
        }
        Ok(Ok(Ended::Outcome(Ok(Outcome::Failed { message })))) => Err(ClientError::Command { message }),
        Ok(Ok(Ended::Outcome(Err(source)))) => Err(ClientError::StreamEnded { source }),
    }
}

fn version(headers: &HeaderMap) -> Version {
    let chosen = headers.get(PROTOCOL_VERSION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    // Those who do not say what they chose are from before there was a choice.
    OFFERED.iter().find(|(name, _)| *name == chosen).map_or(Version::V1, |(_, version)| *version)
}

enum Ended {
    /// How the command ended, or that the connection did before.
    Outcome(io::Result<Outcome>),
    /// Nobody reads what we print.
    ReaderGone,
}

/// Carries this process's streams. What the command still writes is printed before its end is told.
async fn carry(command: RemoteCommand) -> Ended {
    let RemoteCommand { stdin, stdout, stderr, resize, outcome } = command;
    let input = async {
        if let Some(mut to) = stdin {
            let mut from = tokio::io::BufReader::with_capacity(BUFFER_BYTES, tokio::io::stdin());
            // A command that reads no more is no error; its end tells what there is to tell.
            if tokio::io::copy_buf(&mut from, &mut to).await.is_ok() {
                to.shutdown().await.ok();
            }
        }
        std::future::pending::<()>().await;
    };
    let sizes = async {
        match resize {
            Some(to) => terminal::send_sizes(to).await,
            None => std::future::pending().await,
        }
    };
    let output = async {
        // The first that cannot print ends them all.
        let all =
            tokio::try_join!(print(stdout, tokio::io::stdout()), print(stderr, tokio::io::stderr()), async {
                Ok(outcome.read().await)
            },);
        match all {
            Ok(((), (), outcome)) => Ended::Outcome(outcome),
            Err(_) => Ended::ReaderGone,
        }
    };
    // Input and sizes never end; they are dropped with the command.
    tokio::select! {
        ended = output => ended,
        () = input => Ended::ReaderGone,
        () = sizes => Ended::ReaderGone,
    }
}

/// Prints a stream to its end; an error only if nobody reads it.
async fn print(from: Option<Input>, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    use tokio::io::AsyncReadExt;
    let Some(mut from) = from else { return Ok(()) };
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        // A stream that breaks off has ended; whether too early is told by the command's outcome.
        let length = from.read(&mut buffer).await.unwrap_or(0);
        if length == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..length]).await?;
        to.flush().await?;
    }
}
