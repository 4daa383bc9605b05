//! The node as a member of a cluster: who its API server is, and what it is told.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Result;
use k8s_openapi::api::core::v1::Taint;
use mainstay_apiserver::{Client, Rate};
use mainstay_checkpoint::SealKey;
use mainstay_config::Loaded;
use mainstay_task::TaskGroup;
use mainstay_types::{NodeCounters, VERSION};
use mainstay_uplink::UplinkConfig;
use tracing::{info, warn};

use crate::{addresses::is_any, cli, secure};

/// Where keys are made that a reboot may take away: not on the disk that holds what they seal.
const KEYS: &str = "/run/mainstay";
/// Nobody needs to hear more often that nothing changed.
const SOONEST: Duration = Duration::from_secs(1);

/// A client of the API server, if there is one. One that is away now may come later; a kubeconfig that cannot be used is an
/// error, because nobody would ever come.
pub(crate) fn api_server(loaded: &Loaded, tasks: &TaskGroup) -> Result<Option<Client>> {
    let path = &loaded.settings.kubeconfig;
    if path.is_empty() {
        return Ok(None);
    }
    let agent = format!("kubelet/{VERSION} (linux/{})", cli::arch());
    let client = Client::open(path, secure::rate(loaded), &agent, tasks)?;
    info!(server = client.server(), "a member of a cluster");
    Ok(Some(client))
}

/// The key that seals what is kept of the API server's objects; `None` if nothing is to be kept.
pub(crate) fn object_key(loaded: &Loaded) -> Result<Option<Arc<SealKey>>> {
    let given = loaded.settings.object_key_file.as_str();
    if loaded.settings.kubeconfig.is_empty() || given == "none" {
        return Ok(None);
    }
    if !given.is_empty() {
        return Ok(Some(Arc::new(SealKey::open(Path::new(given))?)));
    }
    let name = loaded.settings.root_dir.trim_matches('/').replace('/', "-");
    let path = Path::new(KEYS).join(format!("{name}.key"));
    let problem = if in_memory(Path::new("/run")) {
        match SealKey::open(&path) {
            Ok(key) => return Ok(Some(Arc::new(key))),
            Err(error) => format!("{:#}", anyhow::Error::from(error)),
        }
    } else {
        "/run is on a disk here, where a key would lie beside what it seals".to_owned()
    };
    warn!(
        problem,
        "Secrets and ConfigMaps are not kept: without the API server, containers that need them do not start after a \
         restart of mainstay; give --object-key-file, or `none` to say that this is meant"
    );
    Ok(None)
}

/// Whether a directory is gone with the machine's power.
fn in_memory(path: &Path) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    rustix::fs::statfs(path).is_ok_and(|stat| stat.f_type == TMPFS || stat.f_type == RAMFS)
}

/// What the API server is told.
pub(crate) fn uplink(
    loaded: &Loaded,
    client: Client,
    node_name: &Arc<str>,
    (counters, offers_are_new): (Arc<NodeCounters>, bool),
) -> UplinkConfig {
    let config = &loaded.config;
    let taint = |taint: &mainstay_config::Taint| Taint {
        key: taint.key.clone(),
        value: (!taint.value.is_empty()).then(|| taint.value.clone()),
        effect: taint.effect.clone(),
        time_added: None,
    };
    let node_ip = &loaded.settings.node_ip;
    UplinkConfig {
        client,
        counters,
        node_name: Arc::clone(node_name),
        register: config.register_node,
        taints: config.register_with_taints.iter().map(taint).collect(),
        external_cloud: loaded.settings.cloud_provider == "external",
        offers_are_new,
        node_ip: (!node_ip.is_empty() && !is_any(node_ip)).then(|| node_ip.clone()),
        lease_duration_seconds: config.node_lease_duration_seconds,
        status_update_frequency: config.node_status_update_frequency.as_std().max(SOONEST),
        status_report_frequency: config.node_status_report_frequency.as_std().max(SOONEST),
        event_rate: u32::try_from(config.event_record_qps)
            .ok()
            .filter(|rate| *rate > 0)
            .map(|per_second| Rate { per_second, burst: u32::try_from(config.event_burst).unwrap_or(0) }),
    }
}
