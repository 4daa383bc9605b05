//! Security contexts.

use k8s_openapi::api::core::v1::{
    AppArmorProfile, PodSecurityContext, PodSpec, SeccompProfile, SecurityContext,
};

use super::{Field, Problems, names};

const PATH_MAX: usize = 4095;

/// Checks a pod's security context.
pub(super) fn check_pod(
    problems: &mut Problems,
    context: &PodSecurityContext,
    spec: &PodSpec,
    field: &Field,
) {
    check_id(problems, context.fs_group, &field.child("fsGroup"));
    check_id(problems, context.run_as_user, &field.child("runAsUser"));
    check_id(problems, context.run_as_group, &field.child("runAsGroup"));
    for (index, group) in context.supplemental_groups.iter().flatten().enumerate() {
        check_id(problems, Some(*group), &field.child("supplementalGroups").index(index));
    }
    check_sysctls(problems, context, spec, &field.child("sysctls"));
    let policy = &context.fs_group_change_policy;
    problems.one_of(&field.child("fsGroupChangePolicy"), policy.as_ref(), &["OnRootMismatch", "Always"]);
    let policy = &context.supplemental_groups_policy;
    problems.one_of(&field.child("supplementalGroupsPolicy"), policy.as_ref(), &["Merge", "Strict"]);
    let policy = &context.se_linux_change_policy;
    problems.one_of(&field.child("seLinuxChangePolicy"), policy.as_ref(), &["Recursive", "MountOption"]);
    check_seccomp(problems, context.seccomp_profile.as_ref(), &field.child("seccompProfile"));
    check_app_armor(problems, context.app_armor_profile.as_ref(), &field.child("appArmorProfile"));
    if context.windows_options.is_some() {
        problems.forbidden(&field.child("windowsOptions"), "windows options cannot be set for a linux pod");
    }
}

/// Checks a container's security context.
pub(super) fn check_container(
    problems: &mut Problems,
    context: &SecurityContext,
    spec: &PodSpec,
    field: &Field,
) {
    check_id(problems, context.run_as_user, &field.child("runAsUser"));
    check_id(problems, context.run_as_group, &field.child("runAsGroup"));
    let proc_mount = field.child("procMount");
    problems.one_of(&proc_mount, context.proc_mount.as_ref(), &["Default", "Unmasked"]);
    if context.proc_mount.as_deref() == Some("Unmasked") && spec.host_users != Some(false) {
        problems.invalid(&proc_mount, "Unmasked", "`hostUsers` must be false to use `Unmasked`");
    }
    check_seccomp(problems, context.seccomp_profile.as_ref(), &field.child("seccompProfile"));
    check_app_armor(problems, context.app_armor_profile.as_ref(), &field.child("appArmorProfile"));
    if context.allow_privilege_escalation == Some(false) {
        let escalation = field.child("allowPrivilegeEscalation");
        if context.privileged == Some(true) {
            let why = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            problems.invalid(&escalation, false, why);
        }
        let added =
            context.capabilities.iter().filter_map(|capabilities| capabilities.add.as_ref()).flatten();
        if added.into_iter().any(|capability| capability == "CAP_SYS_ADMIN") {
            let why = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            problems.invalid(&escalation, false, why);
        }
    }
    if context.windows_options.is_some() {
        problems.forbidden(&field.child("windowsOptions"), "windows options cannot be set for a linux pod");
    }
}

fn check_id(problems: &mut Problems, id: Option<i64>, field: &Field) {
    if let Some(id) = id {
        problems.in_range(field, id, 0, i64::from(i32::MAX));
    }
}

fn check_sysctls(problems: &mut Problems, context: &PodSecurityContext, spec: &PodSpec, field: &Field) {
    let mut seen = Vec::new();
    for (index, sysctl) in context.sysctls.iter().flatten().enumerate() {
        let field = field.index(index).child("name");
        let name = sysctl.name.as_str();
        if name.is_empty() {
            problems.required(&field, "name the sysctl");
            continue;
        }
        if let Some(why) = names::sysctl_name(name) {
            problems.invalid(&field, name, why);
        } else if seen.contains(&name) {
            problems.duplicate(&field, name);
        }
        seen.push(name);
        let dotted = name.replace('/', ".");
        let is_ipc =
            ["kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|prefix| dotted.starts_with(prefix))
                || dotted == "kernel.sem";
        if spec.host_network == Some(true) && dotted.starts_with("net.") {
            problems.invalid(&field, name, "may not be specified when 'hostNetwork' is true");
        }
        if spec.host_ipc == Some(true) && is_ipc {
            problems.invalid(&field, name, "may not be specified when 'hostIPC' is true");
        }
    }
}

const PROFILE_TYPES: &[&str] = &["Localhost", "RuntimeDefault", "Unconfined"];

fn check_seccomp(problems: &mut Problems, profile: Option<&SeccompProfile>, field: &Field) {
    let Some(profile) = profile else { return };
    let local = field.child("localhostProfile");
    match (profile.type_.as_str(), &profile.localhost_profile) {
        ("", _) => problems.required(&field.child("type"), "type is required when seccompProfile is set"),
        ("Localhost", None) => problems.required(&local, "must be set when seccomp type is Localhost"),
        ("Localhost", Some(path)) => problems.check(&local, path, names::descending_path),
        ("RuntimeDefault" | "Unconfined", None) => {}
        ("RuntimeDefault" | "Unconfined", Some(path)) => {
            problems.invalid(&local, path, "can only be set when seccomp type is Localhost");
        }
        (other, _) => problems.unsupported(&field.child("type"), other, PROFILE_TYPES),
    }
}

fn check_app_armor(problems: &mut Problems, profile: Option<&AppArmorProfile>, field: &Field) {
    let Some(profile) = profile else { return };
    let local = field.child("localhostProfile");
    match (profile.type_.as_str(), profile.localhost_profile.as_deref()) {
        ("", _) => problems.required(&field.child("type"), "type is required when appArmorProfile is set"),
        ("Localhost", None | Some("")) => {
            problems.required(&local, "must be set when AppArmor type is Localhost")
        }
        ("Localhost", Some(name)) if name.trim() != name => {
            problems.invalid(&local, name, "must not be padded with whitespace");
        }
        ("Localhost", Some(name)) if name.len() > PATH_MAX => problems.too_long(&local, PATH_MAX),
        ("Localhost", Some(_)) | ("RuntimeDefault" | "Unconfined", None) => {}
        ("RuntimeDefault" | "Unconfined", Some(name)) => {
            problems.invalid(&local, name, "can only be set when AppArmor type is Localhost");
        }
        (other, _) => problems.unsupported(&field.child("type"), other, PROFILE_TYPES),
    }
}
