//! Who is held against the table: mainstay or upstream's kubelet, with certificates that can be swapped.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use mainstay_testkit::{
    Authority, Certificate, CertificateWish, Containerd, Flavor, Http, Node, Response, Usage, tls_client,
    wait_until,
};
use serde_json::json;

use super::*;

/// Upstream reads cgroups for the first time after up to half a minute, and looks again after a minute at a certificate whose
/// change it missed.
const ROUNDS: Duration = Duration::from_secs(240);

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Mainstay,
    Upstream,
}

pub(super) struct Served {
    node: Node,
    subject: Subject,
    authority: Authority,
    secure: Http,
    pod: String,
    certificate: PathBuf,
    key: PathBuf,
    _containerd: Containerd,
}

impl Served {
    pub(super) fn start(subject: Subject, config: &str) -> Self {
        let containerd = Containerd::start(Flavor::Debian16).unwrap();
        let authority = Authority::new("servers").unwrap();
        let (certificate, key) = (containerd.dir().join("tls.crt"), containerd.dir().join("tls.key"));
        install(&authority, &certificate, &key);
        let builder = Node::builder().containerd(&containerd).config(config).config(format!(
            "tlsCertFile: {}\ntlsPrivateKeyFile: {}\nauthentication: {{webhook: {{enabled: false}}}}\n\
             authorization: {{mode: AlwaysAllow}}\n",
            certificate.display(),
            key.display(),
        ));
        // How full the machine's disk is must not decide whether the pod may run.
        let never = "evictionHard: {memory.available: 0%, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}";
        let builder = if subject == Subject::Upstream { builder.upstream().config(never) } else { builder };
        let node = builder.start().unwrap();
        let secure = Http::Tls(node.secure(), tls_client(&authority.pem, None).unwrap());
        let pod = format!("web-{}", node.name());
        let served =
            Self { node, subject, authority, secure, pod, certificate, key, _containerd: containerd };
        // Upstream's ports come one after the other.
        for on in [S, R, H] {
            wait_until(ROUNDS, &format!("{on:?}"), || {
                let answer = served.http(on).get("/unknown").map_err(|error| format!("{error:#}"))?;
                if answer.status == 404 { Ok(()) } else { Err(answer.status.to_string()) }
            })
            .unwrap();
        }
        // Upstream is not well before all of its parts are up.
        served.eventually(R, "/healthz", "ok");
        served
    }

    /// With a pod that has logged something.
    pub(super) fn with_pod(self) -> Self {
        let script = "echo one; echo two; trap 'exit 0' TERM; while true; do sleep 1; done";
        let manifest = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [
                {"name": "c", "image": mainstay_testkit::BUSYBOX, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", script]},
            ]},
        });
        self.node.write_manifest("web.json", &manifest.to_string()).unwrap();
        // Each is eventually so, and stays: the list is whole, the log is there.
        self.eventually(S, &format!("/containerLogs/default/{}/c", self.pod), "two\n");
        self.eventually(R, "/pods", "\"phase\":\"Running\"");
        self.eventually(S, "/runningpods/", &self.pod);
        self
    }

    /// Waits until the cgroups were read.
    pub(super) fn measured(self) -> Self {
        self.eventually(R, "/metrics/resource", "container_memory_working_set_bytes{");
        self
    }

    fn eventually(&self, on: On, path: &str, text: &str) {
        wait_until(ROUNDS, &format!("{text:?} in {path}"), || {
            let found = self.http(on).get(path).map_err(|error| format!("{error:#}"))?;
            let is_there = found.status == 200 && found.text().contains(text);
            if is_there { Ok(()) } else { Err(format!("{} {}", found.status, found.text())) }
        })
        .unwrap();
    }

    fn http(&self, on: On) -> Http {
        match on {
            S => self.secure.clone(),
            R => Http::Tcp(self.node.read_only()),
            H => Http::Tcp(self.node.healthz_address()),
        }
    }

    /// What is wrong with the answer to a row, if something is.
    fn check(&self, row: &Row) -> Option<String> {
        let (method, path) = row.request;
        let path = path.replace("{pod}", &self.pod);
        let expected = match row.ours {
            Some((ours, _)) if self.subject == Subject::Mainstay => ours,
            _ => row.expected,
        };
        let what = format!("{method} {path} on {:?} with {:?}", row.on, row.headers);
        match self.http(row.on).send(method, &path, row.headers, row.body.as_bytes()) {
            Ok(found) => {
                let wrong = expected.differs(&found, &self.pod)?;
                let (kind, text) = (found.header("content-type"), found.text());
                let text: String = text.chars().take(300).collect();
                Some(format!("{what}: {wrong}\n    {} {kind:?} {text:?}", found.status))
            }
            Err(error) => Some(format!("{what}: {error:#}")),
        }
    }

    pub(super) fn holds(&self, rows: &[Row]) {
        let wrong: Vec<String> = rows.iter().filter_map(|row| self.check(row)).collect();
        assert!(
            wrong.is_empty(),
            "{:?}: {} of {} rows:\n{}",
            self.subject,
            wrong.len(),
            rows.len(),
            wrong.join("\n")
        );
    }
}

impl Expected {
    fn differs(&self, found: &Response, pod: &str) -> Option<String> {
        if found.status != self.status {
            return Some(format!("not {}", self.status));
        }
        if let Some(kind) =
            self.content_type.filter(|kind| found.header("content-type").unwrap_or_default() != *kind)
        {
            return Some(format!("not of type {kind:?}"));
        }
        let text = found.text();
        let fits = match self.text {
            Is(wanted) => text == wanted.replace("{pod}", pod),
            Begins(wanted) => text.starts_with(&wanted.replace("{pod}", pod)),
            Has(wanted) => text.contains(&wanted.replace("{pod}", pod)),
            Text::Form(reason) => text == format!("Internal Error: parse form failed: {reason}"),
            Any => true,
        };
        if !fits {
            return Some(format!("the text is not {:?}", self.text));
        }
        let missing = self.headers.iter().find(|(name, value)| found.header(name) != Some(*value));
        missing.map(|header| format!("without {header:?}: {:?}", found.headers))
    }
}

/// Puts a new certificate in place, the key first, as careful people do.
fn install(authority: &Authority, certificate: &Path, key: &Path) {
    let made = issue(authority);
    replace(key, made.key.as_bytes());
    replace(certificate, made.certificate.as_bytes());
}

fn issue(authority: &Authority) -> Certificate {
    let wish = CertificateWish {
        name: "node",
        organizations: &[],
        names: &["127.0.0.1"],
        usage: Usage::Server,
        expired: false,
        life: None,
    };
    authority.issue(&wish).unwrap()
}

fn replace(path: &Path, content: &[u8]) {
    let new = path.with_extension("new");
    fs::write(&new, content).unwrap();
    fs::rename(&new, path).unwrap();
}

/// Whoever trusts the first authority is served, until the files on the disk were found wanting and after that.
fn keeps_its_certificate(served: &Served, ours: &str, upstreams: &str) {
    let complaint = if served.subject == Subject::Mainstay { ours } else { upstreams };
    let asked = || {
        // A client that has not been there before: it looks at the certificate.
        let http = Http::Tls(served.node.secure(), tls_client(&served.authority.pem, None).unwrap());
        assert_eq!(http.get("/healthz").unwrap().status, 200, "{complaint}");
    };
    wait_until(ROUNDS, complaint, || {
        asked();
        let log = served.node.log();
        let told = log.lines().any(|line| {
            line.contains(complaint)
                && (served.subject != Subject::Mainstay || line.contains("stays in force"))
        });
        if told { Ok(()) } else { Err("nothing is said of it".to_owned()) }
    })
    .unwrap();
    asked();
}

pub(super) fn swapped_certificate(served: &Served) {
    let other = Authority::new("others").unwrap();
    let trusts_other = Http::Tls(served.node.secure(), tls_client(&other.pem, None).unwrap());
    assert!(trusts_other.get("/healthz").is_err(), "not yet");
    // A key that is none changes nothing, and neither does a certificate that came without its key.
    let key = fs::read(&served.key).unwrap();
    replace(&served.key, b"nonsense");
    keeps_its_certificate(served, "no items found", "tls: failed to find any PEM data in key input");
    replace(&served.key, &key);
    replace(&served.certificate, issue(&other).certificate.as_bytes());
    keeps_its_certificate(served, "KeyMismatch", "tls: private key does not match public key");
    install(&other, &served.certificate, &served.key);
    wait_until(ROUNDS, "the new certificate", || {
        let answer = trusts_other.get("/healthz").map_err(|error| format!("{error:#}"))?;
        if answer.status == 200 { Ok(()) } else { Err(answer.status.to_string()) }
    })
    .unwrap();
    // A client that has not been there before, since one that has need not look at the certificate again.
    let trusts_old = Http::Tls(served.node.secure(), tls_client(&served.authority.pem, None).unwrap());
    assert!(trusts_old.get("/healthz").is_err(), "the old one is not shown any more");
}
