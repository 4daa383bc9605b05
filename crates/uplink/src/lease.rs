//! The sign of life: a Lease that is renewed.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        coordination::v1::{Lease, LeaseSpec},
        core::v1::Node,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference},
};
use mainstay_apiserver::{ApiError, Client, Scope};
use mainstay_task::{Backoff, random_unit};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, warn};

use crate::{RegisteredNode, UplinkConfig};

const NAMESPACE: &str = "kube-node-lease";
/// After a failure; always sooner than the next renewal would have been.
const RETRY: Backoff = Backoff::doubling(Duration::from_millis(200), Duration::from_secs(7));

/// Renews the lease for ever.
pub(crate) async fn run(config: Arc<UplinkConfig>, mut node: RegisteredNode) {
    let client = config.heartbeat_client();
    let duration = Duration::from_secs(u64::try_from(config.lease_duration_seconds).unwrap_or(40));
    let period = duration / 4;
    let mut attempts = RETRY.attempts();
    let mut newest: Option<Lease> = None;
    let mut warned = false;
    loop {
        let begun = Instant::now();
        let owner = node.borrow_and_update().clone();
        let next = match renew(&client, &config, owner.as_deref(), newest.take()).await {
            Ok(lease) => {
                if warned {
                    debug!("the node's lease is renewed again");
                }
                warned = false;
                let made = lease.is_some();
                newest = lease;
                attempts.succeeded();
                if !made {
                    // It is made together with the Node, which comes.
                    if node.changed().await.is_err() {
                        return;
                    }
                    continue;
                }
                begun + period.mul_f64(1.0 + 0.04 * random_unit())
            }
            Err(error) => {
                if !warned && attempts.failures() > 2 {
                    warn!(%error, "cannot renew the node's lease; others will take the node for dead");
                    warned = true;
                }
                Instant::now() + attempts.failed().min(period)
            }
        };
        sleep_until(next).await;
    }
}

/// Renews it, or makes it; `None` if there is none and the node that would own it is not known.
async fn renew(
    client: &Client,
    config: &UplinkConfig,
    owner: Option<&Node>,
    known: Option<Lease>,
) -> Result<Option<Lease>, ApiError> {
    let scope = Scope::Namespace(NAMESPACE);
    let name = &*config.node_name;
    let known = match known {
        Some(known) => Some(known),
        None => match client.get::<Lease>(scope, name).await {
            Ok(lease) => Some(lease),
            Err(error) if error.status() == Some(404) => None,
            Err(error) => return Err(error),
        },
    };
    match (known, owner) {
        (Some(lease), owner) => client.replace(scope, name, &renewed(config, owner, lease)).await.map(Some),
        (None, Some(owner)) => {
            client.create(scope, &renewed(config, Some(owner), Lease::default())).await.map(Some)
        }
        (None, None) => Ok(None),
    }
}

fn renewed(config: &UplinkConfig, owner: Option<&Node>, mut lease: Lease) -> Lease {
    let name = config.node_name.to_string();
    let before = std::mem::take(&mut lease.metadata);
    let owner = owner.and_then(|node| {
        Some(OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: name.clone(),
            uid: node.metadata.uid.clone()?,
            ..OwnerReference::default()
        })
    });
    lease.metadata = ObjectMeta {
        name: Some(name.clone()),
        namespace: Some(NAMESPACE.to_owned()),
        owner_references: owner.map(|owner| vec![owner]).or(before.owner_references.clone()),
        ..before
    };
    let before = lease.spec.take().unwrap_or_default();
    lease.spec = Some(LeaseSpec {
        holder_identity: Some(name),
        lease_duration_seconds: Some(config.lease_duration_seconds),
        renew_time: Some(MicroTime(Timestamp::now())),
        ..before
    });
    lease
}
