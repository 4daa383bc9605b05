//! From a request to the handler that answers it: which call it is, whether the caller may ask now, and what is counted.

use std::sync::Arc;

use http::{Request, Response};
use http_body::Body;
use mainstay_proto::{
    podinfo::PodConditionsRequest, podresources::v1::GetPodResourcesRequest, pods::GetPodRequest,
};
use mainstay_snapshot::SnapshotReader;
use mainstay_task::{Shutdown, TaskGroup};
use mainstay_types::Counters;

use crate::{
    deadline, metrics,
    peer::{CallPlace, Peers, Place, Rate},
    podinfo::PodInfo,
    podresources::PodResources,
    pods::{self, Pods},
    wire::{self, Answer, Code, Ended, Reply, Status},
};

/// What one socket serves.
pub(crate) enum Api {
    PodInfo(PodInfo),
    Pods(Arc<Pods>),
    PodResources(PodResources),
}

impl Api {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::PodInfo(_) => "PodInfo",
            Self::Pods(_) => "Pods",
            Self::PodResources(_) => "PodResources",
        }
    }

    /// What there is: service, method, call.
    fn calls(&self) -> &'static [(&'static str, &'static str, Call)] {
        match self {
            Self::PodInfo(_) => &[
                ("podinfo.v1alpha1.PodInfo", "ListPodConditions", Call::ListConditions),
                ("podinfo.v1alpha1.PodInfo", "WatchPodConditions", Call::WatchConditions),
                ("podinfo.v1alpha1.PodInfo", "GetPodConditions", Call::GetConditions),
            ],
            Self::Pods(_) => &[
                ("v1alpha1.Pods", "ListPods", Call::ListPods),
                ("v1alpha1.Pods", "WatchPods", Call::WatchPods),
                ("v1alpha1.Pods", "GetPod", Call::GetPod),
            ],
            Self::PodResources(_) => &[
                ("v1.PodResourcesLister", "List", Call::ListResources),
                ("v1.PodResourcesLister", "GetAllocatableResources", Call::GetAllocatable),
                ("v1.PodResourcesLister", "Get", Call::GetResources),
                ("v1alpha1.PodResourcesLister", "List", Call::ListResourcesAlpha),
                ("mainstay.podresources.v1alpha1.PodResourcesWatcher", "Watch", Call::WatchResources),
            ],
        }
    }
}

/// All calls there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    ListConditions,
    WatchConditions,
    GetConditions,
    ListPods,
    WatchPods,
    GetPod,
    ListResources,
    GetAllocatable,
    GetResources,
    ListResourcesAlpha,
    WatchResources,
}

impl Call {
    /// As metrics name it.
    pub(crate) fn version(self) -> &'static str {
        match self {
            Self::ListResources | Self::GetAllocatable | Self::GetResources => "v1",
            _ => "v1alpha1",
        }
    }

    /// Streams last, and are not limited by how often one asks.
    fn streams(self) -> bool {
        matches!(self, Self::WatchConditions | Self::WatchPods | Self::WatchResources)
    }
}

/// A socket's calls with what they need.
pub(crate) struct Service {
    api: Api,
    pub(crate) peers: Arc<Peers>,
    counters: Arc<Counters>,
    pods_here: SnapshotReader,
    shutdown: Shutdown,
}

impl Service {
    pub(crate) fn new(
        api: Api,
        rate: Rate,
        counters: Arc<Counters>,
        pods_here: SnapshotReader,
        tasks: &TaskGroup,
    ) -> Self {
        Self { api, peers: Arc::new(Peers::new(rate)), counters, pods_here, shutdown: tasks.shutdown() }
    }

    /// Answers one call. The limiter comes first: who asks too often costs nothing else, and is not counted, as upstream.
    pub(crate) async fn call<B>(&self, place: &Place, request: Request<B>) -> Response<Reply>
    where
        B: Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        match self.let_in(place, &request) {
            Ok((call, place)) => {
                if !call.streams() {
                    deadline::begin();
                }
                let counters = Arc::clone(&self.counters);
                let ended = Ended::new(move |code| metrics::count(&counters, call, code));
                wire::respond(self.answer(call, request).await, ended, place)
            }
            Err(refused) => {
                // What is left unread is reset; after a thousand of these HTTP/2 ends the connection, with every watch on it. Whoever begins more calls
                // than that and ends none has it so.
                let body = request.into_body();
                if !body.is_end_stream()
                    && let Some(_place) = place.enter_refusal()
                {
                    wire::skip(body).await;
                }
                *refused
            }
        }
    }

    /// Which call it is, if the caller may make it now, and the place that it has until its answer has been taken.
    fn let_in<B>(
        &self,
        place: &Place,
        request: &Request<B>,
    ) -> Result<(Call, CallPlace), Box<Response<Reply>>> {
        let refuse = |status: Status| Box::new(wire::refuse(&status));
        let (service, method) = wire::method(request)?;
        let call = self.find(service, method).map_err(refuse)?;
        if !call.streams() && !place.may_ask() {
            return Err(refuse(Status::new(Code::ResourceExhausted, "rejected by rate limit")));
        }
        let masks: Vec<&[u8]> = pods::masks(request.headers()).collect();
        let masked = matches!(self.api, Api::Pods(_)) && !masks.is_empty();
        let mask = masked.then(|| place.may_mask(&masks.join(&b','))).transpose().map_err(refuse)?;
        let place = if call.streams() { place.enter_stream(mask) } else { place.enter_answer() };
        Ok((call, place.map_err(refuse)?))
    }

    /// Whether a process in a cgroup that is named after this UID is taken for that pod. Before anything is known of pods it is, because
    /// agents come back at once after a restart, and are told nothing yet.
    pub(crate) fn may_be_pod(&self, uid: &str) -> bool {
        self.pods_here.borrow().as_ref().is_none_or(|snapshot| snapshot.by_uid(uid).is_some())
    }

    fn find(&self, service: &str, method: &str) -> Result<Call, Status> {
        let calls = self.api.calls();
        if let Some((_, _, call)) = calls.iter().find(|(of, name, _)| (*of, *name) == (service, method)) {
            return Ok(*call);
        }
        let known = calls.iter().any(|(of, _, _)| *of == service);
        Err(Status::new(
            Code::Unimplemented,
            if known {
                format!("unknown method {method} for service {service}")
            } else {
                format!("unknown service {service}")
            },
        ))
    }

    async fn answer<B>(&self, call: Call, request: Request<B>) -> Result<Answer, Status>
    where
        B: Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (head, body) = request.into_parts();
        match (&self.api, call) {
            (Api::PodInfo(info), Call::GetConditions) => {
                info.get(&wire::read::<PodConditionsRequest, _>(body).await?.pod_uid)
            }
            (Api::PodResources(resources), Call::GetResources) => {
                let wanted: GetPodResourcesRequest = wire::read(body).await?;
                resources.get(&wanted.pod_namespace, &wanted.pod_name)
            }
            (Api::Pods(pods), Call::GetPod) => {
                let mask = pods::mask(&head.headers)?;
                pods.get(&wire::read::<GetPodRequest, _>(body).await?.pod_uid, mask.as_ref())
            }
            (api, call) => {
                // The rest ask for nothing in particular: any fields in the message are from a newer client.
                wire::read::<(), _>(body).await?;
                match (api, call) {
                    (Api::PodInfo(info), Call::ListConditions) => info.list(),
                    (Api::PodInfo(info), _) => info.watch(&self.shutdown),
                    (Api::Pods(pods), Call::ListPods) => pods.list(pods::mask(&head.headers)?),
                    (Api::Pods(pods), _) => pods.watch(pods::mask(&head.headers)?),
                    (Api::PodResources(resources), Call::GetAllocatable) => resources.allocatable(),
                    (Api::PodResources(resources), Call::ListResourcesAlpha) => resources.list_alpha(),
                    (Api::PodResources(resources), Call::WatchResources) => resources.watch(&self.shutdown),
                    (Api::PodResources(resources), _) => resources.list(),
                }
            }
        }
    }
}
