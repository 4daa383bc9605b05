//! The containers of a described pod.

use k8s_openapi::{
    api::core::v1::{
        Container, ContainerPort, ContainerState, ContainerStateTerminated, ContainerStatus, EnvFromSource,
        EnvVar, Pod, PodStatus, Probe, VolumeMount,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use mainstay_types::{ContainerKind, PodExt};

use super::text;
use crate::{age::full_time, text::Block};

pub(super) fn describe(block: &mut Block, pod: &Pod, status: &PodStatus) {
    let init: Vec<&Container> = pod.spec_ref().init_containers.iter().flatten().collect();
    let regular: Vec<&Container> = pod.spec_ref().containers.iter().collect();
    for (title, containers, statuses) in [
        ("Init Containers:", init, &status.init_container_statuses),
        ("Containers:", regular, &status.container_statuses),
    ] {
        if containers.is_empty() {
            continue;
        }
        block.line(0, title);
        for container in containers {
            let status = statuses.iter().flatten().find(|status| status.name == container.name);
            one(block, pod, container, status);
        }
    }
    let ephemeral = pod.spec_ref().ephemeral_containers.as_deref().unwrap_or_default();
    if !ephemeral.is_empty() {
        block.line(0, "Ephemeral Containers:");
        for container in ephemeral {
            let statuses = status.ephemeral_container_statuses.iter().flatten();
            let status = statuses.into_iter().find(|status| status.name == container.name);
            block.line(2, format!("{}:", container.name));
            block.value(4, "Image", container.image.as_deref().unwrap_or_default());
            states(block, status);
        }
    }
}

fn one(block: &mut Block, pod: &Pod, container: &Container, status: Option<&ContainerStatus>) {
    block.line(2, format!("{}:", container.name));
    block.value(4, "Container ID", status.and_then(|it| it.container_id.as_deref()).unwrap_or_default());
    block.value(4, "Image", container.image.as_deref().unwrap_or_default());
    block.value(4, "Image ID", status.map(|it| it.image_id.as_str()).unwrap_or_default());
    ports(block, container.ports.as_deref().unwrap_or_default());
    lines(block, "Command:", container.command.as_deref().unwrap_or_default());
    lines(block, "Args:", container.args.as_deref().unwrap_or_default());
    states(block, status);
    if pod.container(&container.name).is_some_and(|(kind, _)| kind == ContainerKind::Sidecar) {
        block.value(4, "Restart Policy", "Always");
    }
    let resources = container.resources.as_ref();
    for (title, amounts) in [
        ("Limits:", resources.and_then(|it| it.limits.as_ref())),
        ("Requests:", resources.and_then(|it| it.requests.as_ref())),
    ] {
        if let Some(amounts) = amounts.filter(|amounts| !amounts.is_empty()) {
            block.line(4, title);
            for (name, amount) in amounts {
                block.value(6, name, &amount.0);
            }
        }
    }
    for (name, probe) in [
        ("Liveness", &container.liveness_probe),
        ("Readiness", &container.readiness_probe),
        ("Startup", &container.startup_probe),
    ] {
        if let Some(probe) = probe {
            block.value(4, name, probe_text(probe));
        }
    }
    environment(block, container);
    mounts(block, container.volume_mounts.as_deref().unwrap_or_default());
}

fn ports(block: &mut Block, ports: &[ContainerPort]) {
    let joined = |each: &dyn Fn(&ContainerPort) -> String| {
        if ports.is_empty() {
            return "<none>".to_owned();
        }
        ports.iter().map(each).collect::<Vec<_>>().join(", ")
    };
    let protocol = |port: &ContainerPort| port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
    let (port, host_port) = if ports.len() > 1 { ("Ports", "Host Ports") } else { ("Port", "Host Port") };
    block.value(4, port, joined(&|it| format!("{}/{}", it.container_port, protocol(it))));
    block.value(4, host_port, joined(&|it| format!("{}/{}", it.host_port.unwrap_or(0), protocol(it))));
}

fn lines(block: &mut Block, title: &str, words: &[String]) {
    if words.is_empty() {
        return;
    }
    block.line(4, title);
    for word in words {
        for line in word.split('\n') {
            block.line(6, line);
        }
    }
}

fn states(block: &mut Block, status: Option<&ContainerStatus>) {
    let Some(status) = status else { return };
    state(block, "State", status.state.as_ref());
    if status.last_state.as_ref().is_some_and(|last| last.terminated.is_some()) {
        state(block, "Last State", status.last_state.as_ref());
    }
    block.value(4, "Ready", if status.ready { "True" } else { "False" });
    block.value(4, "Restart Count", status.restart_count.to_string());
}

fn state(block: &mut Block, name: &str, state: Option<&ContainerState>) {
    let running = state.and_then(|it| it.running.as_ref());
    let waiting = state.and_then(|it| it.waiting.as_ref());
    let terminated = state.and_then(|it| it.terminated.as_ref());
    if let Some(running) = running {
        block.value(4, name, "Running");
        if let Some(time) = &running.started_at {
            block.value(6, "Started", full_time(time.0));
        }
    } else if let Some(terminated) = terminated {
        block.value(4, name, "Terminated");
        ended(block, terminated);
    } else {
        block.value(4, name, "Waiting");
        for (name, value) in [
            ("Reason", waiting.and_then(|it| text(it.reason.as_ref()))),
            ("Message", waiting.and_then(|it| text(it.message.as_ref()))),
        ] {
            if let Some(value) = value {
                block.value(6, name, value.trim_end());
            }
        }
    }
}

fn ended(block: &mut Block, terminated: &ContainerStateTerminated) {
    for (name, value) in
        [("Reason", text(terminated.reason.as_ref())), ("Message", text(terminated.message.as_ref()))]
    {
        if let Some(value) = value {
            block.value(6, name, value.trim_end());
        }
    }
    block.value(6, "Exit Code", terminated.exit_code.to_string());
    if let Some(signal) = terminated.signal.filter(|signal| *signal > 0) {
        block.value(6, "Signal", signal.to_string());
    }
    for (name, time) in [("Started", &terminated.started_at), ("Finished", &terminated.finished_at)] {
        if let Some(time) = time {
            block.value(6, name, full_time(time.0));
        }
    }
}

fn probe_text(probe: &Probe) -> String {
    let port_text = |port: &IntOrString| match port {
        IntOrString::Int(number) => number.to_string(),
        IntOrString::String(name) => name.clone(),
    };
    let what = if let Some(exec) = &probe.exec {
        format!("exec [{}]", exec.command.as_deref().unwrap_or_default().join(" "))
    } else if let Some(get) = &probe.http_get {
        let scheme = get.scheme.as_deref().unwrap_or("HTTP").to_lowercase();
        let path = get.path.as_deref().unwrap_or("/");
        let host = get.host.as_deref().unwrap_or_default();
        format!("http-get {scheme}://{host}:{}{path}", port_text(&get.port))
    } else if let Some(socket) = &probe.tcp_socket {
        format!("tcp-socket {}:{}", socket.host.as_deref().unwrap_or_default(), port_text(&socket.port))
    } else if let Some(grpc) = &probe.grpc {
        format!("grpc <pod>:{} {}", grpc.port, grpc.service.as_deref().unwrap_or_default())
    } else {
        "unknown".to_owned()
    };
    format!(
        "{what} delay={}s timeout={}s period={}s #success={} #failure={}",
        probe.initial_delay_seconds.unwrap_or(0),
        probe.timeout_seconds.unwrap_or(1),
        probe.period_seconds.unwrap_or(10),
        probe.success_threshold.unwrap_or(1),
        probe.failure_threshold.unwrap_or(3),
    )
}

fn environment(block: &mut Block, container: &Container) {
    let sources = container.env_from.as_deref().unwrap_or_default();
    if !sources.is_empty() {
        block.line(4, "Environment Variables from:");
        for source in sources {
            let (name, text) = from_source(source);
            block.value(6, &name, text);
        }
    }
    let variables = container.env.as_deref().unwrap_or_default();
    if variables.is_empty() {
        block.value(4, "Environment", "<none>");
        return;
    }
    block.line(4, "Environment:");
    for variable in variables {
        block.value(6, &variable.name, variable_text(variable));
    }
}

fn from_source(source: &EnvFromSource) -> (String, String) {
    let prefix = match text(source.prefix.as_ref()) {
        Some(prefix) => format!(" with prefix '{prefix}'"),
        None => String::new(),
    };
    if let Some(map) = &source.config_map_ref {
        (map.name.clone(), format!("ConfigMap{prefix}  Optional: {}", map.optional.unwrap_or(false)))
    } else if let Some(secret) = &source.secret_ref {
        (secret.name.clone(), format!("Secret{prefix}  Optional: {}", secret.optional.unwrap_or(false)))
    } else {
        ("<unknown>".to_owned(), prefix)
    }
}

fn variable_text(variable: &EnvVar) -> String {
    let Some(source) = &variable.value_from else {
        return variable.value.as_deref().unwrap_or_default().trim_end().to_owned();
    };
    if let Some(field) = &source.field_ref {
        format!("({}:{})", field.api_version.as_deref().unwrap_or("v1"), field.field_path)
    } else if let Some(resource) = &source.resource_field_ref {
        format!("({})", resource.resource)
    } else if let Some(key) = &source.config_map_key_ref {
        let optional = key.optional.unwrap_or(false);
        format!("<set to the key '{}' of config map '{}'>  Optional: {optional}", key.key, key.name)
    } else if let Some(key) = &source.secret_key_ref {
        let optional = key.optional.unwrap_or(false);
        format!("<set to the key '{}' in secret '{}'>  Optional: {optional}", key.key, key.name)
    } else {
        "<unknown source>".to_owned()
    }
}

fn mounts(block: &mut Block, mounts: &[VolumeMount]) {
    if mounts.is_empty() {
        block.value(4, "Mounts", "<none>");
        return;
    }
    block.line(4, "Mounts:");
    let mut sorted: Vec<&VolumeMount> = mounts.iter().collect();
    sorted.sort_by(|a, b| a.mount_path.cmp(&b.mount_path));
    for mount in sorted {
        let mut flags = vec![if mount.read_only == Some(true) { "ro".to_owned() } else { "rw".to_owned() }];
        if let Some(path) = text(mount.sub_path.as_ref()) {
            flags.push(format!("path={path:?}"));
        }
        block.line(6, format!("{} from {} ({})", mount.mount_path, mount.name, flags.join(",")));
    }
}
