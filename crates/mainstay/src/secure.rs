//! The secure port: its certificate, and who is let in.

use std::{
    fs::Metadata,
    net::SocketAddr,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use mainstay_apiserver::{Client, Rate};
use mainstay_auth::{
    ActingVerb, ApiReviewer, Authentication, Authorities, Authorization, Guard, LocalAccess, Reloaded,
    Reviewer,
};
use mainstay_config::Loaded;
use mainstay_host::Host;
use mainstay_server::{SecureConfig, TlsSettings, ensure_self_signed, tls_config};
use mainstay_task::TaskGroup;
use mainstay_types::CertificateCounts;
use tokio::sync::watch;
use tracing::{error, info, warn};

/// The root that upstream's fixed paths go with.
const DEFAULT_ROOT: &str = "/var/lib/kubelet";
/// How often the certificate's age is looked at.
const LOOK_AT_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// Before a renewal that failed is tried again.
const RETRY: Duration = Duration::from_secs(60);

/// Makes what the secure port needs; `None` when it is switched off.
pub(crate) fn config(
    loaded: &Loaded,
    address: Option<SocketAddr>,
    root: &Path,
    node_name: &Arc<str>,
    host_ips: &[String],
    api: Option<&Client>,
    counts: &Arc<CertificateCounts>,
) -> Result<Option<SecureConfig>> {
    let config = &loaded.config;
    let Some(address) = address.filter(|_| config.enable_server) else { return Ok(None) };
    let guard = Arc::new(guard(loaded, root, node_name, api)?);
    let (certificate, key) = if config.tls_cert_file.is_empty() {
        ensure_self_signed(&certificate_dir(loaded, root), &names(node_name, host_ips))?
    } else {
        (config.tls_cert_file.clone().into(), config.tls_private_key_file.clone().into())
    };
    let settings = TlsSettings {
        certificate,
        key,
        min_version: config.tls_min_version.clone(),
        cipher_suites: config.tls_cipher_suites.clone(),
        curves: config.tls_curve_preferences.clone(),
        counts: Arc::clone(counts),
    };
    let tls = tls_config(&settings, &guard)?;
    let acting_verb = match loaded.settings.acting_verb.as_str() {
        "method" => ActingVerb::ByMethod,
        _ => ActingVerb::Create,
    };
    Ok(Some(SecureConfig { address, tls, guard, acting_verb }))
}

/// Users and rules of a file's bytes.
pub(crate) fn parse_access(bytes: &[u8]) -> Result<LocalAccess, String> {
    LocalAccess::parse(&String::from_utf8_lossy(bytes)).map_err(|error| error.to_string())
}

/// Whoever can write the file can let himself in, so that such a file is not used; that it can be read is worth a remark.
pub(crate) fn check_access_mode(path: &Path, found: &Metadata) -> Result<Option<&'static str>, String> {
    let remedy = || format!("chown root {0}; chmod 600 {0}", path.display());
    let mode = found.mode() & 0o777;
    if mode & 0o022 != 0 {
        return Err(format!("others than its owner can write it (mode {mode:03o}); {}", remedy()));
    }
    if found.uid() != 0 && found.uid() != rustix::process::geteuid().as_raw() {
        return Err(format!("it belongs to user {}, who could let himself in; {}", found.uid(), remedy()));
    }
    let remark =
        "everybody on this machine can read who has access (not the tokens themselves); chmod 600 it";
    Ok((mode & 0o004 != 0).then_some(remark))
}

fn trust_access(path: &Path, found: &Metadata) -> Result<(), String> {
    if let Some(remark) = check_access_mode(path, found)? {
        warn!(file = %path.display(), "{remark}");
    }
    Ok(())
}

/// Keeps a certificate of mainstay's own making good: for the addresses that the node has now, and for long enough. The
/// secure port shows the new one from its next handshake on.
pub(crate) fn renew_own_certificate(
    loaded: &Loaded,
    root: &Path,
    node_name: &Arc<str>,
    mut addresses: watch::Receiver<Arc<[String]>>,
    (tasks, counts): (&TaskGroup, &Arc<CertificateCounts>),
) {
    let config = &loaded.config;
    if !config.enable_server || config.port == 0 || !config.tls_cert_file.is_empty() {
        return;
    }
    let dir = certificate_dir(loaded, root);
    let (node_name, shutdown, counts) = (Arc::clone(node_name), tasks.shutdown(), Arc::clone(counts));
    addresses.mark_unchanged();
    tasks.spawn_critical("serving certificate", async move {
        let mut wait = LOOK_AT_AGE;
        loop {
            // Cancel safe: `changed` only marks a value as seen. Addresses that are given never change.
            let waited = shutdown.run_until_signalled(async {
                tokio::select! {
                    Ok(()) = addresses.changed() => {}
                    () = tokio::time::sleep(wait) => {}
                }
            });
            if waited.await.is_none() {
                return;
            }
            let names = names(&node_name, &addresses.borrow_and_update().clone());
            let dir = dir.clone();
            let made = tokio::task::spawn_blocking(move || ensure_self_signed(&dir, &names));
            wait = RETRY;
            let problem = match made.await {
                Ok(Ok(_)) => {
                    wait = LOOK_AT_AGE;
                    continue;
                }
                Ok(Err(problem)) => anyhow::Error::from(problem),
                Err(problem) => problem.into(),
            };
            counts.errors.add();
            warn!(error = format!("{problem:#}"), "the serving certificate cannot be renewed; trying again");
        }
    });
}

/// All by which clients may call the node.
fn names(node_name: &str, host_ips: &[String]) -> Vec<String> {
    // The machine may be called otherwise than the node; what cannot be a host's name cannot be asked for either.
    let machine = Host::default().node_name(None).unwrap_or_default();
    let can_be_asked = |name: &&str| {
        !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
    };
    let machine = Some(machine.as_str()).filter(can_be_asked);
    let own = [node_name].into_iter().chain(machine).chain(host_ips.iter().map(String::as_str));
    let mut names: Vec<String> = Vec::new();
    for name in own.chain(["localhost", "127.0.0.1", "::1"]) {
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

fn guard(loaded: &Loaded, root: &Path, node_name: &Arc<str>, api: Option<&Client>) -> Result<Guard> {
    let config = &loaded.config;
    let authorities = match config.authentication.x509.client_ca_file.as_str() {
        "" => None,
        path => {
            let parse = |pem: &[u8]| Authorities::from_pem(pem).map_err(|error| error.to_string());
            Some(Reloaded::open(path, parse).context("authentication.x509.clientCAFile cannot be used")?)
        }
    };
    let path = root.join("access.yaml");
    // Pods must run whatever is wrong with it; the port stays shut meanwhile.
    let (local, problem) = Reloaded::open_or(path, LocalAccess::default(), trust_access, parse_access);
    if let Some(problem) = &problem {
        error!(%problem, "the local users and rules cannot be read: nobody is let in through the port until the file is mended");
    }
    let kept = &config.authorization.webhook;
    let authorization = match (config.authorization.mode.as_str(), api) {
        ("AlwaysAllow", _) => Authorization::AlwaysAllow,
        (_, Some(_)) => Authorization::Review {
            allowed_ttl: kept.cache_authorized_ttl.as_std(),
            refused_ttl: kept.cache_unauthorized_ttl.as_std(),
        },
        // Without an API server there is nobody to ask but the local rules.
        (_, None) => Authorization::Local,
    };
    let webhook = &config.authentication.webhook;
    let reviewer = api.map(|api| {
        let reviewer = ApiReviewer::new(api, rate(loaded), Arc::clone(node_name));
        Arc::new(reviewer) as Arc<dyn Reviewer>
    });
    let authentication = Authentication {
        anonymous: config.authentication.anonymous.enabled,
        authorities,
        token_review: (api.is_some() && webhook.enabled).then(|| webhook.cache_ttl.as_std()),
    };
    match (&authorization, config.authentication.anonymous.enabled) {
        (Authorization::AlwaysAllow, true) => warn!(
            "authentication.anonymous is on and authorization.mode is AlwaysAllow: whoever reaches the port may do everything"
        ),
        (Authorization::Local, _) if local.get().counts() == (0, 0) => info!(
            file = %local.path().display(),
            "nobody has access through the port yet; local users and rules are read from the file as soon as it is there"
        ),
        _ => {}
    }
    Ok(Guard::new(authentication, authorization, Some(local), reviewer))
}

/// How often the API server is asked.
pub(crate) fn rate(loaded: &Loaded) -> Rate {
    Rate {
        per_second: u32::try_from(loaded.config.kube_api_qps).unwrap_or(0),
        burst: u32::try_from(loaded.config.kube_api_burst).unwrap_or(0),
    }
}

/// Upstream's directory goes with the default root; another root has its own, unless one was named.
fn certificate_dir(loaded: &Loaded, root: &Path) -> PathBuf {
    let given = &loaded.settings.cert_dir;
    if given == "/var/lib/kubelet/pki" && root != Path::new(DEFAULT_ROOT) {
        root.join("pki")
    } else {
        given.into()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_that_others_can_write_lets_nobody_in() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.yaml");
        std::fs::write(&path, "").unwrap();
        let with = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            check_access_mode(&path, &std::fs::metadata(&path).unwrap())
        };
        assert_eq!(with(0o600), Ok(None));
        assert_eq!(with(0o640), Ok(None));
        assert!(with(0o644).unwrap().is_some());
        for mode in [0o666, 0o620, 0o602] {
            let problem = with(mode).unwrap_err();
            assert!(problem.contains("chmod 600"), "{problem}");
        }
    }
}
