//! The gRPC sockets: what of the configuration says who may use them.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use anyhow::{Context, Result};
use mainstay_config::Loaded;
use mainstay_grpc::{Access, GrpcConfig, Rate};

/// What is served, and to whom. Where a group is named, others may pass through the root directory (not look into it), since
/// its members could not reach the sockets otherwise.
pub(crate) fn config(loaded: &Loaded, root: &Path) -> Result<GrpcConfig> {
    let settings = &loaded.settings;
    let on = |gate: &str| loaded.gates.enabled(gate);
    let group = match settings.local_api_group.as_str() {
        "" => None,
        name => Some(group(name, Path::new("/etc/group"))?),
    };
    if group.is_some() {
        let mode =
            fs::metadata(root).with_context(|| format!("cannot look at {}", root.display()))?.permissions();
        fs::set_permissions(root, fs::Permissions::from_mode(mode.mode() | 0o001))
            .with_context(|| format!("cannot let the members of a group through {}", root.display()))?;
    }
    Ok(GrpcConfig {
        root: root.to_owned(),
        access: Access { mode: u32::from_str_radix(&settings.local_api_mode, 8).unwrap_or(0o750), group },
        rate: Rate {
            per_second: f64::from(settings.local_api_qps),
            burst: f64::from(settings.local_api_burst),
        },
        patience: mainstay_grpc::PATIENCE,
        pod_info: on("PodInfoAPI"),
        pods: on("PodsAPI"),
        get_allocatable: on("KubeletPodResourcesGetAllocatable"),
        list_active: on("KubeletPodResourcesListUseActivePods"),
    })
}

/// The number of a group that is given by name or number.
fn group(name: &str, file: &Path) -> Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let text = fs::read_to_string(file).with_context(|| {
        format!("cannot read {} for --local-api-group; give the group's number", file.display())
    })?;
    text.lines()
        .filter_map(|line| {
            let mut parts = line.split(':');
            (parts.next() == Some(name)).then(|| parts.nth(1)?.parse().ok()).flatten()
        })
        .next()
        .with_context(|| {
            format!(
                "--local-api-group: there is no group {name:?} in {}; make it, or give a number",
                file.display()
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_by_name_or_number() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("group");
        fs::write(&file, "root:x:0:\nagents:x:1234:a,b\nbroken\nodd:x:none:\n").unwrap();
        assert_eq!(group("1000", &file).unwrap(), 1000);
        assert_eq!(group("agents", &file).unwrap(), 1234);
        for name in ["agent", "broken", "odd"] {
            let error = group(name, &file).unwrap_err().to_string();
            assert!(error.contains(&format!("there is no group {name:?}")), "{error}");
        }
    }
}
