//! Images made on the spot from Debian's static busybox: no registry, no network.

use crate::tar::Tar;
use crate::{build_dir, capture, paths};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The busybox image that every private containerd has.
pub const BUSYBOX: &str = "docker.io/local/busybox:1";
/// The sandbox image that every private containerd has.
pub const PAUSE: &str = "docker.io/local/pause:1";

/// Part of every cache key; count up when the layout below changes.
const LAYOUT: u32 = 1;

/// An image to be made: busybox with every applet, plus what is set here.
#[derive(Debug, Clone)]
pub struct Image {
    name: String,
    entrypoint: Vec<String>,
    cmd: Vec<String>,
    env: Vec<String>,
    user: String,
    working_dir: String,
    files: Vec<(String, String)>,
    /// Where each goes, where it comes from, and its digest.
    programs: Vec<(String, PathBuf, String)>,
}

impl Image {
    /// `docker.io/local/busybox:1`: a shell with every busybox applet, users root, nobody and app (1000).
    pub fn busybox() -> Self {
        Self::named(BUSYBOX)
    }

    /// `docker.io/local/pause:1`: sleeps until it is killed.
    pub fn pause() -> Self {
        Self::named(PAUSE).entrypoint(["/bin/sleep", "2147483647"]).cmd([])
    }

    /// A busybox image under another full name, such as `docker.io/local/server:2`.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            entrypoint: Vec::new(),
            cmd: vec!["sh".to_owned()],
            env: vec!["PATH=/usr/sbin:/usr/bin:/sbin:/bin".to_owned()],
            user: String::new(),
            working_dir: String::new(),
            files: Vec::new(),
            programs: Vec::new(),
        }
    }

    /// Sets `Entrypoint`.
    #[must_use]
    pub fn entrypoint<const N: usize>(mut self, words: [&str; N]) -> Self {
        self.entrypoint = words.map(str::to_owned).to_vec();
        self
    }

    /// Sets `Cmd`.
    #[must_use]
    pub fn cmd<const N: usize>(mut self, words: [&str; N]) -> Self {
        self.cmd = words.map(str::to_owned).to_vec();
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push(format!("{name}={value}"));
        self
    }

    /// Sets `User` (a name or number, as an image has it).
    #[must_use]
    pub fn user(mut self, user: &str) -> Self {
        user.clone_into(&mut self.user);
        self
    }

    /// Sets `WorkingDir`.
    #[must_use]
    pub fn working_dir(mut self, dir: &str) -> Self {
        dir.clone_into(&mut self.working_dir);
        self
    }

    /// Adds an executable file below an existing directory, such as `/bin/server`.
    #[must_use]
    pub fn file(mut self, path: &str, content: &str) -> Self {
        self.files.push((path.trim_start_matches('/').to_owned(), content.to_owned()));
        self
    }

    /// Adds a static program of the machine below an existing directory, such as `/bin/server`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn program(mut self, path: &str, source: &Path) -> Result<Self> {
        let bytes = fs::read(source).with_context(|| format!("cannot read {}", source.display()))?;
        self.programs.push((path.trim_start_matches('/').to_owned(), source.to_owned(), digest(&bytes)));
        Ok(self)
    }

    /// The full name the image gets when it is imported.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// An OCI layout archive of the image, made once and kept in `.build/images`.
    ///
    /// # Errors
    /// When there is no static busybox on the machine, or `.build` cannot be written.
    pub fn archive(&self) -> Result<PathBuf> {
        let busybox = paths::system_program("busybox", "busybox-static")?;
        let meta = fs::metadata(&busybox).with_context(|| format!("cannot read {}", busybox.display()))?;
        let key = digest(format!("{LAYOUT} {} {} {self:?}", meta.size(), meta.mtime()).as_bytes());
        let base: String =
            self.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let dir = build_dir().join("images");
        let path = dir.join(format!("{base}-{}.tar", key.get(..12).unwrap_or(&key)));
        if path.is_file() {
            return Ok(path);
        }
        let program = fs::read(&busybox).with_context(|| format!("cannot read {}", busybox.display()))?;
        let applets = capture(Command::new(&busybox).arg("--list"), Duration::from_secs(60))?;
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        // Several tests may make the same image at once: each writes its own file and the last rename wins.
        let mut file = tempfile::NamedTempFile::new_in(&dir).context("cannot make a temporary file")?;
        std::io::Write::write_all(&mut file, &self.layout(self.layer(&program, &applets)?))
            .and_then(|()| file.persist(&path).map(drop).map_err(Into::into))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    fn layer(&self, busybox: &[u8], applets: &str) -> Result<Vec<u8>> {
        let mut tar = Tar::default();
        for dir in ["bin/", "dev/", "etc/", "home/", "proc/", "run/", "sys/", "usr/", "var/", "var/www/"] {
            tar.dir(dir, 0o755);
        }
        tar.dir("root/", 0o700);
        tar.dir("tmp/", 0o1777);
        tar.symlink("sbin", "bin");
        tar.symlink("usr/bin", "../bin");
        tar.symlink("usr/sbin", "../bin");
        tar.file("bin/busybox", 0o755, busybox);
        for applet in applets.lines().filter(|name| *name != "busybox") {
            tar.symlink(&format!("bin/{applet}"), "busybox");
        }
        let passwd = "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000:app:/home:/bin/sh\n\
                      nobody:x:65534:65534:nobody:/:/bin/false\n";
        tar.file("etc/passwd", 0o644, passwd.as_bytes());
        tar.file("etc/group", 0o644, b"root:x:0:\napp:x:1000:\nextra:x:3000:app\nnogroup:x:65534:\n");
        for (name, content) in &self.files {
            tar.file(name, 0o755, content.as_bytes());
        }
        for (name, source, _) in &self.programs {
            let bytes = fs::read(source).with_context(|| format!("cannot read {}", source.display()))?;
            tar.file(name, 0o755, &bytes);
        }
        Ok(tar.finish())
    }

    fn layout(&self, layer: Vec<u8>) -> Vec<u8> {
        let layer_digest = digest(&layer);
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": {
                "Cmd": self.cmd, "Entrypoint": self.entrypoint, "Env": self.env,
                "User": self.user, "WorkingDir": self.working_dir,
            },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer_digest}")] },
            "history": [{ "created_by": "mainstay testkit" }],
        })
        .to_string();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", config.as_bytes()),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer)],
        })
        .to_string();
        let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", manifest.as_bytes());
        entry["annotations"] = json!({ "io.containerd.image.name": self.name });
        entry["platform"] = json!({ "architecture": architecture(), "os": "linux" });
        let index = json!({ "schemaVersion": 2, "manifests": [entry] }).to_string();

        let mut tar = Tar::default();
        tar.dir("blobs/", 0o755);
        tar.dir("blobs/sha256/", 0o755);
        for blob in [config.as_bytes(), manifest.as_bytes(), layer.as_slice()] {
            tar.file(&format!("blobs/sha256/{}", digest(blob)), 0o644, blob);
        }
        tar.file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#);
        tar.file("index.json", 0o644, index.as_bytes());
        tar.finish()
    }
}

fn descriptor(media_type: &str, content: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": format!("sha256:{}", digest(content)), "size": content.len() })
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
