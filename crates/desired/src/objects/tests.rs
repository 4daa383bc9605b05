use mainstay_apiserver::{Listing, Unreadable};
use mainstay_types::{EventTarget, PodSource};
use serde_json::json;

use super::*;

fn pod(uid: &str) -> (PodUid, Arc<DesiredPod>) {
    let pod = serde_json::from_value(json!({
        "metadata": {"name": uid, "namespace": "default", "uid": uid},
        "spec": {"containers": [{"name": "c", "image": "i", "envFrom": [{"configMapRef": {"name": "settings"}}]}]},
    }))
    .unwrap();
    let desired = DesiredPod {
        uid: uid.into(),
        full_name: FullName::new("default", uid),
        pod: Arc::new(pod),
        source: PodSource::Api,
        origin: "".into(),
        terminate: None,
        remote: None,
    };
    (uid.into(), Arc::new(desired))
}

fn listed<T>(items: Vec<T>, unreadable: Vec<Unreadable>) -> Change<T> {
    Change::Listed(Listing { version: "9".into(), items, unreadable })
}

fn settings(value: &str) -> ConfigMap {
    ConfigMap { data: Some([("a".to_owned(), value.to_owned())].into()), ..ConfigMap::default() }
}

#[tokio::test]
async fn what_was_kept_is_not_taken_for_what_is() {
    let name = FullName::new("default", "settings");
    let kept =
        Objects { config_maps: [(name.clone(), Arc::new(settings("old")))].into(), ..Objects::default() };
    let (events, mut told) = EventSink::bounded(8);
    let objects = ApiObjects::new(Arc::default(), None, kept, events);
    let pods = [pod("u1")].into();
    assert_eq!(objects.need(&pods).len(), 1, "it waits although something was kept");
    assert_eq!(objects.objects().config_maps[&name], Arc::new(settings("old")), "which is there for others");
    objects.take_services(listed(Vec::new(), Vec::new()));
    assert_eq!(objects.need(&pods).len(), 1);

    // One that cannot be read is told of once, is not waited for, and leaves what was known.
    let strange = |version: &str| Unreadable {
        namespace: "default".into(),
        name: "settings".into(),
        uid: "u".into(),
        version: version.into(),
        problem: "strange".into(),
    };
    objects.take_config_map(&name, listed(Vec::new(), vec![strange("7")]));
    objects.take_config_map(&name, Change::Unreadable(strange("7")));
    let event = told.try_recv().unwrap();
    assert!(matches!(&event.target, EventTarget::Pod { uid, .. } if uid.as_str() == "u1"), "{event:?}");
    assert!(event.reason == "UnreadableObject" && event.message.contains("strange"), "{event:?}");
    assert!(told.try_recv().is_err(), "once");
    assert!(objects.need(&pods).is_empty());
    assert_eq!(objects.objects().config_maps[&name], Arc::new(settings("old")));
    objects.take_config_map(&name, Change::Unreadable(strange("8")));
    assert!(told.try_recv().is_ok(), "another version");

    objects.take_config_map(&name, Change::Applied(settings("new")));
    assert_eq!(objects.objects().config_maps[&name], Arc::new(settings("new")));
}
