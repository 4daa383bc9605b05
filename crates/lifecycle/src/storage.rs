//! Whether a pod wrote more than it may.

use std::time::Duration;

use mainstay_types::{PodStorage, Quantity, TerminationWish};

/// As upstream's `immediateEvictionGracePeriodSeconds`: who writes too much is not given time to write more.
const GRACE: Duration = Duration::from_secs(1);

/// The wish that a pod over one of its own limits end: first a volume, then the pod's sum, then a container, with
/// upstream's messages (`pkg/kubelet/eviction/eviction_manager.go`, `localStorageEviction`). `None` within the limits.
///
/// Unlike upstream, which takes them for critical, pods from files are held to their limits as well.
#[must_use]
pub fn storage_wish(storage: &PodStorage) -> Option<TerminationWish> {
    let limits = &storage.limits;
    let used =
        |bytes: Option<&u64>| Quantity::whole(bytes.map_or(0, |b| i64::try_from(*b).unwrap_or(i64::MAX)));
    let volume = limits.volumes.iter().find(|(name, limit)| used(storage.volumes.get(name)) > *limit);
    if let Some((name, limit)) = volume {
        return Some(evicted(
            "emptydirfs.limit",
            format!("Usage of EmptyDir volume \"{name}\" exceeds the limit \"{limit}\". "),
        ));
    }
    if let Some(limit) = limits.total.filter(|limit| used(Some(&storage.total)) > *limit) {
        return Some(evicted(
            "ephemeralpodfs.limit",
            format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "),
        ));
    }
    let container =
        limits.containers.iter().find(|(name, limit)| used(storage.containers.get(name)) > *limit);
    container.map(|(name, limit)| {
        evicted(
            "ephemeralcontainerfs.limit",
            format!("Container {name} exceeded its local ephemeral storage limit \"{limit}\". "),
        )
    })
}

fn evicted(signal: &'static str, message: String) -> TerminationWish {
    TerminationWish { reason: "Evicted".into(), message, grace: Some(GRACE), signal: Some(signal) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::Pod;
    use mainstay_types::StorageLimits;

    use super::*;

    const MI: u64 = 1024 * 1024;

    #[test]
    fn which_limit_is_named() {
        let mi = |n: u64| Quantity::parse(&format!("{n}Mi")).unwrap();
        let limits = Arc::new(StorageLimits {
            volumes: vec![("v".into(), mi(1)), ("w".into(), mi(2))],
            containers: vec![("a".into(), mi(4)), ("b".into(), mi(4))],
            total: Some(mi(8)),
        });
        let row = |volumes: &[(&str, u64)], containers: &[(&str, u64)], total: u64| PodStorage {
            pod: Arc::new(Pod::default()),
            limits: Arc::clone(&limits),
            volumes: volumes.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect(),
            containers: containers.iter().map(|(name, bytes)| ((*name).into(), *bytes)).collect(),
            total,
        };
        for (what, storage, expected) in [
            ("nothing measured", row(&[], &[], 0), None),
            ("exactly at each limit", row(&[("v", MI), ("w", 2 * MI)], &[("a", 4 * MI)], 8 * MI), None),
            (
                "the second volume",
                row(&[("v", MI), ("w", 2 * MI + 1)], &[("a", 9 * MI)], 9 * MI),
                Some(("emptydirfs.limit", "Usage of EmptyDir volume \"w\" exceeds the limit \"2Mi\". ")),
            ),
            (
                "the sum before a container",
                row(&[("v", 1)], &[("a", 5 * MI)], 8 * MI + 1),
                Some((
                    "ephemeralpodfs.limit",
                    "Pod ephemeral local storage usage exceeds the total limit of containers 8Mi. ",
                )),
            ),
            (
                "a container",
                row(&[], &[("a", 1), ("b", 4 * MI + 1)], 5 * MI),
                Some((
                    "ephemeralcontainerfs.limit",
                    "Container b exceeded its local ephemeral storage limit \"4Mi\". ",
                )),
            ),
            ("a volume and a container without limits", row(&[("x", u64::MAX)], &[("i", u64::MAX)], 1), None),
        ] {
            let wish = storage_wish(&storage);
            let found = wish.as_ref().map(|wish| (wish.signal.unwrap_or_default(), wish.message.as_str()));
            assert_eq!(found, expected, "{what}");
            assert!(wish.is_none_or(|wish| wish.reason == "Evicted" && wish.grace == Some(GRACE)), "{what}");
        }
    }
}
