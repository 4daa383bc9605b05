//! The node's gRPC sockets, asked by a foreign client: `examples/grpc/node_api.py` on Python's own gRPC.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use mainstay_testkit::{Node, build_dir, wait_until, workspace_root};
use serde_json::Value;

use crate::SOON;

/// Those who ask on every socket, again and again, and by a watch.
#[derive(Debug)]
pub struct Everybody(Vec<(&'static str, Listening, Value)>);

impl Everybody {
    /// Starts them, and waits until all have been told that exactly these pods are there, and ready.
    ///
    /// # Errors
    /// When that is not so.
    pub fn listens<S: Into<String>>(node: &Node, names: impl IntoIterator<Item = S>) -> Result<Self> {
        let mut names: Vec<String> = names.into_iter().map(Into::into).collect();
        names.sort();
        let ready: serde_json::Map<String, Value> =
            names.iter().map(|name| (name.clone(), Value::Bool(true))).collect();
        let expected = |what: &str| match what {
            "poll-resources" => Value::from(names.clone()),
            _ => Value::Object(ready.clone()),
        };
        let all = ["poll-conditions", "poll-pods", "poll-watch", "poll-resources"];
        let all = all.map(|what| {
            let client = Listening::start(node_api(node, &[what, "3600"])?)?;
            Ok((what, client, expected(what)))
        });
        let all = Self(all.into_iter().collect::<Result<_>>()?);
        all.wait("to be told of all pods", |said, whole| said.contains(whole))?;
        Ok(all)
    }

    /// Waits until each of them was refused, as while nobody listens.
    ///
    /// # Errors
    /// When somebody was not.
    pub fn are_refused(&self) -> Result<()> {
        self.wait("to be refused", |said, _| said.iter().any(|answer| answer == "UNAVAILABLE"))
    }

    /// That nobody was ever told anything but the whole, or why not, since all of them were told it.
    ///
    /// # Errors
    /// With what else was said.
    pub fn were_told_the_whole_or_nothing(&self) -> Result<()> {
        // A call that comes between the socket and its server waits, and its client may give up first.
        let refusals = ["UNAVAILABLE", "FAILED_PRECONDITION", "DEADLINE_EXCEEDED"];
        for (what, client, whole) in &self.0 {
            let said = client.said();
            // Before that a pod may not have been ready yet.
            let first = said.iter().position(|answer| answer == whole).context("it was never told")?;
            let fine = |answer: &Value| answer == whole || refusals.iter().any(|code| answer == code);
            ensure!(said.iter().skip(first).all(fine), "{what}: {said:?} instead of {whole}");
        }
        Ok(())
    }

    fn wait(&self, what: &str, check: impl Fn(&[Value], &Value) -> bool) -> Result<()> {
        for (who, client, whole) in &self.0 {
            client.wait(&format!("{who} {what}"), |said| check(said, whole).then_some(()))?;
        }
        Ok(())
    }
}

/// The client for a node's sockets.
///
/// # Errors
/// When Python's gRPC is not there.
pub fn node_api(node: &Node, words: &[&str]) -> Result<Command> {
    let python = build_dir().join("python/bin/python");
    ensure!(python.exists(), "{} is missing; `make setup-test` installs it", python.display());
    let mut command = Command::new(python);
    command
        .arg(workspace_root().join("examples/grpc/node_api.py"))
        .arg("--root")
        .arg(node.root())
        .args(words);
    Ok(command)
}

/// The one message that a call comes to; a failed call is an object with `code` and `message`.
///
/// # Errors
/// When the client cannot be run or says something else.
pub fn ask(node: &Node, words: &[&str]) -> Result<Value> {
    let output = node_api(node, words)?.output().context("cannot run the client")?;
    let said = String::from_utf8_lossy(&output.stdout);
    match said.lines().collect::<Vec<_>>().as_slice() {
        [line] => serde_json::from_str(line).with_context(|| format!("{words:?}: {line}")),
        lines => bail!("{words:?}: {lines:#?}\n{}", String::from_utf8_lossy(&output.stderr)),
    }
}

/// A client that goes on; ended when dropped.
#[derive(Debug)]
pub struct Listening {
    child: Child,
    said: Arc<Mutex<Vec<Value>>>,
}

impl Listening {
    /// Starts a call that streams.
    ///
    /// # Errors
    /// When the client cannot be run.
    pub fn start(mut command: Command) -> Result<Self> {
        let mut child = command.stdout(Stdio::piped()).spawn().context("cannot run the client")?;
        let output = child.stdout.take().context("the client has no output")?;
        let said = Arc::<Mutex<Vec<Value>>>::default();
        let sink = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let value = serde_json::from_str(&line).unwrap_or(Value::String(line));
                sink.lock().unwrap_or_else(PoisonError::into_inner).push(value);
            }
        });
        Ok(Self { child, said })
    }

    /// What it has said so far.
    pub fn said(&self) -> Vec<Value> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until what it said is as `check` wants it.
    ///
    /// # Errors
    /// After [`SOON`], with what it said.
    pub fn wait<T>(&self, what: &str, check: impl Fn(&[Value]) -> Option<T>) -> Result<T> {
        wait_until(SOON, what, || {
            let said = self.said();
            check(&said).ok_or_else(|| format!("{said:#?}"))
        })
    }

    /// Waits for its end, and returns all that it said.
    ///
    /// # Errors
    /// When it does not end.
    pub fn ended(mut self, timeout: Duration) -> Result<Vec<Value>> {
        wait_until(timeout, "the client's end", || match self.child.try_wait() {
            Ok(Some(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        })?;
        // The reader has all of it when it has read the end.
        wait_until(SOON, "the client's last words", || match Arc::strong_count(&self.said) {
            1 => Ok(()),
            _ => Err("its output is still open".to_owned()),
        })?;
        Ok(self.said())
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // It may have ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
