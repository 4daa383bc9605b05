//! Security contexts.

use std::path::Path;

use k8s_cri::v1::{
    Capability, Int64Value, LinuxContainerSecurityContext, NamespaceMode, NamespaceOption, SeLinuxOption,
    SecurityProfile, SupplementalGroupsPolicy, UserNamespace, security_profile::ProfileType,
};
use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, Pod, PodSecurityContext, SELinuxOptions, SeccompProfile, SecurityContext,
};
use mainstay_types::PodExt as _;

use super::{ContainerContext, ImageUser, SpecError, capabilities, pod_description};

const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READONLY_PATHS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
const MAX_USER_ID: i64 = i32::MAX as i64;

/// A container's security context, with what it inherits from the pod's.
pub(super) fn container_security(
    pod: &Pod,
    container: &Container,
    context: &ContainerContext<'_>,
) -> Result<LinuxContainerSecurityContext, SpecError> {
    let none = SecurityContext::default();
    let own = container.security_context.as_ref().unwrap_or(&none);
    let of_pod = pod.spec_ref().security_context.as_ref();
    let run_as_user = own.run_as_user.or_else(|| of_pod?.run_as_user);
    check_non_root(pod, container, own, run_as_user, context.image_user.as_ref())?;

    let (run_as_user, run_as_username) = match (run_as_user, &context.image_user) {
        (Some(uid), _) => (Some(uid), String::new()),
        (None, Some(ImageUser::Uid(uid))) => (Some(*uid), String::new()),
        (None, Some(ImageUser::Name(name))) => (None, name.clone()),
        // An image that says nothing runs as root.
        (None, None) => (Some(0), String::new()),
    };
    own.capabilities.as_ref().map_or(Ok(()), capabilities::check)?;
    let (apparmor, apparmor_profile) = apparmor(pod, container)?;
    let mut groups = Vec::new();
    if let Some(of_pod) = of_pod {
        groups.extend(of_pod.fs_group);
        groups.extend(of_pod.supplemental_groups.iter().flatten());
    }
    groups.extend(context.extra_groups);

    let unmasked = own.proc_mount.as_deref() == Some("Unmasked");
    let masked =
        MASKED_PATHS.iter().map(ToString::to_string).chain(context.node.extra_masked_paths.iter().cloned());
    let readonly = READONLY_PATHS.iter().map(ToString::to_string);
    let mut namespaces = namespace_options(pod, context.user_namespace)?;
    if let Some(target) = context.target_container
        && namespaces.pid == i32::from(NamespaceMode::Container)
    {
        namespaces.pid = NamespaceMode::Target.into();
        target.clone_into(&mut namespaces.target_id);
    }

    #[expect(deprecated, reason = "runtimes older than the AppArmor field read the legacy profile string")]
    Ok(LinuxContainerSecurityContext {
        capabilities: own.capabilities.as_ref().map(|capabilities| Capability {
            add_capabilities: capabilities.add.clone().unwrap_or_default(),
            drop_capabilities: capabilities.drop.clone().unwrap_or_default(),
            add_ambient_capabilities: Vec::new(),
        }),
        privileged: own.privileged.unwrap_or(false),
        namespace_options: Some(namespaces),
        selinux_options: own
            .se_linux_options
            .as_ref()
            .or_else(|| of_pod?.se_linux_options.as_ref())
            .map(selinux_option),
        run_as_user: run_as_user.map(int64),
        run_as_group: own.run_as_group.or_else(|| of_pod?.run_as_group).map(int64),
        run_as_username,
        readonly_rootfs: own.read_only_root_filesystem.unwrap_or(false),
        supplemental_groups: groups,
        supplemental_groups_policy: groups_policy(of_pod)?,
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: if unmasked { Vec::new() } else { masked.collect() },
        readonly_paths: if unmasked { Vec::new() } else { readonly.collect() },
        seccomp: Some(seccomp(own, of_pod, &context.node.root_dir, context.node.seccomp_default)?),
        apparmor,
        apparmor_profile,
        ..LinuxContainerSecurityContext::default()
    })
}

/// The namespaces that a pod shares with the node or within itself. `user_namespace` is the mapping that was given to
/// the pod, and needed only with `hostUsers: false`.
pub(super) fn namespace_options(
    pod: &Pod,
    user_namespace: Option<&UserNamespace>,
) -> Result<NamespaceOption, SpecError> {
    let spec = pod.spec_ref();
    let node_or_pod = |node: Option<bool>| {
        i32::from(if node == Some(true) { NamespaceMode::Node } else { NamespaceMode::Pod })
    };
    let pid = match (spec.host_pid, spec.share_process_namespace) {
        (Some(true), _) => NamespaceMode::Node,
        (_, Some(true)) => NamespaceMode::Pod,
        _ => NamespaceMode::Container,
    };
    let userns = if spec.host_users == Some(false) {
        user_namespace.cloned().ok_or(SpecError::UserNamespace)?
    } else {
        UserNamespace { mode: NamespaceMode::Node.into(), ..UserNamespace::default() }
    };
    Ok(NamespaceOption {
        network: node_or_pod(spec.host_network),
        pid: pid.into(),
        ipc: node_or_pod(spec.host_ipc),
        target_id: String::new(),
        userns_options: Some(userns),
    })
}

pub(super) fn groups_policy(of_pod: Option<&PodSecurityContext>) -> Result<i32, SpecError> {
    let policy = match of_pod.and_then(|context| context.supplemental_groups_policy.as_deref()) {
        None | Some("Merge") => SupplementalGroupsPolicy::Merge,
        Some("Strict") => SupplementalGroupsPolicy::Strict,
        Some(other) => return Err(SpecError::GroupsPolicy(other.to_owned())),
    };
    Ok(policy.into())
}

pub(super) fn selinux_option(options: &SELinuxOptions) -> SeLinuxOption {
    SeLinuxOption {
        user: options.user.clone().unwrap_or_default(),
        role: options.role.clone().unwrap_or_default(),
        r#type: options.type_.clone().unwrap_or_default(),
        level: options.level.clone().unwrap_or_default(),
    }
}

pub(super) fn int64(value: i64) -> Int64Value {
    Int64Value { value }
}

pub(super) fn profile(kind: ProfileType) -> SecurityProfile {
    SecurityProfile { profile_type: kind.into(), localhost_ref: String::new() }
}

fn check_non_root(
    pod: &Pod,
    container: &Container,
    own: &SecurityContext,
    run_as_user: Option<i64>,
    image_user: Option<&ImageUser>,
) -> Result<(), SpecError> {
    let of_pod = pod.spec_ref().security_context.as_ref();
    if own.run_as_non_root.or_else(|| of_pod?.run_as_non_root) != Some(true) {
        return Ok(());
    }
    let (pod, container) = (pod_description(pod), container.name.clone());
    match (run_as_user, image_user) {
        (Some(0), _) => Err(SpecError::RunAsUserIsRoot { pod, container }),
        (Some(_), _) => Ok(()),
        (None, Some(ImageUser::Name(user))) => {
            Err(SpecError::ImageUserNotNumeric { user: user.clone(), pod, container })
        }
        (None, None | Some(ImageUser::Uid(0))) => Err(SpecError::ImageRunsAsRoot { pod, container }),
        (None, Some(ImageUser::Uid(uid))) if !(0..=MAX_USER_ID).contains(uid) => {
            Err(SpecError::ImageUserInvalid { uid: *uid, pod, container })
        }
        (None, Some(ImageUser::Uid(_))) => Ok(()),
    }
}

fn seccomp(
    own: &SecurityContext,
    of_pod: Option<&PodSecurityContext>,
    root_dir: &Path,
    seccomp_default: bool,
) -> Result<SecurityProfile, SpecError> {
    let asked = own.seccomp_profile.as_ref().or_else(|| of_pod?.seccomp_profile.as_ref());
    let Some(SeccompProfile { type_, localhost_profile }) = asked else {
        return Ok(profile(if seccomp_default {
            ProfileType::RuntimeDefault
        } else {
            ProfileType::Unconfined
        }));
    };
    match type_.as_str() {
        "RuntimeDefault" => Ok(profile(ProfileType::RuntimeDefault)),
        "Localhost" => {
            let file = localhost_profile.as_deref().unwrap_or_default().trim_start_matches('/');
            if file.is_empty() {
                return Err(SpecError::SeccompLocalhost);
            }
            let path = root_dir.join("seccomp").join(file);
            Ok(SecurityProfile {
                profile_type: ProfileType::Localhost.into(),
                localhost_ref: path.to_string_lossy().into_owned(),
            })
        }
        _ => Ok(profile(ProfileType::Unconfined)),
    }
}

/// The profile and its legacy spelling. Static pods may have only the annotation of old, which stands between the
/// container's field and the pod's.
fn apparmor(pod: &Pod, container: &Container) -> Result<(Option<SecurityProfile>, String), SpecError> {
    let annotated = || {
        let value = pod.annotation(&format!("{APPARMOR_ANNOTATION}{}", container.name))?;
        let (type_, localhost_profile) = match (value, value.strip_prefix("localhost/")) {
            ("runtime/default", _) => ("RuntimeDefault", None),
            ("unconfined", _) => ("Unconfined", None),
            (_, Some(name)) => ("Localhost", Some(name.to_owned())),
            _ => return None,
        };
        Some(AppArmorProfile { type_: type_.to_owned(), localhost_profile })
    };
    let own = container.security_context.as_ref().and_then(|context| context.app_armor_profile.clone());
    let of_pod = || pod.spec_ref().security_context.as_ref()?.app_armor_profile.clone();
    let Some(asked) = own.or_else(annotated).or_else(of_pod) else { return Ok((None, String::new())) };
    match asked.type_.as_str() {
        "RuntimeDefault" => Ok((Some(profile(ProfileType::RuntimeDefault)), "runtime/default".to_owned())),
        "Unconfined" => Ok((Some(profile(ProfileType::Unconfined)), "unconfined".to_owned())),
        "Localhost" => {
            let name = asked.localhost_profile.ok_or(SpecError::AppArmorLocalhost)?;
            let legacy = format!("localhost/{name}");
            let profile =
                SecurityProfile { profile_type: ProfileType::Localhost.into(), localhost_ref: name };
            Ok((Some(profile), legacy))
        }
        _ => Err(SpecError::AppArmorType(asked.type_)),
    }
}
