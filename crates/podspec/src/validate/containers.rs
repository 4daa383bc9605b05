//! Containers: regular, init and sidecar.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::core::v1::{
        Container, ContainerPort, EnvFromSource, EnvVar, EnvVarSource, ExecAction, GRPCAction, HTTPGetAction,
        Lifecycle, PodSpec, Probe, SleepAction, TCPSocketAction, Volume, VolumeMount,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::{
    Field, Problems, names, resources, security,
    volumes::{ENV_FIELDS, check_field_ref, check_resource_ref},
};

const RESTART_RULES_MAX: usize = 20;
const EXIT_CODES_MAX: usize = 255;

type Volumes<'a> = BTreeMap<&'a str, &'a Volume>;

/// Checks all containers of a pod.
pub(super) fn check(problems: &mut Problems, spec: &PodSpec, volumes: &Volumes<'_>, field: &Field) {
    let regular_field = field.child("containers");
    if spec.containers.is_empty() {
        problems.required(&regular_field, "a pod needs at least one container");
    }
    let mut names = BTreeSet::new();
    let mut host_ports = BTreeSet::new();
    for (index, container) in spec.containers.iter().enumerate() {
        let field = regular_field.index(index);
        check_unique(problems, &mut names, container, &field);
        check_common(problems, container, spec, volumes, &field);
        check_attended(problems, container, spec, &field);
        check_restart_policy(problems, container, &field);
        check_host_ports(problems, container, spec, &mut host_ports, &field);
    }
    for (index, container) in spec.init_containers.iter().flatten().enumerate() {
        let field = field.child("initContainers").index(index);
        check_unique(problems, &mut names, container, &field);
        check_common(problems, container, spec, volumes, &field);
        check_restart_policy(problems, container, &field);
        // Init containers run one after the other, so that each has the ports for itself.
        check_host_ports(problems, container, spec, &mut BTreeSet::new(), &field);
        if container.restart_policy.as_deref() == Some("Always") {
            check_attended(problems, container, spec, &field);
            continue;
        }
        let only_attended = [
            ("lifecycle", container.lifecycle.is_some()),
            ("livenessProbe", container.liveness_probe.is_some()),
            ("readinessProbe", container.readiness_probe.is_some()),
            ("startupProbe", container.startup_probe.is_some()),
        ];
        for (name, _) in only_attended.into_iter().filter(|(_, present)| *present) {
            problems.forbidden(
                &field.child(name),
                "may not be set for init containers without restartPolicy=Always",
            );
        }
    }
}

fn check_unique<'a>(
    problems: &mut Problems,
    names: &mut BTreeSet<&'a str>,
    container: &'a Container,
    field: &Field,
) {
    if !names.insert(container.name.as_str()) && !container.name.is_empty() {
        problems.duplicate(&field.child("name"), &container.name);
    }
}

fn check_common(
    problems: &mut Problems,
    container: &Container,
    spec: &PodSpec,
    volumes: &Volumes<'_>,
    field: &Field,
) {
    if container.name.is_empty() {
        problems.required(&field.child("name"), "give the container a name");
    } else {
        problems.check(&field.child("name"), &container.name, names::dns_label);
    }
    let image = container.image.as_deref().unwrap_or_default();
    if image.is_empty() {
        problems.required(&field.child("image"), "name the image to run");
    } else if image.trim() != image {
        problems.invalid(&field.child("image"), image, "must not have leading or trailing whitespace");
    } else if image.contains(char::is_whitespace) {
        problems.invalid(&field.child("image"), image, "must not contain whitespace");
    }
    let pull_policies = &["Always", "IfNotPresent", "Never"];
    problems.one_of(&field.child("imagePullPolicy"), container.image_pull_policy.as_ref(), pull_policies);
    let message_policies = &["File", "FallbackToLogsOnError"];
    let policy = container.termination_message_policy.as_ref();
    problems.one_of(&field.child("terminationMessagePolicy"), policy, message_policies);

    check_ports(problems, container.ports.as_deref().unwrap_or_default(), &field.child("ports"));
    for (index, variable) in container.env.iter().flatten().enumerate() {
        check_env(problems, variable, volumes, &field.child("env").index(index));
    }
    for (index, source) in container.env_from.iter().flatten().enumerate() {
        check_env_from(problems, source, &field.child("envFrom").index(index));
    }
    check_mounts(problems, container, volumes, &field.child("volumeMounts"));
    check_devices(problems, container, spec, volumes, &field.child("volumeDevices"));
    if let Some(resources) = &container.resources {
        resources::check_container(problems, resources, &field.child("resources"), spec);
    }
    check_resize_policy(problems, container, spec, &field.child("resizePolicy"));
    if let Some(context) = &container.security_context {
        security::check_container(problems, context, spec, &field.child("securityContext"));
    }
}

fn check_ports(problems: &mut Problems, ports: &[ContainerPort], field: &Field) {
    let mut names = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let field = field.index(index);
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            if let Some(why) = names::port_name(name) {
                problems.invalid(&field.child("name"), name, why);
            } else if !names.insert(name) {
                problems.duplicate(&field.child("name"), name);
            }
        }
        if port.container_port == 0 {
            problems.required(&field.child("containerPort"), "give a number from 1 to 65535");
        } else {
            problems.in_range(&field.child("containerPort"), port.container_port, 1, 65535);
        }
        if let Some(host_port) = port.host_port.filter(|port| *port != 0) {
            problems.in_range(&field.child("hostPort"), host_port, 1, 65535);
        }
        problems.one_of(&field.child("protocol"), port.protocol.as_ref(), &["TCP", "UDP", "SCTP"]);
        problems.check_filled(&field.child("hostIP"), port.host_ip.as_ref(), names::ip_address);
    }
}

fn check_host_ports(
    problems: &mut Problems,
    container: &Container,
    spec: &PodSpec,
    taken: &mut BTreeSet<String>,
    field: &Field,
) {
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let Some(host_port) = port.host_port.filter(|port| *port != 0) else { continue };
        let field = field.child("ports").index(index).child("hostPort");
        let (protocol, ip) =
            (port.protocol.as_deref().unwrap_or("TCP"), port.host_ip.as_deref().unwrap_or_default());
        let key = format!("{protocol}/{ip}/{host_port}");
        if spec.host_network == Some(true) && host_port != port.container_port {
            problems.invalid(&field, host_port, "must match `containerPort` when `hostNetwork` is true");
        }
        if taken.contains(&key) {
            problems.duplicate(&field, &key);
        }
        taken.insert(key);
    }
}

fn check_env(problems: &mut Problems, variable: &EnvVar, volumes: &Volumes<'_>, field: &Field) {
    if variable.name.is_empty() {
        problems.required(&field.child("name"), "give the variable a name");
    } else {
        problems.check(&field.child("name"), &variable.name, names::env_name);
    }
    let Some(source) = &variable.value_from else { return };
    let field = field.child("valueFrom");
    let kinds = check_env_source(problems, source, volumes, &field);
    if kinds == 0 {
        let why = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
        problems.invalid(&field, "", why);
    } else if variable.value.as_deref().is_some_and(|value| !value.is_empty()) {
        problems.invalid(&field, "", "may not be specified when `value` is not empty");
    } else if kinds > 1 {
        problems.invalid(&field, "", "may not have more than one field specified at a time");
    }
}

fn check_env_source(
    problems: &mut Problems,
    source: &EnvVarSource,
    volumes: &Volumes<'_>,
    field: &Field,
) -> usize {
    let mut kinds = 0;
    if let Some(reference) = &source.field_ref {
        kinds += 1;
        check_field_ref(problems, reference, ENV_FIELDS, &field.child("fieldRef"));
    }
    if let Some(reference) = &source.resource_field_ref {
        kinds += 1;
        check_resource_ref(problems, reference, false, &field.child("resourceFieldRef"));
    }
    if let Some(reference) = &source.config_map_key_ref {
        kinds += 1;
        check_key_ref(problems, &reference.name, &reference.key, &field.child("configMapKeyRef"));
    }
    if let Some(reference) = &source.secret_key_ref {
        kinds += 1;
        check_key_ref(problems, &reference.name, &reference.key, &field.child("secretKeyRef"));
    }
    if let Some(reference) = &source.file_key_ref {
        kinds += 1;
        let field = field.child("fileKeyRef");
        if reference.key.is_empty() {
            problems.required(&field.child("key"), "name the variable in the file");
        } else {
            problems.check(&field.child("key"), &reference.key, names::env_name);
        }
        if reference.path.is_empty() {
            problems.required(&field.child("path"), "name the file in the volume");
        } else {
            problems.check(&field.child("path"), &reference.path, names::no_backsteps);
        }
        match volumes.get(reference.volume_name.as_str()) {
            _ if reference.volume_name.is_empty() => {
                problems.required(&field.child("volumeName"), "name an emptyDir volume");
            }
            None => {
                let advice = "add the volume to spec.volumes";
                problems.not_found(&field.child("volumeName"), &reference.volume_name, advice);
            }
            Some(volume) if volume.empty_dir.is_none() => {
                let why = "referenced volume must be of type emptyDir";
                problems.invalid(&field.child("volumeName"), &reference.volume_name, why);
            }
            Some(_) => {}
        }
    }
    kinds
}

fn check_key_ref(problems: &mut Problems, name: &str, key: &str, field: &Field) {
    if name.is_empty() {
        problems.required(&field.child("name"), "name the object");
    } else {
        problems.check(&field.child("name"), name, names::dns_subdomain);
    }
    if key.is_empty() {
        problems.required(&field.child("key"), "name the key");
    } else {
        problems.check(&field.child("key"), key, names::config_key);
    }
}

fn check_env_from(problems: &mut Problems, source: &EnvFromSource, field: &Field) {
    problems.check_filled(&field.child("prefix"), source.prefix.as_ref(), names::env_name);
    let names = [
        ("configMapRef", source.config_map_ref.as_ref().map(|reference| &reference.name)),
        ("secretRef", source.secret_ref.as_ref().map(|reference| &reference.name)),
    ];
    let mut kinds = 0;
    for (kind, name) in names {
        let Some(name) = name else { continue };
        kinds += 1;
        let field = field.child(kind).child("name");
        if name.is_empty() {
            problems.required(&field, "name the object");
        } else {
            problems.check(&field, name, names::dns_subdomain);
        }
    }
    match kinds {
        1 => {}
        0 => problems.invalid(field, "", "must specify one of: `configMapRef` or `secretRef`"),
        _ => problems.invalid(field, "", "may not have more than one field specified at a time"),
    }
}

fn check_mounts(problems: &mut Problems, container: &Container, volumes: &Volumes<'_>, field: &Field) {
    let mut paths = BTreeSet::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let field = field.index(index);
        if mount.name.is_empty() {
            problems.required(&field.child("name"), "name a volume of spec.volumes");
        } else if !volumes.contains_key(mount.name.as_str()) {
            problems.not_found(&field.child("name"), &mount.name, "add the volume to spec.volumes");
        }
        if mount.mount_path.is_empty() {
            problems.required(&field.child("mountPath"), "say where in the container it goes");
        } else if !paths.insert(mount.mount_path.as_str()) {
            problems.invalid(&field.child("mountPath"), &mount.mount_path, "must be unique");
        }
        check_sub_path(problems, mount, &field);
        check_propagation(problems, mount, container, &field);
    }
}

fn check_sub_path(problems: &mut Problems, mount: &VolumeMount, field: &Field) {
    let filled = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    problems.check_filled(&field.child("subPath"), mount.sub_path.as_ref(), names::descending_path);
    problems.check_filled(&field.child("subPathExpr"), mount.sub_path_expr.as_ref(), names::descending_path);
    if filled(&mount.sub_path) && filled(&mount.sub_path_expr) {
        let why = "subPathExpr and subPath are mutually exclusive";
        problems.invalid(
            &field.child("subPathExpr"),
            mount.sub_path_expr.as_deref().unwrap_or_default(),
            why,
        );
    }
}

fn check_propagation(problems: &mut Problems, mount: &VolumeMount, container: &Container, field: &Field) {
    let propagation = mount.mount_propagation.as_ref();
    let modes = &["Bidirectional", "HostToContainer", "None"];
    problems.one_of(&field.child("mountPropagation"), propagation, modes);
    let privileged = container.security_context.as_ref().and_then(|context| context.privileged) == Some(true);
    if propagation.is_some_and(|mode| mode == "Bidirectional") && !privileged {
        let why = "Bidirectional mount propagation is available only to privileged containers";
        problems.forbidden(&field.child("mountPropagation"), why);
    }
    let recursive = field.child("recursiveReadOnly");
    match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => {}
        Some("IfPossible" | "Enabled") => {
            if mount.read_only != Some(true) {
                problems.forbidden(&recursive, "may only be specified when readOnly is true");
            }
            if propagation.is_some_and(|mode| mode != "None") {
                let why = "may only be specified when mountPropagation is None or not specified";
                problems.forbidden(&recursive, why);
            }
        }
        Some(other) => problems.unsupported(&recursive, other, &["Disabled", "IfPossible", "Enabled"]),
    }
    let mut seen = BTreeSet::new();
    for (index, option) in mount.bind_mount_options.iter().flatten().enumerate() {
        let field = field.child("bindMountOptions").index(index);
        problems.one_of(&field, Some(option), &["nodev", "noexec", "nosuid"]);
        if !seen.insert(option) {
            problems.duplicate(&field, option);
        }
    }
}

fn check_devices(
    problems: &mut Problems,
    container: &Container,
    spec: &PodSpec,
    volumes: &Volumes<'_>,
    field: &Field,
) {
    let mut paths = BTreeSet::new();
    for (index, device) in container.volume_devices.iter().flatten().enumerate() {
        let field = field.index(index);
        match volumes.get(device.name.as_str()) {
            _ if device.name.is_empty() => {
                problems.required(&field.child("name"), "name a volume of spec.volumes")
            }
            None => problems.not_found(&field.child("name"), &device.name, "add the volume to spec.volumes"),
            Some(volume) if volume.persistent_volume_claim.is_none() && volume.ephemeral.is_none() => {
                let why =
                    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                problems.invalid(&field.child("name"), &device.name, why);
            }
            Some(_) => {}
        }
        if device.device_path.is_empty() {
            problems.required(&field.child("devicePath"), "say where in the container it goes");
        } else if let Some(why) = names::no_backsteps(&device.device_path) {
            problems.invalid(&field.child("devicePath"), &device.device_path, why);
        } else if !paths.insert(device.device_path.as_str()) {
            problems.invalid(&field.child("devicePath"), &device.device_path, "must be unique");
        }
        if spec.host_users == Some(false) {
            problems.forbidden(&field, "when `hostUsers` is false");
        }
    }
}

fn check_resize_policy(problems: &mut Problems, container: &Container, spec: &PodSpec, field: &Field) {
    let mut seen = BTreeSet::new();
    for (index, policy) in container.resize_policy.iter().flatten().enumerate() {
        let field = field.index(index);
        problems.one_of(&field.child("resourceName"), Some(&policy.resource_name), &["cpu", "memory"]);
        let modes = &["NotRequired", "RestartContainer"];
        problems.one_of(&field.child("restartPolicy"), Some(&policy.restart_policy), modes);
        if !seen.insert(&policy.resource_name) {
            problems.duplicate(&field, &policy.resource_name);
        }
        if spec.restart_policy.as_deref() == Some("Never") && policy.restart_policy == "RestartContainer" {
            let why = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            problems.invalid(&field.child("restartPolicy"), &policy.restart_policy, why);
        }
    }
}

/// Container-level restart policy and rules (KEP-5307, gates on by default since 1.35 and 1.36).
fn check_restart_policy(problems: &mut Problems, container: &Container, field: &Field) {
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    let policy = field.child("restartPolicy");
    match &container.restart_policy {
        None if !rules.is_empty() => {
            problems.required(&policy, "must specify restartPolicy when restart rules are used");
        }
        given => problems.one_of(&policy, given.as_ref(), &["Always", "Never", "OnFailure"]),
    }
    let field = field.child("restartPolicyRules");
    if rules.len() > RESTART_RULES_MAX {
        problems.too_many(&field, rules.len(), RESTART_RULES_MAX);
    }
    for (index, rule) in rules.iter().enumerate() {
        let field = field.index(index);
        problems.one_of(&field.child("action"), Some(&rule.action), &["Restart", "RestartAllContainers"]);
        let Some(exit_codes) = &rule.exit_codes else {
            problems.required(&field.child("exitCodes"), "must be specified");
            continue;
        };
        let field = field.child("exitCodes");
        problems.one_of(&field.child("operator"), Some(&exit_codes.operator), &["In", "NotIn"]);
        let count = exit_codes.values.as_ref().map_or(0, Vec::len);
        if count > EXIT_CODES_MAX {
            problems.too_many(&field.child("values"), count, EXIT_CODES_MAX);
        }
    }
}

/// What only containers that are kept running have: hooks and probes.
fn check_attended(problems: &mut Problems, container: &Container, spec: &PodSpec, field: &Field) {
    if let Some(lifecycle) = &container.lifecycle {
        check_lifecycle(problems, lifecycle, spec, &field.child("lifecycle"));
    }
    let probes = [
        ("livenessProbe", &container.liveness_probe),
        ("readinessProbe", &container.readiness_probe),
        ("startupProbe", &container.startup_probe),
    ];
    for (name, probe) in probes {
        let Some(probe) = probe else { continue };
        let field = field.child(name);
        check_probe(problems, probe, &field);
        if name == "readinessProbe" {
            if let Some(grace) = probe.termination_grace_period_seconds {
                let why = "must not be set for readinessProbes";
                problems.invalid(&field.child("terminationGracePeriodSeconds"), grace, why);
            }
        } else if probe.success_threshold.is_some_and(|threshold| threshold != 1) {
            let threshold = probe.success_threshold.unwrap_or_default();
            problems.invalid(&field.child("successThreshold"), threshold, "must be 1");
        }
    }
}

fn check_lifecycle(problems: &mut Problems, lifecycle: &Lifecycle, spec: &PodSpec, field: &Field) {
    for (name, handler) in [("postStart", &lifecycle.post_start), ("preStop", &lifecycle.pre_stop)] {
        let Some(handler) = handler else { continue };
        let handlers = Handlers {
            exec: handler.exec.as_ref(),
            http_get: handler.http_get.as_ref(),
            tcp_socket: handler.tcp_socket.as_ref(),
            grpc: None,
            sleep: handler.sleep.as_ref(),
        };
        check_handlers(problems, &handlers, spec.termination_grace_period_seconds, &field.child(name));
    }
    if let Some(signal) = &lifecycle.stop_signal {
        let field = field.child("stopSignal");
        if spec.os.is_none() {
            problems.forbidden(&field, "may not be set for containers with empty `spec.os.name`");
        } else if !is_stop_signal(signal) {
            problems.invalid(
                &field,
                signal,
                "must be the name of a Linux signal, such as SIGTERM or SIGRTMIN+3",
            );
        }
    }
}

fn is_stop_signal(signal: &str) -> bool {
    const PLAIN: &str = " ABRT ALRM BUS CHLD CLD CONT FPE HUP ILL INT IO IOT KILL PIPE POLL PROF PWR QUIT SEGV STKFLT STOP SYS \
                         TERM TRAP TSTP TTIN TTOU URG USR1 USR2 VTALRM WINCH XCPU XFSZ RTMIN RTMAX ";
    let Some(name) = signal.strip_prefix("SIG") else { return false };
    if !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_alphanumeric())
        && PLAIN.contains(&format!(" {name} "))
    {
        return true;
    }
    let numbered = |prefix: &str, most: u8| {
        let digits = name.strip_prefix(prefix)?;
        let plain = !digits.starts_with(['0', '+']);
        digits.parse::<u8>().ok().filter(|number| plain && (1..=most).contains(number))
    };
    numbered("RTMIN+", 15).or_else(|| numbered("RTMAX-", 14)).is_some()
}

fn check_probe(problems: &mut Problems, probe: &Probe, field: &Field) {
    let handlers = Handlers {
        exec: probe.exec.as_ref(),
        http_get: probe.http_get.as_ref(),
        tcp_socket: probe.tcp_socket.as_ref(),
        grpc: probe.grpc.as_ref(),
        sleep: None,
    };
    check_handlers(problems, &handlers, None, field);
    problems.non_negative(&field.child("initialDelaySeconds"), probe.initial_delay_seconds);
    problems.non_negative(&field.child("timeoutSeconds"), probe.timeout_seconds);
    problems.non_negative(&field.child("periodSeconds"), probe.period_seconds);
    problems.non_negative(&field.child("successThreshold"), probe.success_threshold);
    problems.non_negative(&field.child("failureThreshold"), probe.failure_threshold);
    if let Some(grace) = probe.termination_grace_period_seconds
        && grace <= 0
    {
        problems.invalid(&field.child("terminationGracePeriodSeconds"), grace, "must be greater than 0");
    }
}

struct Handlers<'a> {
    exec: Option<&'a ExecAction>,
    http_get: Option<&'a HTTPGetAction>,
    tcp_socket: Option<&'a TCPSocketAction>,
    grpc: Option<&'a GRPCAction>,
    sleep: Option<&'a SleepAction>,
}

fn check_handlers(problems: &mut Problems, handlers: &Handlers<'_>, grace: Option<i64>, field: &Field) {
    let present: Vec<&str> = [
        ("exec", handlers.exec.is_some()),
        ("httpGet", handlers.http_get.is_some()),
        ("tcpSocket", handlers.tcp_socket.is_some()),
        ("grpc", handlers.grpc.is_some()),
        ("sleep", handlers.sleep.is_some()),
    ]
    .into_iter()
    .filter_map(|(name, present)| present.then_some(name))
    .collect();
    if present.is_empty() {
        problems.required(field, "must specify a handler type");
    }
    for name in present.iter().skip(1) {
        problems.forbidden(&field.child(name), "may not specify more than 1 handler type");
    }
    if let Some(exec) = handlers.exec
        && exec.command.as_ref().is_none_or(Vec::is_empty)
    {
        problems.required(&field.child("exec.command"), "give a command");
    }
    if let Some(http) = handlers.http_get {
        check_http_get(problems, http, &field.child("httpGet"));
    }
    if let Some(tcp) = handlers.tcp_socket {
        check_port(problems, &tcp.port, &field.child("tcpSocket.port"));
    }
    if let Some(grpc) = handlers.grpc {
        problems.in_range(&field.child("grpc.port"), grpc.port, 1, 65535);
        problems.one_of(&field.child("grpc.mode"), grpc.mode.as_ref(), &["Plaintext", "TLS"]);
    }
    if let (Some(sleep), Some(grace)) = (handlers.sleep, grace)
        && !(0..=grace).contains(&sleep.seconds)
    {
        let why = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        problems.invalid(&field.child("sleep.seconds"), sleep.seconds, why);
    }
}

fn check_http_get(problems: &mut Problems, http: &HTTPGetAction, field: &Field) {
    check_port(problems, &http.port, &field.child("port"));
    problems.one_of(&field.child("scheme"), http.scheme.as_ref(), &["HTTP", "HTTPS"]);
    for (index, header) in http.http_headers.iter().flatten().enumerate() {
        let field = field.child("httpHeaders").index(index).child("name");
        problems.check(&field, &header.name, names::http_header_name);
    }
    let protocol = field.child("protocol");
    problems.one_of(&protocol, http.protocol.as_ref(), &["HTTP1", "HTTP2"]);
    if http.protocol.as_deref() == Some("HTTP2") {
        if http.scheme.as_deref() != Some("HTTP") {
            problems.invalid(&protocol, "HTTP2", "is only supported with HTTP (H2C)");
        } else if let Some(host) = http.host.as_deref().filter(|host| !host.is_empty()) {
            problems.invalid(&field.child("host"), host, "must be empty when `protocol` is \"HTTP2\"");
        }
    }
}

fn check_port(problems: &mut Problems, port: &IntOrString, field: &Field) {
    match port {
        IntOrString::Int(number) => problems.in_range(field, *number, 1, 65535),
        IntOrString::String(name) => problems.check(field, name, names::port_name),
    }
}
