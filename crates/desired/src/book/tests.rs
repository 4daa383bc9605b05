use mainstay_podspec::StaticPodPlace;
use proptest::prelude::*;

use super::*;
use crate::entry::read_entries;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;
const DELIVERED: Delivered =
    Delivered { file: true, http: true, api: true, api_earlier: false, waited: false };

/// A file with pods of these names, each in a version, or broken.
#[derive(Clone, Debug)]
enum File {
    Gone,
    Broken,
    Pods(Vec<(u8, Option<u8>)>),
}

fn reading(origin: &str, file: &File) -> Option<Reading> {
    let File::Pods(pods) = file else {
        return matches!(file, File::Broken).then(|| Reading::Unreadable(vec!["broken".into()]));
    };
    let documents = pods.iter().map(|(name, version)| {
        let image = version.map(|version| format!("image:{version}")).unwrap_or_default();
        serde_json::json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("pod{name}")},
            "spec": {"containers": [{"name": "a", "image": image}]},
        })
        .to_string()
    });
    let text = documents.collect::<Vec<_>>().join("\n");
    let place = StaticPodPlace {
        node_name: "n",
        source: PodSource::File,
        origin,
        api_server: false,
        gates: mainstay_podspec::PodGates::DEFAULT,
    };
    Some(Reading::Documents(read_entries(text.as_bytes(), &place).unwrap_or_default()))
}

fn file() -> impl Strategy<Value = File> {
    let pods = proptest::collection::vec((0..3_u8, proptest::option::weighted(0.8, 0..3_u8)), 1..4);
    prop_oneof![1 => Just(File::Gone), 1 => Just(File::Broken), 4 => pods.prop_map(File::Pods)]
}

fn listed() -> ObservedState {
    ObservedState { listed_at: Some(std::time::Instant::now()), ..ObservedState::unread() }
}

proptest! {
    /// Whatever happens to three files: names and UIDs are unique, the first good document wins, broken ones lose
    /// nothing that was there, records follow the pods, and nothing is published twice.
    #[test]
    fn the_book_stays_consistent(steps in proptest::collection::vec((0..3_usize, file()), 1..20)) {
        let origins = ["/a.json", "/b.json", "/c.json"];
        let mut files = [File::Gone, File::Gone, File::Gone];
        let mut book = Book::new("n".into(), BTreeMap::new(), Vec::new());
        let mut records = BTreeMap::new();
        let observed = listed();
        book.settle(DELIVERED, Some(&observed), NOW);
        for (which, file) in steps {
            let origin = origins[which];
            match reading(origin, &file) {
                Some(reading) => book.read(PodSource::File, origin, reading),
                None => book.remove(PodSource::File, origin),
            }
            files[which] = file;
            let before = Arc::clone(&book.state);
            let consequences = book.settle(DELIVERED, Some(&observed), NOW);
            let state = Arc::clone(&book.state);
            for change in consequences.records {
                match change {
                    RecordChange::Put(record) => {
                        let key = HeldKey::new(record.source, &record.origin, &record.identity);
                        records.insert(key, record.uid.clone());
                    }
                    RecordChange::Remove(key) => {
                        prop_assert!(records.remove(&key).is_some(), "removed what was not there: {key:?}");
                    }
                }
            }
            prop_assert_eq!(state.generation, before.generation + u64::from(consequences.state.is_some()));
            let names: std::collections::BTreeSet<_> = state.pods.values().map(|pod| &pod.full_name).collect();
            prop_assert_eq!(names.len(), state.pods.len());
            for (uid, pod) in state.pods.iter() {
                prop_assert_eq!(Some(uid.as_str()), pod.pod.metadata.uid.as_deref());
                prop_assert!(records.values().any(|recorded| recorded == uid), "no record of {uid}");
                let at = origins.iter().position(|origin| **origin == *pod.origin);
                prop_assert!(at.is_some_and(|at| !matches!(files[at], File::Gone)), "{} is gone", pod.origin);
            }
            // Every good document's object is wanted by somebody, and by nobody after the first file that has it.
            for (at, file) in files.iter().enumerate() {
                let File::Pods(pods) = file else { continue };
                for (name, _) in pods.iter().filter(|(_, version)| version.is_some()) {
                    let winner = state.pods.values().find(|pod| *pod.full_name.name == *format!("pod{name}-n"));
                    prop_assert!(winner.is_some_and(|pod| *pod.origin <= *origins[at]), "pod{name} of {}", origins[at]);
                }
            }
            prop_assert!(book.settle(DELIVERED, Some(&observed), NOW).state.is_none(), "nothing changed");
        }
    }
}

#[test]
fn nothing_is_removed_before_its_source_has_delivered() {
    let mut book = Book::new("n".into(), BTreeMap::new(), Vec::new());
    book.read(PodSource::Http, "http://x/", url_reading());
    let observed = listed();
    assert_eq!(book.settle(DELIVERED, Some(&observed), NOW).state.unwrap().pods.len(), 1);
    let held = book.held;

    // After a restart the URL has not answered yet.
    let name = AwaitedSource::new(PodSource::Http, "staticPodURL http://x/");
    let mut book = Book::new("n".into(), held, vec![name]);
    let waiting = Delivered { http: false, ..DELIVERED };
    let consequences = book.settle(waiting, Some(&observed), NOW);
    let state = consequences.state.unwrap();
    assert_eq!((state.pods.len(), state.synced, consequences.records.len()), (1, false, 0));

    // Waited for long enough, the node goes on, and knows what it does not know.
    let waited = Delivered { waited: true, ..waiting };
    let state = book.settle(waited, Some(&observed), NOW).state.unwrap();
    assert_eq!((state.pods.len(), state.synced, state.is_whole()), (1, true, false));
    assert!(state.awaits(PodSource::Http) && !state.awaits(PodSource::File));

    // It answers without the pod.
    book.read(PodSource::Http, "http://x/", Reading::Documents(Vec::new()));
    let consequences = book.settle(DELIVERED, Some(&observed), NOW);
    let state = consequences.state.unwrap();
    assert_eq!((state.pods.len(), state.is_whole(), consequences.records.len()), (0, true, 1));
}

fn url_reading() -> Reading {
    let place = StaticPodPlace {
        node_name: "n",
        source: PodSource::Http,
        origin: "http://x/",
        api_server: false,
        gates: mainstay_podspec::PodGates::DEFAULT,
    };
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, image: b}]}\n";
    Reading::Documents(read_entries(text.as_bytes(), &place).unwrap())
}

#[test]
fn another_kubelets_pod_is_taken_over_only_by_a_kubelet() {
    let sandbox = mainstay_types::ObservedSandbox {
        id: "s".into(),
        attempt: 0,
        ready: true,
        created_at: NOW,
        ips: Vec::new(),
        host_network: false,
        source: Some("http".into()),
    };
    let theirs = mainstay_types::ObservedPod {
        uid: "theirs".into(),
        full_name: FullName::new("default", "a-n"),
        read_at: std::time::Instant::now(),
        sandboxes: vec![sandbox],
        containers: Vec::new(),
    };
    let mut observed = listed();
    observed.pods = [(theirs.uid.clone(), Arc::new(theirs))].into();
    for takes_over in [true, false] {
        let mut book = Book::new("n".into(), BTreeMap::new(), Vec::new());
        book.takes_over(takes_over);
        book.read(PodSource::Http, "http://x/", url_reading());
        let state = book.settle(DELIVERED, Some(&observed), NOW).state.unwrap();
        let uid = state.pods.keys().next().unwrap().as_str();
        assert_eq!(uid == "theirs", takes_over, "{uid}");
        let warnings: Vec<&String> = state
            .verdicts
            .iter()
            .flat_map(|verdict| match &verdict.ruling {
                Ruling::Accepted { warnings } => warnings.iter(),
                other => panic!("{other:?}"),
            })
            .collect();
        if takes_over {
            assert!(warnings.is_empty(), "{warnings:?}");
        } else {
            assert!(warnings[0].contains("default/a-n (UID theirs); it is left alone"), "{warnings:?}");
            assert_eq!(warnings.len(), 1, "{warnings:?}");
        }
        assert!(book.settle(DELIVERED, Some(&observed), NOW).state.is_none(), "nothing changed");
    }
}

/// What lies in files beside static pods is for them, and on a node of a cluster no static pod may refer to it: an API server's pods see
/// what the API server has.
#[test]
fn config_maps_and_secrets_of_files_are_no_ones_in_a_cluster() {
    let text = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}}
{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "b"}, "stringData": {"k": "v"}}"#;
    for (api_server, expected) in [(false, (1, 1)), (true, (0, 0))] {
        let names = [AwaitedSource::new(PodSource::Api, "the API server")].into_iter().filter(|_| api_server);
        let mut book = Book::new("n".into(), BTreeMap::new(), names.collect());
        let gates = mainstay_podspec::PodGates::DEFAULT;
        let place =
            StaticPodPlace { node_name: "n", source: PodSource::File, origin: "/a.json", api_server, gates };
        let entries = read_entries(text.as_bytes(), &place).unwrap();
        book.read(PodSource::File, "/a.json", Reading::Documents(entries));
        book.settle(DELIVERED, Some(&listed()), NOW);
        let found = (book.state.objects.config_maps.len(), book.state.objects.secrets.len());
        assert_eq!(found, expected, "with an API server: {api_server}");
    }
}
