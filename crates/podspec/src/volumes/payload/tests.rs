use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use mainstay_types::ServiceToken;
use serde_json::{Value, json};

use super::*;
use crate::runtime::NodeSettings;

fn objects() -> Objects {
    let mut objects = Objects::default();
    let config_map: ConfigMap = serde_json::from_value(json!({
        "metadata": {"name": "cm", "namespace": "ns"},
        "data": {"a": "1", "b.conf": "two"},
        "binaryData": {"raw": "AAH/"},
    }))
    .unwrap();
    let secret: Secret = serde_json::from_value(json!({
        "metadata": {"name": "s", "namespace": "ns"},
        "data": {"user": "YWRtaW4="},
        "stringData": {"password": "x"},
    }))
    .unwrap();
    let evil: Secret = serde_json::from_value(json!({
        "metadata": {"name": "evil", "namespace": "ns"},
        "data": {"../../etc/passwd": "YWRtaW4="},
    }))
    .unwrap();
    let big: ConfigMap = serde_json::from_value(json!({
        "metadata": {"name": "big", "namespace": "ns"},
        "data": {"a": "x".repeat(600 << 10), "b": "x".repeat(600 << 10)},
    }))
    .unwrap();
    objects.config_maps.insert(FullName::new("ns", "cm"), Arc::new(config_map));
    objects.config_maps.insert(FullName::new("ns", "big"), Arc::new(big));
    objects.secrets.insert(FullName::new("ns", "s"), Arc::new(secret));
    objects.secrets.insert(FullName::new("ns", "evil"), Arc::new(evil));
    objects
}

fn pod(volume: Value) -> Pod {
    let mut volume = volume;
    volume["name"] = json!("v");
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {"b": "2", "a": "say \"hi\""}},
        "spec": {
            "containers": [{"name": "c", "resources": {"limits": {"memory": "64Mi", "cpu": "1500m"}}}],
            "volumes": [volume],
        },
    }))
    .unwrap()
}

fn files(volume: Value) -> Result<String, String> {
    let pod = pod(volume);
    let (node, objects) = (NodeSettings::default(), objects());
    let context = VolumeContext { node: &node, objects: &objects };
    let volume = &pod.spec_ref().volumes.as_ref().unwrap()[0];
    let files = payload(&pod, volume, &context).map_err(|error| error.to_string())?;
    let lines = files.unwrap().into_iter().map(|(path, file)| {
        format!("{path}={:?}:{:o}", String::from_utf8_lossy(file.contents.bytes()), file.mode)
    });
    Ok(lines.collect::<Vec<_>>().join(" "))
}

#[test]
fn contents_of_volumes() {
    let cases: &[(&str, Value, &str)] = &[
        (
            "all keys",
            json!({"configMap": {"name": "cm"}}),
            r#"a="1":644 b.conf="two":644 raw="\0\u{1}�":644"#,
        ),
        (
            "default mode",
            json!({"secret": {"secretName": "s", "defaultMode": 0o400}}),
            r#"password="x":400 user="admin":400"#,
        ),
        (
            "items and modes",
            json!({"configMap": {"name": "cm", "items": [{"key": "a", "path": "x/y"}, {"key": "b.conf", "path": "z", "mode": 0o600}]}}),
            r#"x/y="1":644 z="two":600"#,
        ),
        ("optional and missing", json!({"configMap": {"name": "none", "optional": true}}), ""),
        (
            "optional and missing key",
            json!({"configMap": {"name": "cm", "optional": true, "items": [{"key": "no", "path": "no"}, {"key": "a", "path": "a"}]}}),
            r#"a="1":644"#,
        ),
        (
            "downward API",
            json!({"downwardAPI": {"items": [
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "one", "fieldRef": {"fieldPath": "metadata.labels['b']"}},
                {"path": "memory", "mode": 0o440, "resourceFieldRef": {"containerName": "c", "resource": "limits.memory", "divisor": "1Mi"}},
                {"path": "cpu", "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu"}},
            ]}}),
            r#"cpu="2":644 labels="a=\"say \\\"hi\\\"\"\nb=\"2\"":644 memory="64":440 one="2":644"#,
        ),
        (
            "projected, in order",
            json!({"projected": {"defaultMode": 0o440, "sources": [
                {"configMap": {"name": "cm", "items": [{"key": "a", "path": "same"}]}},
                {"secret": {"name": "s", "items": [{"key": "user", "path": "same", "mode": 0o400}]}},
                {"downwardAPI": {"items": [{"path": "d/name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            ]}}),
            r#"d/name="p":440 same="admin":400"#,
        ),
    ];
    for (name, volume, expected) in cases {
        assert_eq!(files(volume.clone()).as_deref(), Ok(*expected), "{name}");
    }
}

#[test]
fn what_cannot_be_says_why() {
    let cases: &[(&str, Value, &str)] = &[
        (
            "missing",
            json!({"configMap": {"name": "none"}}),
            r#"configmap "none" not found in namespace "ns""#,
        ),
        ("missing secret", json!({"secret": {"secretName": "none"}}), r#"secret "none" not found"#),
        (
            "missing key",
            json!({"secret": {"secretName": "s", "items": [{"key": "no", "path": "p"}]}}),
            "references non-existent secret key: no",
        ),
        (
            "traversal",
            json!({"secret": {"secretName": "evil"}}),
            "cannot be a file in a volume: it contains '..'",
        ),
        ("too large", json!({"configMap": {"name": "big"}}), "holds 1228800 bytes, more than the 1048576"),
        (
            "traversal by item",
            json!({"configMap": {"name": "cm", "items": [{"key": "a", "path": "x/../../y"}]}}),
            "contains '..'",
        ),
        (
            "the writer's own names",
            json!({"configMap": {"name": "cm", "items": [{"key": "a", "path": "..data"}]}}),
            "begins with '..'",
        ),
        (
            "file and directory",
            json!({"configMap": {"name": "cm", "items": [{"key": "a", "path": "x"}, {"key": "a", "path": "x/y/z"}]}}),
            "is a file and also the directory",
        ),
        (
            "token",
            json!({"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}),
            "no token for the service account",
        ),
        (
            "not in a volume",
            json!({"downwardAPI": {"items": [{"path": "ip", "fieldRef": {"fieldPath": "status.podIP"}}]}}),
            "unsupported fieldPath: status.podIP",
        ),
        (
            "no such container",
            json!({"downwardAPI": {"items": [{"path": "m", "resourceFieldRef": {"containerName": "x", "resource": "limits.memory"}}]}}),
            "container x not found",
        ),
    ];
    for (name, volume, expected) in cases {
        let error = files(volume.clone()).unwrap_err();
        assert!(error.contains(expected), "{name}: {error}");
    }
}

#[test]
fn what_is_made_for_a_volume_is_bounded() {
    let items = |count: usize| {
        let item =
            |n| json!({"path": format!("p{n}"), "fieldRef": {"fieldPath": "metadata.annotations['long']"}});
        json!({"downwardAPI": {"items": (0..count).map(item).collect::<Vec<_>>()}})
    };
    let made = |count: usize| {
        let mut pod = pod(items(count));
        pod.metadata.annotations = Some([("long".to_owned(), "x".repeat(256 << 10))].into());
        let (node, objects) = (NodeSettings::default(), objects());
        let context = VolumeContext { node: &node, objects: &objects };
        let volume = &pod.spec_ref().volumes.as_ref().unwrap()[0];
        payload(&pod, volume, &context).map(|files| files.unwrap().len()).map_err(|error| error.to_string())
    };
    assert_eq!(made(32), Ok(32));
    let error = made(33).unwrap_err();
    assert!(error.starts_with("with the downward API the volume holds more than 8388608 bytes"), "{error}");
}

#[test]
fn a_token_belongs_to_its_only_user() {
    let cases = [
        ("nobody says", json!({}), json!([{}]), (0o640, None)),
        ("the pod's user", json!({ "runAsUser": 1000 }), json!([{}, {}]), (0o600, Some(1000))),
        ("its own user", json!({ "runAsUser": 1000 }), json!([{ "runAsUser": 7 }]), (0o600, Some(7))),
        ("two users", json!({ "runAsUser": 1000 }), json!([{ "runAsUser": 7 }, {}]), (0o640, None)),
        ("one says, one does not", json!({}), json!([{ "runAsUser": 7 }, {}]), (0o640, None)),
        ("a group", json!({ "fsGroup": 2000 }), json!([{}]), (0o600, None)),
        ("both", json!({ "fsGroup": 2000, "runAsUser": 7 }), json!([{}]), (0o600, Some(7))),
    ];
    for (name, of_pod, contexts, expected) in cases {
        let containers: Vec<_> = (0..)
            .zip(contexts.as_array().unwrap())
            .map(|(n, context)| json!({"name": format!("c{n}"), "securityContext": context}))
            .collect();
        let source = json!({"defaultMode": 0o640, "sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 600}}]});
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {
                "serviceAccountName": "robot", "securityContext": of_pod,
                "containers": containers, "volumes": [{"name": "v", "projected": source}],
            },
        }))
        .unwrap();
        let mut objects = Objects::default();
        let token = ServiceToken { token: "jwt".to_owned(), expires: Timestamp::UNIX_EPOCH };
        objects.tokens.insert(token_key(&pod, None, Some(600)), Arc::new(token));
        let context = VolumeContext { node: &NodeSettings::default(), objects: &objects };
        let files = payload(&pod, &pod.spec_ref().volumes.as_ref().unwrap()[0], &context).unwrap().unwrap();
        assert_eq!((files["t"].mode, files["t"].owner), expected, "{name}");
    }
}

#[test]
fn a_change_of_what_is_shown_is_told_from_others() {
    let shown =
        pod(json!({"projected": {"sources": [{"secret": {"name": "s"}}, {"configMap": {"name": "later"}}]}}));
    let old = objects();
    assert!(has_live_volumes(&shown) && !has_live_volumes(&pod(json!({"emptyDir": {}}))));
    assert!(!objects_differ(&shown, &old, &old.clone()));
    let mut other = old.clone();
    other.config_maps.remove(&FullName::new("ns", "cm"));
    assert!(!objects_differ(&shown, &old, &other), "not shown");
    let mut other = old.clone();
    other.config_maps.insert(FullName::new("ns", "later"), Arc::new(ConfigMap::default()));
    assert!(objects_differ(&shown, &old, &other), "it appeared");
    let mut other = old.clone();
    other.secrets.insert(FullName::new("ns", "s"), Arc::new(Secret::default()));
    assert!(objects_differ(&shown, &old, &other), "another in its place");
}

#[test]
fn secrets_are_not_printed() {
    let file = PayloadFile { contents: b"hunter2".to_vec().into(), mode: 0o600, owner: None };
    assert_eq!(format!("{file:?}"), "PayloadFile(7 bytes, 600)");
}
