//! What the pod wants enforced and this node may not be able to enforce.

use k8s_openapi::api::core::v1::{AppArmorProfile, Pod};
use mainstay_types::PodExt as _;

use super::Rejection;

const APP_ARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// `supplementalGroupsPolicy: Strict` needs a runtime that keeps to it.
pub(super) fn groups(pod: &Pod, strict_groups: bool) -> Result<(), Rejection> {
    let context = pod.spec_ref().security_context.as_ref();
    let policy = context.and_then(|context| context.supplemental_groups_policy.as_deref());
    if policy == Some("Strict") && !strict_groups {
        return Err(Rejection::new(
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ));
    }
    Ok(())
}

/// A pod that asks for an AppArmor profile must get it.
pub(super) fn app_armor(pod: &Pod, enforced: bool) -> Result<(), Rejection> {
    let refuse = |why: &str| Err(Rejection::new("AppArmor", format!("Cannot enforce AppArmor: {why}")));
    let mut profiles = profiles(pod).peekable();
    let annotated = pod
        .annotations_map()
        .iter()
        .find(|(key, _)| key.starts_with(APP_ARMOR_ANNOTATION))
        .is_some_and(|(_, value)| value != "unconfined");
    let confining = |profile: &&AppArmorProfile| profile.type_ != "Unconfined";
    if !annotated && !profiles.clone().any(|profile| confining(&profile)) {
        return Ok(());
    }
    if !enforced {
        return refuse("AppArmor is not enabled on the host");
    }
    let nameless = |profile: &AppArmorProfile| {
        profile.type_ == "Localhost"
            && profile.localhost_profile.as_deref().unwrap_or_default().trim().is_empty()
    };
    if profiles.any(nameless) {
        return refuse("invalid empty AppArmor profile name: \"\"");
    }
    Ok(())
}

fn profiles(pod: &Pod) -> impl Iterator<Item = &AppArmorProfile> + Clone {
    let spec = pod.spec_ref();
    let own = spec.security_context.iter().filter_map(|context| context.app_armor_profile.as_ref());
    let containers = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
        .filter_map(|container| container.security_context.as_ref()?.app_armor_profile.as_ref());
    own.chain(containers)
}
