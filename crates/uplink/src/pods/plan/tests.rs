use k8s_openapi::api::core::v1::{Pod, PodStatus};

use super::*;

fn view(name: &str, uid: &str, source: PodSource, stage: PodStage) -> Arc<PodView> {
    Arc::new(PodView {
        uid: uid.into(),
        full_name: FullName::new("default", name),
        pod: Arc::new(Pod::default()),
        status: Arc::default(),
        json: Default::default(),
        observed: None,
        origin: "".into(),
        source,
        stage,
    })
}

fn there(name: &str, uid: &str, version: u64, status_digest: u64) -> ApiPod {
    ApiPod {
        uid: uid.into(),
        full_name: FullName::new("default", name),
        version,
        status_digest,
        finished: false,
        deleting: false,
        released: false,
        mirror_of: None,
    }
}

/// The steps as words.
fn check(views: &[(Arc<PodView>, u64)], pods: &[ApiPod], told: &[(&str, Told)], whole: bool) -> Vec<String> {
    let locals: Vec<_> = views.iter().map(|(view, digest)| Local::new(view, *digest)).collect();
    let pods = pods.iter().map(|pod| (pod.uid.clone(), Arc::new(pod.clone()))).collect();
    let told = told.iter().map(|(uid, told)| (PodUid::from(*uid), *told)).collect();
    let mut words: Vec<_> =
        steps(&locals, &ApiPods { listed: true, pods: Arc::new(pods), ..ApiPods::default() }, &told, whole)
            .into_iter()
            .map(|(target, step)| format!("{} {} {}", step.name(), target.full_name.name, target.uid))
            .collect();
    words.sort_unstable();
    words
}

fn told(said: u64, heard: u64, version: u64) -> Told {
    Told { said, heard, version, finished: false }
}

#[test]
fn a_status_is_told_when_it_differs_and_once() {
    let running = || (view("a", "u1", PodSource::Api, PodStage::Syncing), 7);
    let none: [&str; 0] = [];
    assert_eq!(check(&[running()], &[there("a", "u1", 5, 1)], &[], true), ["status a u1"]);
    assert_eq!(check(&[running()], &[there("a", "u1", 5, 7)], &[], true), none, "it knows");
    assert_eq!(check(&[running()], &[], &[], true), none, "it has none");
    let before_the_watch = check(&[running()], &[there("a", "u1", 5, 1)], &[("u1", told(7, 7, 6))], true);
    assert_eq!(before_the_watch, none, "the answer is newer than the watch");
    let changed_since = check(&[running()], &[there("a", "u1", 8, 1)], &[("u1", told(7, 7, 6))], true);
    assert_eq!(changed_since, ["status a u1"], "somebody wrote over it");
    let kept_otherwise = check(&[running()], &[there("a", "u1", 6, 3)], &[("u1", told(7, 3, 6))], true);
    assert_eq!(kept_otherwise, none, "the API server will not have it so");
}

#[test]
fn the_word_that_a_pod_is_over_is_not_taken_back() {
    let none: [&str; 0] = [];
    let running = || (view("a", "u1", PodSource::Api, PodStage::Syncing), 7);
    let over = |version| ApiPod { finished: true, ..there("a", "u1", version, 1) };
    assert_eq!(
        check(&[running()], &[over(8)], &[("u1", told(7, 7, 6))], true),
        none,
        "it is on its way here"
    );
    let ended = PodStatus { phase: Some("Failed".into()), ..PodStatus::default() };
    let ended = PodView { status: Arc::new(ended), ..Arc::into_inner(running().0).unwrap() };
    let heeded = check(&[(Arc::new(ended), 9)], &[over(8)], &[("u1", told(7, 7, 6))], true);
    assert_eq!(heeded, ["status a u1"], "what became of its containers");
    let web = || (view("web-node", "s1", PodSource::File, PodStage::Syncing), 7);
    let mirror = ApiPod { mirror_of: Some("s1".into()), finished: true, ..there("web-node", "m1", 8, 1) };
    let corrected = check(&[web()], &[mirror], &[("m1", told(7, 7, 6))], true);
    assert_eq!(corrected, ["status web-node m1"], "nobody ends a pod of a file by its likeness");
}

/// A static pod was turned away in an earlier life, and runs in this one.
#[test]
fn the_likeness_of_a_static_pod_that_came_again_is_no_longer_over() {
    let none: [&str; 0] = [];
    let local = |source, phase: &str| {
        let status = PodStatus { phase: Some(phase.into()), ..PodStatus::default() };
        let view = Arc::into_inner(view("web-node", "s1", source, PodStage::Syncing)).unwrap();
        (Arc::new(PodView { status: Arc::new(status), ..view }), 7)
    };
    let failed = || ApiPod { finished: true, ..there("web-node", "m1", 5, 1) };
    let mirror = || ApiPod { mirror_of: Some("s1".into()), ..failed() };
    for (name, phase, expected) in [
        ("it starts", "Pending", &["status web-node m1"][..]),
        ("it runs", "Running", &["status web-node m1"][..]),
        ("it is over, as it was", "Failed", &none[..]),
        ("it ran to its end, as it had", "Succeeded", &none[..]),
    ] {
        assert_eq!(check(&[local(PodSource::File, phase)], &[mirror()], &[], true), expected, "{name}");
        assert_eq!(check(&[local(PodSource::Http, phase)], &[mirror()], &[], true), expected, "{name}");
    }
    let of_the_api = ApiPod { uid: "s1".into(), ..failed() };
    let theirs = check(&[local(PodSource::Api, "Running")], &[of_the_api], &[], true);
    assert_eq!(theirs, none, "to the API server what is over is over");
}

#[test]
fn a_deleted_pod_goes_when_its_end_is_known() {
    let none: [&str; 0] = [];
    let pod = |stage| (view("a", "u1", PodSource::Api, stage), 7);
    let deleting = |finished, digest| ApiPod { finished, deleting: true, ..there("a", "u1", 5, digest) };
    assert_eq!(check(&[pod(PodStage::Terminating)], &[deleting(false, 7)], &[], true), none);
    assert_eq!(check(&[pod(PodStage::Terminated)], &[deleting(false, 1)], &[], true), ["status a u1"]);
    assert_eq!(check(&[pod(PodStage::Terminated)], &[deleting(true, 7)], &[], true), ["delete a u1"]);
    let answered = Told { finished: true, ..told(7, 7, 6) };
    assert_eq!(
        check(&[pod(PodStage::Terminated)], &[deleting(false, 1)], &[("u1", answered)], true),
        ["delete a u1"]
    );
    let ended = ApiPod { finished: true, ..there("a", "u1", 5, 7) };
    assert_eq!(check(&[pod(PodStage::Terminated)], &[ended], &[], true), none, "over, and nobody deletes it");
}

#[test]
fn static_pods_have_a_likeness() {
    let none: [&str; 0] = [];
    let web = || (view("web-node", "s1", PodSource::File, PodStage::Syncing), 7);
    let mirror =
        |of: &str, digest| ApiPod { mirror_of: Some(of.into()), ..there("web-node", "m1", 5, digest) };
    assert_eq!(check(&[web()], &[], &[], true), ["create mirror pod web-node "]);
    assert_eq!(check(&[web()], &[mirror("s1", 1)], &[], true), ["status web-node m1"]);
    assert_eq!(check(&[web()], &[mirror("s1", 7)], &[], true), none);
    assert_eq!(check(&[web()], &[mirror("s0", 7)], &[], true), ["delete mirror pod web-node m1"], "an edit");
    let deleted = ApiPod { deleting: true, ..mirror("s1", 7) };
    assert_eq!(check(&[web()], &[deleted], &[], true), ["delete mirror pod web-node m1"], "by a user");
    assert_eq!(check(&[], &[mirror("s1", 7)], &[], true), ["delete mirror pod web-node m1"], "left over");
    assert_eq!(check(&[], &[mirror("s1", 7)], &[], false), none, "its source may still come");
    assert_eq!(check(&[web()], &[there("web-node", "x", 5, 1)], &[], true), none, "somebody else's pod");
}
