//! `mainstay logs`.

use k8s_openapi::api::core::v1::Pod;
use mainstay_types::{ContainerKind, PodExt, rfc3339_nanos};

use crate::{
    args::LogsArgs,
    connection::{Connection, escaped},
    error::ClientError,
    output::Output,
    select::{Named, all_pods},
};

/// The annotation by which a pod says whose log is meant, as kubectl reads it.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

pub(crate) async fn run(args: LogsArgs, output: &mut Output) -> Result<(), ClientError> {
    let connection = Connection::new(&args.connect)?;
    let pods = all_pods(&connection).await?;
    let item = Named::parse(&args.pod, args.namespace.as_deref()).find(&pods)?;
    item.admitted()?;
    let given = args.container.as_deref().or(args.container_name.as_deref());
    let container = choose_container(&item.pod, given)?;
    if given.is_none() && item.pod.all_containers().count() > 1 {
        output.note(&format!("Defaulted container {container:?} out of: {}", choices(&item.pod)));
    }
    let request = format!(
        "/containerLogs/{}/{}/{}{}",
        escaped(item.pod.namespace_ref()),
        escaped(item.pod.name_ref()),
        escaped(container),
        query(&args)?
    );
    let mut stream = connection.stream(&request).await?;
    while let Some(piece) = stream.piece().await? {
        output.bytes(&piece)?;
        // What is followed is wanted as it comes.
        if args.follow {
            output.flush()?;
        }
    }
    Ok(())
}

/// The container that is meant: the named one, the pod's own choice, or its first regular one.
pub(crate) fn choose_container<'a>(pod: &'a Pod, given: Option<&'a str>) -> Result<&'a str, ClientError> {
    let spec = pod.spec_ref();
    let mut ephemeral = spec.ephemeral_containers.iter().flatten().map(|container| container.name.as_str());
    let full_name = || format!("{}/{}", pod.namespace_ref(), pod.name_ref());
    let mut exists = |name: &str| pod.container(name).is_some() || ephemeral.any(|known| known == name);
    if let Some(name) = given {
        return if exists(name) {
            Ok(name)
        } else {
            Err(ClientError::NoSuchContainer {
                pod: full_name(),
                name: name.to_owned(),
                choices: choices(pod),
            })
        };
    }
    if let Some(name) = pod.annotation(DEFAULT_CONTAINER).filter(|name| exists(name)) {
        return Ok(name);
    }
    let first = spec.containers.first().map(|container| container.name.as_str());
    first.ok_or_else(|| ClientError::NoContainer { pod: full_name() })
}

/// All containers of a pod by name, with their kind where it is not the usual one.
pub(crate) fn choices(pod: &Pod) -> String {
    let of_spec = pod.all_containers().map(|(kind, container)| match kind {
        ContainerKind::Init => format!("{} (init)", container.name),
        ContainerKind::Sidecar => format!("{} (sidecar)", container.name),
        ContainerKind::Regular | ContainerKind::Ephemeral => container.name.clone(),
    });
    let ephemeral = pod.spec_ref().ephemeral_containers.iter().flatten();
    let all: Vec<String> =
        of_spec.chain(ephemeral.map(|container| format!("{} (ephemeral)", container.name))).collect();
    all.join(", ")
}

fn query(args: &LogsArgs) -> Result<String, ClientError> {
    let mut parts = Vec::new();
    let switches = [("follow", args.follow), ("previous", args.previous), ("timestamps", args.timestamps)];
    parts.extend(switches.into_iter().filter(|(_, on)| *on).map(|(name, _)| format!("{name}=true")));
    if args.tail >= 0 {
        parts.push(format!("tailLines={}", args.tail));
    }
    if let Some(since) = args.since {
        // Up to whole seconds, so that nothing asked for is missing.
        let nanoseconds =
            u64::try_from(since.nanoseconds()).ok().filter(|it| *it > 0).ok_or(ClientError::Since)?;
        parts.push(format!("sinceSeconds={}", nanoseconds.div_ceil(1_000_000_000)));
    }
    if let Some(time) = args.since_time {
        parts.push(format!("sinceTime={}", escaped(&rfc3339_nanos(time))));
    }
    if let Some(bytes) = args.limit_bytes {
        parts.push(format!("limitBytes={bytes}"));
    }
    Ok(if parts.is_empty() { String::new() } else { format!("?{}", parts.join("&")) })
}
