//! The volumes of a described pod.

use k8s_openapi::api::core::v1::{PodSpec, Volume};

use crate::text::Block;

pub(super) fn describe(block: &mut Block, spec: &PodSpec) {
    let volumes = spec.volumes.as_deref().unwrap_or_default();
    if volumes.is_empty() {
        block.value(0, "Volumes", "<none>");
        return;
    }
    block.line(0, "Volumes:");
    for volume in volumes {
        block.line(2, format!("{}:", volume.name));
        one(block, volume);
    }
}

fn one(block: &mut Block, volume: &Volume) {
    if let Some(host_path) = &volume.host_path {
        block.value(4, "Type", "HostPath (bare host directory volume)");
        block.value(4, "Path", &host_path.path);
        block.value(4, "HostPathType", host_path.type_.as_deref().unwrap_or_default());
    } else if let Some(empty_dir) = &volume.empty_dir {
        block.value(4, "Type", "EmptyDir (a temporary directory that shares a pod's lifetime)");
        block.value(4, "Medium", empty_dir.medium.as_deref().unwrap_or_default());
        block.value(4, "SizeLimit", empty_dir.size_limit.as_ref().map_or("<unset>", |limit| &limit.0));
    } else if let Some(map) = &volume.config_map {
        block.value(4, "Type", "ConfigMap (a volume populated by a ConfigMap)");
        block.value(4, "Name", &map.name);
        block.value(4, "Optional", map.optional.unwrap_or(false).to_string());
    } else if let Some(secret) = &volume.secret {
        block.value(4, "Type", "Secret (a volume populated by a Secret)");
        block.value(4, "SecretName", secret.secret_name.as_deref().unwrap_or_default());
        block.value(4, "Optional", secret.optional.unwrap_or(false).to_string());
    } else if let Some(downward) = &volume.downward_api {
        block.value(4, "Type", "DownwardAPI (a volume populated by information about the pod)");
        block.line(4, "Items:");
        for item in downward.items.iter().flatten() {
            let field = item.field_ref.as_ref().map(|field| field.field_path.as_str());
            let resource = item.resource_field_ref.as_ref().map(|field| field.resource.as_str());
            block.line(6, format!("{} -> {}", field.or(resource).unwrap_or("<unknown>"), item.path));
        }
    } else if let Some(projected) = &volume.projected {
        block.value(4, "Type", "Projected (a volume that contains injected data from multiple sources)");
        for source in projected.sources.iter().flatten() {
            if let Some(secret) = &source.secret {
                block.value(4, "SecretName", &secret.name);
            }
            if let Some(map) = &source.config_map {
                block.value(4, "ConfigMapName", &map.name);
            }
            if source.downward_api.is_some() {
                block.value(4, "DownwardAPI", "true");
            }
            if let Some(token) = &source.service_account_token {
                block.value(
                    4,
                    "TokenExpirationSeconds",
                    token.expiration_seconds.unwrap_or(3600).to_string(),
                );
            }
        }
    } else if let Some(claim) = &volume.persistent_volume_claim {
        block.value(
            4,
            "Type",
            "PersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)",
        );
        block.value(4, "ClaimName", &claim.claim_name);
        block.value(4, "ReadOnly", claim.read_only.unwrap_or(false).to_string());
    } else {
        block.value(4, "Type", other_type(volume));
    }
}

/// The API's own word for a type that has no text here.
fn other_type(volume: &Volume) -> String {
    let value = serde_json::to_value(volume).unwrap_or_default();
    let mut keys = value.as_object().into_iter().flatten().map(|(key, _)| key.clone());
    keys.find(|key| key != "name").unwrap_or_else(|| "<unknown>".to_owned())
}
