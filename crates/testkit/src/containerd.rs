//! A containerd of one's own.

mod config;

use crate::environment::in_test;
use crate::instance::remove_directory;
use crate::process::Process;
use crate::slot::Slot;
use crate::{CgroupDriver, Image, Instance, OwnNetwork, capture, network, paths, wait_until};
use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// All are generous, because machines are shared.
const START_DEADLINE: Duration = Duration::from_secs(180);
const STOP_DEADLINE: Duration = Duration::from_secs(60);
const CALL_DEADLINE: Duration = Duration::from_secs(120);
/// How long a container may take to end after a messenger was lost in it.
const END_DEADLINE: Duration = Duration::from_secs(60);
/// Unix socket paths hold 107 bytes; the longest suffix that containerd adds is `.ttrpc`.
const SOCKET_PATH_MAX: usize = 100;

/// Which containerd to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavor {
    /// Debian's package (1.6 in Debian 12): no container events, no RuntimeConfig.
    Debian16,
    /// 2.4, built from `tools/containerd` by `cargo xtask tools containerd`.
    Built24,
}

impl Flavor {
    /// Both, for tests that must hold on either.
    pub const ALL: [Self; 2] = [Self::Debian16, Self::Built24];

    fn program(self, name: &str) -> Result<PathBuf> {
        match self {
            Self::Debian16 => paths::system_program(name, "containerd"),
            Self::Built24 => paths::tool(name),
        }
    }
}

/// Settings for a [`Containerd`] that is not quite the usual one.
#[derive(Debug)]
pub struct ContainerdBuilder {
    flavor: Flavor,
    instance: Option<Instance>,
    socket: Option<PathBuf>,
    masquerade: bool,
    host_ports: bool,
    dual_stack: bool,
    own_network: bool,
    images: Vec<Image>,
    built_runc: bool,
    env: Vec<(String, String)>,
}

impl ContainerdBuilder {
    /// An environment variable of the process.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Lives in a fixed directory instead of a new one; what an earlier one left there is removed first.
    #[must_use]
    pub fn instance(mut self, instance: Instance) -> Self {
        self.instance = Some(instance);
        self
    }

    /// Listens here instead of below its own directory.
    #[must_use]
    pub fn socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.socket = Some(path.into());
        self
    }

    /// Lets pods reach beyond the machine, through its address.
    #[must_use]
    pub fn masquerade(mut self) -> Self {
        self.masquerade = true;
        self
    }

    /// Gives pods an IPv6 address as well, behind the other one.
    #[must_use]
    pub fn dual_stack(mut self) -> Self {
        self.dual_stack = true;
        self
    }

    /// Lives in a network namespace of its own, and with it its pods' bridge and the nodes on it: as on another machine.
    #[must_use]
    pub fn own_network(mut self) -> Self {
        self.own_network = true;
        self
    }

    /// Supports `hostPort` (costs several firewall calls per pod).
    #[must_use]
    pub fn host_ports(mut self) -> Self {
        self.host_ports = true;
        self
    }

    /// Imports this image as well.
    #[must_use]
    pub fn image(mut self, image: Image) -> Self {
        self.images.push(image);
        self
    }

    /// Runs containers with runc 1.3, built from `tools/runc` by `cargo xtask tools runc`, and not with Debian's 1.1,
    /// which cannot map the users of mounts.
    #[must_use]
    pub fn built_runc(mut self) -> Self {
        self.built_runc = true;
        self
    }

    /// Starts it and waits until its CRI service answers and its images are there.
    ///
    /// # Errors
    /// When a program is missing, or it is not ready within three minutes; the message has the end of its log.
    pub fn start(self) -> Result<Containerd> {
        let program = self.flavor.program("containerd")?;
        ensure!(rustix::process::geteuid().is_root(), "a private containerd needs root");
        let mut slot = Slot::claim()?;
        let instance = match self.instance {
            Some(instance) => {
                instance.sweep()?;
                fs::create_dir_all(instance.dir())
                    .with_context(|| format!("cannot make {}", instance.dir().display()))?;
                instance
            }
            None => Instance::for_test()?,
        };
        slot.write(&instance.to_record())?;
        let dir = instance.dir();
        let socket = self.socket.unwrap_or_else(|| dir.join("state/containerd.sock"));
        ensure!(
            socket.as_os_str().len() <= SOCKET_PATH_MAX,
            "the path {} is too long for a socket; use a directory with a shorter one",
            socket.display()
        );
        let subnet6 = slot.subnet6();
        let network = network::Network {
            name: &instance.network(),
            bridge: &instance.bridge(),
            subnet: &slot.subnet(),
            subnet6: self.dual_stack.then_some(subnet6.as_str()),
            masquerade: self.masquerade,
            host_ports: self.host_ports,
        };
        // By its path: the built one lies beside the built containerd, where it would be found first.
        let runc =
            if self.built_runc { paths::tool("runc")? } else { paths::system_program("runc", "runc")? };
        let settings = config::Settings {
            dir,
            socket: &socket,
            cni_bin_dir: &cni_bin_dir()?,
            may_lower_oom_score: may_lower_oom_score(),
            driver: CgroupDriver::of_this_run(),
            runc: &runc,
        };
        for sub in ["cni", "registries", "tmp"] {
            fs::create_dir_all(dir.join(sub)).with_context(|| format!("cannot make {sub}"))?;
        }
        fs::write(dir.join("cni/10-bridge.conflist"), network.conflist(&dir.join("ipam")))
            .and_then(|()| fs::write(dir.join("config.toml"), settings.text(self.flavor)))
            .with_context(|| format!("cannot write below {}", dir.display()))?;
        let own_network = match self.own_network {
            true => Some(OwnNetwork::make(dir, &instance.wire(), slot.wire(), &slot.subnet())?),
            false => None,
        };
        let containerd = Containerd {
            own_network,
            flavor: self.flavor,
            program,
            instance,
            slot: Mutex::new(slot),
            socket,
            child: Mutex::new(None),
            env: self.env,
        };
        containerd.start_again()?;
        for image in [Image::pause(), Image::busybox()].iter().chain(&self.images) {
            containerd.import(image)?;
        }
        Ok(containerd)
    }
}

/// A running private containerd; dropping it removes everything it made, containers included.
#[derive(Debug)]
pub struct Containerd {
    own_network: Option<OwnNetwork>,
    flavor: Flavor,
    program: PathBuf,
    instance: Instance,
    slot: Mutex<Slot>,
    socket: PathBuf,
    child: Mutex<Option<Child>>,
    env: Vec<(String, String)>,
}

impl Containerd {
    /// Starts one in a directory, network and cgroup of its own, with the busybox and pause images.
    ///
    /// # Errors
    /// See [`ContainerdBuilder::start`].
    pub fn start(flavor: Flavor) -> Result<Self> {
        Self::builder(flavor).start()
    }

    /// For one with other settings.
    pub fn builder(flavor: Flavor) -> ContainerdBuilder {
        ContainerdBuilder {
            flavor,
            instance: None,
            socket: None,
            masquerade: false,
            host_ports: false,
            dual_stack: false,
            own_network: false,
            images: Vec::new(),
            built_runc: false,
            env: Vec::new(),
        }
    }

    /// Which containerd this is.
    pub fn flavor(&self) -> Flavor {
        self.flavor
    }

    /// What it owns on the machine.
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// Where all of its files are.
    pub fn dir(&self) -> &Path {
        self.instance.dir()
    }

    /// Its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its socket as a kubelet wants it, `unix:///…`.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// The subnet of its pods, such as `10.88.4.0/22`.
    pub fn subnet(&self) -> String {
        lock(&self.slot).subnet()
    }

    /// The host's address in the subnet of its pods.
    pub fn gateway(&self) -> Ipv4Addr {
        lock(&self.slot).gateway()
    }

    /// The network namespace that it lives in, if it has its own.
    pub fn own_network(&self) -> Option<&OwnNetwork> {
        self.own_network.as_ref()
    }

    /// Makes the bridge of its pods now instead of with the first pod, so that servers can listen on [`Containerd::gateway`]:
    /// no loopback address, and yet one that only this machine and its pods have a route to. Goes with the containerd.
    ///
    /// # Errors
    /// When it is there already, or the kernel refuses.
    pub fn make_bridge(&self) -> Result<()> {
        let slot = lock(&self.slot);
        network::create(&self.instance.bridge(), &slot.gateway_with_prefix())
    }

    /// Upstream's kubelet, as a script that starts it where this containerd is at `/run/containerd/containerd.sock`, too: its cAdvisor looks
    /// for containerd there and nowhere else, and elsewhere containers have no labels. It is there in a mount namespace of the kubelet's own,
    /// so that nobody else sees it, and whatever is there on the machine stays. What that kubelet mounts nobody else sees either.
    ///
    /// # Errors
    /// When it has not been built, or the script cannot be written.
    pub fn upstream_kubelet(&self) -> Result<PathBuf> {
        let script = self.dir().join("upstream-kubelet");
        let text = format!(
            "#!/bin/sh\nexec unshare --mount --propagation private /bin/sh -c '\n\
             mkdir -p /run/containerd && mount -t tmpfs none /run/containerd &&\n\
             ln -s {} /run/containerd/containerd.sock && exec {} \"$@\"' kubelet \"$@\"\n",
            self.socket.display(),
            paths::tool("kubelet")?.display()
        );
        fs::write(&script, text)
            .and_then(|()| fs::set_permissions(&script, fs::Permissions::from_mode(0o755)))
            .with_context(|| format!("cannot write {}", script.display()))?;
        Ok(script)
    }

    /// Where it writes its log.
    pub fn log_path(&self) -> PathBuf {
        self.dir().join("containerd.log")
    }

    /// Its process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        lock(&self.child).as_ref().map(Child::id)
    }

    /// Imports an image and waits until the CRI service knows it.
    ///
    /// # Errors
    /// When it cannot be made or imported.
    pub fn import(&self, image: &Image) -> Result<()> {
        let archive = image.archive()?;
        self.ctr(&["images", "import", &archive.to_string_lossy()])?;
        // The CRI service learns of it through an event; then it marks the image as its own.
        wait_until(CALL_DEADLINE, &format!("{} in the CRI image store", image.name()), || {
            let list = self.ctr(&["images", "ls", &format!("name=={}", image.name())]);
            let list = list.map_err(|error| error.to_string())?;
            if list.contains("io.cri-containerd.image=managed") { Ok(()) } else { Err(list) }
        })
    }

    /// Runs `ctr` of the same version in the namespace of the CRI service.
    ///
    /// # Errors
    /// When it fails or takes more than two minutes.
    pub fn ctr(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(self.flavor.program("ctr")?);
        command.arg("--address").arg(&self.socket).args(["--namespace", "k8s.io"]).args(args);
        capture(&mut command, CALL_DEADLINE)
    }

    /// Runs `crictl` on its socket.
    ///
    /// # Errors
    /// When it is not built yet, fails, or takes more than two minutes.
    pub fn crictl(&self, args: &[&str]) -> Result<String> {
        let endpoint = self.endpoint();
        let mut command = Command::new(paths::tool("crictl")?);
        command
            // Otherwise it reads /etc/crictl.yaml of the machine.
            .arg("--config")
            .arg("/dev/null")
            .args(["--runtime-endpoint", &endpoint, "--image-endpoint", &endpoint, "--timeout", "90s"])
            .args(args);
        capture(&mut command, CALL_DEADLINE)
    }

    /// Makes a file in a running container, for a script that waits for it. The script may end with it, and takes the
    /// messenger along before it can report: that is as good as its word.
    ///
    /// # Errors
    /// When it cannot be made although the container goes on.
    pub fn touch(&self, id: &str, path: &str) -> Result<()> {
        let script = format!("touch {path}");
        let Err(error) = self.crictl(&["exec", "--sync", id, "/bin/sh", "-c", &script]) else {
            return Ok(());
        };
        let ends = wait_until(END_DEADLINE, "the end of the container", || {
            let inspected = self.crictl(&["inspect", "--output", "json", id]);
            match inspected.map_err(|error| format!("{error:#}")) {
                Ok(text) if text.contains("\"CONTAINER_RUNNING\"") => Err("it runs".to_owned()),
                Err(error) if !error.contains("not found") => Err(error),
                _ => Ok(()),
            }
        });
        ends.or(Err(error))
    }

    /// Makes pulls from the registry `name` (`host` or `host:port`) go to `url`.
    ///
    /// # Errors
    /// When the `hosts.toml` cannot be written.
    pub fn redirect_registry(&self, name: &str, url: &str) -> Result<()> {
        let dir = self.dir().join("registries").join(name);
        let hosts =
            format!("server = \"{url}\"\n\n[host.\"{url}\"]\ncapabilities = [\"pull\", \"resolve\"]\n");
        fs::create_dir_all(&dir)
            .and_then(|()| fs::write(dir.join("hosts.toml"), hosts))
            .with_context(|| format!("cannot write below {}", dir.display()))
    }

    /// Stops the daemon politely; containers keep running.
    pub fn stop(&self) {
        let Some(mut child) = lock(&self.child).take() else { return };
        let process = i32::try_from(child.id()).ok().and_then(Process::of);
        if let Some(process) = process {
            process.signal(Signal::TERM);
            if !crate::process::wait_for_end(std::slice::from_ref(&process), STOP_DEADLINE) {
                process.signal(Signal::KILL);
            }
        }
        // It is our child and has ended, so this only collects it.
        child.wait().ok();
    }

    /// Kills the daemon; containers keep running.
    pub fn kill9(&self) {
        if let Some(mut child) = lock(&self.child).take() {
            child.kill().ok();
            child.wait().ok();
        }
    }

    /// Starts the daemon on the same directories, after [`Containerd::stop`] or [`Containerd::kill9`].
    ///
    /// # Errors
    /// When it is not ready within three minutes.
    pub fn start_again(&self) -> Result<()> {
        let mut child = lock(&self.child);
        ensure!(child.is_none(), "containerd is running already");
        let log = File::options().create(true).append(true).open(self.log_path()).context("cannot log")?;
        let log_start = usize::try_from(log.metadata().context("cannot log")?.len())?;
        let mut command = match &self.own_network {
            Some(network) => network.command(&self.program),
            None => Command::new(&self.program),
        };
        command
            .arg("--config")
            .arg(self.dir().join("config.toml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("cannot log")?)
            .stderr(log)
            // A Ctrl-C in the terminal is for the owner of the instance, which then ends this in order.
            .process_group(0)
            .env("PATH", self.search_path()?)
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        *child = Some(command.spawn().with_context(|| format!("cannot start {}", self.program.display()))?);
        let waited = wait_until(START_DEADLINE, "containerd", || {
            if let Some(status) = child.as_mut().and_then(|child| child.try_wait().ok().flatten()) {
                return Ok(Err(status));
            }
            let log = fs::read(self.log_path()).unwrap_or_default();
            let log = String::from_utf8_lossy(log.get(log_start..).unwrap_or_default()).into_owned();
            // The second line is written just before the CRI service answers.
            let booted = log.contains("containerd successfully booted");
            if booted && log.contains("Start streaming server") { Ok(Ok(())) } else { Err(tail(&log, 15)) }
        })?;
        drop(child);
        if let Err(status) = waited {
            self.kill9();
            let log = fs::read_to_string(self.log_path()).unwrap_or_default();
            bail!("containerd ended at its start ({status}):\n{}", tail(&log, 15));
        }
        // Until it does, it refuses every call. `make run` does without crictl, and asks for nothing at once.
        if paths::tool("crictl").is_ok() {
            wait_until(START_DEADLINE, "an answer of the CRI service", || {
                self.crictl(&["version"]).map(drop).map_err(|error| format!("{error:#}"))
            })?;
        }
        Ok(())
    }

    /// [`Containerd::stop`], then [`Containerd::start_again`].
    ///
    /// # Errors
    /// When it is not ready within three minutes.
    pub fn restart(&self) -> Result<()> {
        self.stop();
        self.start_again()
    }

    /// What a reboot of the machine leaves: no process, mount, network or state, but the files in its root.
    ///
    /// # Errors
    /// When something refuses to end, or containerd does not start again.
    pub fn reboot(&self) -> Result<()> {
        self.kill9();
        self.instance.sweep_runtime()?;
        network::remove(&self.instance.network(), &self.instance.bridge(), self.dir())?;
        for volatile in ["state", "ipam"] {
            remove_directory(&self.dir().join(volatile))?;
        }
        self.start_again()
    }

    /// As [`Self::reboot`], on a machine whose runtime also forgets its containers: a root on a disk that lasts no longer
    /// than the machine runs. Images are still there.
    ///
    /// # Errors
    /// When something refuses to end or to be forgotten, or containerd does not start again.
    pub fn reboot_forgetting_containers(&self) -> Result<()> {
        self.reboot()?;
        let containers = self.ctr(&["containers", "list", "--quiet"])?;
        for id in containers.split_whitespace() {
            self.ctr(&["containers", "remove", id])?;
        }
        // It remembers what it found at its start.
        self.restart()
    }

    /// Stops it and removes everything it made; the same as dropping it, but failures are reported.
    ///
    /// # Errors
    /// When something refuses to go.
    pub fn remove(self) -> Result<()> {
        // The drop that follows finds nothing left to do.
        self.clean_up()
    }

    fn clean_up(&self) -> Result<()> {
        self.kill9();
        self.instance.sweep()?;
        lock(&self.slot).write("")
    }

    /// containerd finds its shim through `PATH`.
    fn search_path(&self) -> Result<std::ffi::OsString> {
        let own = self.program.parent().map(Path::to_path_buf);
        let system = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from);
        std::env::join_paths(own.into_iter().chain(system)).context("cannot build PATH")
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // Shown by the harness for failed tests only, also those that fail by returning an error.
        let log = fs::read_to_string(self.log_path()).unwrap_or_default();
        let worth: Vec<&str> = log.lines().filter(|line| !line.contains("level=info")).collect();
        if in_test() {
            eprintln!("--- end of containerd's log\n{}", tail(&worth.join("\n"), 20));
        }
        if let Err(error) = self.clean_up() {
            eprintln!("testkit: cannot clean up {}: {error:#}", self.dir().display());
        }
    }
}

/// The last lines of a text.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all.get(all.len().saturating_sub(lines)..).unwrap_or_default().join("\n")
}

/// A panic of another test thread does not make a file handle or child unusable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cni_bin_dir() -> Result<PathBuf> {
    ["/usr/lib/cni", "/opt/cni/bin"]
        .map(PathBuf::from)
        .into_iter()
        .find(|dir| dir.join("bridge").is_file() && dir.join("host-local").is_file())
        .context("no CNI plugins; install Debian's containernetworking-plugins (`make setup-test`)")
}

/// Lowering one's own `oom_score_adj` needs CAP_SYS_RESOURCE, which many containers and small VMs lack.
fn may_lower_oom_score() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok())
        .is_some_and(|capabilities| capabilities >> CAP_SYS_RESOURCE & 1 == 1)
}
