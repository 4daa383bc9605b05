//! A real control plane, private and on loopback: etcd and kube-apiserver, and on demand controllers, scheduler and kubectl.

use crate::containerd::tail;
use crate::ports::free_address;
use crate::reviews::write_kubeconfig;
use crate::{Authority, Certificate, CertificateWish, Http, Response, Usage, tls_client, tool, wait_until};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Two real servers take their time on a machine that is busy.
const START_DEADLINE: Duration = Duration::from_secs(240);

const LOG_LINES: usize = 15;
/// A token of the node called `node`, for kubeconfigs that have no client certificate.
const NODE_TOKEN: &str = "the-token-of-the-node-node";

/// etcd and kube-apiserver, with the authorizers Node and RBAC and the admission plugin NodeRestriction. Ends with its handle.
#[derive(Debug)]
pub struct ControlPlane {
    dir: PathBuf,
    address: SocketAddr,
    authority: Authority,
    admin: Certificate,
    etcd_address: SocketAddr,
    etcd_peer: SocketAddr,
    etcd: Option<Child>,
    server: Option<Child>,
    controllers: Vec<Child>,
    /// Whether pods are given service accounts and their tokens, for which somebody has to make the accounts.
    gives_accounts: bool,
}

impl ControlPlane {
    /// Starts both below a directory and waits until they answer. The directory should be of an [`crate::Instance`], whose
    /// sweep then also finds these processes.
    ///
    /// # Errors
    /// When they are not built (`cargo xtask tools etcd kube-apiserver`), or do not answer; the message has the end of the log.
    pub fn start(dir: impl Into<PathBuf>) -> Result<Self> {
        Self::start_as(dir.into(), false, Ipv4Addr::LOCALHOST)
    }

    /// The same with controllers and scheduler, and with the admission plugin ServiceAccount: pods find tokens at
    /// `/var/run/secrets/kubernetes.io/serviceaccount`. Returns when there is an account for pods of the default namespace.
    ///
    /// # Errors
    /// When one is not built (`cargo xtask tools etcd kube-apiserver kubernetes`), or does not do its part.
    pub fn start_whole(dir: impl Into<PathBuf>) -> Result<Self> {
        Self::start_whole_on(dir, Ipv4Addr::LOCALHOST)
    }

    /// The same with an API server that listens on another address of this machine, such as [`crate::Containerd::gateway`],
    /// where pods reach it.
    ///
    /// # Errors
    /// As [`ControlPlane::start_whole`].
    pub fn start_whole_on(dir: impl Into<PathBuf>, ip: Ipv4Addr) -> Result<Self> {
        let mut plane = Self::start_as(dir.into(), true, ip)?;
        plane.start_controllers()?;
        let made = wait_until(START_DEADLINE, "the controllers to make the service account", || {
            for path in ["serviceaccounts/default", "configmaps/kube-root-ca.crt"] {
                match plane.send("GET", &format!("/api/v1/namespaces/default/{path}"), None) {
                    Ok(answer) if answer.status == 200 => {}
                    Ok(answer) => return Err(answer.text()),
                    Err(error) => return Err(format!("{error:#}")),
                }
            }
            Ok(())
        });
        made.with_context(|| plane.log_tail())?;
        Ok(plane)
    }

    fn start_as(dir: PathBuf, gives_accounts: bool, ip: Ipv4Addr) -> Result<Self> {
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let authority = Authority::new("cluster")?;
        let own = ip.to_string();
        let names =
            [own.as_str(), "127.0.0.1", "10.255.0.1", "localhost", "kubernetes", "kubernetes.default.svc"];
        let wish = CertificateWish {
            name: "kube-apiserver",
            organizations: &[],
            names: &names,
            usage: Usage::Server,
            expired: false,
            life: None,
        };
        let serving = authority.issue(&wish)?;
        let admin = authority.issue(&CertificateWish::client("admin", &["system:masters"]))?;
        // As whom the API server hands requests on to others that serve a part of its API.
        let front = Authority::new("front-proxy")?;
        let handing_on = front.issue(&CertificateWish::client("front-proxy", &[]))?;
        let accounts = authority.issue(&CertificateWish::client("accounts", &[]))?;
        for (name, text) in [
            ("ca.crt", &authority.pem),
            ("server.crt", &serving.certificate),
            ("server.key", &serving.key),
            ("admin.crt", &admin.certificate),
            ("admin.key", &admin.key),
            ("front.crt", &front.pem),
            ("front-client.crt", &handing_on.certificate),
            ("front-client.key", &handing_on.key),
            ("accounts.crt", &accounts.certificate),
            ("accounts.key", &accounts.key),
            ("tokens.csv", &format!("{NODE_TOKEN},system:node:node,node,system:nodes\n")),
        ] {
            fs::write(dir.join(name), text).with_context(|| format!("cannot write {name}"))?;
        }
        let (etcd_address, peer) = (free_address()?, free_address()?);
        let mut plane = Self {
            dir,
            address: SocketAddr::from((ip, free_address()?.port())),
            authority,
            admin,
            etcd_address,
            etcd_peer: peer,
            etcd: None,
            server: None,
            controllers: Vec::new(),
            gives_accounts,
        };
        plane.start_etcd()?;
        plane.start_server()?;
        Ok(plane)
    }

    /// The API server ends if it has to wait long for it.
    fn wait_for_etcd(&self) -> Result<()> {
        let http = Http::Tcp(self.etcd_address);
        let healthy = wait_until(START_DEADLINE, "etcd to be healthy", || match http.get("/health") {
            Ok(answer) if answer.status == 200 => Ok(()),
            Ok(answer) => Err(answer.text()),
            Err(error) => Err(format!("{error:#}")),
        });
        healthy.with_context(|| self.log_tail())
    }

    /// Starts etcd again after [`ControlPlane::stop_etcd`], on the same address and data; does not wait for it.
    ///
    /// # Errors
    /// When it runs already, or cannot be started.
    pub fn start_etcd(&mut self) -> Result<()> {
        ensure!(self.etcd.is_none(), "it runs already");
        let (address, peer) = (self.etcd_address, self.etcd_peer);
        let etcd = spawn(
            &self.dir,
            "etcd",
            &[
                format!("--data-dir={}", self.dir.join("etcd").display()),
                format!("--listen-client-urls=http://{address}"),
                format!("--advertise-client-urls=http://{address}"),
                format!("--listen-peer-urls=http://{peer}"),
                format!("--initial-advertise-peer-urls=http://{peer}"),
                format!("--initial-cluster=default=http://{peer}"),
                // Nothing of it outlives the test.
                "--unsafe-no-fsync".to_owned(),
                "--log-level=warn".to_owned(),
            ],
        )?;
        self.etcd = Some(etcd);
        Ok(())
    }

    /// Kills etcd, as a machine that fails would; what was written stays.
    pub fn stop_etcd(&mut self) {
        if let Some(etcd) = self.etcd.take() {
            end(etcd);
        }
    }

    /// Where the API server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where its files lie.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts the API server again after [`ControlPlane::stop_server`], on the same address and data.
    ///
    /// # Errors
    /// When it runs already, or does not answer.
    pub fn start_server(&mut self) -> Result<()> {
        ensure!(self.server.is_none(), "it runs already");
        if self.etcd.is_some() {
            self.wait_for_etcd()?;
        }
        let file = |name: &str| self.dir.join(name).display().to_string();
        let mut args = vec![
            format!("--etcd-servers=http://{}", self.etcd_address),
            format!("--bind-address={}", self.address.ip()),
            format!("--advertise-address={}", self.address.ip()),
            // Its own Service would need an address that is not loopback.
            "--endpoint-reconciler-type=none".to_owned(),
            format!("--secure-port={}", self.address.port()),
            format!("--cert-dir={}", file("pki")),
            format!("--tls-cert-file={}", file("server.crt")),
            format!("--tls-private-key-file={}", file("server.key")),
            format!("--client-ca-file={}", file("ca.crt")),
            format!("--token-auth-file={}", file("tokens.csv")),
            format!("--service-account-key-file={}", file("accounts.crt")),
            format!("--service-account-signing-key-file={}", file("accounts.key")),
            // As whom it speaks to kubelets.
            format!("--kubelet-client-certificate={}", file("admin.crt")),
            format!("--kubelet-client-key={}", file("admin.key")),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            format!("--requestheader-client-ca-file={}", file("front.crt")),
            format!("--proxy-client-cert-file={}", file("front-client.crt")),
            format!("--proxy-client-key-file={}", file("front-client.key")),
            "--requestheader-allowed-names=front-proxy".to_owned(),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
            // To pods themselves: there is no kube-proxy.
            "--enable-aggregator-routing=true".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            "--service-cluster-ip-range=10.255.0.0/24".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
        ];
        if !self.gives_accounts {
            args.push("--disable-admission-plugins=ServiceAccount".to_owned());
        }
        let server = spawn(&self.dir, "kube-apiserver", &args)?;
        let server = self.server.insert(server);
        let http = Http::Tls(self.address, tls_client(&self.authority.pem, Some(&self.admin))?);
        let ready = wait_until(START_DEADLINE, "the API server to be ready", || {
            if let Ok(Some(status)) = server.try_wait() {
                return Ok(Err(status));
            }
            match http.get("/readyz") {
                Ok(answer) if answer.status == 200 => {}
                Ok(answer) => return Err(answer.text()),
                Err(error) => return Err(format!("{error:#}")),
            }
            // The roles that nodes and administrators need are made a little later, and so is the namespace.
            for path in
                ["/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node", "/api/v1/namespaces/default"]
            {
                match http.get(path) {
                    Ok(answer) if answer.status == 200 => {}
                    other => return Err(format!("{other:?}")),
                }
            }
            Ok(Ok(()))
        });
        match ready.with_context(|| self.log_tail())? {
            Ok(()) => Ok(()),
            Err(status) => bail!("the API server ended at its start ({status})\n{}", self.log_tail()),
        }
    }

    /// Starts kube-controller-manager and kube-scheduler. They wait for an API server that is away.
    fn start_controllers(&mut self) -> Result<()> {
        let config = format!("--kubeconfig={}", self.admin_kubeconfig()?.display());
        let file = |name: &str| self.dir.join(name).display().to_string();
        let shared = [
            config,
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
            // Their own limits would be what is measured where many pods are made at once.
            "--kube-api-qps=500".to_owned(),
            "--kube-api-burst=1000".to_owned(),
        ];
        let mut args = shared.to_vec();
        args.extend([
            format!("--service-account-private-key-file={}", file("accounts.key")),
            format!("--root-ca-file={}", file("ca.crt")),
            // What is written is acted upon at once, not when a machine has time for it.
            "--concurrent-deployment-syncs=2".to_owned(),
            "--horizontal-pod-autoscaler-sync-period=5s".to_owned(),
            "--horizontal-pod-autoscaler-initial-readiness-delay=5s".to_owned(),
        ]);
        self.controllers.push(spawn(&self.dir, "kube-controller-manager", &args)?);
        self.controllers.push(spawn(&self.dir, "kube-scheduler", &shared)?);
        Ok(())
    }

    /// A kubeconfig of one who may do everything.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn admin_kubeconfig(&self) -> Result<PathBuf> {
        let dir = self.dir.join("admin");
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        write_kubeconfig(&dir, &self.url(), &self.authority.pem, &self.admin)
    }

    /// kubectl (`cargo xtask tools kubernetes`) as administrator.
    ///
    /// # Errors
    /// When it is not built.
    pub fn kubectl(&self, args: &[&str]) -> Result<Command> {
        let mut command = Command::new(tool("kubectl")?);
        command.env("KUBECONFIG", self.admin_kubeconfig()?).env("HOME", &self.dir).args(args);
        Ok(command)
    }

    /// Kills the API server; etcd goes on.
    pub fn stop_server(&mut self) {
        if let Some(server) = self.server.take() {
            end(server);
        }
    }

    /// The API server's URL.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The cluster's authority, which also signs clients' certificates.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The API server, as one who may do everything.
    ///
    /// # Errors
    /// Never, unless the kit is broken.
    pub fn admin(&self) -> Result<Http> {
        Ok(Http::Tls(self.address, tls_client(&self.authority.pem, Some(&self.admin))?))
    }

    /// A kubeconfig for a node of that name, in files below a new directory.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn node_kubeconfig(&self, node: &str) -> Result<PathBuf> {
        let name = format!("system:node:{node}");
        let shown = self.authority.issue(&CertificateWish::client(&name, &["system:nodes"]))?;
        let dir = self.dir.join(format!("node-{node}"));
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        write_kubeconfig(&dir, &self.url(), &self.authority.pem, &shown)
    }

    /// A token by which the API server knows the node called `node`.
    pub fn node_token(&self) -> &'static str {
        NODE_TOKEN
    }

    /// Makes an object from JSON.
    ///
    /// # Errors
    /// When the API server does not.
    pub fn create(&self, path: &str, object: &Value) -> Result<Value> {
        let answer = self.send("POST", path, Some(object))?;
        if !(200..300).contains(&answer.status) {
            bail!("POST {path}: {} {}", answer.status, answer.text());
        }
        serde_json::from_slice(&answer.body).context("the answer is not JSON")
    }

    /// Sends a request as administrator.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn send(&self, method: &str, path: &str, object: Option<&Value>) -> Result<Response> {
        let body = object.map(Value::to_string).unwrap_or_default();
        self.admin()?.send(method, path, &[("Content-Type", "application/json")], body.as_bytes())
    }

    /// The end of what they have written.
    pub fn log_tail(&self) -> String {
        let end = |name: &str| {
            let path = self.dir.join(format!("{name}.log"));
            tail(&String::from_utf8_lossy(&fs::read(path).unwrap_or_default()), LOG_LINES)
        };
        let names = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];
        names.map(|name| format!("{name}:\n{}\n", end(name))).concat()
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.controllers.drain(..).for_each(end);
        self.stop_server();
        self.stop_etcd();
    }
}

fn end(mut child: Child) {
    child.kill().ok();
    child.wait().ok();
}

fn spawn(dir: &Path, name: &str, args: &[String]) -> Result<Child> {
    let program = tool(name)?;
    let path = dir.join(format!("{name}.log"));
    let log = File::options().create(true).append(true).open(&path);
    let log = log.with_context(|| format!("cannot write {}", path.display()))?;
    Command::new(&program)
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("cannot log")?)
        .stderr(log)
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))
}
