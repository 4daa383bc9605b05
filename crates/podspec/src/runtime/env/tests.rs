use super::super::fixtures::{World, pod, pod_of, resource_list};
use super::*;

/// `A=1 B=2`, or the error's text.
#[track_caller]
fn check(world: &World, container: &str, expected: &str) {
    check_pod(world, &pod_of(container), expected);
}

#[track_caller]
fn check_pod(world: &World, pod: &Pod, expected: &str) {
    let shown = match world.config(pod) {
        Ok(config) => {
            config.envs.iter().map(|env| format!("{}={}", env.key, env.value)).collect::<Vec<_>>().join(" ")
        }
        Err(error) => {
            assert_eq!(error.reason(), "CreateContainerConfigError");
            error.to_string()
        }
    };
    assert_eq!(shown, expected);
}

fn world() -> World {
    let mut world = World::default();
    world.add_config_map("{metadata: {name: cm}, data: {B: b, A: a, 'odd.key': o}, binaryData: {BIN: AAAA}}");
    world.add_secret("{metadata: {name: s}, data: {PASS: cHc=, RAW: //79}, stringData: {TEXT: t}}");
    world.add_secret("{metadata: {name: clean}, data: {PASS: cHc=, A: eA==}, stringData: {A: y}}");
    world
}

#[test]
fn literals_expand_against_what_stands_before() {
    check(
        &World::default(),
        "env: [{name: B, value: '$(A)'}, {name: A, value: x}, {name: C, value: '$(A)-$(B)-$$(A)-$(NONE)'}, {name: EMPTY}, {name: A, value: '$(A)y'}]",
        "B=$(A) A=xy C=x-$(A)-$(A)-$(NONE) EMPTY=",
    );
}

/// A page of variables that name one another would be gigabytes.
#[test]
fn variables_that_grow_are_refused() {
    let mut env = format!("{{name: A0, value: '{}'}}", "x".repeat(1000));
    for level in 1..5 {
        let (before, hundred) = (level - 1, 100);
        env += &format!(", {{name: A{level}, value: '{}'}}", format!("$(A{before})").repeat(hundred));
    }
    let bomb = format!("env: [{env}]");
    let error = World::default().config(&pod_of(&bomb)).unwrap_err().to_string();
    assert!(error.starts_with("the environment variable A2 becomes longer than 1048576 bytes"), "{error}");
    // Each of them is short enough, all together are not; nor are the words of a command.
    let half = format!("{{name: A, value: '{}'}}", "x".repeat(1 << 19));
    let many = (0..16).map(|n| format!("{{name: B{n}, value: $(A)}}")).collect::<Vec<_>>().join(", ");
    let error = World::default().config(&pod_of(&format!("env: [{half}, {many}]"))).unwrap_err();
    assert!(matches!(error, SpecError::TooMuch { .. }), "{error}");
    for (words, expected) in [("$(A)$(A)$(A)", "a word of args of container c becomes longer"), ("$(A)", "")]
    {
        let args = vec![words; 20].join(", ");
        let error = World::default().config(&pod_of(&format!("env: [{half}], args: [{args}]"))).unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error}");
        assert!(matches!(error, SpecError::TooLong { .. } | SpecError::TooMuch { .. }), "{error}");
    }
}

#[test]
fn env_from() {
    let world = world();
    check(&world, "envFrom: [{configMapRef: {name: cm}}]", "A=a B=b odd.key=o");
    check(&world, "envFrom: [{prefix: P_, configMapRef: {name: cm}}]", "P_A=a P_B=b P_odd.key=o");
    check(
        &world,
        "envFrom: [{configMapRef: {name: cm}}, {secretRef: {name: clean}}]",
        "A=y B=b odd.key=o PASS=pw",
    );
    check(
        &world,
        "envFrom: [{secretRef: {name: clean}}], env: [{name: A, value: '$(A)$(PASS)'}]",
        "A=ypw PASS=pw",
    );
    check(
        &world,
        "envFrom: [{configMapRef: {name: no, optional: true}}, {secretRef: {name: no, optional: true}}]",
        "",
    );
    check(&world, "envFrom: [{configMapRef: {name: no}}]", "configmap \"no\" not found");
    check(&world, "envFrom: [{secretRef: {name: no, optional: false}}]", "secret \"no\" not found");
    check(
        &world,
        "envFrom: [{secretRef: {name: s}}]",
        "key RAW in Secret default/s is not UTF-8 text and cannot be an environment variable; mount the Secret as a volume instead",
    );
}

#[test]
fn keys_of_objects() {
    let world = world();
    let check = |source: &str, expected: &str| {
        check(&world, &format!("env: [{{name: X, valueFrom: {{{source}}}}}]"), expected);
    };
    check("configMapKeyRef: {name: cm, key: A}", "X=a");
    check("configMapKeyRef: {name: cm, key: k}", "couldn't find key k in ConfigMap default/cm");
    check("configMapKeyRef: {name: cm, key: BIN}", "couldn't find key BIN in ConfigMap default/cm");
    check("configMapKeyRef: {name: cm, key: k, optional: true}", "");
    check("configMapKeyRef: {name: no, key: k, optional: true}", "");
    check("configMapKeyRef: {name: no, key: k}", "configmap \"no\" not found");
    check("secretKeyRef: {name: s, key: PASS}", "X=pw");
    check("secretKeyRef: {name: s, key: TEXT}", "X=t");
    check("secretKeyRef: {name: s, key: k}", "couldn't find key k in Secret default/s");
    check("secretKeyRef: {name: s, key: k, optional: true}", "");
    check("secretKeyRef: {name: no, key: k}", "secret \"no\" not found");
}

#[test]
fn objects_of_other_namespaces_are_not_seen() {
    let mut pod = pod_of("envFrom: [{configMapRef: {name: cm}}]");
    pod.metadata.namespace = Some("other".to_owned());
    check_pod(&world(), &pod, "configmap \"cm\" not found");
}

#[test]
fn fields() {
    let mut world = World { pod_ips: vec!["10.1.1.1".to_owned(), "fd00::1".to_owned()], ..World::default() };
    world.node.host_ips = vec!["192.168.0.1".to_owned(), "fd01::1".to_owned()];
    let check = |world: &World, path: &str, expected: &str| {
        let mut pod = pod_of(&format!("env: [{{name: X, valueFrom: {{fieldRef: {{fieldPath: {path}}}}}}}]"));
        pod.metadata.labels = Some([("app".to_owned(), "a b".to_owned())].into());
        pod.metadata.annotations =
            Some([("x/n".to_owned(), "1\n\"2\"".to_owned()), ("b".to_owned(), "é".to_owned())].into());
        pod.spec.as_mut().unwrap().node_name = Some("node".to_owned());
        pod.spec.as_mut().unwrap().service_account_name = Some("sa".to_owned());
        check_pod(world, &pod, expected);
    };
    for (path, expected) in [
        ("metadata.name", "X=web"),
        ("metadata.namespace", "X=default"),
        ("metadata.uid", "X=uid"),
        ("\"metadata.labels['app']\"", "X=a b"),
        ("\"metadata.labels['none']\"", "X="),
        ("\"metadata.annotations['x/n']\"", "X=1\n\"2\""),
        ("metadata.labels", "X=app=\"a b\""),
        ("metadata.annotations", "X=b=\"é\"\nx/n=\"1\\n\\\"2\\\"\""),
        ("spec.nodeName", "X=node"),
        ("spec.serviceAccountName", "X=sa"),
        ("status.hostIP", "X=192.168.0.1"),
        ("status.hostIPs", "X=192.168.0.1,fd01::1"),
        ("status.podIP", "X=10.1.1.1"),
        ("status.podIPs", "X=10.1.1.1,fd00::1"),
        ("status.phase", "unsupported fieldPath: status.phase"),
        ("spec.bogus", "field label not supported: spec.bogus"),
        ("\"metadata.name['x']\"", "field label does not support subscript: metadata.name['x']"),
        ("metadata.name, apiVersion: v2", "unsupported pod version: v2"),
    ] {
        check(&world, path, expected);
    }
    world.node.host_ips.clear();
    world.pod_ips.clear();
    check(&world, "status.hostIP", "host IP unknown; known addresses: []");
    check(&world, "status.podIP", "X=");
    check(&world, "status.podIPs", "X=");
}

#[test]
fn resources() {
    let mut world = World::default();
    world.node.allocatable = resource_list(&[
        ("cpu", "3500m"),
        ("memory", "8Gi"),
        ("ephemeral-storage", "100Gi"),
        ("hugepages-2Mi", "4Mi"),
    ]);
    let spec = "{initContainers: [{name: i}], containers: [
        {name: c, env: [{name: X, valueFrom: {resourceFieldRef: {REF}}}],
         resources: {requests: {cpu: 250m, memory: 100M, hugepages-2Mi: 4Mi}, limits: {memory: 1Gi, hugepages-2Mi: 4Mi}}},
        {name: d, resources: {limits: {cpu: 1500m}}}]}";
    for (reference, expected) in [
        ("resource: requests.cpu", "X=1"),
        ("resource: requests.cpu, divisor: 1m", "X=250"),
        ("resource: requests.cpu, divisor: '0'", "X=1"),
        ("resource: requests.memory", "X=100000000"),
        ("resource: requests.memory, divisor: 1Mi", "X=96"),
        ("resource: limits.memory, divisor: 1Mi", "X=1024"),
        ("resource: limits.memory, divisor: 3Gi", "X=1"),
        ("resource: limits.cpu", "X=4"),
        ("resource: limits.cpu, divisor: 1m", "X=3500"),
        ("resource: limits.ephemeral-storage, divisor: 1Gi", "X=100"),
        ("resource: requests.ephemeral-storage", "X=0"),
        ("resource: requests.hugepages-2Mi", "X=4194304"),
        ("resource: limits.hugepages-1Gi", "X=0"),
        ("resource: limits.cpu, containerName: d", "X=2"),
        ("resource: limits.memory, containerName: d", "X=8589934592"),
        ("resource: limits.memory, containerName: i", "X=0"),
        ("resource: limits.memory, containerName: none", "container none not found"),
        ("resource: limits.pods", "unsupported container resource : limits.pods"),
        ("resource: cpu", "unsupported container resource : cpu"),
        ("resource: used.cpu", "unsupported container resource : used.cpu"),
    ] {
        check_pod(&world, &pod(&spec.replace("REF", reference)), expected);
    }
    // The pod's own limit comes before the node's.
    let spec = spec.replacen('{', "{resources: {limits: {cpu: 2, memory: 4Gi}}, ", 1);
    check_pod(&world, &pod(&spec.replace("REF", "resource: limits.cpu")), "X=2");
    check_pod(&world, &pod(&spec.replace("REF", "resource: limits.memory, divisor: 1Gi")), "X=1");
}

#[test]
fn files() {
    let mut world = World::default();
    let file = "# comment\n\n  A='x y'\nMULTI='1\n 2\n' # behind\nEMPTY=''\nSPACE= 'v'\nZ='z'\n";
    world.env_files.insert(("v".to_owned(), "a/env".to_owned()), file.to_owned());
    let pod = |reference: &str| {
        pod(&format!(
            "{{volumes: [{{name: v, emptyDir: {{}}}}], containers: [{{name: c, env: [{{name: X, valueFrom: {{fileKeyRef: {{{reference}}}}}}}]}}]}}"
        ))
    };
    for (reference, expected) in [
        ("volumeName: v, path: a/env, key: A", "X=x y"),
        ("volumeName: v, path: a/env, key: MULTI", "X=1\n 2\n"),
        ("volumeName: v, path: a/env, key: Z", "X=z"),
        (
            "volumeName: v, path: a/env, key: NO",
            "environment variable key \"NO\" not found in file \"a/env\"",
        ),
        (
            "volumeName: v, path: a/env, key: EMPTY",
            "environment variable key \"EMPTY\" not found in file \"a/env\"",
        ),
        ("volumeName: v, path: a/env, key: SPACE, optional: true", ""),
        ("volumeName: w, path: a/env, key: A", "cannot find the volume \"w\" referenced by FileKeyRef"),
        ("volumeName: v, path: b, key: A", "couldn't parse env file \"b\" of volume \"v\": no such file"),
    ] {
        check_pod(&world, &pod(reference), expected);
    }
    let refs = pod("volumeName: v, path: p, key: k");
    assert_eq!(env_file_refs(&refs.spec.unwrap().containers[0]).collect::<Vec<_>>(), [("v", "p")]);
}

#[test]
fn malformed_files() {
    for (text, why) in [
        ("A", "line 1: missing '='"),
        ("\n='x'", "line 2: empty variable name"),
        ("A ='x'", "line 1: whitespace before '=' is not allowed"),
        ("A=x", "line 1: value must be enclosed in single quotes"),
        ("A=\"x\"", "line 1: value must be enclosed in single quotes"),
        ("A='x' y", "line 1: unexpected content after closing quote"),
        ("B='b'\nA='x\ny", "line 2: unclosed single quote"),
    ] {
        let expected = format!("invalid environment variable format at {why}");
        assert_eq!(env_file_key(text, "A"), Err(expected), "{text}");
    }
    // What stands behind the key is not looked at, as upstream.
    assert_eq!(env_file_key("A='x'\nbroken", "A"), Ok(Some("x".to_owned())));
}

#[test]
fn device_plugins_come_first_and_lose() {
    let mut world = World::default();
    world.grants.envs = vec![("DEV".to_owned(), "plugin".to_owned()), ("GPU".to_owned(), "0".to_owned())];
    let pod = pod_of("command: ['$(DEV)', '$(GPU)'], env: [{name: DEV, value: 'own $(GPU)'}]");
    check_pod(&world, &pod, "DEV=plugin GPU=0 DEV=own $(GPU)");
    assert_eq!(world.config(&pod).unwrap().command, ["own $(GPU)", "0"]);
}

#[test]
fn quoting_as_go() {
    for (text, quoted) in [
        ("plain {x} '~'", r#""plain {x} '~'""#),
        ("a\"b\\c", r#""a\"b\\c""#),
        ("\u{7}\u{8}\u{c}\n\r\t\u{b}", r#""\a\b\f\n\r\t\v""#),
        ("\0\u{1f}\u{7f}", r#""\x00\x1f\x7f""#),
        ("é世e\u{301}", "\"é世e\u{301}\""),
        ("\u{85}\u{200b}\u{feff}", r#""\u0085\u200b\ufeff""#),
        ("\u{e0001}", r#""\U000e0001""#),
    ] {
        assert_eq!(go_quote(text), quoted);
    }
    let map = [("b", "2"), ("a", "1")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    assert_eq!(format_map(&map), "a=\"1\"\nb=\"2\"");
}
