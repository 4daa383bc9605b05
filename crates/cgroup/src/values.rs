//! Values as the kernel's files want them.

use mainstay_podspec::runtime::{CFS_PERIOD_MICROS, CgroupValues, HugePages, Limit, shares_to_weight};

/// What upstream writes where huge pages are not limited: a number that every kernel takes.
const UNLIMITED_HUGE_PAGES: i64 = 1 << 62;

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
pub(crate) fn v1_settings(values: &CgroupValues) -> Vec<Setting> {
    let mut settings = Vec::new();
    settings.extend(values.cpu_shares.map(|shares| setting("cpu", "cpu.shares", shares)));
    if values.cpu_period > 0 && values.cpu_quota != Limit::AsIs {
        settings.push(setting("cpu", "cpu.cfs_period_us", values.cpu_period));
    }
    settings.extend(text(values.cpu_quota, "-1").map(|quota| setting("cpu", "cpu.cfs_quota_us", quota)));
    settings.extend(text(values.memory, "-1").map(|limit| setting("memory", "memory.limit_in_bytes", limit)));
    settings.extend(text(values.pids, "max").map(|limit| setting("pids", "pids.max", limit)));
    settings.extend(values.cpus.as_ref().map(|cpus| setting("cpuset", "cpuset.cpus", cpus)));
    settings
}

/// The files of cgroup v2 for these values.
pub(crate) fn v2_settings(values: &CgroupValues) -> Vec<Setting> {
    let mut settings = Vec::new();
    settings.extend(values.cpu_shares.map(|shares| setting("cpu", "cpu.weight", shares_to_weight(shares))));
    if let Some(quota) = text(values.cpu_quota, "max") {
        let period = if values.cpu_period > 0 { values.cpu_period } else { CFS_PERIOD_MICROS };
        settings.push(setting("cpu", "cpu.max", format!("{quota} {period}")));
    }
    settings.extend(text(values.memory, "max").map(|limit| setting("memory", "memory.max", limit)));
    settings.extend(text(values.pids, "max").map(|limit| setting("pids", "pids.max", limit)));
    settings.extend(values.cpus.as_ref().map(|cpus| setting("cpuset", "cpuset.cpus", cpus)));
    settings.extend(values.unified.iter().map(|(file, value)| setting("memory", file, value)));
    settings
}

/// The huge page files: with limits each size that the kernel knows is limited, those not asked for to nothing. Reservations too
/// (since Linux 5.7): a mapping beyond the limit is refused then, instead of its process being killed at the first touch.
pub(crate) fn huge_page_settings<'a>(
    huge_pages: &HugePages,
    files_present: impl Iterator<Item = &'a str>,
    file_suffix: &str,
) -> Vec<Setting> {
    files_present
        .filter_map(|file| {
            let size = file.strip_prefix("hugetlb.")?.strip_suffix(file_suffix)?;
            let size = parse_page_size(size.strip_suffix(".rsvd").unwrap_or(size))?;
            let limit = match huge_pages {
                HugePages::AsIs => return None,
                HugePages::Unlimited => UNLIMITED_HUGE_PAGES,
                HugePages::Only(limits) => limits.get(&size).copied().unwrap_or(0),
            };
            Some(setting("hugetlb", file, limit))
        })
        .collect()
}

fn text(limit: Limit, unlimited: &str) -> Option<String> {
    match limit {
        Limit::AsIs => None,
        Limit::Unlimited => Some(unlimited.to_owned()),
        Limit::At(amount) => Some(amount.to_string()),
    }
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

    fn texts(settings: &[Setting]) -> Vec<String> {
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
        let values = CgroupValues {
            cpu_shares: Some(1024),
            cpu_quota: Limit::At(150_000),
            cpu_period: 100_000,
            memory: Limit::At(1 << 30),
            pids: Limit::At(64),
            ..CgroupValues::default()
        };
        assert_eq!(
            texts(&v1_settings(&values)),
            [
                "cpu.shares=1024",
                "cpu.cfs_period_us=100000",
                "cpu.cfs_quota_us=150000",
                "memory.limit_in_bytes=1073741824",
                "pids.max=64",
            ]
        );
        assert_eq!(
            texts(&v2_settings(&values)),
            ["cpu.weight=39", "cpu.max=150000 100000", "memory.max=1073741824", "pids.max=64"]
        );
    }

    #[test]
    fn limits_go_and_stay() {
        assert_eq!(texts(&v1_settings(&CgroupValues::default())), [""; 0]);
        assert_eq!(texts(&v2_settings(&CgroupValues::default())), [""; 0]);
        let values = CgroupValues {
            cpu_shares: Some(2),
            cpu_quota: Limit::Unlimited,
            memory: Limit::Unlimited,
            pids: Limit::Unlimited,
            cpus: Some("0-1".to_owned()),
            unified: [("memory.min".to_owned(), "5".to_owned())].into(),
            ..CgroupValues::default()
        };
        assert_eq!(
            texts(&v1_settings(&values)),
            [
                "cpu.shares=2",
                "cpu.cfs_quota_us=-1",
                "memory.limit_in_bytes=-1",
                "pids.max=max",
                "cpuset.cpus=0-1"
            ]
        );
        assert_eq!(
            texts(&v2_settings(&values)),
            [
                "cpu.weight=1",
                "cpu.max=max 100000",
                "memory.max=max",
                "pids.max=max",
                "cpuset.cpus=0-1",
                "memory.min=5"
            ]
        );
    }

    #[test]
    fn huge_pages_not_asked_for_are_forbidden() {
        let files = [
            "hugetlb.2MB.max",
            "hugetlb.1GB.max",
            "hugetlb.2MB.current",
            "hugetlb.2MB.rsvd.max",
            "memory.max",
        ];
        let settings = |huge_pages| texts(&huge_page_settings(&huge_pages, files.into_iter(), ".max"));
        assert_eq!(
            settings(HugePages::Only([(2 << 20, 4 << 20)].into())),
            ["hugetlb.2MB.max=4194304", "hugetlb.1GB.max=0", "hugetlb.2MB.rsvd.max=4194304"]
        );
        assert_eq!(
            settings(HugePages::Unlimited),
            ["hugetlb.2MB.max", "hugetlb.1GB.max", "hugetlb.2MB.rsvd.max"]
                .map(|file| format!("{file}=4611686018427387904"))
        );
        assert_eq!(settings(HugePages::AsIs), [""; 0]);
    }
}
