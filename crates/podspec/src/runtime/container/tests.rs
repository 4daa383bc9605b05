use super::super::fixtures::{World, pod, pod_of};
use super::*;
use k8s_cri::v1::{IdMapping, LinuxContainerSecurityContext, NamespaceMode};

#[test]
fn what_is_sent() {
    let pod = pod_of(
        "command: [run, '$(A)', '$$(A)'], args: ['-x', '$(B)'], workingDir: /w, stdin: true, stdinOnce: true, tty: true,
         env: [{name: A, value: a}]",
    );
    let world = World::default();
    let (kind, container) = pod.container("c").unwrap();
    let context = ContainerContext { restart_count: 7, ..world.context() };
    let config = container_config(&pod, container, kind, &context).unwrap();
    assert_eq!(config.metadata, Some(ContainerMetadata { name: "c".to_owned(), attempt: 7 }));
    assert_eq!(config.command, ["run", "a", "$(A)"]);
    assert_eq!(config.args, ["-x", "$(B)"]);
    assert_eq!((config.working_dir.as_str(), config.log_path.as_str()), ("/w", "c/7.log"));
    assert!(config.stdin && config.stdin_once && config.tty);
    let image = config.image.unwrap();
    assert_eq!((image.image.as_str(), image.user_specified_image.as_str()), ("sha256:1", "i"));
}

#[test]
fn labels_are_exactly_four() {
    let mut pod = pod_of("");
    pod.metadata.labels = Some([("app".to_owned(), "x".to_owned())].into());
    let labels = World::default().config(&pod).unwrap().labels;
    assert_eq!(
        labels,
        [
            ("io.kubernetes.pod.name", "web"),
            ("io.kubernetes.pod.namespace", "default"),
            ("io.kubernetes.pod.uid", "uid"),
            ("io.kubernetes.container.name", "c"),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into()
    );
}

#[test]
fn annotations_for_who_comes_after() {
    let mut pod = pod(
        "{terminationGracePeriodSeconds: 5, containers: [{name: c, image: busybox, terminationMessagePath: /t, terminationMessagePolicy: File,
           lifecycle: {preStop: {exec: {command: [a, '<b>']}}}, ports: [{containerPort: 80, name: http, protocol: TCP}]}]}",
    );
    pod.metadata.deletion_grace_period_seconds = Some(9);
    let mut world = World::default();
    world.grants.annotations = [("vendor", "v"), ("io.kubernetes.container.hash", "0")]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into();
    let annotations = world.config(&pod).unwrap().annotations;
    assert_eq!(
        annotations,
        [
            ("vendor", "v"),
            ("io.kubernetes.container.hash", "ad819b5c"),
            ("io.kubernetes.container.restartCount", "0"),
            ("io.kubernetes.container.terminationMessagePath", "/t"),
            ("io.kubernetes.container.terminationMessagePolicy", "File"),
            ("io.kubernetes.pod.deletionGracePeriod", "9"),
            ("io.kubernetes.pod.terminationGracePeriod", "5"),
            ("io.kubernetes.container.preStopHandler", r#"{"exec":{"command":["a","\u003cb\u003e"]}}"#),
            ("io.kubernetes.container.ports", r#"[{"name":"http","containerPort":80,"protocol":"TCP"}]"#),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into()
    );
}

#[track_caller]
fn security(
    spec: &str,
    change: impl FnOnce(&mut ContainerContext<'_>),
) -> Result<LinuxContainerSecurityContext, String> {
    let pod = pod(spec);
    let world = World::default();
    let mut context = world.context();
    change(&mut context);
    let (kind, container) = pod.container("c").unwrap();
    container_config(&pod, container, kind, &context)
        .map(|config| config.linux.unwrap().security_context.unwrap())
        .map_err(|error| error.to_string())
}

#[test]
fn the_container_overrides_the_pod() {
    let spec = "{securityContext: {runAsUser: 1, runAsGroup: 2, seLinuxOptions: {level: pod}, fsGroup: 3, supplementalGroups: [4], supplementalGroupsPolicy: Strict},
                 containers: [{name: c, securityContext: {OWN}}]}";
    let plain = security(&spec.replace("OWN", ""), |context| context.extra_groups = &[5]).unwrap();
    assert_eq!((plain.run_as_user.unwrap().value, plain.run_as_group.unwrap().value), (1, 2));
    assert_eq!(plain.selinux_options.unwrap().level, "pod");
    assert_eq!(plain.supplemental_groups, [3, 4, 5]);
    assert_eq!(plain.supplemental_groups_policy, 1);
    assert!(
        plain.capabilities.is_none() && !plain.privileged && !plain.readonly_rootfs && !plain.no_new_privs
    );

    let own = "runAsUser: 7, runAsGroup: 8, seLinuxOptions: {level: own}, privileged: true, readOnlyRootFilesystem: true,
               allowPrivilegeEscalation: false, capabilities: {add: [CAP_BPF, NET_ADMIN], drop: [ALL]}, procMount: Unmasked";
    let own = security(&spec.replace("OWN", own), |_| {}).unwrap();
    assert_eq!((own.run_as_user.unwrap().value, own.run_as_group.unwrap().value), (7, 8));
    assert_eq!(own.selinux_options.unwrap().level, "own");
    assert!(own.privileged && own.readonly_rootfs && own.no_new_privs);
    let capabilities = own.capabilities.unwrap();
    assert_eq!(
        (capabilities.add_capabilities.join(" "), capabilities.drop_capabilities.join(" ")),
        ("CAP_BPF NET_ADMIN".to_owned(), "ALL".to_owned())
    );
    assert_eq!((own.masked_paths.len(), own.readonly_paths.len()), (0, 0));
}

#[test]
fn masked_paths() {
    let pod = pod_of("securityContext: {procMount: Default}");
    let mut world = World::default();
    world.node.extra_masked_paths = vec!["/sys/devices/system/cpu/cpu0/thermal_throttle".to_owned()];
    let security = world.config(&pod).unwrap().linux.unwrap().security_context.unwrap();
    assert_eq!(security.masked_paths.len(), 13);
    assert_eq!(security.masked_paths[12], "/sys/devices/system/cpu/cpu0/thermal_throttle");
    assert_eq!(
        security.readonly_paths,
        ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
    );
}

#[test]
fn who_it_runs_as() {
    let user = |spec: &str, image: Option<ImageUser>| {
        security(spec, |context| context.image_user = image)
            .map(|security| (security.run_as_user.map(|user| user.value), security.run_as_username))
    };
    let free = "{containers: [{name: c}]}";
    assert_eq!(user(free, None), Ok((Some(0), String::new())));
    assert_eq!(user(free, Some(ImageUser::Uid(5))), Ok((Some(5), String::new())));
    assert_eq!(user(free, Some(ImageUser::Name("nobody".to_owned()))), Ok((None, "nobody".to_owned())));
    let fixed = "{securityContext: {runAsUser: 9}, containers: [{name: c}]}";
    assert_eq!(user(fixed, Some(ImageUser::Name("nobody".to_owned()))), Ok((Some(9), String::new())));
}

#[test]
fn non_root() {
    let behind = "(pod: \"web_default(uid)\", container: c)";
    let name = |name: &str| Some(ImageUser::Name(name.to_owned()));
    for (fields, image, expected) in [
        ("runAsNonRoot: true, runAsUser: 0", None, Some("container's runAsUser breaks non-root policy")),
        ("runAsNonRoot: true, runAsUser: 1", None, None),
        ("runAsNonRoot: true", None, Some("container has runAsNonRoot and image will run as root")),
        (
            "runAsNonRoot: true",
            Some(ImageUser::Uid(0)),
            Some("container has runAsNonRoot and image will run as root"),
        ),
        ("runAsNonRoot: true", Some(ImageUser::Uid(1)), None),
        (
            "runAsNonRoot: true",
            Some(ImageUser::Uid(1 << 31)),
            Some(
                "container has runAsNonRoot and image has an invalid user id (2147483648). (Must be 1-(2147483647)): must be between 0 and 2147483647, inclusive",
            ),
        ),
        (
            "runAsNonRoot: true",
            name("nobody"),
            Some(
                "container has runAsNonRoot and image has non-numeric user (nobody), cannot verify user is non-root",
            ),
        ),
        ("runAsNonRoot: false", None, None),
        ("runAsUser: 0", None, None),
    ] {
        let expected = expected.map(|message| format!("{message} {behind}"));
        // The same said at the pod, and at the container.
        for spec in [
            format!("{{securityContext: {{{fields}}}, containers: [{{name: c}}]}}"),
            format!("{{containers: [{{name: c, securityContext: {{{fields}}}}}]}}"),
        ] {
            let image = image.clone();
            assert_eq!(security(&spec, |context| context.image_user = image).err(), expected, "{spec}");
        }
    }
    let spec = "{securityContext: {runAsNonRoot: true}, containers: [{name: c, securityContext: {runAsNonRoot: false}}]}";
    assert!(security(spec, |_| {}).is_ok());
}

#[test]
fn seccomp() {
    let strict = super::super::NodeSettings { seccomp_default: true, ..Default::default() };
    let relaxed = super::super::NodeSettings::default();
    for (of_pod, own, node, expected) in [
        ("", "", &relaxed, Ok("1 ")),
        ("", "", &strict, Ok("0 ")),
        ("type: RuntimeDefault", "", &relaxed, Ok("0 ")),
        ("type: RuntimeDefault", "type: Unconfined", &strict, Ok("1 ")),
        (
            "",
            "type: Localhost, localhostProfile: a/b.json",
            &relaxed,
            Ok("2 /var/lib/kubelet/seccomp/a/b.json"),
        ),
        (
            "",
            "type: Localhost",
            &relaxed,
            Err("localhostProfile must be set if seccompProfile type is Localhost."),
        ),
    ] {
        let field =
            |text: &str| if text.is_empty() { String::new() } else { format!("seccompProfile: {{{text}}}") };
        let spec = format!(
            "{{securityContext: {{{}}}, containers: [{{name: c, securityContext: {{{}}}}}]}}",
            field(of_pod),
            field(own)
        );
        let pod = pod(&spec);
        let world = World { node: node.clone(), ..World::default() };
        let shown = world.config(&pod).map_err(|error| error.to_string()).map(|config| {
            let profile = config.linux.unwrap().security_context.unwrap().seccomp.unwrap();
            format!("{} {}", profile.profile_type, profile.localhost_ref)
        });
        assert_eq!(shown, expected.map(str::to_owned).map_err(str::to_owned), "{spec}");
    }
}

#[test]
#[expect(deprecated, reason = "the legacy profile string is sent on purpose")]
fn apparmor() {
    let field =
        |text: &str| if text.is_empty() { String::new() } else { format!("appArmorProfile: {{{text}}}") };
    for (of_pod, annotation, own, expected) in [
        ("", "", "", Ok("- -")),
        ("type: RuntimeDefault", "", "", Ok("0 - runtime/default")),
        ("type: RuntimeDefault", "unconfined", "", Ok("1 - unconfined")),
        ("type: RuntimeDefault", "nonsense", "", Ok("0 - runtime/default")),
        ("", "localhost/x", "", Ok("2 x localhost/x")),
        ("", "localhost/x", "type: Localhost, localhostProfile: y", Ok("2 y localhost/y")),
        ("", "", "type: Localhost", Err("missing localhost apparmor profile name")),
        ("", "", "type: Odd", Err("unknown apparmor profile type: \"Odd\"")),
    ] {
        let mut pod = pod(&format!(
            "{{securityContext: {{{}}}, containers: [{{name: c, securityContext: {{{}}}}}]}}",
            field(of_pod),
            field(own)
        ));
        if !annotation.is_empty() {
            let key = "container.apparmor.security.beta.kubernetes.io/c".to_owned();
            pod.metadata.annotations = Some([(key, annotation.to_owned())].into());
        }
        let shown = World::default().config(&pod).map_err(|error| error.to_string()).map(|config| {
            let security = config.linux.unwrap().security_context.unwrap();
            match security.apparmor {
                None => format!("- {}-", security.apparmor_profile),
                Some(profile) => {
                    let name = if profile.localhost_ref.is_empty() { "-" } else { &profile.localhost_ref };
                    format!("{} {name} {}", profile.profile_type, security.apparmor_profile)
                }
            }
        });
        assert_eq!(shown, expected.map(str::to_owned).map_err(str::to_owned), "{of_pod} {annotation} {own}");
    }
}

#[test]
fn namespaces() {
    let modes = |fields: &str, target: Option<&str>| {
        let spec = format!("{{{fields} containers: [{{name: c}}]}}");
        let pod = pod(&spec);
        let world = World::default();
        let context = ContainerContext { target_container: target, ..world.context() };
        let (kind, container) = pod.container("c").unwrap();
        let config = container_config(&pod, container, kind, &context).unwrap();
        let options = config.linux.unwrap().security_context.unwrap().namespace_options.unwrap();
        format!("net {} pid {} ipc {} {}", options.network, options.pid, options.ipc, options.target_id)
    };
    assert_eq!(modes("", None), "net 0 pid 1 ipc 0 ");
    assert_eq!(modes("hostNetwork: true, hostPID: true, hostIPC: true,", None), "net 2 pid 2 ipc 2 ");
    assert_eq!(modes("shareProcessNamespace: true,", None), "net 0 pid 0 ipc 0 ");
    assert_eq!(modes("hostPID: true, shareProcessNamespace: true,", None), "net 0 pid 2 ipc 0 ");
    assert_eq!(modes("", Some("id1")), "net 0 pid 3 ipc 0 id1");
    assert_eq!(modes("shareProcessNamespace: true,", Some("id1")), "net 0 pid 0 ipc 0 ");
}

#[test]
fn user_namespace_mappings_reach_the_mounts() {
    let mapping = IdMapping { host_id: 65536, container_id: 0, length: 65536 };
    let userns = UserNamespace { mode: NamespaceMode::Pod.into(), uids: vec![mapping], gids: vec![mapping] };
    let mount = Mount { container_path: "/m".to_owned(), ..Mount::default() };
    let config = |spec: &str, given| {
        let pod = pod(spec);
        let world = World::default();
        let context =
            ContainerContext { user_namespace: given, mounts: vec![mount.clone()], ..world.context() };
        let (kind, container) = pod.container("c").unwrap();
        container_config(&pod, container, kind, &context)
    };
    let spec = "{hostUsers: false, containers: [{name: c}]}";
    assert_eq!(config(spec, Some(&userns)).unwrap().mounts[0].uid_mappings, [mapping]);
    assert_eq!(config(spec, None), Err(SpecError::UserNamespace));
    let spec = "{hostUsers: true, containers: [{name: c}]}";
    assert_eq!(config(spec, Some(&userns)).unwrap().mounts[0].uid_mappings, []);
}

#[test]
fn ephemeral_containers() {
    let pod = pod(
        "{containers: [{name: c, resources: {requests: {memory: 1Gi}}}],
          ephemeralContainers: [{name: debug, image: busybox, targetContainerName: c, command: [sh], stdin: true, tty: true}]}",
    );
    let container =
        ephemeral_as_container(&pod.spec.as_ref().unwrap().ephemeral_containers.as_ref().unwrap()[0]);
    let world = World::default();
    let context = ContainerContext { target_container: Some("id1"), ..world.context() };
    let config = container_config(&pod, &container, ContainerKind::Ephemeral, &context).unwrap();
    assert_eq!(
        (config.command.as_slice(), config.stdin, config.tty),
        (["sh".to_owned()].as_slice(), true, true)
    );
    let linux = config.linux.unwrap();
    assert_eq!(linux.security_context.unwrap().namespace_options.unwrap().target_id, "id1");
    assert_eq!(linux.resources.unwrap().oom_score_adj, 999);
}
