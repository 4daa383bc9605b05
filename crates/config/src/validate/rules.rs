//! Rules between fields: server, access, images, logs, logging, shutdown, and the flag-only options.

use super::Findings;
use crate::duration::GoDuration;
use crate::gates::FeatureGates;
use crate::kubelet::KubeletConfiguration;
use crate::load::clean;
use crate::names;
use crate::settings::Settings;

const SECOND: GoDuration = GoDuration::from_seconds(1);

/// Cipher suites by Go's names, with the two old spellings that upstream keeps.
const CIPHER_SUITES: &[&str] = &[
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

/// Key exchange groups by TLS number: P-256, P-384, P-521, X25519 and the three ML-KEM hybrids.
const CURVES: &[i32] = &[23, 24, 25, 29, 4587, 4588, 4589];

/// Labels of the kubernetes.io and k8s.io namespaces that a node may give itself.
const NODE_LABELS: &[&str] = &[
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// Namespaces, with what lies below them, in which a node may give itself any label.
const NODE_LABEL_NAMESPACES: &[&str] = &["kubelet.kubernetes.io", "node.kubernetes.io"];

pub(super) fn check(config: &KubeletConfiguration, gates: &FeatureGates, findings: &mut Findings) {
    server(config, gates, findings);
    sources(config, findings);
    node(config, findings);
    images(config, gates, findings);
    container_logs(config, findings);
    logging(config, gates, findings);
    shutdown(config, gates, findings);
    pods(config, gates, findings);
}

/// What is accepted as it is, but worth a word.
pub(crate) fn remarks(config: &KubeletConfiguration) -> Vec<String> {
    let mut remarks = Vec::new();
    for address in config.cluster_dns.iter().filter(|address| names::parse_ip(address).is_none()) {
        remarks.push(format!("clusterDNS entry {address:?} is not an IP address and is left out"));
    }
    for (field, endpoint) in [
        ("containerRuntimeEndpoint", &config.container_runtime_endpoint),
        ("imageServiceEndpoint", &config.image_service_endpoint),
    ] {
        if !endpoint.is_empty() && !endpoint.contains("://") {
            remarks.push(format!("{field} {endpoint:?} is taken for unix://{endpoint}; write the full URL"));
        }
    }
    let (ours, reserved) = (&config.kubelet_cgroups, &config.kube_reserved_cgroup);
    if !ours.is_empty() && !reserved.is_empty() && !ours.starts_with(reserved.as_str()) {
        remarks.push(format!("kubeletCgroups {ours:?} is not within kubeReservedCgroup {reserved:?}"));
    }
    if config.tls_min_version == "VersionTLS13" && !config.tls_cipher_suites.is_empty() {
        remarks.push("tlsCipherSuites has no effect: TLS 1.3 has its own cipher suites".to_owned());
    }
    remarks
}

fn server(config: &KubeletConfiguration, gates: &FeatureGates, findings: &mut Findings) {
    for suite in config.tls_cipher_suites.iter().filter(|suite| !CIPHER_SUITES.contains(&suite.as_str())) {
        findings.add(
            "tlsCipherSuites",
            format!(
                "Cipher suite {suite} in tlsCipherSuites (--tls-cipher-suites) not supported or doesn't exist"
            ),
            "use the names of Go's crypto/tls",
        );
    }
    for (index, curve) in config.tls_curve_preferences.iter().enumerate() {
        findings.require(
            CURVES.contains(curve),
            "tlsCurvePreferences",
            format!("curve preference {curve} in tlsCurvePreferences is not supported"),
            "use 23, 24, 25, 29, 4587, 4588 or 4589",
        );
        findings.require(
            !config.tls_curve_preferences.iter().take(index).any(|earlier| earlier == curve),
            "tlsCurvePreferences",
            format!("duplicate curve preference {curve} in tlsCurvePreferences"),
            "keep one of them",
        );
    }
    findings.require(
        config.tls_cert_file.is_empty() == config.tls_private_key_file.is_empty(),
        "tlsCertFile",
        "tlsCertFile (--tls-cert-file) and tlsPrivateKeyFile (--tls-private-key-file) must be set together",
        "set the other one as well",
    );
    findings.require(
        !config.server_tls_bootstrap || gates.enabled("RotateKubeletServerCertificate"),
        "serverTLSBootstrap",
        "serverTLSBootstrap true requires feature gate RotateKubeletServerCertificate",
        "enable the gate, or set serverTLSBootstrap: false",
    );
    let query = config.enable_system_log_query;
    findings.require(
        !query || gates.enabled("NodeLogQuery"),
        "enableSystemLogQuery",
        "NodeLogQuery feature gate is required for enableSystemLogQuery",
        "enable the gate",
    );
    findings.require(
        !query || config.enable_system_log_handler,
        "enableSystemLogQuery",
        "enableSystemLogHandler is required for enableSystemLogQuery",
        "set enableSystemLogHandler: true",
    );
    let version = &config.show_hidden_metrics_for_version;
    findings.require(
        version.is_empty() || version == "1.36",
        "showHiddenMetricsForVersion",
        format!("showHiddenMetricsForVersion {version:?} must be omitted or have the value '1.36'; only the previous minor version is allowed"),
        "",
    );
    if let Some(endpoint) = config.tracing.as_ref().and_then(|tracing| tracing.endpoint.as_deref()) {
        let scheme = endpoint.split_once("//").map(|(scheme, _)| scheme.trim_end_matches(':'));
        findings.require(
            scheme.is_none_or(|scheme| ["dns", "unix", "unix-abstract"].contains(&scheme)),
            "tracing.endpoint",
            format!("tracing.endpoint {endpoint:?}: unsupported scheme: {}. Options are none, dns, unix, or unix-abstract", scheme.unwrap_or_default()),
            "write host:port",
        );
    }
}

fn sources(config: &KubeletConfiguration, findings: &mut Findings) {
    let url = &config.static_pod_url;
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    findings.require(
        url.is_empty() || rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/')),
        "staticPodURL",
        "staticPodURL (--manifest-url) must be an http or https URL",
        "write http://HOST/PATH",
    );
    for (name, values) in config.static_pod_url_header.expose() {
        findings.require(
            names::is_header_name(name),
            "staticPodURLHeader",
            format!("staticPodURLHeader (--manifest-url-header) {name:?} is not a valid header name"),
            "use letters, digits and '-'",
        );
        findings.require(
            values.iter().all(|value| names::is_header_value(value)),
            "staticPodURLHeader",
            format!(
                "staticPodURLHeader (--manifest-url-header): a value of {name:?} is not a valid header value"
            ),
            "remove control characters such as a line end",
        );
    }
}

fn node(config: &KubeletConfiguration, findings: &mut Findings) {
    findings.require(
        config.node_lease_duration_seconds > 0,
        "nodeLeaseDurationSeconds",
        format!("nodeLeaseDurationSeconds {} must be greater than 0", config.node_lease_duration_seconds),
        "",
    );
    findings.require(
        !config.run_once,
        "runOnce",
        "runOnce (--runOnce) true, Runonce mode has been deprecated and should not be set",
        "remove it",
    );
    for taint in &config.register_with_taints {
        let shown = format!("{}={}:{}", taint.key, taint.value, taint.effect);
        if let Some(fault) = names::taint_fault(&taint.key, &taint.value, &taint.effect) {
            findings.add(
                "registerWithTaints",
                format!("invalid taint: {shown} in registerWithTaints"),
                fault,
            );
        }
        findings.require(
            taint.time_added.is_none(),
            "registerWithTaints",
            format!("taint.TimeAdded is not nil in registerWithTaints for {shown}"),
            "remove timeAdded",
        );
    }
    findings.require(
        !config.container_runtime_endpoint.is_empty(),
        "containerRuntimeEndpoint",
        "the containerRuntimeEndpoint was not specified or empty",
        "set it, for example to unix:///run/containerd/containerd.sock",
    );
    for (field, endpoint) in [
        ("containerRuntimeEndpoint", &config.container_runtime_endpoint),
        ("imageServiceEndpoint", &config.image_service_endpoint),
    ] {
        let scheme = endpoint.split_once("://").map(|(scheme, _)| scheme);
        findings.require(
            scheme.is_none_or(|scheme| scheme == "unix"),
            field,
            format!("{field} {endpoint:?}: protocol {:?} not supported", scheme.unwrap_or_default()),
            "write unix:///path/to/runtime.sock",
        );
    }
}

fn images(config: &KubeletConfiguration, gates: &FeatureGates, findings: &mut Findings) {
    let (low, high) = (config.image_gc_low_threshold_percent, config.image_gc_high_threshold_percent);
    findings.require(
        low < high,
        "imageGCLowThresholdPercent",
        format!("imageGCLowThresholdPercent (--image-gc-low-threshold) {low} must be less than imageGCHighThresholdPercent (--image-gc-high-threshold) {high}"),
        "",
    );
    let (least, most) = (config.image_minimum_gc_age, config.image_maximum_gc_age);
    findings.require(
        !most.is_negative(),
        "imageMaximumGCAge",
        format!("imageMaximumGCAge {most} must not be negative"),
        "write 0s for no limit",
    );
    findings.require(
        most <= GoDuration::ZERO || most > least,
        "imageMaximumGCAge",
        format!("imageMaximumGCAge {most} must be greater than imageMinimumGCAge {least}"),
        "",
    );
    if let Some(pulls) = config.max_parallel_image_pulls {
        findings.require(
            pulls >= 1,
            "maxParallelImagePulls",
            format!("maxParallelImagePulls {pulls} must be a positive number"),
            "remove it for no limit",
        );
        findings.require(
            pulls <= 1 || !config.serialize_image_pulls,
            "maxParallelImagePulls",
            "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) is set to false",
            "set serializeImagePulls: false",
        );
    }
    let policy = config.image_pull_credentials_verification_policy.as_str();
    let allowed = &config.preloaded_images_verification_allowlist;
    if !gates.enabled("KubeletEnsureSecretPulledImages") {
        for (field, is_set) in [
            ("imagePullCredentialsVerificationPolicy", !policy.is_empty()),
            ("preloadedImagesVerificationAllowlist", !allowed.is_empty()),
        ] {
            findings.require(
                !is_set,
                field,
                format!(
                    "`{field}` must not be set if KubeletEnsureSecretPulledImages feature gate is not enabled"
                ),
                "remove it, or enable the gate",
            );
        }
        return;
    }
    if !allowed.is_empty() && policy != "NeverVerifyAllowlistedImages" {
        findings.add(
            "preloadedImagesVerificationAllowlist",
            "can't set `preloadedImagesVerificationAllowlist` if `imagePullCredentialsVerificationPolicy` is not \"NeverVerifyAllowlistedImages\"",
            "set that policy, or remove the list",
        );
        return;
    }
    for pattern in allowed {
        if let Some(fault) = image_pattern_fault(pattern) {
            findings.add(
                "preloadedImagesVerificationAllowlist",
                format!(
                    "invalid image pattern in `preloadedImagesVerificationAllowlist`: {fault}: {pattern}"
                ),
                "write registry/path/image or registry/path/*",
            );
        }
    }
}

fn image_pattern_fault(pattern: &str) -> Option<&'static str> {
    if pattern != pattern.trim() {
        return Some("leading/trailing spaces are not allowed");
    }
    let (name, wildcard) = match pattern.strip_suffix("/*") {
        Some(name) => (name, true),
        None => (pattern, false),
    };
    if name.contains('*') {
        return Some("not a valid wildcard pattern, only patterns ending with '/*' are allowed");
    }
    if name.is_empty() {
        return Some(if wildcard {
            "at least registry hostname is required"
        } else {
            "the supplied pattern is too short"
        });
    }
    if wildcard {
        return None;
    }
    // A colon in the last part is a tag; one before it is the registry's port.
    let last = name.rsplit('/').next().unwrap_or(name);
    if name.contains('@') || last.contains(':') {
        return Some("neither tag nor digest is accepted in an image reference");
    }
    let valid = |b: u8| b.is_ascii_alphanumeric() || b"._-/:".contains(&b);
    (!name.bytes().all(valid)).then_some("failed to parse as an image name")
}

fn container_logs(config: &KubeletConfiguration, findings: &mut Findings) {
    findings.require(
        config.container_log_max_workers >= 1,
        "containerLogMaxWorkers",
        format!(
            "containerLogMaxWorkers {} must be greater than or equal to 1",
            config.container_log_max_workers
        ),
        "",
    );
    findings.require(
        config.container_log_max_files > 1,
        "containerLogMaxFiles",
        format!("containerLogMaxFiles {} must be greater than 1", config.container_log_max_files),
        "",
    );
    let directory = &config.pod_logs_dir;
    if directory.is_empty() {
        findings.add("podLogsDir", "podLogsDir was not specified", "remove the empty value");
        return;
    }
    findings.require(
        directory.starts_with('/'),
        "podLogsDir",
        format!("pod logs path {directory:?} must be absolute path"),
        "begin it with /",
    );
    findings.require(
        clean(directory) == *directory,
        "podLogsDir",
        format!("pod logs path {directory:?} must be normalized"),
        &format!("write {:?}", clean(directory)),
    );
    // The path becomes part of metrics.
    findings.require(
        directory.is_ascii(),
        "podLogsDir",
        format!("pod logs path {directory:?} must contain ASCII characters only"),
        "",
    );
}

fn logging(config: &KubeletConfiguration, gates: &FeatureGates, findings: &mut Findings) {
    let logging = &config.logging;
    findings.require(
        logging.flush_frequency > GoDuration::ZERO,
        "logging.flushFrequency",
        format!("logging.flushFrequency {}: Must be greater than zero", logging.flush_frequency),
        "",
    );
    findings.require(
        logging.format != "json" || gates.enabled("LoggingBetaOptions"),
        "logging.format",
        "logging.format: Log format json is disabled, see LoggingBetaOptions feature",
        "enable the gate, or use text",
    );
    findings.require(
        logging.vmodule.is_empty() || logging.format != "json",
        "logging.vmodule",
        "logging.vmodule: Only supported for text log format",
        "remove it, or set logging.format: text",
    );
    for item in &logging.vmodule {
        findings.require(
            !item.file_pattern.is_empty(),
            "logging.vmodule",
            "logging.vmodule: File pattern must not be empty",
            "",
        );
        findings.require(
            !item.file_pattern.contains(['=', ',']),
            "logging.vmodule",
            format!(
                "logging.vmodule {:?}: File pattern must not contain equal sign or comma",
                item.file_pattern
            ),
            "",
        );
        findings.require(
            item.verbosity <= 0x7fff_ffff,
            "logging.vmodule",
            format!("logging.vmodule {:?}: verbosity Must be <= 2147483647", item.file_pattern),
            "",
        );
    }
    let (text, json) = (&logging.options.text, &logging.options.json);
    for (path, is_set) in [
        ("logging.options.text.splitStream", text.split_stream),
        ("logging.options.text.infoBufferSize", !text.info_buffer_size.amount().is_zero()),
        ("logging.options.json.splitStream", json.split_stream),
        ("logging.options.json.infoBufferSize", !json.info_buffer_size.amount().is_zero()),
    ] {
        findings.require(
            !is_set || gates.enabled("LoggingAlphaOptions"),
            path,
            format!("{path}: Feature LoggingAlphaOptions is disabled"),
            "enable the gate, or remove it",
        );
    }
}

fn shutdown(config: &KubeletConfiguration, gates: &FeatureGates, findings: &mut Findings) {
    let (total, critical) = (config.shutdown_grace_period, config.shutdown_grace_period_critical_pods);
    let any = total > GoDuration::ZERO || critical > GoDuration::ZERO;
    if gates.enabled("GracefulNodeShutdown") {
        findings.require(
            critical <= total,
            "shutdownGracePeriodCriticalPods",
            format!("shutdownGracePeriodCriticalPods {critical} must be <= shutdownGracePeriod {total}"),
            "",
        );
        for (field, period) in [("shutdownGracePeriod", total), ("shutdownGracePeriodCriticalPods", critical)]
        {
            findings.require(
                period.is_zero() || period >= SECOND,
                field,
                format!("{field} {period} must be either zero or otherwise >= 1 sec"),
                "",
            );
        }
    } else {
        findings.require(
            !any,
            "shutdownGracePeriod",
            "specifying shutdownGracePeriod or shutdownGracePeriodCriticalPods requires feature gate GracefulNodeShutdown",
            "enable the gate, or remove them",
        );
    }
    let by_priority = !config.shutdown_grace_period_by_pod_priority.is_empty();
    if gates.enabled("GracefulNodeShutdownBasedOnPodPriority") {
        findings.require(
            !by_priority || !any,
            "shutdownGracePeriodByPodPriority",
            "Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time",
            "keep one of them",
        );
    } else {
        findings.require(
            !by_priority,
            "shutdownGracePeriodByPodPriority",
            "Specifying shutdownGracePeriodByPodPriority requires feature gate GracefulNodeShutdownBasedOnPodPriority",
            "enable the gate, or remove it",
        );
    }
}

fn pods(config: &KubeletConfiguration, gates: &FeatureGates, findings: &mut Findings) {
    let period = config.crash_loop_back_off.max_container_restart_period;
    let path = "crashLoopBackOff.maxContainerRestartPeriod";
    match (gates.enabled("KubeletCrashLoopBackOffMax"), period) {
        (true, None) => findings.add(
            path,
            "FeatureGate KubeletCrashLoopBackOffMax is enabled, CrashLoopBackOff.MaxContainerRestartPeriod must be set",
            "set it to 300s",
        ),
        (true, Some(period)) => findings.require(
            (SECOND..=GoDuration::from_seconds(300)).contains(&period),
            path,
            format!("CrashLoopBackOff.MaxContainerRestartPeriod (got: {period}) must be set between 1s and 300s"),
            "",
        ),
        (false, None) => {}
        (false, Some(_)) => findings.add(
            path,
            "FeatureGate KubeletCrashLoopBackOffMax not enabled, CrashLoopBackOff.MaxContainerRestartPeriod must not be set",
            "remove it, or enable the gate",
        ),
    }
    for range in config.pod_cidr.split(',').filter(|_| !config.pod_cidr.is_empty()) {
        findings.require(
            names::is_cidr(range.trim()),
            "podCIDR",
            format!("podCIDR (--pod-cidr) {range:?} is not an address range"),
            "write it as 10.100.0.0/24",
        );
    }
    sysctls(config, gates, findings);
    let ids = config.user_namespaces.as_ref().and_then(|namespaces| namespaces.ids_per_pod);
    if let Some(ids) = ids {
        let path = "userNamespaces.idsPerPod";
        findings.require(
            ids >= 65536,
            path,
            format!("userNamespaces.idsPerPod {ids} must not be less than 65536"),
            "",
        );
        findings.require(
            ids % 65536 == 0,
            path,
            format!("userNamespaces.idsPerPod {ids} must be a multiple of 65536"),
            "",
        );
        findings.require(
            ids <= u32::MAX.into(),
            path,
            format!("userNamespaces.idsPerPod {ids} must not be more than {}", u32::MAX),
            "",
        );
    }
}

fn sysctls(config: &KubeletConfiguration, gates: &FeatureGates, findings: &mut Findings) {
    let path = "defaultPodSysctls";
    if config.default_pod_sysctls.is_empty() {
        return;
    }
    if !gates.enabled("DefaultPodSysctls") {
        findings.add(
            path,
            "DefaultPodSysctls feature gate is required for Kubelet configuration option defaultPodSysctls",
            "enable the gate, or remove it",
        );
        return;
    }
    let mut seen = std::collections::BTreeSet::new();
    for name in config.default_pod_sysctls.keys() {
        if !names::is_sysctl_name(name) {
            findings.add(path, format!("{name:?} is not a valid sysctl name for defaultPodSysctls"), "");
            continue;
        }
        let normalized = names::normalize_sysctl(name);
        findings.require(
            names::is_namespaced_sysctl(&normalized),
            path,
            format!("{name:?} is not known to be namespaced for defaultPodSysctls"),
            "set it on the host instead",
        );
        findings.require(
            seen.insert(normalized.clone()),
            path,
            format!("duplicate sysctl {normalized:?} found in defaultPodSysctls"),
            "keep one of them",
        );
    }
}

/// Rules of the flag-only options (`ValidateKubeletFlags` and what upstream's start refuses).
pub(super) fn check_settings(settings: &Settings, findings: &mut Findings) {
    for (key, value) in &settings.node_labels {
        let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace);
        let within = |zone: &str| namespace == zone || namespace.ends_with(&format!(".{zone}"));
        let reserved = within("kubernetes.io") || within("k8s.io");
        let own =
            NODE_LABELS.contains(&key.as_str()) || NODE_LABEL_NAMESPACES.iter().any(|zone| within(zone));
        findings.require(
            !reserved || own,
            "--node-labels",
            format!("unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: [{key}]"),
            &format!(
                "--node-labels in the 'kubernetes.io' namespace must begin with an allowed prefix ({}) or be in the specifically allowed set ({})",
                NODE_LABEL_NAMESPACES.join(", "),
                NODE_LABELS.join(", ")
            ),
        );
        for fault in names::label_key_fault(key).into_iter().chain(names::label_value_fault(value)) {
            findings.add(
                "--node-labels",
                format!("invalid node labels: '{key}={value}' in --node-labels"),
                fault,
            );
        }
    }
    findings.require(
        !settings.exit_on_lock_contention || !settings.lock_file.is_empty(),
        "--exit-on-lock-contention",
        "cannot exit on lock file contention: no lock file specified (--exit-on-lock-contention)",
        "set --lock-file",
    );
    findings.require(
        !settings.root_dir.is_empty(),
        "--root-dir",
        "invalid root directory \"\" (--root-dir)",
        "remove the flag, or name a directory",
    );
    for (flag, patterns) in
        [("--metrics-allow", &settings.metrics_allow), ("--metrics-deny", &settings.metrics_deny)]
    {
        for pattern in patterns.iter().filter(|pattern| !names::is_family_pattern(pattern)) {
            findings.add(
                flag,
                format!("{pattern:?} names no family of metrics ({flag})"),
                "give names such as container_last_seen, or beginnings with one * at the end such as container_fs_*",
            );
        }
    }
    node_ip(&settings.node_ip, findings);
    let mode = u32::from_str_radix(&settings.local_api_mode, 8);
    findings.require(
        mode.is_ok_and(|mode| (0o700..=0o777).contains(&mode) && mode & 0o022 == 0),
        "--local-api-mode",
        format!("{:?} is no mode for a directory of sockets (--local-api-mode)", settings.local_api_mode),
        "give an octal mode from 0700 to 0755 that lets nobody but root write: whoever may could put something else in a socket's place",
    );
}

fn node_ip(text: &str, findings: &mut Findings) {
    if text.is_empty() {
        return;
    }
    let mut addresses = Vec::new();
    for part in text.split(',').map(str::trim) {
        match names::parse_ip(part) {
            Some(address) => addresses.push(address),
            None => {
                findings.add("--node-ip", format!("bad --node-ip {text:?}: could not parse {part:?}"), "")
            }
        }
    }
    let fine = match addresses.as_slice() {
        [] | [_] => true,
        [first, second] => first.is_ipv4() != second.is_ipv4(),
        _ => false,
    };
    findings.require(
        fine,
        "--node-ip",
        format!("bad --node-ip {text:?}: must contain either a single IP or a dual-stack pair of IPs"),
        "",
    );
    findings.require(
        addresses.len() < 2 || !addresses.iter().any(std::net::IpAddr::is_unspecified),
        "--node-ip",
        format!("bad --node-ip {text:?}: dual-stack node IP cannot include '0.0.0.0' or '::'"),
        "",
    );
}
