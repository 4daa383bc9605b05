use serde_json::{Value, json};

use super::*;

fn runtime() -> RuntimeFeatures {
    RuntimeFeatures { name: "containerd".into(), version: "2.4.2".into(), recursive_read_only: true }
}

fn wish(mount: Value, runtime: &RuntimeFeatures) -> Result<MountWish, String> {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"containers": [{"name": "c", "volumeMounts": [mount]}], "volumes": [
            {"name": "e", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/srv"}},
            {"name": "cm", "configMap": {"name": "x"}}, {"name": "i", "image": {"reference": "img"}},
            {"name": "s", "secret": {"secretName": "x"}},
        ]},
    }))
    .unwrap();
    let node = NodeSettings { root_dir: "/r".into(), ..NodeSettings::default() };
    let variable = |name: &str| match name {
        "POD" => Some("p1"),
        "UP" => Some("../x"),
        "EMPTY" => Some(""),
        _ => None,
    };
    let container = &pod.spec_ref().containers[0];
    let mut wishes =
        mount_wishes(&pod, container, &node, runtime, variable).map_err(|error| error.to_string())?;
    Ok(wishes.remove(0))
}

#[test]
fn sources() {
    let source = |mount: Value| wish(mount, &runtime()).map(|wish| wish.source);
    assert_eq!(source(json!({"name": "h", "mountPath": "/m"})), Ok(MountSource::Path("/srv".into())));
    let part = |sub_path: &str| {
        Ok(MountSource::SubPath {
            root: "/r/pods/u/volumes/kubernetes.io~empty-dir/e".into(),
            sub_path: sub_path.into(),
            target: "/r/pods/u/volume-subpaths/e/c/0".into(),
        })
    };
    assert_eq!(source(json!({"name": "e", "mountPath": "/m", "subPath": "a/b"})), part("a/b"));
    assert_eq!(source(json!({"name": "e", "mountPath": "/m", "subPathExpr": "x/$(POD)"})), part("x/p1"));
    assert_eq!(
        source(json!({"name": "i", "mountPath": "/m"})),
        Ok(MountSource::Image { reference: "img".into(), sub_path: None })
    );
    assert_eq!(
        source(json!({"name": "i", "mountPath": "/m", "subPath": "a/b"})),
        Ok(MountSource::Image { reference: "img".into(), sub_path: Some("a/b".into()) })
    );
    let refused = |mount: Value, expected: &str| {
        let error = source(mount).unwrap_err();
        assert!(error.contains(expected), "{error}");
    };
    refused(json!({"name": "none", "mountPath": "/m"}), r#"there is no volume "none""#);
    refused(json!({"name": "e", "mountPath": "/m", "subPath": "../x"}), "must not contain '..'");
    refused(json!({"name": "e", "mountPath": "/m", "subPathExpr": "$(UP)"}), "must not contain '..'");
    refused(
        json!({"name": "e", "mountPath": "/m", "subPathExpr": "$(NONE)"}),
        r#"variable "NONE" is missing or empty"#,
    );
    refused(
        json!({"name": "e", "mountPath": "/m", "subPathExpr": "$(EMPTY)"}),
        r#"variable "EMPTY" is missing or empty"#,
    );
    refused(json!({"name": "i", "mountPath": "/m", "subPath": "../x"}), "must not contain '..'");
}

#[test]
fn read_only_and_propagation() {
    let flags = |mount: Value| {
        wish(mount, &runtime()).map(|wish| (wish.read_only, wish.recursive_read_only, wish.propagation))
    };
    let private = MountPropagation::PropagationPrivate;
    assert_eq!(flags(json!({"name": "e", "mountPath": "m"})), Ok((false, false, private)));
    assert_eq!(flags(json!({"name": "e", "mountPath": "/m", "readOnly": true})), Ok((true, false, private)));
    for volume in ["cm", "s", "i"] {
        assert_eq!(flags(json!({"name": volume, "mountPath": "/m"})), Ok((true, false, private)), "{volume}");
    }
    assert_eq!(
        flags(json!({"name": "h", "mountPath": "/m", "mountPropagation": "Bidirectional"})),
        Ok((false, false, MountPropagation::PropagationBidirectional))
    );
    let recursive = |wish_text: &str| json!({"name": "h", "mountPath": "/m", "readOnly": true, "recursiveReadOnly": wish_text});
    assert_eq!(flags(recursive("Enabled")), Ok((true, true, private)));
    assert_eq!(flags(recursive("Disabled")), Ok((true, false, private)));
    let old = RuntimeFeatures { recursive_read_only: false, ..runtime() };
    assert_eq!(wish(recursive("IfPossible"), &old).map(|wish| wish.recursive_read_only), Ok(false));
    assert!(wish(recursive("Enabled"), &old).unwrap_err().contains("the container runtime cannot do it"));
    assert_eq!(wish(json!({"name": "e", "mountPath": "m"}), &old).unwrap().container_path, "/m");
}

#[test]
fn image_volumes_need_a_runtime_that_has_them() {
    let can = |name: &str, version: &str| {
        let runtime =
            RuntimeFeatures { name: name.into(), version: version.into(), recursive_read_only: false };
        let whole = wish(json!({"name": "i", "mountPath": "/m"}), &runtime);
        let part = wish(json!({"name": "i", "mountPath": "/m", "subPath": "x"}), &runtime);
        if let (Ok(_), Err(error)) = (&whole, &part) {
            assert!(error.contains("cannot mount a subPath of an image"), "{error}");
        }
        (whole.is_ok(), part.is_ok())
    };
    for (name, version, whole, part) in [
        ("containerd", "1.6.20~ds1", false, false),
        ("containerd", "2.0.4", false, false),
        ("containerd", "v2.1.0", true, false),
        ("containerd", "2.2.0", true, true),
        ("containerd", "2.4.2", true, true),
        ("cri-o", "1.30.1", false, false),
        ("cri-o", "1.32.4", true, false),
        ("cri-o", "1.33.0", true, true),
        ("new", "0.1.0", true, true),
    ] {
        assert_eq!(can(name, version), (whole, part), "{name} {version}");
    }
}

#[test]
fn pull_policies_of_image_volumes() {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "volumeMounts": [
            {"name": "a", "mountPath": "/a"}, {"name": "b", "mountPath": "/b"}, {"name": "c", "mountPath": "/c"}, {"name": "d", "mountPath": "/d"},
        ]}], "volumes": [
            {"name": "a", "image": {"reference": "host:5000/x"}}, {"name": "b", "image": {"reference": "x:1"}},
            {"name": "c", "image": {"reference": "x:latest", "pullPolicy": "Never"}}, {"name": "d", "emptyDir": {}},
        ]},
    }))
    .unwrap();
    let found: Vec<_> = image_volumes(&pod, &pod.spec_ref().containers[0])
        .map(|image| (image.volume, image.pull_policy))
        .collect();
    assert_eq!(found, [("a", "Always"), ("b", "IfNotPresent"), ("c", "Never")]);
}
