//! Huge pages: what a cgroup has of each size that the kernel knows.

use std::sync::{Arc, LazyLock};

use mainstay_types::{HugePageSample, page_size_name};

use crate::{
    cgroup::ReadError,
    files::{Buffer, Directory},
    parse::{keyed, number, page_size},
};

/// Where the kernel has a directory for each of its sizes.
const SIZES: &str = "/sys/kernel/mm/hugepages";
/// Limits at least this large are none.
const UNLIMITED: u64 = 1 << 62;

/// A size, and how the files are called that tell of it.
#[derive(Debug)]
pub(crate) struct Size {
    bytes: u64,
    limit: String,
    usage: String,
    /// The most that was ever in use; cgroup v2 does not keep it.
    most: Option<String>,
    failures: String,
}

/// Those of both versions.
#[derive(Debug)]
pub(crate) struct Sizes {
    pub(crate) v1: Vec<Size>,
    pub(crate) v2: Vec<Size>,
}

impl Sizes {
    pub(crate) fn of(all: &[u64]) -> Self {
        let file = |bytes: u64, what: &str| format!("hugetlb.{}.{what}", page_size_name(bytes));
        let v1 = all.iter().map(|bytes| Size {
            bytes: *bytes,
            limit: file(*bytes, "limit_in_bytes"),
            usage: file(*bytes, "usage_in_bytes"),
            most: Some(file(*bytes, "max_usage_in_bytes")),
            failures: file(*bytes, "failcnt"),
        });
        let v2 = all.iter().map(|bytes| Size {
            bytes: *bytes,
            limit: file(*bytes, "max"),
            usage: file(*bytes, "current"),
            most: None,
            failures: file(*bytes, "events"),
        });
        Self { v1: v1.collect(), v2: v2.collect() }
    }

    /// Those of this machine, which do not change while its kernel runs. Empty where it has none.
    pub(crate) fn of_machine() -> &'static Self {
        static SIZES_OF_MACHINE: LazyLock<Sizes> = LazyLock::new(|| {
            let names = std::fs::read_dir(SIZES).into_iter().flatten().flatten();
            let mut all: Vec<u64> =
                names.filter_map(|entry| page_size(entry.file_name().as_encoded_bytes())).collect();
            all.sort_unstable();
            Sizes::of(&all)
        });
        &SIZES_OF_MACHINE
    }
}

/// Reads those of which there is something to tell: some are in use or were, or there may be some. Most cgroups may have none, and one
/// file of each size says so; nothing is allocated for them.
pub(crate) fn read(
    directory: &Directory,
    sizes: &[Size],
    buffer: &mut Buffer,
) -> Result<Option<Arc<[HugePageSample]>>, ReadError> {
    let mut found = Vec::new();
    for size in sizes {
        // Without the file the controller is off here, or this is the root of cgroup v2.
        let Some(limit) = directory.text(&size.limit, buffer)? else { continue };
        let limit = number(limit).filter(|limit| *limit < UNLIMITED);
        if limit == Some(0) {
            continue;
        }
        let usage = directory.number(&size.usage, buffer)?.unwrap_or_default();
        let max_usage = match &size.most {
            Some(file) => directory.number(file, buffer)?,
            None => None,
        };
        if limit.is_none() && usage == 0 && max_usage.unwrap_or_default() == 0 {
            continue;
        }
        let failures = directory.text(&size.failures, buffer)?.and_then(failures).unwrap_or_default();
        found.push(HugePageSample { page_bytes: size.bytes, usage, max_usage, failures, limit });
    }
    Ok((!found.is_empty()).then(|| found.into()))
}

/// How often a page was refused: the number that cgroup v1 has, or version 2's line `max`.
fn failures(bytes: &[u8]) -> Option<u64> {
    number(bytes).or_else(|| keyed(bytes).find(|(key, _)| *key == b"max").map(|(_, count)| count))
}
