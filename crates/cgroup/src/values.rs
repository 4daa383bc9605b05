//! Values as the kernel's files want them.

use std::collections::BTreeMap;

use mainstay_podspec::runtime::{PodCgroupValues, shares_to_weight};

/// CPU shares for cgroup v2's `cpu.weight`: the inverse of the pod cgroups' curve, which does not always give back the
/// shares that the weight was made from (1024 → 39 → 998).
#[must_use]
pub const fn weight_to_shares(weight: i64) -> i64 {
    (weight - 1) * 262_142 / 9999 + 2
}

/// One file to be written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// The v1 hierarchy it is in.
    pub(crate) controller: &'static str,
    pub(crate) file: String,
    pub(crate) value: String,
}

/// The files of cgroup v1 for these values, in the order they are to be written.
pub(crate) fn v1_settings(values: &PodCgroupValues, pids_max: Option<i64>) -> Vec<Setting> {
    let mut settings = vec![setting("cpu", "cpu.shares", values.cpu_shares)];
    if let Some((quota, period)) = values.cpu_quota_and_period.filter(|(quota, _)| *quota != 0) {
        settings.push(setting("cpu", "cpu.cfs_period_us", period));
        settings.push(setting("cpu", "cpu.cfs_quota_us", quota));
    }
    if let Some(limit) = values.memory_limit.filter(|limit| *limit > 0) {
        settings.push(setting("memory", "memory.limit_in_bytes", limit));
    }
    settings.extend(pids_max.filter(|max| *max > 0).map(|max| setting("pids", "pids.max", max)));
    settings
}

/// The files of cgroup v2 for these values.
pub(crate) fn v2_settings(values: &PodCgroupValues, pids_max: Option<i64>) -> Vec<Setting> {
    let mut settings = vec![setting("cpu", "cpu.weight", shares_to_weight(values.cpu_shares))];
    if let Some((quota, period)) = values.cpu_quota_and_period.filter(|(quota, _)| *quota != 0) {
        let quota = if quota < 0 { "max".to_owned() } else { quota.to_string() };
        settings.push(setting("cpu", "cpu.max", format!("{quota} {period}")));
    }
    if let Some(limit) = values.memory_limit.filter(|limit| *limit > 0) {
        settings.push(setting("memory", "memory.max", limit));
    }
    settings.extend(pids_max.filter(|max| *max > 0).map(|max| setting("pids", "pids.max", max)));
    for (file, value) in &values.unified {
        settings.push(setting("memory", file, value));
    }
    settings
}

/// The huge page files: each size that the kernel knows is limited, those not asked for to nothing.
pub(crate) fn huge_page_settings<'a>(
    limits: &BTreeMap<i64, i64>,
    files_present: impl Iterator<Item = &'a str>,
    file_suffix: &str,
) -> Vec<Setting> {
    files_present
        .filter_map(|file| {
            let size = parse_page_size(file.strip_prefix("hugetlb.")?.strip_suffix(file_suffix)?)?;
            Some(setting("hugetlb", file, limits.get(&size).copied().unwrap_or(0)))
        })
        .collect()
}

/// `2MB`, `1GB`, `64KB` in bytes.
fn parse_page_size(text: &str) -> Option<i64> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(2)?)?;
    let shift = match unit {
        "KB" => 10,
        "MB" => 20,
        "GB" => 30,
        _ => return None,
    };
    number.parse::<i64>().ok()?.checked_mul(1 << shift)
}

fn setting(controller: &'static str, file: &str, value: impl ToString) -> Setting {
    Setting { controller, file: file.to_owned(), value: value.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(settings: &[Setting]) -> Vec<String> {
        settings.iter().map(|s| format!("{}={}", s.file, s.value)).collect()
    }

    #[test]
    fn weights_there_and_back() {
        // From the reference: 1024 shares are weight 39, which is 998 shares.
        for (shares, weight, back) in [(2, 1, 2), (1024, 39, 998), (102, 4, 80), (262_144, 10_000, 262_144)] {
            assert_eq!((shares_to_weight(shares), weight_to_shares(weight)), (weight, back));
        }
    }

    #[test]
    fn files_of_both_versions() {
        let values = PodCgroupValues {
            cpu_shares: 1024,
            cpu_quota_and_period: Some((150_000, 100_000)),
            memory_limit: Some(1 << 30),
            ..PodCgroupValues::default()
        };
        assert_eq!(
            text(&v1_settings(&values, Some(64))),
            [
                "cpu.shares=1024",
                "cpu.cfs_period_us=100000",
                "cpu.cfs_quota_us=150000",
                "memory.limit_in_bytes=1073741824",
                "pids.max=64",
            ]
        );
        assert_eq!(
            text(&v2_settings(&values, Some(64))),
            ["cpu.weight=39", "cpu.max=150000 100000", "memory.max=1073741824", "pids.max=64"]
        );
    }

    #[test]
    fn what_is_not_limited_is_not_written() {
        let values = PodCgroupValues { cpu_shares: 2, memory_limit: Some(0), ..PodCgroupValues::default() };
        assert_eq!(text(&v1_settings(&values, Some(-1))), ["cpu.shares=2"]);
        assert_eq!(text(&v2_settings(&values, None)), ["cpu.weight=1"]);
        let values = PodCgroupValues {
            cpu_shares: 2,
            cpu_quota_and_period: Some((-1, 100_000)),
            unified: BTreeMap::from([("memory.min".to_owned(), "5".to_owned())]),
            ..PodCgroupValues::default()
        };
        assert_eq!(text(&v2_settings(&values, None)), ["cpu.weight=1", "cpu.max=max 100000", "memory.min=5"]);
    }

    #[test]
    fn huge_pages_not_asked_for_are_forbidden() {
        let limits = BTreeMap::from([(2 << 20, 4 << 20)]);
        let files = [
            "hugetlb.2MB.max",
            "hugetlb.1GB.max",
            "hugetlb.2MB.current",
            "hugetlb.2MB.rsvd.max",
            "memory.max",
        ];
        let settings = huge_page_settings(&limits, files.into_iter(), ".max");
        assert_eq!(text(&settings), ["hugetlb.2MB.max=4194304", "hugetlb.1GB.max=0"]);
    }
}
