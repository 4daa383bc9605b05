//! The families of mainstay and of upstream's kubelet, on the same pods: names, types, HELP, labels, which samples have times, and the
//! values of each container. What differs on purpose stands in `docs/metrics.md`, with its reason, and is read from there.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use mainstay_e2e::compare::{Both, ENDPOINTS, ROUNDS, VALUES, families, get};
use mainstay_testkit::wait_until;
use serde_json::Value;

/// Every key that occurs, as a path; lists are looked into.
fn keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                found.insert(path.clone());
                keys(value, &path, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| keys(item, path, found)),
        _ => {}
    }
}

#[test]
fn the_same_families_as_upstream() -> Result<()> {
    let both = Both::start()?;
    for path in ENDPOINTS {
        wait_until(ROUNDS, "the same families", || {
            let differences = both.compare(path).map_err(|error| format!("{error:#}"))?;
            if differences.is_empty() { Ok(()) } else { Err(format!("{path}: {}", differences.join("\n"))) }
        })?;
    }
    for path in VALUES {
        wait_until(ROUNDS, "the same values of each container", || {
            let differences = both.compare_values(path).map_err(|error| format!("{error:#}"))?;
            if differences.is_empty() { Ok(()) } else { Err(format!("{path}: {}", differences.join("\n"))) }
        })?;
    }
    for family in ["prober_probe_duration_seconds", "prober_probe_total"] {
        ensure!(
            families(&get(&both.theirs, "/metrics/probes")?)?.contains_key(family),
            "{family} was compared with nothing"
        );
    }
    // The next look at the disks is soon where somebody asks for what it finds.
    wait_until(ROUNDS, "a summary", || {
        get(&both.ours, "/stats/summary").map(drop).map_err(|error| format!("{error:#}"))
    })?;
    for name in [
        "kubelet_node_name",
        "kubelet_running_pods",
        "kubelet_running_containers",
        "kubelet_pleg_relist_duration_seconds",
        "kubelet_pleg_relist_interval_seconds",
        "kubelet_pod_worker_duration_seconds",
        "kubelet_pod_start_duration_seconds",
        "kubelet_started_containers_total",
        "kubelet_started_pods_total",
        "kubelet_run_podsandbox_duration_seconds",
        "kubelet_runtime_operations_total",
        "kubelet_container_log_filesystem_used_bytes",
        "kubernetes_build_info",
        "kubernetes_feature_enabled",
        "process_resident_memory_bytes",
    ] {
        wait_until(ROUNDS, "a family of mainstay's own", || {
            let own = get(&both.ours, "/metrics").and_then(|text| families(&text));
            let own = own.map_err(|error| format!("{error:#}"))?;
            if own.contains_key(name) { Ok(()) } else { Err(format!("no {name}: {:?}", own.keys())) }
        })?;
    }
    wait_until(ROUNDS, "the same numbers of the summary", || {
        let differences = both.compare_summaries().map_err(|error| format!("{error:#}"))?;
        if differences.is_empty() { Ok(()) } else { Err(differences.join("\n")) }
    })?;
    for query in ["", "?only_cpu_and_memory=true"] {
        wait_until(ROUNDS, "the same keys of the summary", || {
            let [ours, theirs] = [&both.ours, &both.theirs].map(|node| -> Result<BTreeSet<String>> {
                let summary: Value = serde_json::from_str(&get(node, &format!("/stats/summary{query}"))?)?;
                let mut found = BTreeSet::new();
                keys(&summary, "", &mut found);
                // This kernel measures no pressure: upstream says 0 of it, mainstay nothing.
                found.retain(|key| !key.contains(".psi"));
                Ok(found)
            });
            let (ours, theirs) = (ours.map_err(|e| format!("{e:#}"))?, theirs.map_err(|e| format!("{e:#}"))?);
            let missing: Vec<_> = theirs.difference(&ours).collect();
            let more: Vec<_> = ours.difference(&theirs).collect();
            if missing.is_empty() && more.is_empty() {
                Ok(())
            } else {
                Err(format!("{query} missing {missing:?}, more {more:?}"))
            }
        })?;
    }
    Ok(())
}
