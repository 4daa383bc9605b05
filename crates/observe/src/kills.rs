//! Whether the kernel killed for want of memory, where the runtime may not tell.
//!
//! On cgroup v2 a runtime hears of it by watching a file of the container's cgroup, and that cgroup may be gone before it
//! has looked: then it says `Error`. The pod's cgroup counts for all below it and outlives them. Where a kill ends the
//! whole container (`memory.oom.group`, which is the rule on v2), a count that has grown when a container is found ended by
//! SIGKILL is the evidence.

use std::{
    collections::HashMap,
    fs,
    sync::{Arc, OnceLock},
};

use mainstay_cgroup::{CgroupNames, Cgroups};
use mainstay_types::{ContainerPhase, ObservedPod, PodUid};

/// 128 and SIGKILL.
const KILLED: i32 = 137;

/// Where pods' cgroups are; empty until that is known, and where their counts say nothing of a container's end.
pub type PodCgroups = Arc<OnceLock<(CgroupNames, Cgroups)>>;

/// What was counted in pods' cgroups.
#[derive(Debug)]
pub(crate) struct Kills {
    place: PodCgroups,
    /// Pods with a count other than 0; `None` until those that were there before are counted.
    counts: Option<HashMap<PodUid, u64>>,
}

impl Kills {
    pub(crate) fn new(place: PodCgroups) -> Self {
        Self { place, counts: None }
    }

    /// Counts what is there, once, as soon as it is known where: what was killed earlier says nothing of what ends from now on.
    pub(crate) fn begin<'a>(&mut self, pods: impl Iterator<Item = &'a PodUid>) {
        if self.counts.is_none() && self.place.get().is_some() {
            let counted = pods.filter_map(|uid| Some((uid.clone(), self.count(uid).filter(|n| *n > 0)?)));
            self.counts = Some(counted.collect());
        }
    }

    /// Marks those containers of a new reading that the kernel has killed since the last one. What was marked stays so.
    pub(crate) fn mark(&mut self, before: Option<&ObservedPod>, pod: &mut ObservedPod) {
        let ended = |pod: &ObservedPod, id| {
            pod.containers.iter().any(|c| c.id == id && c.phase == ContainerPhase::Exited)
        };
        let mut suspects: Vec<_> = pod
            .containers
            .iter_mut()
            .filter(|c| c.phase == ContainerPhase::Exited && c.exit_code == KILLED && &*c.reason == "Error")
            .filter(|c| !before.is_some_and(|before| ended(before, c.id.clone())))
            .collect();
        if suspects.is_empty() {
            return;
        }
        let Some(now) = self.count(&pod.uid) else { return };
        let Some(counts) = &mut self.counts else { return };
        let earlier = counts.insert(pod.uid.clone(), now).unwrap_or(0);
        for container in &mut suspects {
            container.oom_killed = now > earlier;
        }
    }

    /// Forgets pods that are gone. A pod may come again under its UID while its cgroup is still there, and go on counting.
    pub(crate) fn forget(&mut self, is_there: impl Fn(&PodUid) -> bool) {
        if let Some(mut counts) = self.counts.take() {
            counts.retain(|uid, _| is_there(uid) || self.count(uid).is_some());
            self.counts = Some(counts);
        }
    }

    /// How often the kernel has killed in a pod. Reads a file of the kernel's, which answers at once.
    fn count(&self, uid: &PodUid) -> Option<u64> {
        let (names, cgroups) = self.place.get()?;
        // Which class it is of can be seen from where its cgroup is.
        let text = names.pods(uid).iter().find_map(|path| {
            fs::read_to_string(cgroups.directory_of("memory", path)?.join("memory.events")).ok()
        })?;
        kills(&text)
    }
}

/// How often, by `memory.events`.
pub(crate) fn kills(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Instant};

    use jiff::Timestamp;
    use mainstay_cgroup::Driver;
    use mainstay_types::{FullName, ObservedContainer};

    use super::*;

    fn container(id: &str, exit_code: i32, reason: &str) -> ObservedContainer {
        ObservedContainer {
            id: id.into(),
            sandbox: "s".into(),
            name: id.into(),
            restart_count: 0,
            hash: 0,
            phase: ContainerPhase::Exited,
            created_at: Timestamp::UNIX_EPOCH,
            started_at: None,
            finished_at: None,
            exit_code,
            reason: reason.into(),
            message: "".into(),
            oom_killed: false,
            stop_signal: None,
            image: "".into(),
            image_ref: "".into(),
            log_path: "".into(),
            user: None,
            termination_grace_seconds: None,
            pre_stop: None,
        }
    }

    fn pod(uid: &str, containers: Vec<ObservedContainer>) -> ObservedPod {
        let mut pod = ObservedPod::nothing(uid.into(), Some(FullName::new("n", "p")), Instant::now());
        pod.containers = containers;
        pod
    }

    fn count(root: &Path, uid: &str, kills: u64) {
        let dir = root.join(format!("kubepods/burstable/pod{uid}"));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("memory.events"), format!("low 0\noom 9\noom_kill {kills}\noom_group_kill 0\n"))
            .unwrap();
    }

    /// The containers that are marked, by ID.
    fn marked(kills: &mut Kills, before: Option<&ObservedPod>, pod: &mut ObservedPod) -> Vec<String> {
        kills.mark(before, pod);
        pod.containers.iter().filter(|c| c.oom_killed).map(|c| c.id.to_string()).collect()
    }

    #[test]
    fn a_count_that_grew_is_evidence_and_one_that_did_not_is_none() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "memory\n").unwrap();
        let place = PodCgroups::default();
        let mut kills = Kills::new(place.clone());
        let old: PodUid = "old".into();
        count(root.path(), "old", 2);
        let mut unplaced = pod("old", vec![container("a", 137, "Error")]);
        kills.begin([&old].into_iter());
        assert!(marked(&mut kills, None, &mut unplaced).is_empty(), "it is not known where to look");

        let names = CgroupNames::new(Driver::Cgroupfs, "/").unwrap();
        place.set((names, Cgroups::open(root.path()).unwrap())).unwrap();
        kills.begin([&old].into_iter());
        let mut first = pod("old", vec![container("a", 137, "Error")]);
        assert!(marked(&mut kills, None, &mut first).is_empty(), "both kills were before");
        count(root.path(), "old", 3);
        let mut second = pod(
            "old",
            vec![
                container("a", 137, "Error"),
                container("b", 137, "Error"),
                container("c", 1, "Error"),
                container("d", 137, "OOMKilled"),
            ],
        );
        assert_eq!(marked(&mut kills, Some(&first), &mut second), ["b"]);
        // Killed by others: the count is the same.
        let mut third = pod("old", vec![container("e", 137, "Error"), second.containers[1].clone()]);
        assert_eq!(marked(&mut kills, Some(&second), &mut third), ["b"], "what was marked stays so");

        // A pod that came later began at nothing.
        count(root.path(), "new", 1);
        let mut new = pod("new", vec![container("n", 137, "Error")]);
        assert_eq!(marked(&mut kills, None, &mut new), ["n"]);
        // Its cgroup outlives it, and it comes again.
        kills.forget(|_| false);
        assert!(marked(&mut kills, None, &mut pod("new", vec![container("m", 137, "Error")])).is_empty());
        fs::remove_dir_all(root.path().join("kubepods/burstable/podnew")).unwrap();
        kills.forget(|_| false);
        assert_eq!(kills.counts.as_ref().unwrap().len(), 1, "forgotten with its cgroup");
        assert!(marked(&mut kills, None, &mut pod("none", vec![container("x", 137, "Error")])).is_empty());
    }
}
