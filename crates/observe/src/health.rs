//! How the runtime itself is.

use std::time::Duration;

use mainstay_cri::{Cri, CriError};
use mainstay_types::{RuntimeHandler, RuntimeHealth};
use tracing::{info, warn};

/// Asks the runtime for its conditions, and for its name when that is not known (or it was away, perhaps for an upgrade).
pub(crate) async fn check(
    cri: &Cri,
    known: &RuntimeHealth,
    events: bool,
    deadline: Duration,
) -> Result<RuntimeHealth, CriError> {
    let asked = tokio::time::timeout(deadline, ask(cri, known, events)).await;
    asked.unwrap_or(Err(CriError::Timeout { call: "status", after: deadline }))
}

async fn ask(cri: &Cri, known: &RuntimeHealth, events: bool) -> Result<RuntimeHealth, CriError> {
    let status = cri.status().await?;
    let (name, version) = if known.name.is_empty() || !known.reachable {
        let version = cri.version().await?;
        if version.version != "0.1.0" {
            warn!(version = version.version, "the runtime speaks an unknown version of the CRI protocol");
        }
        info!(runtime = version.runtime_name, version = version.runtime_version, "container runtime");
        (version.runtime_name, version.runtime_version)
    } else {
        (known.name.clone(), known.version.clone())
    };
    let tells_features = status.features.is_some();
    let told = |handler: &k8s_cri::v1::RuntimeHandler| RuntimeHandler {
        name: handler.name.clone(),
        recursive_read_only: handler.features.map(|features| features.recursive_read_only_mounts),
        user_namespaces: handler.features.map(|features| features.user_namespaces),
    };
    let handlers = status.runtime_handlers.iter().map(told).collect();
    let strict_groups = status.features.is_some_and(|features| features.supplemental_groups_policy);
    let handler = status.runtime_handlers.iter().find(|handler| handler.name.is_empty());
    let features = handler.and_then(|handler| handler.features).unwrap_or_default();
    let conditions = status.status.map(|status| status.conditions).unwrap_or_default();
    let problem = |kind: &str| match conditions.iter().find(|condition| condition.r#type == kind) {
        Some(condition) if condition.status => None,
        Some(condition) => Some(format!("{}: {}", condition.reason, condition.message)),
        None => Some(format!("the runtime reports no condition {kind}")),
    };
    let health = RuntimeHealth {
        name,
        version,
        runtime_problem: problem("RuntimeReady"),
        network_problem: problem("NetworkReady"),
        reachable: true,
        unreachable_since: None,
        events,
        strict_groups,
        recursive_read_only: features.recursive_read_only_mounts,
        tells_features,
        handlers,
    };
    if health.network_problem != known.network_problem {
        match &health.network_problem {
            Some(problem) => warn!(problem, "the pod network is not ready"),
            None if known.name.is_empty() => {}
            None => info!("the pod network is ready"),
        }
    }
    Ok(health)
}
