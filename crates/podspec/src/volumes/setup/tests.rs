use serde_json::{Value, json};

use super::*;

fn describe(spec: Value) -> Result<VolumeSetup, VolumeSpecError> {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec,
    }))
    .unwrap();
    let node = NodeSettings { root_dir: "/r".into(), memory_capacity: 1 << 30, ..NodeSettings::default() };
    let objects = Objects::default();
    let volume = &pod.spec_ref().volumes.as_ref().unwrap()[0];
    set_up(&pod, volume, &VolumeContext { node: &node, objects: &objects })
}

fn kind(volume: Value, resources: Value) -> Result<SetupKind, String> {
    let mut volume = volume;
    volume["name"] = json!("v");
    let spec = json!({"containers": [{"name": "c", "resources": resources}], "volumes": [volume]});
    describe(spec).map(|setup| setup.kind).map_err(|error| error.to_string())
}

#[test]
fn memory_is_bounded_by_the_least_limit() {
    let memory = |limit: Value, resources: Value| {
        let volume = json!({"emptyDir": {"medium": "Memory", "sizeLimit": limit}});
        match kind(volume, resources) {
            Ok(SetupKind::Memory { mode: 0o777, size }) => size.unwrap() >> 20,
            other => panic!("{other:?}"),
        }
    };
    let limited = json!({"limits": {"memory": "64Mi"}});
    assert_eq!(memory(Value::Null, json!({})), 1024, "the node's");
    assert_eq!(memory(Value::Null, limited.clone()), 64, "the pod's");
    assert_eq!(memory(json!("16Mi"), limited.clone()), 16, "its own");
    assert_eq!(memory(json!("128Mi"), limited), 64, "its own, but not more than the pod's");
    assert_eq!(memory(json!("0"), json!({})), 1024, "zero is none");
}

#[test]
fn huge_pages_have_one_certain_size() {
    let two = json!({"limits": {"hugepages-2Mi": "4Mi"}});
    let both = json!({"limits": {"hugepages-2Mi": "4Mi", "hugepages-1Gi": "1Gi"}});
    let size = |medium: &str, resources: &Value| match kind(
        json!({"emptyDir": {"medium": medium}}),
        resources.clone(),
    ) {
        Ok(SetupKind::HugePages { page_size, .. }) => page_size,
        Err(error) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(size("HugePages", &two), "2Mi");
    assert_eq!(size("HugePages-1Gi", &both), "1Gi");
    assert!(size("HugePages", &both).contains("several sizes"));
    assert!(size("HugePages", &json!({})).contains("neither the pod nor a container requests huge pages"));
    assert!(size("HugePages-1Gi", &two).contains("requests huge pages of its size"));
    let of_pod: Pod = serde_json::from_value(json!({"spec": {"containers": [], "resources": two}})).unwrap();
    assert_eq!(
        page_size(&of_pod, "HugePages", "").unwrap(),
        "2Mi",
        "what the pod asks for as a whole counts"
    );
    assert!(size("HugePages-x", &two).contains("no quantity"));
    assert!(size("Floppy", &two).contains("unknown storage medium"));
}

#[test]
fn the_other_kinds() {
    let none = json!({});
    let ok = |volume: Value| kind(volume, none.clone());
    assert_eq!(ok(json!({"emptyDir": {}})), Ok(SetupKind::Directory { mode: 0o777 }));
    assert_eq!(ok(json!({"emptyDir": {"mode": 0o1755}})), Ok(SetupKind::Directory { mode: 0o1755 }));
    assert_eq!(ok(json!({"hostPath": {"path": "/x"}})), Ok(SetupKind::HostPath(HostPathType::Unset)));
    assert_eq!(
        ok(json!({"hostPath": {"path": "/x", "type": "Socket"}})),
        Ok(SetupKind::HostPath(HostPathType::Socket))
    );
    assert_eq!(
        ok(json!({"nfs": {"server": "fd00::1", "path": "/e", "readOnly": true}})),
        Ok(SetupKind::Nfs { source: "[fd00::1]:/e".into(), read_only: true, options: Vec::new() })
    );
    assert_eq!(ok(json!({"image": {"reference": "i"}})), Ok(SetupKind::Image));
    let refused = |volume: Value, expected: &str| {
        let error = ok(volume).unwrap_err();
        assert!(error.contains(expected), "{error}");
    };
    refused(json!({"hostPath": {"path": "/x/../y"}}), "must not contain '..'");
    refused(
        json!({"persistentVolumeClaim": {"claimName": "c"}}),
        "nothing is known of persistentvolumeclaim \"c\" yet",
    );
    refused(json!({"csi": {"driver": "d"}}), "volumes of type csi are not supported");
    refused(json!({}), "no source");
}

#[test]
fn only_what_is_the_pods_own_changes_its_group() {
    let group = |volume: Value| {
        let spec =
            json!({"containers": [{"name": "c"}], "securityContext": {"fsGroup": 2000}, "volumes": [volume]});
        describe(spec).unwrap().fs_group
    };
    assert_eq!(group(json!({"name": "v", "emptyDir": {}})), Some(2000));
    assert_eq!(group(json!({"name": "v", "downwardAPI": {}})), Some(2000));
    assert_eq!(group(json!({"name": "v", "hostPath": {"path": "/x"}})), None);
    assert_eq!(group(json!({"name": "v", "nfs": {"server": "s", "path": "/x"}})), None);
}

#[test]
fn where_it_lies() {
    let spec = json!({"containers": [], "volumes": [{"name": "v", "downwardAPI": {}}]});
    let setup = describe(spec).unwrap();
    assert_eq!(setup.path, Path::new("/r/pods/u/volumes/kubernetes.io~downward-api/v"));
    assert_eq!(
        setup.ready_marker.as_deref(),
        Some(Path::new("/r/pods/u/plugins/kubernetes.io~empty-dir/wrapped_v/ready"))
    );
}
