use mainstay_types::HugePages;

use super::*;

const GI: i64 = 1 << 30;

fn machine() -> MachineCapacity {
    MachineCapacity {
        cpus: vec![0, 1, 2, 3],
        memory_bytes: 16 * GI,
        huge_pages: Vec::new(),
        ephemeral_storage_bytes: Some(100 * GI),
        max_pids: 32768,
        swap_bytes: 0,
    }
}

/// Pairs such as `cpu=500m` as a map.
fn map(pairs: &[&str]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap();
            (name.to_owned(), value.to_owned())
        })
        .collect()
}

struct Case<'a> {
    name: &'a str,
    machine: MachineCapacity,
    pods: (i32, i32),
    system: &'a [&'a str],
    kube: &'a [&'a str],
    cpus: &'a [u32],
    eviction: &'a [&'a str],
}

impl Default for Case<'_> {
    fn default() -> Self {
        Self {
            name: "",
            machine: machine(),
            pods: (110, 0),
            system: &[],
            kube: &[],
            cpus: &[],
            eviction: &[],
        }
    }
}

impl Case<'_> {
    fn run(&self) -> Result<NodeResources, AllocatableError> {
        let (system, kube, eviction) = (map(self.system), map(self.kube), map(self.eviction));
        let reservations = Reservations {
            max_pods: self.pods.0,
            pods_per_core: self.pods.1,
            system: &system,
            kube: &kube,
            system_cpus: self.cpus,
            eviction_hard: &eviction,
        };
        node_resources(&self.machine, &reservations, BTreeMap::new())
    }

    /// Checks allocatable, and that capacity says what the machine has.
    fn leaves(&self, expected: &[&str]) {
        let node = self.run().unwrap_or_else(|error| panic!("{}: {error}", self.name));
        let texts: Vec<_> =
            node.allocatable.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
        assert_eq!(texts, expected, "{}", self.name);
    }

    fn fails(&self, expected: &str) {
        assert_eq!(self.run().unwrap_err().to_string(), expected, "{}", self.name);
    }
}

#[test]
fn what_is_left_for_pods() {
    Case { name: "nothing is kept back", ..Case::default() }.leaves(&[
        "cpu=4",
        "ephemeral-storage=100Gi",
        "memory=16Gi",
        "pods=110",
    ]);
    Case {
        name: "both reservations and the thresholds",
        system: &["cpu=100m", "memory=1Gi", "pid=1000", "ephemeral-storage=1Gi"],
        kube: &["cpu=0.2", "memory=512Mi"],
        eviction: &[
            "memory.available=100Mi",
            "nodefs.available=10%",
            "imagefs.available=15%",
            "pid.available=5%",
        ],
        ..Case::default()
    }
    .leaves(&["cpu=3700m", "ephemeral-storage=95563022176", "memory=14748Mi", "pods=110"]);
    Case {
        name: "a percentage of memory; 0% and 100% are off",
        eviction: &["memory.available=50%", "nodefs.available=0%"],
        ..Case::default()
    }
    .leaves(&["cpu=4", "ephemeral-storage=100Gi", "memory=8Gi", "pods=110"]);
    Case {
        name: "named CPUs replace counted ones",
        system: &["cpu=3", "memory=1Gi"],
        kube: &["cpu=1"],
        cpus: &[0, 3],
        ..Case::default()
    }
    .leaves(&["cpu=2", "ephemeral-storage=100Gi", "memory=15Gi", "pods=110"]);
    Case { name: "pods per core", pods: (110, 10), ..Case::default() }.leaves(&[
        "cpu=4",
        "ephemeral-storage=100Gi",
        "memory=16Gi",
        "pods=40",
    ]);
    Case { name: "max pods are fewer", pods: (5, 10), ..Case::default() }.leaves(&[
        "cpu=4",
        "ephemeral-storage=100Gi",
        "memory=16Gi",
        "pods=5",
    ]);
    let huge_pages =
        vec![HugePages { size_bytes: 2 << 20, count: 512 }, HugePages { size_bytes: GI, count: 2 }];
    Case {
        name: "huge pages are not memory",
        machine: MachineCapacity { huge_pages, ..machine() },
        eviction: &["memory.available=1Gi"],
        ..Case::default()
    }
    .leaves(&[
        "cpu=4",
        "ephemeral-storage=100Gi",
        "hugepages-1Gi=2Gi",
        "hugepages-2Mi=1Gi",
        "memory=12Gi",
        "pods=110",
    ]);
    let huge_pages = vec![HugePages { size_bytes: GI, count: 17 }];
    Case {
        name: "never below zero",
        machine: MachineCapacity { huge_pages, ephemeral_storage_bytes: None, ..machine() },
        ..Case::default()
    }
    .leaves(&["cpu=4", "hugepages-1Gi=17Gi", "memory=0", "pods=110"]);
    Case { name: "all of it reserved", system: &["cpu=4", "memory=16Gi"], ..Case::default() }.leaves(&[
        "cpu=0",
        "ephemeral-storage=100Gi",
        "memory=0",
        "pods=110",
    ]);
}

#[test]
fn more_than_there_is() {
    Case {
        name: "two resources",
        system: &["cpu=3", "pid=40000"],
        kube: &["cpu=1500m"],
        ..Case::default()
    }
    .fails(
        "invalid Node Allocatable configuration. Resource \"cpu\" has a reservation of 4500m but capacity of 4. \
         Expected capacity >= reservation. Resource \"pid\" has a reservation of 40k but capacity of 32768. \
         Expected capacity >= reservation.; reserve less in systemReserved, kubeReserved or evictionHard",
    );
    Case { name: "threshold and reservation", system: &["memory=16Gi"], eviction: &["memory.available=1Mi"], ..Case::default() }
        .fails(
            "invalid Node Allocatable configuration. Resource \"memory\" has a reservation of 16385Mi but capacity of \
             16Gi. Expected capacity >= reservation.; reserve less in systemReserved, kubeReserved or evictionHard",
        );
    Case { name: "no such CPU", cpus: &[2, 3, 4, 7], ..Case::default() }
        .fails("reservedCPUs: 2-4,7 is not a subset of online-cpus: 0-3; mend reservedSystemCPUs");
}

#[test]
fn the_cgroup_of_all_pods_may_use_the_eviction_threshold() {
    let case = Case { system: &["memory=1Gi"], eviction: &["memory.available=1Gi"], ..Case::default() };
    let node = case.run().unwrap();
    assert_eq!(node.enforced().get("memory"), Some(&Quantity::bytes(15 * GI)));
    assert_eq!(node.allocatable.get("memory"), Some(&Quantity::bytes(14 * GI)));
}
