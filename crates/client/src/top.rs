//! `mainstay top`: what the node and its pods use, looked at again and again, on a terminal.
//!
//! What is shown is computed by [`model`] and drawn by [`draw`], which know nothing of terminals; here it is fetched, keys are
//! read, and the terminal is put back as it was. Nothing is sampled for it: it reads what the node has read anyway.

mod draw;
mod keys;
mod model;

use std::{io::IsTerminal, time::Duration};

use k8s_openapi::api::core::v1::Node;
use rustix::termios::tcgetwinsize;
use tokio::{
    io::AsyncReadExt,
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep_until},
};

use crate::{
    args::TopArgs,
    connection::{Connection, escaped},
    error::ClientError,
    output::Output,
    select::all_pods,
    stats,
    terminal::{RawTerminal, unless_killed},
};

use self::{
    draw::{Size, ansi, plain, screen},
    keys::{Key, Keys},
    model::{Model, Reading, Request},
};

/// A terminal that says nothing of its size.
const USUAL: Size = Size { columns: 80, rows: 24 };
/// Lines of a log that are asked for.
const LOG_LINES: u32 = 1000;
/// The alternate screen without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

pub(crate) async fn run(args: TopArgs, output: &mut Output) -> Result<u8, ClientError> {
    let connection = Connection::new(&args.connect)?;
    let mut model = Model::new(args.sort, args.namespace.clone());
    // A pipe has no keys and no screen.
    if args.once || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        model.take(fetch(&connection).await?);
        output.text(&plain(&model, args.containers))?;
        output.flush()?;
        return Ok(0);
    }
    // What is wrong with the connection is told before the screen is taken.
    model.take(fetch(&connection).await?);
    let seconds = args.interval.max(1);
    let terminal = Screen::enter(output)?;
    let watched = unless_killed(watch(&connection, &mut model, Duration::from_secs(seconds), output)).await;
    terminal.leave(output)?;
    match watched {
        Ok(done) => done.map(|()| 0),
        Err(code) => Ok(code),
    }
}

/// The raw terminal and its other screen.
struct Screen {
    _raw: RawTerminal,
}

impl Screen {
    fn enter(output: &mut Output) -> Result<Self, ClientError> {
        let raw = RawTerminal::begin()?;
        output.text(ENTER)?;
        output.flush()?;
        Ok(Self { _raw: raw })
    }

    fn leave(self, output: &mut Output) -> Result<(), ClientError> {
        output.text(LEAVE)?;
        output.flush()
    }
}

fn size() -> Size {
    match tcgetwinsize(rustix::stdio::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
            Size { columns: size.ws_col.into(), rows: size.ws_row.into() }
        }
        _ => USUAL,
    }
}

/// Draws and reads keys until somebody has seen enough.
async fn watch(
    connection: &Connection,
    model: &mut Model,
    interval: Duration,
    output: &mut Output,
) -> Result<(), ClientError> {
    let mut input = tokio::io::stdin();
    let mut resized =
        signal(SignalKind::window_change()).map_err(|source| ClientError::Terminal { source })?;
    let (mut keys, mut bytes) = (Keys::default(), [0; 64]);
    let mut next = Instant::now() + interval;
    loop {
        output.text(&ansi(&screen(model, size())))?;
        output.flush()?;
        // Cancel safe: a key that is not read yet is read next time.
        tokio::select! {
            read = input.read(&mut bytes) => {
                let count = read.unwrap_or(0);
                if count == 0 {
                    return Ok(());
                }
                for key in keys.add(bytes.get(..count).unwrap_or_default()) {
                    if key == Key::Quit {
                        return Ok(());
                    }
                    match model.press(key, size()) {
                        Some(Request::Log { namespace, pod, container }) => {
                            model.show_log(log(connection, &namespace, &pod, &container).await);
                        }
                        None => {}
                    }
                }
            }
            _ = resized.recv() => {}
            () = sleep_until(next) => {
                next = Instant::now() + interval;
                match fetch(connection).await {
                    Ok(reading) => model.take(reading),
                    Err(error) => model.trouble(error.whole_chain()),
                }
                if let Some((namespace, pod, container)) = model.open_log() {
                    model.show_log(log(connection, &namespace, &pod, &container).await);
                }
            }
        }
    }
}

async fn log(connection: &Connection, namespace: &str, pod: &str, container: &str) -> Result<String, String> {
    let request = format!(
        "/containerLogs/{}/{}/{}?tailLines={LOG_LINES}",
        escaped(namespace),
        escaped(pod),
        escaped(container)
    );
    connection.text(&request).await.map_err(|error| error.whole_chain())
}

/// Everything that is shown, once.
async fn fetch(connection: &Connection) -> Result<Reading, ClientError> {
    let (summary, io) = stats::fetch(connection).await?;
    let pods = all_pods(connection).await?;
    // The node's conditions may be another's to read.
    let node = connection.json::<Node>("/node").await.ok();
    Reading::of(&summary, &io, &pods, node.as_ref())
}
