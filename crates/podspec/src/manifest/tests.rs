use proptest::prelude::*;

use super::*;

const POD: &str =
    "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  - name: a\n    image: b:1\n";

fn one(text: &str) -> Document {
    let mut documents = decode_manifest(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(documents.len(), 1, "{text}");
    documents.pop().unwrap()
}

fn pod(text: &str) -> Pod {
    match one(text).content {
        Ok(Content::Pod(pod)) => pod,
        other => panic!("{text}: {other:?}"),
    }
}

fn problems(text: &str) -> Vec<String> {
    one(text).content.unwrap_err().iter().map(ToString::to_string).collect()
}

#[test]
fn several_documents_and_lists() {
    let text = format!(
        "---\n# only a comment\n---\n{POD}---\n{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{{\"name\":\"c\",\"namespace\":\"x\"}}}}\n---\n\
         apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Secret\n  metadata: {{name: s}}\n- apiVersion: apps/v1\n  kind: Deployment\n\
         ---\napiVersion: v1\nkind: PodList\nitems:\n- metadata: {{name: untyped}}\n...\n"
    );
    let documents = decode_manifest(text.as_bytes()).unwrap();
    let seen: Vec<String> = documents
        .iter()
        .map(|document| match (&document.identity, &document.content) {
            (Some(identity), Ok(_)) => format!("{}: {identity}", document.place),
            (_, Err(problems)) => format!("{}: {}", document.place, problems[0]),
            (None, Ok(_)) => panic!("{document:?}"),
        })
        .collect();
    assert_eq!(
        seen,
        [
            "document 1: Pod default/web",
            "document 2: ConfigMap x/c",
            "document 3, item 1: Secret default/s",
            "document 3, item 2: kind: Unsupported value: \"apps/v1 Deployment\": supported are v1 Pod, ConfigMap, Secret, List and PodList, and node.k8s.io/v1 RuntimeClass",
            "document 4, item 1: Pod default/untyped",
        ]
    );
}

#[test]
fn concatenated_json_and_braced_yaml() {
    let two = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}} {"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"}}"#;
    assert_eq!(decode_manifest(two.as_bytes()).unwrap().len(), 2);
    assert_eq!(one("{apiVersion: v1, kind: Pod, metadata: {name: a}}").identity.unwrap().name, "a");
    assert_eq!(one(&format!("\u{feff}{POD}")).identity.unwrap().name, "web");
}

#[test]
fn whole_files_that_cannot_be_read() {
    let huge = vec![b'a'; MAX_MANIFEST_BYTES + 1];
    let deep_yaml = "[".repeat(MAX_MANIFEST_BYTES);
    let deep_json = format!("{{\"a\":{}", "[".repeat(500));
    let deep_block =
        format!("a:\n{}", (1..2000).map(|i| format!("{}b:\n", " ".repeat(i))).collect::<String>());
    let laughs = {
        let mut text = "a: &a [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for (name, before) in
            ["b", "c", "d", "e", "f", "g", "h"].iter().zip(["a", "b", "c", "d", "e", "f", "g"])
        {
            text.push_str(&format!("{name}: &{name} [{}]\n", vec![format!("*{before}"); 10].join(",")));
        }
        text
    };
    let wide = {
        let list = vec!["x"; 10_000].join(",");
        format!("a: &a [{list}]\nb: [{}]\n", vec!["*a"; 10_000].join(","))
    };
    for (name, bytes, expected) in [
        ("huge", huge.as_slice(), "the manifest is larger than 10 MiB"),
        ("deep flow", deep_yaml.as_bytes(), "more than 1000 brackets"),
        ("deep json", deep_json.as_bytes(), "recursion limit exceeded"),
        ("deep block", deep_block.as_bytes(), "recursion limit exceeded"),
        ("laughs", laughs.as_bytes(), "not valid YAML or JSON: repetition limit exceeded"),
        ("wide", wide.as_bytes(), "more than 1000000 values"),
        ("itself", b"a: &a [*a]", "recursion limit exceeded"),
        ("tab", b"a:\n\t- b", "line 2 column 1"),
        ("colon", b"apiVersion: v1\nkind: Pod\nmetadata: name: web\n", "line 3 column 15"),
        ("bracket", b"a: [1, 2\nb: 3\n", "line 2 column 2"),
        ("json", b"{\"a\": 1,\n \"b\": }x", "line 2"),
        ("not text", b"\xff\xfe\x00", "not valid YAML or JSON"),
        ("empty", b"", "the manifest is empty"),
        ("blank", b"\n---\n# nothing\n---\n", "the manifest is empty"),
        ("infinite", b"a: .inf", "infinity and NaN are not allowed"),
    ] {
        let error = decode_manifest(bytes).expect_err(name).to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }
    let Err(ManifestError::Syntax { location, .. }) = decode_manifest(b"a: b\nc: d: e\n") else { panic!() };
    assert_eq!(location, Some((2, 5)));
}

#[test]
fn scalars_mean_what_they_mean_to_upstream() {
    let value = |text: &str| {
        let documents = value::read(format!("a: {text}\n").as_bytes()).unwrap();
        documents[0].value["a"].clone()
    };
    for (text, expected) in [
        ("0644", serde_json::json!(0o644)),
        ("0o644", serde_json::json!(0o644)),
        ("0x10", serde_json::json!(16)),
        ("1_000", serde_json::json!(1000)),
        ("-012", serde_json::json!(-10)),
        ("089", serde_json::json!(89.0)),
        ("\"0644\"", serde_json::json!("0644")),
        ("'0644'", serde_json::json!("0644")),
        ("!!str 0644", serde_json::json!("0644")),
        ("yes", serde_json::json!(true)),
        ("Off", serde_json::json!(false)),
        ("\"yes\"", serde_json::json!("yes")),
        ("'y'", serde_json::json!("y")),
        ("yes sir", serde_json::json!("yes sir")),
        ("true", serde_json::json!(true)),
        ("0.5", serde_json::json!(0.5)),
        ("1.2.3", serde_json::json!("1.2.3")),
        ("12:30", serde_json::json!("12:30")),
        ("2026-11-15", serde_json::json!("2026-11-15")),
        ("10.0.0.1", serde_json::json!("10.0.0.1")),
        ("0xzz", serde_json::json!("0xzz")),
        ("~", serde_json::json!(null)),
        ("", serde_json::json!(null)),
        ("!mine 5", serde_json::json!(5)),
        ("[0644, \"0644\"]", serde_json::json!([0o644, "0644"])),
        ("|\n  0644", serde_json::json!("0644\n")),
    ] {
        assert_eq!(value(text), expected, "{text}");
    }
}

#[test]
fn aliases_and_merge_keys() {
    let text =
        "base: &base {a: 1, b: 2}\nmade: {<<: *base, b: 3, c: *base}\nboth:\n  <<: [{x: 1}, {x: 2, y: 2}]\n";
    let value = value::read(text.as_bytes()).unwrap().remove(0).value;
    assert_eq!(value["made"], serde_json::json!({"b": 3, "c": {"a": 1, "b": 2}, "a": 1}));
    assert_eq!(value["both"], serde_json::json!({"x": 1, "y": 2}));
}

#[test]
fn numbers_are_quantities_and_modes_octal() {
    let text = POD.to_owned()
        + "    resources: {limits: {cpu: 1, memory: 1e3}, requests: {cpu: 0.5}}\n  volumes:\n  - name: v\n    secret: {secretName: s, defaultMode: 0400}\n";
    let spec = pod(&text).spec.unwrap();
    let resources = spec.containers[0].resources.clone().unwrap();
    assert_eq!(resources.limits.as_ref().unwrap()["cpu"].0, "1");
    assert_eq!(resources.limits.unwrap()["memory"].0, "1000");
    assert_eq!(resources.requests.unwrap()["cpu"].0, "0.5");
    assert_eq!(spec.volumes.unwrap()[0].secret.as_ref().unwrap().default_mode, Some(0o400));
}

#[test]
fn unknown_and_repeated_fields_are_warned_about() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  label: {a: b}\nspec:\n  containers:\n  - name: a\n    image: b\n    image: c\n    enV: []\n  \
                restartpolicy: Never\n  whatever: 1\n  nothing: null\nstatus: {nonsense: 1}\n";
    let document = one(text);
    assert_eq!(
        document.warnings,
        [
            "spec.containers[0].image: given twice; the last one counts, remove the other",
            "metadata.label: unknown field, ignored; did you mean labels?",
            "spec.containers[0].enV: unknown field, ignored; did you mean env?",
            "spec.restartpolicy: unknown field, ignored; did you mean restartPolicy?",
            "spec.whatever: unknown field, ignored; is it at the right depth?",
        ]
    );
    let Ok(Content::Pod(pod)) = document.content else { panic!() };
    assert_eq!(pod.spec.unwrap().containers[0].image.as_deref(), Some("c"));
}

#[test]
fn all_wrong_types_at_once_with_the_rest_checked_too() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: {a: 1}}\nspec:\n  hostNetwork: \"true\"\n  activeDeadlineSeconds: -1\n  containers:\n  \
                - name: a\n    image: [b]\n    args: [1]\n    ports: {containerPort: 80}\n  - name: a\n    image: b\n    tty: 1\n";
    assert_eq!(
        problems(text),
        [
            "metadata.labels.a: Invalid value: 1: must be a string; put it in quotes",
            "spec.hostNetwork: Invalid value: \"true\": must be true or false; write it without quotes",
            "spec.containers[0].image: Invalid value: a list: must be a string",
            "spec.containers[0].args[0]: Invalid value: 1: must be a string; put it in quotes",
            "spec.containers[0].ports: Invalid value: a mapping: must be a list; begin each entry with '- '",
            "spec.containers[1].tty: Invalid value: 1: must be true or false",
            "spec.containers[1].name: Duplicate value: \"a\": give each its own",
            "spec.activeDeadlineSeconds: Invalid value: -1: must be between 1 and 2147483647, inclusive",
        ]
    );
}

#[test]
fn kinds_that_are_not_supported() {
    for (text, expected) in [
        ("kind: Pod", "apiVersion: Required value: write apiVersion: v1"),
        (
            "apiVersion: v1",
            "kind: Required value: supported are v1 Pod, ConfigMap, Secret, List and PodList, and node.k8s.io/v1 RuntimeClass",
        ),
        ("apiVersion: v2\nkind: Pod", "apiVersion: Unsupported value: \"v2\": supported values: \"v1\""),
        (
            "apiVersion: v1\nkind: pod",
            "kind: Unsupported value: \"v1 pod\": supported are v1 Pod, ConfigMap, Secret, List and PodList, and node.k8s.io/v1 RuntimeClass (did you mean Pod?)",
        ),
        (
            "just text",
            "Invalid value: must be a mapping with apiVersion and kind; supported are v1 Pod, ConfigMap, Secret, List and PodList, and node.k8s.io/v1 RuntimeClass",
        ),
        (
            "apiVersion: v1\nkind: List\nitems: 5",
            "items: Invalid value: must be a list of objects, and a list cannot hold lists",
        ),
        (
            "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: List, items: []}]",
            "items: Invalid value: must be a list of objects, and a list cannot hold lists",
        ),
    ] {
        assert_eq!(problems(text), [expected], "{text}");
    }
}

#[test]
fn no_message_shows_a_secret() {
    let text = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {a: hunter2!}\nstringData: {b: 424242, c: [hunter2]}\n";
    let problems = problems(text);
    assert_eq!(problems.len(), 3, "{problems:?}");
    for problem in problems {
        assert!(!problem.contains("hunter2") && !problem.contains("4242"), "{problem}");
    }
}

#[test]
fn a_raw_document_reads_the_same_again() {
    let first = one(POD);
    let again = decode_raw(first.raw.clone());
    assert_eq!(again.identity, first.identity);
    assert_eq!(again.raw, first.raw);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _read = decode_manifest(&bytes);
    }

    #[test]
    fn arbitrary_yaml_never_panics(text in "(---\n|[-:,{}\\[\\]&*!|>'\"#%@`?~<0-9a-zA-Z \n]){0,200}") {
        let _read = decode_manifest(text.as_bytes());
    }

    /// Damage to a good manifest: one piece replaced by another text.
    #[test]
    fn damaged_manifests_never_panic(at in 0..POD.len(), length in 0..20_usize, text in "\\PC{0,20}") {
        let bytes = POD.as_bytes();
        let end = (at + length).min(bytes.len());
        let damaged = [&bytes[..at], text.as_bytes(), &bytes[end..]].concat();
        for document in decode_manifest(&damaged).into_iter().flatten() {
            if let Ok(Content::Pod(pod)) = document.content {
                let place = crate::StaticPodPlace {
                    node_name: "n",
                    source: mainstay_types::PodSource::File,
                    origin: "/f",
                    api_server: false,
                    gates: crate::PodGates::DEFAULT,
                };
                let _prepared = crate::prepare_static_pod(pod, &place);
            }
        }
    }
}
