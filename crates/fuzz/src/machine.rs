//! Machines made of files, for the reader of `/sys` and `/proc`.

use std::{
    fs, io,
    path::{Component, Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use mainstay_host::Host;

/// Where most of it lies, so that lines are short and changes meet what matters.
const BASE: &str = "sys/devices/system";
/// Files of a machine. More would only take longer.
const MAX_FILES: usize = 96;
const MAX_DEPTH: usize = 8;

/// A directory that is gone when this is dropped.
struct Machine {
    root: PathBuf,
}

impl Machine {
    /// From lines of a path and what stands in the file there. Lines whose paths would lead anywhere else are left out.
    fn of(text: &str) -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let root =
            std::env::temp_dir().join(format!("mainstay-fuzz-machine-{}-{number}", std::process::id()));
        fs::create_dir(&root)?;
        let machine = Self { root };
        for line in text.lines().take(MAX_FILES) {
            let (path, content) = line.split_once(' ').unwrap_or((line, ""));
            let base = if path.starts_with("proc/") { "" } else { BASE };
            let path = Path::new(base).join(path);
            let depth = path.components().count();
            let is_below = path.components().all(|part| match part {
                Component::Normal(name) => name.len() < 64,
                _ => false,
            });
            if !is_below || depth > MAX_DEPTH {
                continue;
            }
            let path = machine.root.join(path);
            // A file where another line wants a directory, or the other way round, or a name that is none: the kernel has neither.
            if path.parent().is_some_and(|above| fs::create_dir_all(above).is_ok()) {
                drop(fs::write(path, content));
            }
        }
        Ok(machine)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.root));
    }
}

/// Whatever the files say, a CPU that is told of is online, and so is the one that its core is called by.
pub(crate) fn read(bytes: &[u8]) -> String {
    let machine = match Machine::of(&String::from_utf8_lossy(bytes)) {
        Ok(machine) => machine,
        Err(error) => return format!("no machine: {error}"),
    };
    let host = Host::below(&machine.root);
    let facts = if host.machine_facts(String::new()).is_ok() { "facts" } else { "none" };
    let found = match host.numa_topology() {
        Ok(found) => found,
        Err(_) => return format!("no topology, {facts}"),
    };
    let online = host.online_cpus().unwrap_or_default();
    assert!(found.cpus.keys().all(|cpu| online.contains(cpu)), "a CPU that is not online");
    let cores_are_there = found.cpus.values().all(|place| found.cpus.contains_key(&place.core));
    assert!(cores_are_there, "a core that is none of the CPUs");
    assert!(found.cpus.values().all(|place| found.nodes.contains_key(&place.node)), "a node that is none");
    let memory = found.nodes.values().filter(|node| node.bytes > 0).count();
    let huge_pages = found.nodes.values().map(|node| node.huge_pages.len()).sum();
    let (cpus, distances) = (found.cpus.len(), found.distances.len());
    let machine = mainstay_alloc::Machine::new(found.cpus);
    let nodes = machine.node_mask().len();
    let threads = machine.cpus_per_core().max(machine.cpus_per_cache());
    [
        rough("cpus", cpus),
        rough("sockets", machine.sockets()),
        rough("nodes", nodes),
        rough("threads", threads),
        rough("distances", distances),
        rough("memory", memory),
        rough("pages", huge_pages),
        facts.to_owned(),
    ]
    .join(" ")
}

/// One word for a number.
fn rough(what: &str, number: usize) -> String {
    format!("{}{what}", ["no", "one", "two", "some", "many"][number.min(12).div_ceil(3)])
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut two_nodes = String::from("cpu/online 0-3\nproc/meminfo MemTotal: 2048 kB\n");
    for cpu in 0..4 {
        let node = cpu / 2;
        two_nodes.push_str(&format!(
            "cpu/cpu{cpu}/topology/core_id {cpu}\ncpu/cpu{cpu}/topology/physical_package_id {node}\n\
             cpu/cpu{cpu}/cache/index3/level 3\ncpu/cpu{cpu}/cache/index3/id {node}\n\
             cpu/cpu{cpu}/cache/index3/shared_cpu_list 0-1\ncpu/cpu{cpu}/cache/index3/size 32K\n"
        ));
    }
    for node in 0..2 {
        two_nodes.push_str(&format!(
            "node/node{node}/cpulist {}-{}\nnode/node{node}/meminfo Node {node} MemTotal: 1024 kB\n\
             node/node{node}/distance 10 21\nnode/node{node}/hugepages/hugepages-2048kB/nr_hugepages 3\n",
            2 * node,
            2 * node + 1
        ));
    }
    let plain = "cpu/online 0-1,3\nproc/meminfo MemTotal: 9 kB\nproc/cpuinfo cpu MHz : 2200.5\n";
    let modules = "cpu/online 0\nproc/meminfo MemTotal: 9 kB\nedac/mc/mc0/dimm0/dimm_mem_type DDR4\nedac/mc/mc0/dimm0/size 8\n";
    [two_nodes.as_str(), plain, modules].iter().map(|text| text.as_bytes().to_vec()).collect()
}
