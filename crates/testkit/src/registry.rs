//! Debian's docker-registry on a loopback port, for real pulls.

use crate::containerd::tail;
use crate::ports::free_address;
use crate::process::kill_all_on;
use crate::{Containerd, Http, Image, capture, paths, wait_until};
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const READY_DEADLINE: Duration = Duration::from_secs(60);

/// What a closed registry asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user.
    pub user: String,
    /// The password.
    pub password: String,
}

/// A running registry; dropping it removes it with all its images.
#[derive(Debug)]
pub struct Registry {
    dir: TempDir,
    address: SocketAddr,
    credentials: Option<Credentials>,
    child: Child,
}

impl Registry {
    /// Starts a registry that anyone may use.
    ///
    /// # Errors
    /// When Debian's docker-registry is missing or does not answer within a minute.
    pub fn start() -> Result<Self> {
        Self::launch(None)
    }

    /// Starts a registry that answers only to `user` with `password` (basic authentication).
    ///
    /// # Errors
    /// As [`Registry::start`].
    pub fn with_login(user: &str, password: &str) -> Result<Self> {
        Self::launch(Some(Credentials { user: user.to_owned(), password: password.to_owned() }))
    }

    fn launch(credentials: Option<Credentials>) -> Result<Self> {
        let program = paths::system_program("docker-registry", "docker-registry")?;
        let dir = tempfile::Builder::new()
            .prefix("mainstay-registry-")
            .tempdir()
            .context("cannot make a temporary directory")?;
        let address = free_address()?;
        let mut config = format!(
            "version: 0.1\nlog:\n  level: warn\nstorage:\n  delete:\n    enabled: true\n  filesystem:\n    \
             rootdirectory: {root}/data\nhttp:\n  addr: {address}\n  secret: only-for-tests\n",
            root = dir.path().display(),
        );
        if let Some(login) = &credentials {
            let entry = format!("{}:{}\n", login.user, bcrypt(&login.password)?);
            fs::write(dir.path().join("htpasswd"), entry).context("cannot write the password file")?;
            config.push_str(&format!(
                "auth:\n  htpasswd:\n    realm: test\n    path: {}/htpasswd\n",
                dir.path().display()
            ));
        }
        let config_path = dir.path().join("config.yml");
        fs::write(&config_path, config).context("cannot write the registry's configuration")?;
        let log = File::create(dir.path().join("registry.log")).context("cannot log")?;
        let child = Command::new(&program)
            .arg("serve")
            .arg(&config_path)
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot log")?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let mut registry = Self { dir, address, credentials, child };
        registry.wait_until_ready()?;
        Ok(registry)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let ready = wait_until(READY_DEADLINE, "the registry", || {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Ok(Err(status));
            }
            // 401 is the answer of a closed one.
            match Http::Tcp(self.address).get("/v2/") {
                Ok(answer) if answer.status == 200 || answer.status == 401 => Ok(Ok(())),
                Ok(answer) => Err(format!("status {}", answer.status)),
                Err(error) => Err(format!("{error:#}")),
            }
        })?;
        if let Err(status) = ready {
            let log = fs::read_to_string(self.dir.path().join("registry.log")).unwrap_or_default();
            bail!("the registry ended at its start ({status}):\n{}", tail(&log, 10));
        }
        Ok(())
    }

    /// Its address, `127.0.0.1:PORT`; an image reference may begin with it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its address as a URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it asks for, if it is closed.
    pub fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    /// Pushes `image` as `repository` (`team/app:1`) through a containerd, where it also stays under its own
    /// name.
    ///
    /// # Errors
    /// When the import or the push fails.
    pub fn push(&self, through: &Containerd, image: &Image, repository: &str) -> Result<()> {
        ensure!(!repository.starts_with('/'), "a repository does not begin with a slash: {repository}");
        through.import(image)?;
        let remote = format!("{}/{repository}", self.address);
        let mut args = vec!["images", "push", "--plain-http"];
        let login = self.credentials.as_ref().map(|login| format!("{}:{}", login.user, login.password));
        if let Some(login) = &login {
            args.extend(["--user", login]);
        }
        args.extend([remote.as_str(), image.name()]);
        through.ctr(&args).map(drop)
    }

    /// Makes `containerd` pull images of the registry `name` (such as `registry.test`) from here.
    ///
    /// # Errors
    /// When containerd's registry directory cannot be written.
    pub fn serve_as(&self, name: &str, containerd: &Containerd) -> Result<()> {
        containerd.redirect_registry(name, &self.url())
    }

    /// Ends the server at once, as when its machine fails; its port then refuses connections.
    pub fn kill9(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.kill9();
        kill_all_on(self.dir.path());
    }
}

/// The registry takes bcrypt only. Debian's perl (always there) has it through libcrypt.
fn bcrypt(password: &str) -> Result<String> {
    let script = r#"print crypt($ARGV[0], q($2b$05$abcdefghijklmnopqrstuu))"#;
    let hash = capture(Command::new("perl").args(["-e", script, "--", password]), READY_DEADLINE)?;
    ensure!(hash.starts_with("$2"), "perl's crypt does not know bcrypt here");
    Ok(hash)
}
