use serde_json::json;

use super::*;
use crate::manifest::{Content, decode_manifest};

const FILE: StaticPodPlace<'static> = StaticPodPlace {
    node_name: "bar.node",
    source: PodSource::File,
    origin: "/etc/kubernetes/manifests/web.yaml",
    api_server: false,
    gates: PodGates::DEFAULT,
};

fn pod(value: Value) -> Pod {
    serde_json::from_value(value).unwrap()
}

fn simple(spec: Value) -> Value {
    let mut value = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {"containers": [{"name": "a", "image": "busybox:1"}]},
    });
    for (key, field) in spec.as_object().unwrap() {
        value["spec"][key] = field.clone();
    }
    value
}

/// What upstream's kubelet 1.37 made of the same manifests, field by field.
#[test]
fn golden_pods_are_those_of_upstream() {
    let golden: Vec<Value> = serde_json::from_str(include_str!("golden/upstream.json")).unwrap();
    assert!(golden.len() >= 10);
    for case in golden {
        let bytes = serde_json::to_vec(&case["manifest"]).unwrap();
        let mut documents = decode_manifest(&bytes).unwrap();
        let document = documents.pop().unwrap();
        assert_eq!(document.warnings, Vec::<String>::new(), "{}", case["name"]);
        let Ok(Content::Pod(pod)) = document.content else {
            panic!("{}: {:?}", case["name"], document.content)
        };
        let (mut pod, warnings) =
            prepare_static_pod(pod, &StaticPodPlace { node_name: "barnode", ..FILE }).unwrap();
        // Upstream acts on fields that this version does not; about everything else there is nothing to say.
        let odd: Vec<_> = warnings.iter().filter(|warning| !warning.contains("this version")).collect();
        assert_eq!(odd, Vec::<&String>::new(), "{}", case["name"]);
        let expected = &case["pod"];
        let uid = PodUid::from(expected["metadata"]["uid"].as_str().unwrap());
        let seen = expected["metadata"]["annotations"]["kubernetes.io/config.seen"].as_str().unwrap();
        finish_static_pod(&mut pod, &uid, PodSource::File, seen.parse().unwrap());
        let made = serde_json::to_value(&pod).unwrap();
        assert_eq!(made["spec"], expected["spec"], "{}", case["name"]);
        assert_eq!(made["metadata"], expected["metadata"], "{}", case["name"]);
        assert_eq!(made.get("status"), None);
        let mut again = pod.clone();
        default_pod(&mut again);
        assert_eq!(again, pod, "defaulting twice changes nothing: {}", case["name"]);
    }
}

/// These values may never change: the UID names everything that runs and lies on disk for a static pod, so a node
/// whose mainstay computed another one would restart every static pod it has.
#[test]
fn uid_vectors() {
    let plain = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"containers": [{"name": "httpd", "image": "docker.io/local/busybox:1", "ports": [{"containerPort": 8080}]}]},
    });
    let odd = json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": "odd", "annotations": {"text": "a\"b\\c\n\u{7f}ä\u{1f600}", "": "", "B": "b", "a": "a"}},
        "spec": {"containers": [null, 1, -1, 1.0, 0.5, -0.0, 1e3, 1e21, 18_446_744_073_709_551_615_u64, true, [], {}]},
    });
    let place = |node_name, source, origin| StaticPodPlace { node_name, source, origin, ..FILE };
    for (name, raw, place, expected) in [
        (
            "file",
            &plain,
            place("node-1", PodSource::File, "/etc/kubernetes/manifests/web.yaml"),
            "14d2a225c9ecab6d973ae4e495e1ad9d",
        ),
        (
            "other node",
            &plain,
            place("node-2", PodSource::File, "/etc/kubernetes/manifests/web.yaml"),
            "50035c5be87f6d8c2cb23cda427dc2b5",
        ),
        (
            "other file",
            &plain,
            place("node-1", PodSource::File, "/etc/kubernetes/manifests/b.yaml"),
            "04d9a3ce1badd174b27fdaf9bd62145d",
        ),
        (
            "url",
            &plain,
            place("node-1", PodSource::Http, "http://127.0.0.1/pods"),
            "fad0986fc1dc4dcbdf3c3b453e5593eb",
        ),
        (
            "every kind of value",
            &odd,
            place("node-1", PodSource::File, "/m/odd.json"),
            "a1caba737c3dd747228271a5245472ed",
        ),
    ] {
        assert_eq!(static_pod_uid(raw, &place).as_str(), expected, "{name}");
    }
}

#[test]
fn canonical_form_is_as_documented() {
    let mut text = String::new();
    let value = json!({"b": [1, 1.0, 0.5, -0.0, 1e3, 1e21, null], "a": {"z": null, "y": "\n\"\u{1}"}, "status": {"phase": "x"}});
    write_canonical(&mut text, &value, true);
    assert_eq!(text, r#"{"a":{"y":"\u000a\"\u0001"},"b":[1,1,0.5,0,1000,1000000000000000000000,null]}"#);
}

#[test]
fn uid_follows_what_was_written_and_nothing_else() {
    let uid = |yaml: &str| {
        let document = decode_manifest(yaml.as_bytes()).unwrap().pop().unwrap();
        static_pod_uid(&document.raw, &FILE)
    };
    let yaml =
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  - {name: a, image: b}\n";
    let same = [
        "# a comment\nkind: Pod\napiVersion: v1\nspec: {containers: [{image: b, name: a}]}\nmetadata: {name: web}\n",
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","creationTimestamp":null},"spec":{"containers":[{"name":"a","image":"b"}]},"status":{"phase":"Running"}}"#,
    ];
    for other in same {
        assert_eq!(uid(yaml), uid(other), "{other}");
    }
    assert_ne!(uid(yaml), uid(&yaml.replace("image: b", "image: c")));
    assert_ne!(uid(yaml), uid(&format!("{yaml}  futureField: 1\n")), "also of fields that nobody knows yet");
}

#[test]
fn names_node_and_namespace() {
    let (pod, _) = prepare_static_pod(pod(simple(json!({"nodeName": "elsewhere"}))), &FILE).unwrap();
    assert_eq!(pod.metadata.name.as_deref(), Some("web-bar.node"));
    assert_eq!(pod.metadata.namespace.as_deref(), Some("default"));
    assert_eq!(pod.spec.as_ref().unwrap().node_name.as_deref(), Some("bar.node"));
    assert_eq!(pod.metadata.uid, None);
}

#[test]
fn toleration_is_added_for_files_only_and_once() {
    let tolerations = |spec: Value, place: &StaticPodPlace<'_>| {
        let (pod, _) = prepare_static_pod(pod(simple(spec)), place).unwrap();
        serde_json::to_value(pod.spec.unwrap().tolerations).unwrap()
    };
    let expected = json!([{"operator": "Exists", "effect": "NoExecute"}]);
    assert_eq!(tolerations(json!({}), &FILE), expected);
    let timed =
        json!({"tolerations": [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]});
    assert_eq!(tolerations(timed, &FILE), expected);
    let url = StaticPodPlace { source: PodSource::Http, ..FILE };
    assert_eq!(tolerations(json!({}), &url), Value::Null);
}

#[test]
fn references_to_the_api_server_are_refused() {
    let volume = |source: Value| {
        let mut volume = json!({"name": "v"});
        volume.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        json!({"volumes": [volume]})
    };
    let env = json!({"containers": [{"name": "a", "image": "b:1", "env": [
        {"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}]});
    for (name, spec, always, expected) in [
        (
            "account",
            json!({"serviceAccountName": "x"}),
            false,
            "spec.serviceAccountName: Forbidden: static pods may not reference serviceaccounts",
        ),
        (
            "old account",
            json!({"serviceAccount": "x"}),
            false,
            "spec.serviceAccountName: Forbidden: static pods may not reference serviceaccounts",
        ),
        (
            "claims",
            json!({"resourceClaims": [{"name": "c", "resourceClaimName": "d"}]}),
            true,
            "spec.resourceClaims: Forbidden: static pods may not reference resourceclaims",
        ),
        (
            "pvc",
            volume(json!({"persistentVolumeClaim": {"claimName": "c"}})),
            true,
            "spec.volumes[0].persistentVolumeClaim: Forbidden: static pods may not reference persistentvolumeclaims",
        ),
        (
            "csi",
            volume(json!({"csi": {"driver": "d"}})),
            true,
            "spec.volumes[0].csi: Forbidden: static pods may not reference csidrivers (via CSI volumes)",
        ),
        (
            "ephemeral",
            volume(json!({"ephemeral": {"volumeClaimTemplate": {"spec": {}}}})),
            true,
            "spec.volumes[0].ephemeral: Forbidden: static pods may not reference persistentvolumeclaims (via ephemeral volumes)",
        ),
        (
            "token",
            volume(json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}})),
            true,
            "spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: static pods may not reference serviceaccounts (via projected volumes)",
        ),
        (
            "config map",
            volume(json!({"configMap": {"name": "c"}})),
            false,
            "spec.volumes[0].configMap: Forbidden: static pods may not reference configmaps (via configmap volumes)",
        ),
        (
            "secret",
            volume(json!({"secret": {"secretName": "c"}})),
            false,
            "spec.volumes[0].secret: Forbidden: static pods may not reference secrets (via secret volumes)",
        ),
        (
            "env",
            env,
            false,
            "spec.containers[0].env[0].valueFrom.secretKeyRef: Forbidden: static pods may not reference secrets",
        ),
        (
            "pull secret",
            json!({"imagePullSecrets": [{"name": "s"}]}),
            false,
            "spec.imagePullSecrets: Forbidden: static pods may not reference secrets",
        ),
    ] {
        let with_server = StaticPodPlace { api_server: true, ..FILE };
        let problems = prepare_static_pod(pod(simple(spec.clone())), &with_server).unwrap_err();
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert!(problems.contains(&expected.to_owned()), "{name}: {problems:?}");
        assert_eq!(prepare_static_pod(pod(simple(spec)), &FILE).is_err(), always, "{name}");
    }
}

#[test]
fn explicit_uid_must_be_fit_for_a_directory() {
    for (uid, good) in [
        ("0f8fad5b-d9cb-469f-a165-70867728950e", true),
        ("abc", true),
        ("../../etc", false),
        ("a/b", false),
        (".", false),
        ("-", false),
    ] {
        let mut value = simple(json!({}));
        value["metadata"]["uid"] = uid.into();
        assert_eq!(prepare_static_pod(pod(value), &FILE).is_ok(), good, "{uid}");
    }
}
