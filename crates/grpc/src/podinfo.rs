//! `podinfo.v1alpha1.PodInfo`: conditions of this node's pods.

use std::sync::Arc;

use bytes::Bytes;
use k8s_openapi::{api::core::v1 as api, apimachinery::pkg::apis::meta::v1::Time};
use mainstay_proto::podinfo::{
    ConditionStatus, ConditionType, PodCondition, PodConditionsInfo, PodConditionsListResponse, Timestamp,
};
use mainstay_snapshot::SnapshotReader;
use mainstay_task::Shutdown;
use mainstay_types::{NodeSnapshot, PodExt, PodSource, PodView};

use crate::{
    cache::{self, Made, Newest, Version},
    ready,
    wire::{Answer, Code, Status, framed},
};

/// The service.
#[derive(Clone, Debug)]
pub(crate) struct PodInfo {
    snapshots: SnapshotReader,
    /// By the snapshot's generation.
    lists: Arc<Made<u64>>,
}

impl PodInfo {
    pub(crate) fn new(snapshots: SnapshotReader) -> Self {
        Self { snapshots, lists: Arc::default() }
    }

    pub(crate) fn list(&self) -> Result<Answer, Status> {
        let snapshot = ready::whole(self.snapshots.borrow().as_ref())?;
        Ok(Answer::One(self.lists.get(snapshot.generation, || whole(&snapshot)).bytes))
    }

    pub(crate) fn watch(&self, shutdown: &Shutdown) -> Result<Answer, Status> {
        // Refused at once, not as a stream that fails.
        self.list()?;
        Ok(Answer::Many(self.lists.watch(self.clone(), shutdown)))
    }

    pub(crate) fn get(&self, uid: &str) -> Result<Answer, Status> {
        let snapshot = ready::whole(self.snapshots.borrow().as_ref())?;
        if uid.is_empty() {
            return Err(Status::new(
                Code::InvalidArgument,
                "podUID is empty; give the UID of a pod on this node",
            ));
        }
        let view = snapshot
            .by_uid(uid)
            .ok_or_else(|| Status::new(Code::NotFound, format!("pod with UID {uid} not found")))?;
        Ok(Answer::One(framed(&info(view))))
    }
}

impl Newest for PodInfo {
    fn now(&mut self) -> Result<Version, Status> {
        let snapshot = ready::whole(self.snapshots.borrow_and_update().as_ref())?;
        Ok(self.lists.get(snapshot.generation, || whole(&snapshot)))
    }

    async fn changed(&mut self) -> Result<(), Status> {
        self.snapshots.changed().await.map_err(|_| cache::ending())
    }
}

/// All pods, sorted by UID.
fn whole(snapshot: &NodeSnapshot) -> Bytes {
    let mut views: Vec<_> = snapshot.pods.iter().collect();
    views.sort_by(|a, b| a.uid.cmp(&b.uid));
    framed(&PodConditionsListResponse { pods: views.into_iter().map(|view| info(view)).collect() })
}

fn info(view: &PodView) -> PodConditionsInfo {
    PodConditionsInfo {
        pod_uid: view.uid.as_str().to_owned(),
        pod_namespace: view.pod.namespace_ref().to_owned(),
        pod_name: view.pod.name_ref().to_owned(),
        r#static: view.source != PodSource::Api,
        conditions: view.status.conditions.iter().flatten().filter_map(condition).collect(),
        deletion_timestamp: view.pod.metadata.deletion_timestamp.as_ref().map(time),
    }
}

/// `None` for a type that has no number.
fn condition(from: &api::PodCondition) -> Option<PodCondition> {
    let kind = match from.type_.as_str() {
        "ContainersReady" => ConditionType::ContainersReady,
        "Initialized" => ConditionType::Initialized,
        "Ready" => ConditionType::Ready,
        "PodScheduled" => ConditionType::PodScheduled,
        "DisruptionTarget" => ConditionType::DisruptionTarget,
        "PodReadyToStartContainers" => ConditionType::PodReadyToStartContainers,
        _ => return None,
    };
    let status = match from.status.as_str() {
        "True" => ConditionStatus::True,
        "False" => ConditionStatus::False,
        _ => ConditionStatus::Unknown,
    };
    Some(PodCondition {
        r#type: kind.into(),
        status: status.into(),
        last_probe_time: from.last_probe_time.as_ref().map(time),
        last_transition_time: from.last_transition_time.as_ref().map(time),
        reason: from.reason.clone().unwrap_or_default(),
        message: from.message.clone().unwrap_or_default(),
    })
}

fn time(time: &Time) -> Timestamp {
    Timestamp { seconds: time.0.as_second(), nanos: time.0.subsec_nanosecond() }
}
