//! Who has to go so that a critical pod may come.

use k8s_openapi::api::core::v1::Pod;
use mainstay_podspec::runtime::{QosClass, is_critical, qos_class};
use mainstay_types::PodExt as _;

use super::{Candidate, NodeFacts, PodUse, belongs_here, fit, may_be_here};

/// A pod that was let in and has not ended.
#[derive(Clone, Copy, Debug)]
pub struct Occupant<'a, I> {
    /// By what the caller knows it.
    pub id: I,
    /// The pod.
    pub pod: &'a Pod,
    /// What it takes.
    pub takes: &'a PodUse,
    /// No API server knows it.
    pub is_static: bool,
}

/// The occupants that have to go for the candidate to be admitted, none if there is room; `None` if it is not critical, if
/// something else than room is in its way (a port that somebody has, for example), or if all that may be made to go are not
/// enough. Who is critical makes room for nobody of the same or a lower priority.
///
/// Upstream's rule (`pkg/kubelet/preemption` of 1.37): of Guaranteed pods as few as all the others leave necessary, then of
/// Burstable ones, then of BestEffort ones; in a class, one after the other, who comes nearest to what is missing.
#[must_use]
pub fn preempt<'a, I: Copy>(
    candidate: &Candidate<'_>,
    node: &NodeFacts,
    occupants: &[Occupant<'a, I>],
) -> Option<Vec<I>> {
    if !candidate.is_static && !is_critical(candidate.pod) {
        return None;
    }
    let used = fit::Used::of(occupants.iter().map(|occupant| occupant.takes));
    may_be_here(candidate, node).ok()?;
    belongs_here(candidate, node, &used).ok()?;
    let short = fit::shortages(candidate.wants, &node.resources.allocatable, &used);
    let missing = Missing(short.iter().map(|shortage| (shortage.name, shortage.missing())).collect());

    let of = |class: QosClass| -> Vec<Occupant<'a, I>> {
        let all = occupants.iter().filter(|it| yields_to(it, candidate) && qos_class(it.pod) == class);
        all.copied().collect()
    };
    let (best_effort, burstable) = (of(QosClass::BestEffort), of(QosClass::Burstable));
    let guaranteed = nearest(of(QosClass::Guaranteed), missing.without(&best_effort).without(&burstable))?;
    let burstable = nearest(burstable, missing.without(&best_effort).without(&guaranteed))?;
    let best_effort = nearest(best_effort, missing.without(&burstable).without(&guaranteed))?;
    Some([best_effort, burstable, guaranteed].iter().flatten().map(|it| it.id).collect())
}

/// Whether an occupant may be made to go for the candidate.
fn yields_to<I>(occupant: &Occupant<'_, I>, candidate: &Candidate<'_>) -> bool {
    let priority = |pod: &Pod| pod.spec_ref().priority;
    let critical = occupant.is_static || is_critical(occupant.pod);
    !critical || priority(candidate.pod).zip(priority(occupant.pod)).is_some_and(|(his, its)| his > its)
}

/// What has to be given back, by resource; only what is above zero.
#[derive(Clone, Debug)]
struct Missing<'a>(Vec<(&'a str, i64)>);

impl<'a> Missing<'a> {
    /// What is missing still when these have gone.
    fn without<I>(&self, gone: &[Occupant<'_, I>]) -> Self {
        let left = self.0.iter().map(|(name, amount)| {
            let given = gone.iter().map(|it| it.takes.of_resource(name));
            (*name, given.fold(*amount, i64::saturating_sub))
        });
        Self(left.filter(|(_, amount)| *amount > 0).collect())
    }

    /// How far a pod is from being enough: for each resource the part that it leaves missing, squared.
    #[expect(clippy::cast_precision_loss, reason = "a measure for comparison, not an amount")]
    fn distance(&self, takes: &PodUse) -> f64 {
        let parts = self.0.iter().map(|(name, amount)| {
            let left = amount.saturating_sub(takes.of_resource(name)).max(0);
            (left as f64 / *amount as f64).powi(2)
        });
        parts.sum()
    }
}

/// Takes who is nearest to what is missing until nothing is; among equals who asks for less memory, then less CPU. `None` if
/// all are not enough.
fn nearest<'a, I: Copy>(
    mut occupants: Vec<Occupant<'a, I>>,
    mut missing: Missing<'_>,
) -> Option<Vec<Occupant<'a, I>>> {
    let mut chosen = Vec::new();
    while !missing.0.is_empty() {
        let rank = |it: &Occupant<'a, I>| (missing.distance(it.takes), it.takes.memory, it.takes.milli_cpu);
        let (best, _) = occupants.iter().enumerate().min_by(|(_, a), (_, b)| {
            let ((a, a_memory, a_cpu), (b, b_memory, b_cpu)) = (rank(a), rank(b));
            a.total_cmp(&b).then_with(|| (a_memory, a_cpu).cmp(&(b_memory, b_cpu)))
        })?;
        let taken = occupants.swap_remove(best);
        missing = missing.without(&[taken]);
        chosen.push(taken);
    }
    Some(chosen)
}
