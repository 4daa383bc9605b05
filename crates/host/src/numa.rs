//! Where CPUs and memory are: sockets, NUMA nodes, cores, caches.

use std::{collections::BTreeMap, fs};

use mainstay_types::{CpuPlace, HugePagesInfo};

use crate::{Host, HostError, machine::parse_cpu_list};

/// A machine's CPUs and NUMA nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaTopology {
    /// The CPUs that are online.
    pub cpus: BTreeMap<u32, CpuPlace>,
    /// NUMA nodes, also those without CPUs.
    pub nodes: BTreeMap<u32, NumaMemory>,
    /// From each node to each, where the kernel tells.
    pub distances: BTreeMap<(u32, u32), u32>,
}

/// Memory of a NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaMemory {
    /// All of it, huge pages among it.
    pub bytes: u64,
    /// Huge pages that were set up.
    pub huge_pages: Vec<HugePagesInfo>,
}

impl Host {
    /// Looks where CPUs and memory are. Blocks for reads of `/sys` only.
    ///
    /// # Errors
    /// [`HostError`] if it cannot be told which CPUs are online; a kernel that tells no more has one node with a core for each CPU.
    pub fn numa_topology(&self) -> Result<NumaTopology, HostError> {
        let online = self.online_cpus()?;
        let mut found = NumaTopology::default();
        let nodes = self.topology(&online);
        for node in &nodes {
            let on_node: usize = node.cores.iter().map(|core| core.thread_ids.len()).sum();
            for core in &node.cores {
                let first = core.thread_ids.iter().min().copied().unwrap_or(0);
                for cpu in &core.thread_ids {
                    let cache = self.shared_cache(*cpu, &online, (core.thread_ids.len(), on_node));
                    let place = CpuPlace {
                        core: first,
                        socket: core.socket_id,
                        node: node.node_id,
                        cache: cache.unwrap_or(core.socket_id),
                    };
                    found.cpus.insert(*cpu, place);
                }
            }
            let memory = NumaMemory { bytes: node.memory, huge_pages: node.hugepages.clone() };
            found.nodes.insert(node.node_id, memory);
        }
        // A row has a number for each node that is online, in their order.
        let ids: Vec<u32> = nodes.iter().map(|node| node.node_id).collect();
        for from in &ids {
            let path = self.sys.join(format!("devices/system/node/node{from}/distance"));
            let row = fs::read_to_string(path).unwrap_or_default();
            let row = row.split_whitespace().map(str::parse::<u32>);
            for (to, distance) in ids.iter().zip(row) {
                if let Ok(distance) = distance {
                    found.distances.insert((*from, *to), distance);
                }
            }
        }
        Ok(found)
    }

    /// The last cache that more than a core and less than a whole node has, by its number. `online` is sorted.
    fn shared_cache(&self, cpu: u32, online: &[u32], (core, node): (usize, usize)) -> Option<u32> {
        let dir = self.sys.join(format!("devices/system/cpu/cpu{cpu}/cache"));
        let mut last = None;
        for index in 0..8 {
            let dir = dir.join(format!("index{index}"));
            let read = |file: &str| fs::read_to_string(dir.join(file)).ok();
            let Some(level) = read("level").and_then(|text| text.trim().parse::<u32>().ok()) else {
                continue;
            };
            let sharers =
                read("shared_cpu_list").and_then(|text| parse_cpu_list(text.trim())).unwrap_or_default();
            let sharers: Vec<u32> =
                sharers.into_iter().filter(|cpu| online.binary_search(cpu).is_ok()).collect();
            let id = read("id").and_then(|text| text.trim().parse::<u32>().ok());
            if level >= 3 && sharers.len() > core && sharers.len() < node {
                last = id.or_else(|| sharers.first().copied());
            }
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Two sockets, each a node of two cores of two threads; the last CPU is offline; each core has a cache of its own on the first node.
    #[test]
    fn a_machine_of_two_sockets() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        put(root, "sys/devices/system/cpu/online", "0-6\n");
        put(root, "proc/meminfo", "MemTotal: 2048 kB\n");
        for node in 0..2_u32 {
            let base = format!("sys/devices/system/node/node{node}");
            put(root, &format!("{base}/cpulist"), if node == 0 { "0-3\n" } else { "4-7\n" });
            put(
                root,
                &format!("{base}/meminfo"),
                &format!("Node {node} MemTotal:  {} kB\n", 1024 * (node + 1)),
            );
            put(root, &format!("{base}/hugepages/hugepages-2048kB/nr_hugepages"), &format!("{node}\n"));
            put(root, &format!("{base}/distance"), if node == 0 { "10 21\n" } else { "21 10\n" });
        }
        for cpu in 0..8_u32 {
            let base = format!("sys/devices/system/cpu/cpu{cpu}");
            // Threads of a core are two apart, and cores have the same numbers on both sockets.
            put(root, &format!("{base}/topology/core_id"), &format!("{}\n", cpu % 2));
            put(root, &format!("{base}/topology/physical_package_id"), &format!("{}\n", cpu / 4));
            let first = cpu / 4 * 4;
            put(root, &format!("{base}/cache/index3/level"), "3\n");
            put(root, &format!("{base}/cache/index3/id"), &format!("{}\n", cpu / 4));
            put(root, &format!("{base}/cache/index3/shared_cpu_list"), &format!("{first}-{}\n", first + 3));
        }
        let found = Host::below(root).numa_topology().unwrap();
        let place = |cpu: u32| {
            let place = found.cpus[&cpu];
            (place.core, place.socket, place.node, place.cache)
        };
        assert_eq!(found.cpus.len(), 7, "one is offline");
        assert_eq!((place(0), place(2), place(3)), ((0, 0, 0, 0), (0, 0, 0, 0), (1, 0, 0, 0)));
        assert_eq!((place(4), place(6), place(5)), ((4, 1, 1, 1), (4, 1, 1, 1), (5, 1, 1, 1)));
        assert_eq!((found.nodes[&1].bytes, found.nodes[&1].huge_pages[0].num_pages), (2 << 20, 1));
        assert_eq!((found.distances[&(0, 1)], found.distances[&(1, 1)]), (21, 10));
    }

    #[test]
    fn caches_that_some_cores_share() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        put(root, "sys/devices/system/cpu/online", "0-3\n");
        put(root, "proc/meminfo", "MemTotal: 2048 kB\n");
        for cpu in 0..4_u32 {
            let base = format!("sys/devices/system/cpu/cpu{cpu}/cache/index3");
            put(root, &format!("{base}/level"), "3\n");
            put(root, &format!("{base}/id"), &format!("{}\n", 7 + cpu / 2));
            put(root, &format!("{base}/shared_cpu_list"), if cpu < 2 { "0-1\n" } else { "2-3\n" });
        }
        let found = Host::below(root).numa_topology().unwrap();
        let caches: Vec<u32> = found.cpus.values().map(|place| place.cache).collect();
        assert_eq!(caches, [7, 7, 8, 8]);
    }

    #[test]
    fn this_machine() {
        let found = Host::default().numa_topology().unwrap();
        assert!(!found.cpus.is_empty() && !found.nodes.is_empty());
        assert!(found.cpus.values().all(|place| found.cpus.contains_key(&place.core)));
    }
}
