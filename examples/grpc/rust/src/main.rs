//! Asks a node's gRPC sockets, as an agent in Rust would. See `docs/grpc.md`.
//!
//! `node-api [--root DIR] pods | watch-pods | conditions | watch-conditions | resources`: a line for each pod, or for each change.

#![expect(clippy::print_stdout, reason = "it is a program")]

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use hyper_util::rt::TokioIo;
use prost::Message as _;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

/// Generated modules share their exceptions.
macro_rules! generated {
    ($name:ident, $file:literal) => {
        #[allow(missing_docs, unreachable_pub, dead_code, clippy::all, reason = "generated")]
        #[allow(clippy::allow_attributes_without_reason, clippy::large_futures, reason = "generated")]
        mod $name {
            include!(concat!(env!("OUT_DIR"), $file));
        }
    };
}

generated!(podinfo, "/podinfo/podinfo.v1alpha1.rs");
generated!(pods, "/pods/v1alpha1.rs");
generated!(podresources, "/podresources/v1.rs");
generated!(core, "/core/mainstay.core.v1.rs");

use podinfo::pod_info_client::PodInfoClient;
use podresources::pod_resources_lister_client::PodResourcesListerClient;
use pods::pods_client::PodsClient;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let mut root = PathBuf::from("/var/lib/kubelet");
    if words.first().is_some_and(|word| word == "--root") {
        words.remove(0);
        if words.is_empty() {
            bail!("--root takes the node's root directory");
        }
        root = words.remove(0).into();
    }
    match words.first().map(String::as_str) {
        Some("pods") => list_pods(&root).await,
        Some("watch-pods") => watch_pods(&root).await,
        Some("conditions") => list_conditions(&root).await,
        Some("watch-conditions") => watch_conditions(&root).await,
        Some("resources") => resources(&root).await,
        _ => bail!("node-api [--root DIR] pods|watch-pods|conditions|watch-conditions|resources"),
    }
}

/// A connection to a unix socket. The address is never used; only the connector knows where to go.
async fn connect(root: &Path, socket: &str) -> Result<Channel> {
    let path = root.join(socket);
    let shown = path.display().to_string();
    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://node").connect_with_connector(connector).await;
    channel.with_context(|| {
        format!("nobody listens on {shown}; is mainstay running with that root, and is the gate on?")
    })
}

async fn list_pods(root: &Path) -> Result<()> {
    let mut client = PodsClient::new(connect(root, "pods-api/pods-api.sock").await?);
    let answer = client.list_pods(pods::ListPodsRequest {}).await?.into_inner();
    for bytes in answer.pods {
        println!("{}", line(&core::Pod::decode(bytes.as_slice())?));
    }
    Ok(())
}

async fn watch_pods(root: &Path) -> Result<()> {
    let mut client = PodsClient::new(connect(root, "pods-api/pods-api.sock").await?);
    let mut events = client.watch_pods(pods::WatchPodsRequest {}).await?.into_inner();
    // The stream ends when mainstay does: an agent connects again and begins anew.
    while let Some(event) = events.message().await? {
        let kind = event.r#type().as_str_name().to_owned();
        println!("{kind} {}", line(&core::Pod::decode(event.pod.as_slice())?));
    }
    Ok(())
}

/// Namespace, name and phase.
fn line(pod: &core::Pod) -> String {
    let metadata = pod.metadata.clone().unwrap_or_default();
    let phase = pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
    format!("{}/{} {phase}", metadata.namespace.unwrap_or_default(), metadata.name.unwrap_or_default())
}

async fn list_conditions(root: &Path) -> Result<()> {
    let mut client = PodInfoClient::new(connect(root, "pod-info/kubelet.sock").await?);
    show(client.list_pod_conditions(podinfo::Empty {}).await?.into_inner());
    Ok(())
}

async fn watch_conditions(root: &Path) -> Result<()> {
    let mut client = PodInfoClient::new(connect(root, "pod-info/kubelet.sock").await?);
    let mut lists = client.watch_pod_conditions(podinfo::Empty {}).await?.into_inner();
    while let Some(list) = lists.message().await? {
        show(list);
        println!();
    }
    Ok(())
}

fn show(list: podinfo::PodConditionsListResponse) {
    for pod in list.pods {
        let ready = pod.conditions.iter().find(|it| it.r#type() == podinfo::ConditionType::Ready);
        let ready = ready.is_some_and(|it| it.status() == podinfo::ConditionStatus::True);
        println!("{}/{} {}", pod.pod_namespace, pod.pod_name, if ready { "ready" } else { "not ready" });
    }
}

async fn resources(root: &Path) -> Result<()> {
    let mut client = PodResourcesListerClient::new(connect(root, "pod-resources/kubelet.sock").await?);
    let answer = client.list(podresources::ListPodResourcesRequest {}).await?.into_inner();
    for pod in answer.pod_resources {
        for container in pod.containers {
            let devices = container
                .devices
                .iter()
                .map(|it| format!("{}={}", it.resource_name, it.device_ids.join(",")));
            let devices: Vec<String> = devices.collect();
            let held = format!("cpus {:?} devices [{}]", container.cpu_ids, devices.join(" "));
            println!("{}/{} {} {held}", pod.namespace, pod.name, container.name);
        }
    }
    Ok(())
}
