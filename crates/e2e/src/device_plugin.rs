//! The device plugin for tests (`src/bin/device-plugin.rs`), started and told what to do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use mainstay_testkit::Node;
use serde_json::Value;
use tempfile::TempDir;

/// A device plugin on a node; killed when dropped.
#[derive(Debug)]
pub struct DevicePlugin {
    program: PathBuf,
    root: PathBuf,
    /// It waits to be found, instead of calling.
    watched: bool,
    resource: String,
    state: TempDir,
    child: Option<Child>,
}

impl DevicePlugin {
    /// A plugin that has these devices: `[{"id": "a", "healthy": true}, …]`. It is not started yet.
    ///
    /// # Errors
    /// When its files cannot be written.
    pub fn new(program: impl Into<PathBuf>, node: &Node, resource: &str, devices: &Value) -> Result<Self> {
        let state = TempDir::new().context("no directory for the plugin")?;
        fs::create_dir(state.path().join("mount"))?;
        fs::write(state.path().join("mount/hello"), "from the plugin\n")?;
        let plugin = Self {
            program: program.into(),
            root: node.root().to_owned(),
            watched: false,
            resource: resource.to_owned(),
            state,
            child: None,
        };
        plugin.have(devices)?;
        Ok(plugin)
    }

    /// The same, that waits below `plugins_registry` to be found.
    #[must_use]
    pub fn watched(mut self) -> Self {
        self.watched = true;
        self
    }

    /// Its socket: where it is called, or found.
    pub fn socket(&self) -> PathBuf {
        self.root.join(if self.watched { "plugins_registry" } else { "device-plugins" }).join(self.endpoint())
    }

    // The end of its resource's name tells one plugin's socket from another's.
    fn endpoint(&self) -> String {
        format!("{}.sock", self.resource.rsplit('/').next().unwrap_or_default())
    }

    /// Starts it.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn start(&mut self) -> Result<()> {
        self.kill();
        let mut command = Command::new(&self.program);
        if self.watched {
            command.arg("watched").arg(&self.root);
        } else {
            command.arg("serve").arg(self.root.join("device-plugins"));
        }
        command.arg(self.endpoint()).arg(&self.resource).arg(self.state.path());
        let child = command.stdin(Stdio::null()).spawn();
        self.child = Some(child.with_context(|| format!("cannot run {}", self.program.display()))?);
        Ok(())
    }

    /// Kills it.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended.
            child.kill().ok();
            child.wait().ok();
        }
    }

    /// From now on it has these devices.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn have(&self, devices: &Value) -> Result<()> {
        self.put("devices.json", &devices.to_string())
    }

    /// Puts a file into its state: `hang`, `refuse`, `options`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn put(&self, name: &str, text: &str) -> Result<()> {
        // In one step: it looks whenever it wants.
        let hidden = self.state.path().join(format!(".{name}"));
        fs::write(&hidden, text)?;
        fs::rename(&hidden, self.state.path().join(name)).with_context(|| format!("cannot put {name}"))
    }

    /// Takes a file out of its state.
    ///
    /// # Errors
    /// When it is not there.
    pub fn take_away(&self, name: &str) -> Result<()> {
        fs::remove_file(self.state.path().join(name)).with_context(|| format!("cannot take {name} away"))
    }

    /// What it was called with, oldest first.
    pub fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.state.path().join("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for DevicePlugin {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a registration comes to: `registered`, or a code and a text.
///
/// # Errors
/// When the program cannot be run.
pub fn register(
    program: &Path,
    node: &Node,
    version: &str,
    endpoint: &str,
    resource: &str,
) -> Result<String> {
    let directory = node.root().join("device-plugins");
    let mut command = Command::new(program);
    command.arg("register").arg(directory).args([version, endpoint, resource]);
    let output = command.output().context("cannot run the plugin")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}
