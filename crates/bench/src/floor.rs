//! The floor: the CRI calls an agent must make for a pod, made by nothing but a bare client.

use std::{path::Path, sync::Arc, time::Duration, time::Instant};

use anyhow::{Context, Result};
use mainstay_cri::Cri;
use mainstay_podspec::runtime::{
    ContainerContext, DeviceGrants, DnsSettings, EnvFiles, HostResolv, NodeSettings, SandboxContext,
    container_config, dns_config, pod_log_directory, sandbox_config,
};
use mainstay_testkit::{BUSYBOX, Containerd};
use mainstay_types::{ContainerKind, Objects, PodExt};

use crate::{Plan, pods};

/// What the runtime itself needs.
#[derive(Clone, Debug)]
pub(crate) struct Floor {
    pub(crate) single: Vec<Duration>,
    pub(crate) all: Duration,
}

impl Floor {
    /// Both runs: one before the agent's and one after it.
    pub(crate) fn and(mut self, other: Self) -> Self {
        println!("  all {:.3} s before, {:.3} s after", self.all.as_secs_f64(), other.all.as_secs_f64());
        self.single.extend(other.single);
        Self { single: self.single, all: (self.all + other.all) / 2 }
    }
}

pub(crate) fn measure(plan: &Plan) -> Result<Floor> {
    let containerd = Containerd::start(plan.flavor)?;
    containerd.instance().make_cgroup()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let entered = runtime.enter();
    let cri = Cri::new(&containerd.endpoint(), None, Duration::from_secs(120))?;
    drop(entered);
    let logs = containerd.dir().join("bench-logs");
    let node = Arc::new(NodeSettings {
        cgroup_v2: false,
        pod_logs_dir: logs,
        memory_capacity: 24 << 30,
        ..NodeSettings::default()
    });
    let cgroup = format!("/{}/bench", containerd.instance().cgroup_name());
    let floor = runtime.block_on(async {
        let mut single = Vec::new();
        for round in 0..=plan.rounds {
            let begun = Instant::now();
            start_pod(&cri, &node, &cgroup, &format!("one-{round}")).await?;
            // The first one warms the runtime up.
            if round > 0 {
                single.push(begun.elapsed());
            }
        }
        let begun = Instant::now();
        let mut starts = tokio::task::JoinSet::new();
        let permits = Arc::new(tokio::sync::Semaphore::new(plan.floor_parallel.unwrap_or(plan.pods.max(1))));
        for number in 0..plan.pods {
            let (cri, node, cgroup, permits) =
                (cri.clone(), Arc::clone(&node), cgroup.clone(), Arc::clone(&permits));
            starts.spawn(async move {
                let _permit = permits.acquire().await?;
                start_pod(&cri, &node, &cgroup, &format!("all-{number}")).await
            });
        }
        while let Some(done) = starts.join_next().await {
            done.context("a start died")??;
        }
        anyhow::Ok(Floor { single, all: begun.elapsed() })
    })?;
    containerd.remove()?;
    Ok(floor)
}

async fn start_pod(cri: &Cri, node: &NodeSettings, cgroup: &str, name: &str) -> Result<()> {
    let pod = pods::pod(name)?;
    let log_dir = pod_log_directory(&node.pod_logs_dir, "default", name, pod.uid_ref());
    make_dirs(&log_dir)?;
    let host = HostResolv::default();
    let (dns, _) = dns_config(&pod, &DnsSettings { host: Some(&host), ..DnsSettings::default() });
    let sandbox = sandbox_config(
        &pod,
        &SandboxContext {
            node,
            attempt: 0,
            cgroup_parent: &format!("{cgroup}/pod{}", pod.uid_ref()),
            dns,
            extra_groups: &[],
            user_namespace: None,
            exclusive_cpus: false,
        },
    )?;
    let id = Box::pin(cri.run_sandbox(sandbox.clone(), "")).await?;
    cri.sandbox_status(&id).await?;
    let image = cri.image_status(BUSYBOX).await?.context("the image is missing")?;
    let spec = pod.spec_ref().containers.first().context("a container")?;
    let config = container_config(
        &pod,
        spec,
        ContainerKind::Regular,
        &ContainerContext {
            node,
            restart_count: 0,
            image_ref: &image.id,
            image_user: None,
            pod_ips: &[],
            mounts: Vec::new(),
            objects: &Objects::default(),
            env_files: &EnvFiles::default(),
            grants: &DeviceGrants::default(),
            extra_groups: &[],
            user_namespace: None,
            target_container: None,
            exclusive_cpus: false,
        },
    )?;
    let container = Box::pin(cri.create_container(&id, config, sandbox)).await?;
    cri.start_container(&container).await?;
    cri.container_status(&container).await?;
    Ok(())
}

fn make_dirs(log_dir: &Path) -> Result<()> {
    std::fs::create_dir_all(log_dir.join("c")).context("log directory")
}
