use super::*;

fn map(items: &[(&str, &str)]) -> BTreeMap<String, String> {
    items.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A script: at a second, what is available (of 1000), and what is to be found.
struct Script {
    thresholds: Thresholds,
    signal: Signal,
    transition: i64,
    memory: PressureMemory,
}

impl Script {
    fn new(thresholds: Thresholds, signal: Signal, transition: i64) -> Self {
        Self { thresholds, signal, transition, memory: PressureMemory::default() }
    }

    fn check(&mut self, second: i64, available: Option<i64>, expected: Option<bool>) {
        let signals: Signals = available
            .map(|available| (self.signal, Reading { available, capacity: 1000 }))
            .into_iter()
            .collect();
        let transition = SignedDuration::from_secs(self.transition);
        let (found, memory) = self.thresholds.assess(&self.memory, &signals, transition, at(second));
        assert_eq!(found.of(self.signal.kind()), expected, "at {second} with {available:?}");
        self.memory = memory;
    }
}

fn hard(items: &[(&str, &str)], reclaim: &[(&str, &str)]) -> Thresholds {
    Thresholds::new(&map(items), &map(&[]), &BTreeMap::new(), &map(reclaim), false)
}

#[test]
fn a_hard_threshold_counts_at_once_and_holds_on() {
    let thresholds = hard(&[("memory.available", "100")], &[]);
    let mut script = Script::new(thresholds, Signal::MemoryAvailable, 30);
    script.check(0, None, None);
    script.check(10, Some(100), Some(false));
    script.check(20, Some(99), Some(true));
    script.check(30, Some(500), Some(true));
    script.check(49, Some(500), Some(true));
    script.check(50, Some(500), Some(false));
    script.check(60, None, Some(false));
}

#[test]
fn what_cannot_be_read_stays_as_it_was() {
    let thresholds = hard(&[("nodefs.available", "10%")], &[]);
    let mut script = Script::new(thresholds, Signal::NodefsAvailable, 0);
    script.check(10, Some(99), Some(true));
    script.check(20, None, Some(true));
    script.check(30, Some(101), Some(false));
}

#[test]
fn a_soft_threshold_is_shown_at_once_and_asks_for_more_only_after_its_grace() {
    let soft = map(&[("memory.available", "10%")]);
    let grace = BTreeMap::from([("memory.available".to_owned(), SignedDuration::from_secs(60))]);
    let reclaim = map(&[("memory.available", "50")]);
    let thresholds = Thresholds::new(&map(&[]), &soft, &grace, &reclaim, true);
    let mut script = Script::new(thresholds, Signal::MemoryAvailable, 0);
    script.check(0, Some(99), Some(true));
    script.check(30, Some(120), Some(false));
    script.check(40, Some(99), Some(true));
    script.check(110, Some(99), Some(true));
    script.check(120, Some(149), Some(true));
    script.check(130, Some(150), Some(false));
    script.check(140, Some(120), Some(false));
}

#[test]
fn thresholds_that_are_off_or_not_there_press_nobody() {
    for value in ["0%", "100%"] {
        let mut script = Script::new(hard(&[("pid.available", value)], &[]), Signal::PidAvailable, 60);
        script.check(0, Some(1), Some(false));
    }
    let (found, memory) = Thresholds::default().assess(
        &PressureMemory::default(),
        &Signals::new(),
        SignedDuration::from_secs(5),
        at(0),
    );
    assert_eq!(found, NodePressure { memory: Some(false), disk: Some(false), pid: Some(false) });
    assert_eq!(memory, PressureMemory::default());
}

#[test]
fn what_is_remembered_outlives_a_restart_a_changed_configuration_and_a_clock_set_back() {
    let thresholds = hard(&[("nodefs.inodesFree", "5%")], &[]);
    let mut script = Script::new(thresholds, Signal::NodefsInodesFree, 100);
    script.check(1000, Some(1), Some(true));
    let text = serde_json::to_string(&script.memory).unwrap();
    script.memory = serde_json::from_str(&text).unwrap();
    // The threshold is another one now; that it was crossed a moment ago is still true.
    script.thresholds = hard(&[("imagefs.inodesFree", "5%")], &[]);
    script.signal = Signal::ImagefsInodesFree;
    script.check(1050, Some(900), Some(true));
    script.check(500, Some(900), Some(true));
    script.check(601, Some(900), Some(false));
}

#[test]
fn the_pods_own_part_of_memory_counts_where_they_are_held_to_it() {
    let of = |held| {
        Thresholds::new(&map(&[("memory.available", "100")]), &map(&[]), &BTreeMap::new(), &map(&[]), held)
    };
    assert!(!of(false).wants(Signal::AllocatableMemoryAvailable));
    let mut script = Script::new(of(true), Signal::AllocatableMemoryAvailable, 0);
    script.check(0, Some(50), Some(true));
    script.check(1, Some(100), Some(false));
}
