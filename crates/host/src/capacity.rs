//! What the machine has for pods to use.

use std::{fs, path::Path};

use mainstay_types::{HugePages, MachineCapacity};

use crate::{FilesystemUsage, Host, HostError};

impl Host {
    /// Measures the machine. The disk is that of `root_dir`'s file system; `None` leaves it out. May block on a bad disk.
    ///
    /// # Errors
    /// [`HostError`] if a number that every machine has cannot be read. A disk that cannot be asked is left out.
    pub fn capacity(&self, root_dir: Option<&Path>) -> Result<MachineCapacity, HostError> {
        let disk = root_dir.and_then(|dir| match FilesystemUsage::of(dir) {
            Ok(usage) => Some(signed(usage.capacity_bytes)),
            Err(error) => {
                tracing::warn!(path = %dir.display(), %error, "cannot tell the size of the disk; pods are not held to it");
                None
            }
        });
        Ok(MachineCapacity {
            cpus: self.online_cpus()?,
            memory_bytes: signed(self.memory_total_bytes()?),
            huge_pages: self.huge_pages(),
            ephemeral_storage_bytes: disk,
            max_pids: self.max_pids()?,
            swap_bytes: signed(self.swap_total_bytes().unwrap_or(0)),
        })
    }

    /// Huge pages by size, smallest first; empty on a kernel without any.
    #[must_use]
    pub fn huge_pages(&self) -> Vec<HugePages> {
        let Ok(entries) = fs::read_dir(self.sys.join("kernel/mm/hugepages")) else { return Vec::new() };
        let mut sizes: Vec<_> = entries
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name();
                let kibibytes: i64 =
                    name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
                let count = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?;
                Some(HugePages {
                    size_bytes: kibibytes.checked_mul(1024)?,
                    count: count.trim().parse().ok()?,
                })
            })
            .collect();
        sizes.sort_unstable_by_key(|pages| pages.size_bytes);
        sizes
    }

    /// How many processes the kernel allows: the smaller of its two limits.
    ///
    /// # Errors
    /// [`HostError`] if either cannot be read.
    pub fn max_pids(&self) -> Result<i64, HostError> {
        let number = |name: &str| {
            let path = self.proc.join("sys/kernel").join(name);
            let text = self.read(&path)?;
            text.trim().parse::<i64>().map_err(|_| HostError::Content { path, expected: "a number" })
        };
        Ok(number("pid_max")?.min(number("threads-max")?))
    }

    /// How many processes and threads there are: the kernel's own count in `loadavg`.
    ///
    /// # Errors
    /// [`HostError`] if it cannot be read.
    pub fn running_pids(&self) -> Result<i64, HostError> {
        let path = self.proc.join("loadavg");
        let text = self.read(&path)?;
        // `0.20 0.18 0.12 1/80 11206`
        let count = text.split_whitespace().nth(3).and_then(|field| field.split_once('/')?.1.parse().ok());
        count.ok_or(HostError::Content { path, expected: "running/all processes in the fourth field" })
    }

    /// Whether the kernel enforces AppArmor profiles.
    #[must_use]
    pub fn app_armor_enabled(&self) -> bool {
        fs::read_to_string(self.sys.join("module/apparmor/parameters/enabled"))
            .is_ok_and(|text| text.starts_with('Y'))
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Host) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let host = Host::below(root.path());
        (root, host)
    }

    const FILES: &[(&str, &str)] = &[
        ("proc/meminfo", "MemTotal:       1000 kB\nSwapTotal: 8 kB\n"),
        ("proc/sys/kernel/pid_max", "4194304\n"),
        ("proc/sys/kernel/threads-max", "192000\n"),
        ("sys/devices/system/cpu/online", "0-2,5\n"),
        ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "3\n"),
        ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n"),
        ("sys/kernel/mm/hugepages/other/nr_hugepages", "7\n"),
        ("sys/module/apparmor/parameters/enabled", "Y\n"),
    ];

    #[test]
    fn of_files() {
        let (root, host) = machine(FILES);
        let capacity = host.capacity(None).unwrap();
        let expected = MachineCapacity {
            cpus: vec![0, 1, 2, 5],
            memory_bytes: 1_024_000,
            huge_pages: vec![
                HugePages { size_bytes: 2 << 20, count: 0 },
                HugePages { size_bytes: 1 << 30, count: 3 },
            ],
            ephemeral_storage_bytes: None,
            max_pids: 192_000,
            swap_bytes: 8192,
        };
        assert_eq!(capacity, expected);
        let names: Vec<_> = capacity.huge_pages.iter().map(HugePages::resource_name).collect();
        assert_eq!(names, ["hugepages-2Mi", "hugepages-1Gi"]);
        assert!(host.capacity(Some(root.path())).unwrap().ephemeral_storage_bytes.unwrap() > 1 << 20);
        assert_eq!(host.capacity(Some(&root.path().join("none"))).unwrap().ephemeral_storage_bytes, None);
        assert!(host.app_armor_enabled());
    }

    #[test]
    fn what_is_missing_is_named() {
        let (_root, host) = machine(FILES.get(..3).unwrap());
        let error = host.capacity(None).unwrap_err().to_string();
        assert!(error.contains("devices/system/cpu/online"), "{error}");
        assert!(!host.app_armor_enabled());
        assert_eq!(host.huge_pages(), []);
    }

    #[test]
    fn of_this_machine() {
        let capacity = Host::default().capacity(Some(Path::new("/"))).unwrap();
        assert!(!capacity.cpus.is_empty() && capacity.memory_bytes > 1 << 20 && capacity.max_pids > 100);
        assert!(capacity.ephemeral_storage_bytes.is_some_and(|bytes| bytes > 1 << 20));
    }
}
