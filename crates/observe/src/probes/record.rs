//! Verdicts and counts on disk, so that a restart of mainstay is not evidence of anything.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::Arc,
};

use mainstay_checkpoint::{Deferred, Durability, Store};
use mainstay_lifecycle::ProbeState;
use mainstay_task::TaskGroup;
use mainstay_types::{ContainerId, ContainerProbes, PodProbes, PodUid, ProbeKind};
use serde::{Deserialize, Serialize};

use super::prober::Prober;

/// What the probes of one pod have shown, by container instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PodRecord {
    instances: BTreeMap<ContainerId, BTreeMap<ProbeKind, ProbeState>>,
}

impl PodRecord {
    pub(super) fn of(probers: &[Prober]) -> Self {
        let mut record = Self::default();
        for prober in probers {
            if let Some(instance) = &prober.instance {
                let states = record.instances.entry(instance.id.clone()).or_default();
                states.insert(prober.rules.kind, prober.state);
            }
        }
        record
    }

    /// Takes verdicts over where it has none.
    pub(super) fn fill_in(&mut self, shown: &PodProbes) {
        for (id, probes) in shown {
            let states = self.instances.entry(id.clone()).or_default();
            for (kind, verdict) in
                [(ProbeKind::Startup, probes.startup), (ProbeKind::Readiness, probes.readiness)]
            {
                if let Some(verdict) = verdict {
                    states.entry(kind).or_insert(ProbeState::of_verdict(verdict));
                }
            }
        }
    }

    pub(super) fn state(&self, id: &ContainerId, kind: ProbeKind) -> Option<ProbeState> {
        self.instances.get(id)?.get(&kind).copied()
    }

    pub(super) fn verdicts(&self) -> PodProbes {
        let verdict =
            |states: &BTreeMap<ProbeKind, ProbeState>, kind| states.get(&kind).and_then(|it| it.verdict);
        let all = self.instances.iter().map(|(id, states)| {
            let probes = ContainerProbes {
                startup: verdict(states, ProbeKind::Startup),
                liveness: verdict(states, ProbeKind::Liveness),
                readiness: verdict(states, ProbeKind::Readiness),
            };
            (id.clone(), probes)
        });
        all.collect()
    }
}

/// Hands records over to the disk and never waits for it. Without a usable directory it does nothing.
#[derive(Debug)]
pub(super) struct ProbeFiles {
    deferred: Option<Arc<Deferred<PodRecord>>>,
}

impl ProbeFiles {
    /// Opens the directory and reads what is there. What cannot be used is reported, and mainstay works without it.
    pub(super) fn open(dir: &Path, tasks: &TaskGroup) -> (Self, HashMap<PodUid, PodRecord>, Vec<String>) {
        // Not flushed: after a power failure the containers are others.
        let store: Store<PodRecord> =
            match Store::open(dir, 0o700, "probe-results", 1, Durability::ProcessDeath) {
                Ok(store) => store,
                Err(error) => return (Self { deferred: None }, HashMap::new(), vec![error.to_string()]),
            };
        let contents = store.load_all();
        let problems = contents.set_aside.iter().map(ToString::to_string).collect();
        let good = contents.good.into_iter().map(|(uid, record)| (PodUid::from(uid), record)).collect();
        let deferred = Arc::new(Deferred::new(store));
        let (writer, shutdown) = (Arc::clone(&deferred), tasks.shutdown());
        tasks.spawn("probe files", async move { writer.run(shutdown.signalled()).await });
        (Self { deferred: Some(deferred) }, good, problems)
    }

    pub(super) fn store(&self, uid: &PodUid, record: PodRecord) {
        if let Some(deferred) = &self.deferred {
            deferred.put(uid.as_str(), record);
        }
    }

    pub(super) fn forget(&self, uid: &PodUid) {
        if let Some(deferred) = &self.deferred {
            deferred.remove(uid.as_str());
        }
    }
}

#[cfg(test)]
mod tests {
    use mainstay_types::Verdict;

    use super::*;

    #[test]
    fn what_a_status_told_fills_the_gaps_of_a_record_and_no_more() {
        let failed = ProbeState::of_verdict(Verdict::Failed);
        let mut record = PodRecord::default();
        record.instances.insert("a".into(), BTreeMap::from([(ProbeKind::Readiness, failed)]));
        let passed = ContainerProbes {
            startup: Some(Verdict::Passed),
            liveness: None,
            readiness: Some(Verdict::Passed),
        };
        record.fill_in(&[("a".into(), passed), ("b".into(), passed)].into_iter().collect());
        let verdicts = record.verdicts();
        assert_eq!(
            verdicts.of(&"a".into()),
            ContainerProbes { readiness: Some(Verdict::Failed), ..passed },
            "the record knows better"
        );
        assert_eq!(verdicts.of(&"b".into()), passed);
    }
}
