//! The secure port's handshake: versions, suites and curves as configured, and the certificate of mainstay's own making.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use mainstay_e2e::{SOON, wrapped};
use mainstay_testkit::{Containerd, Flavor, Http, Node, mainstay_binary, wait_until};
use rustls::{
    ClientConfig, NamedGroup, RootCertStore, SupportedProtocolVersion,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
    version::{TLS12, TLS13},
};

const OPEN: &str = "authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}\nauthorization: {mode: AlwaysAllow}\n";

/// What a client can do, where it is not everything.
#[derive(Default)]
struct Client {
    version: Option<&'static SupportedProtocolVersion>,
    /// Part of the name of the suites.
    suite: Option<&'static str>,
    curve: Option<NamedGroup>,
}

impl Client {
    fn of(&self, node: &Node) -> Result<Http> {
        let mut provider = ring::default_provider();
        if let Some(wanted) = self.suite {
            provider.cipher_suites.retain(|suite| format!("{:?}", suite.suite()).contains(wanted));
        }
        if let Some(wanted) = self.curve {
            provider.kx_groups.retain(|group| group.name() == wanted);
        }
        let mut roots = RootCertStore::empty();
        let own = fs::read(node.root().join("pki/kubelet.crt")).context("no certificate")?;
        for certificate in CertificateDer::pem_slice_iter(&own) {
            roots.add(certificate?)?;
        }
        let versions = self.version.map_or(vec![&TLS12, &TLS13], |version| vec![version]);
        let config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&versions)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Http::Tls(node.secure(), Arc::new(config)))
    }

    /// Waits until it is served: a node that answers need not be healthy yet.
    fn served(&self, node: &Node) -> Result<()> {
        wait_until(SOON, "an answer on the secure port", || {
            match self.of(node).and_then(|http| http.get("/healthz")) {
                Ok(answer) if answer.status == 200 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
    }

    /// Whether it is turned away by a node that serves others.
    fn is_refused(&self, node: &Node) -> Result<bool> {
        Ok(self.of(node)?.get("/healthz").is_err())
    }
}

#[test]
fn versions_suites_and_curves_are_those_of_the_configuration() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let any = Client::default;
    let old = || Client { version: Some(&TLS12), ..Client::default() };
    {
        let config = format!("{OPEN}tlsMinVersion: VersionTLS13\ntlsCurvePreferences: [24]\n");
        let node = Node::builder().containerd(&containerd).config(config).start()?;
        any().served(&node).context("everything is offered")?;
        ensure!(old().is_refused(&node)?, "1.2 is too old");
        Client { curve: Some(NamedGroup::secp384r1), ..any() }.served(&node)?;
        ensure!(
            Client { curve: Some(NamedGroup::X25519), ..any() }.is_refused(&node)?,
            "not among the curves"
        );
    }
    let config = format!("{OPEN}tlsCipherSuites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]\n");
    let node = Node::builder().containerd(&containerd).config(config).start()?;
    old().served(&node).context("1.2 is good enough where nothing is said")?;
    Client { suite: Some("AES_128_GCM"), ..old() }.served(&node)?;
    ensure!(Client { suite: Some("AES_256_GCM"), ..old() }.is_refused(&node)?, "not among the suites");
    Client { suite: Some("TLS13_AES_256_GCM"), version: Some(&TLS13), ..any() }
        .served(&node)
        .context("1.3 has its own")
}

#[test]
fn a_certificate_of_its_own_making_is_kept_until_the_node_is_called_otherwise() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let read =
        |node: &Node| fs::read_to_string(node.root().join("pki/kubelet.crt")).context("no certificate");
    let mut node = Node::builder().containerd(&containerd).config(OPEN).name("before").start()?;
    Client::default().served(&node).context("good for 127.0.0.1")?;
    let first = read(&node)?;
    node.sigterm()?;
    node.start_again()?;
    Client::default().served(&node)?;
    ensure!(read(&node)? == first, "a restart is no reason for a new one");
    node.sigterm()?;
    let root = node.root().to_owned();
    let node = Node::builder().containerd(&containerd).config(OPEN).name("after").root(root).start()?;
    Client::default().served(&node)?;
    let second = read(&node)?;
    ensure!(second != first, "the node has another name");
    Client::default().served(&node).context("and the new one is shown")
}

/// A command in the network of a node.
fn within(node: &Node, command: &mut Command) -> Result<Output> {
    let pid = node.pid().context("it does not run")?.to_string();
    let mut entered = Command::new("nsenter");
    entered.args(["--target", &pid, "--net"]).arg(command.get_program()).args(command.get_args());
    entered.output().with_context(|| format!("{entered:?}"))
}

/// Asks the node at an address, as a client that trusts one certificate and looks whom it is for.
fn asked_at(node: &Node, address: &str, trusted: &Path) -> Result<Output> {
    let url = format!("https://{address}:{}", node.secure().port());
    let mut client = Command::new(mainstay_binary()?);
    client.args(["pods", "--server", &url, "--certificate-authority"]).arg(trusted);
    within(node, &mut client)
}

#[test]
fn an_address_that_the_node_gets_while_it_runs_is_in_the_certificate_that_is_shown() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let program = wrapped(&containerd, "--net", "ip link set lo up")?;
    let builder = Node::builder().containerd(&containerd).program(program);
    let node = builder.config(OPEN).config("address: 0.0.0.0").start()?;
    let own = node.root().join("pki/kubelet.crt");
    let served = |address: &str| {
        wait_until(SOON, &format!("an answer at {address}"), || match asked_at(&node, address, &own) {
            Ok(output) if output.status.success() => Ok(()),
            other => Err(format!("{other:?}")),
        })
    };
    served("127.0.0.1").context("as long as there is no other")?;
    let first = containerd.dir().join("first.crt");
    fs::copy(&own, &first)?;
    let pid = node.pid();

    for command in [
        "link add late0 type veth peer name late1",
        "address add 198.51.100.7/24 dev late0",
        "link set late0 up",
        "link set late1 up",
        "route add default dev late0",
    ] {
        let output = within(&node, Command::new("ip").args(command.split(' ')))?;
        ensure!(output.status.success(), "ip {command}: {output:?}");
    }
    served("198.51.100.7").context("its address")?;
    served("127.0.0.1").context("and what it was called before")?;
    let output = asked_at(&node, "127.0.0.1", &first)?;
    ensure!(!output.status.success(), "the first one is not shown any more: {output:?}");
    ensure!(node.pid() == pid && fs::read(&own)? != fs::read(&first)?, "without a restart");
    Ok(())
}
