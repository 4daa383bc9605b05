//! What containers are told: variables, the pod about itself, what is said when something is missing.

use mainstay_e2e::{World, idle, pod, sh, with};
use mainstay_testkit::Flavor;
use serde_json::{Value, json};

const OBJECTS: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: first}
data: {COLOUR: red, SIZE: '1', 'odd.key-1': dots}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: second}
data: {COLOUR: blue}
---
apiVersion: v1
kind: Secret
metadata: {name: login}
data: {USER: YWxpY2U=, BINARY: /w==}
stringData: {PASSWORD: 'p$(USER)w'}
---
apiVersion: v1
kind: Secret
metadata: {name: text}
data: {TOKEN: YWJj}
";

fn field(name: &str, path: &str) -> Value {
    json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } })
}

fn resource(name: &str, resource: &str, container: &str, divisor: &str) -> Value {
    let from = json!({ "resource": resource, "containerName": container, "divisor": divisor });
    json!({ "name": name, "valueFrom": { "resourceFieldRef": from } })
}

/// A container that prints its variables, each as `NAME=value|`. (A shell forgets those with odd names.)
fn printing(name: &str, env: Value, more: Value) -> Value {
    let container =
        with(sh(name, "tr '\\0' '\\n' < /proc/1/environ | sed 's/$/|/'; echo printed; sleep 1000"), more);
    with(container, json!({ "env": env }))
}

fn assert_lines(log: &str, wanted: &[&str]) {
    for line in wanted {
        assert!(log.lines().any(|have| have == *line), "no line {line:?} in\n{log}");
    }
}

#[test]
fn variables_come_from_values_maps_and_secrets_and_the_last_one_wins() {
    let world = World::start(Flavor::Debian16).unwrap();
    world.node.write_manifest("objects.yaml", OBJECTS).unwrap();
    let env = json!([
        { "name": "A", "value": "one" },
        { "name": "B", "value": "$(A) two" },
        { "name": "LATER", "value": "$(C)" },
        { "name": "C", "value": "three" },
        { "name": "ESCAPED", "value": "$$(A) $$A $ $( $(A" },
        { "name": "FROM_MAP", "value": "$(COLOUR)/$(P_COLOUR)" },
        { "name": "USER_OF", "valueFrom": { "secretKeyRef": { "name": "login", "key": "USER" } } },
        // What comes out of an object is not expanded.
        { "name": "RAW", "valueFrom": { "secretKeyRef": { "name": "login", "key": "PASSWORD" } } },
        { "name": "KEY", "valueFrom": { "configMapKeyRef": { "name": "first", "key": "odd.key-1" } } },
        { "name": "SIZE", "value": "own" },
        { "name": "NO_KEY", "valueFrom": { "configMapKeyRef": { "name": "first", "key": "x", "optional": true } } },
        { "name": "NO_MAP", "valueFrom": { "configMapKeyRef": { "name": "none", "key": "x", "optional": true } } },
        { "name": "NO_SECRET", "valueFrom": { "secretKeyRef": { "name": "none", "key": "x", "optional": true } } },
        { "name": "EMPTY" },
    ]);
    let from = json!([
        { "configMapRef": { "name": "first" } },
        { "configMapRef": { "name": "second" } },
        { "prefix": "P_", "configMapRef": { "name": "first" } },
        { "prefix": "S_", "secretRef": { "name": "text" } },
        { "configMapRef": { "name": "none", "optional": true } },
        { "secretRef": { "name": "none", "optional": true } },
    ]);
    let args = json!({ "envFrom": from, "command": ["sh", "-c"], "args":
        ["tr '\\0' '\\n' < /proc/1/environ | sed 's/$/|/'; echo arg=$0; echo printed; sleep 1000", "$(A)-$(COLOUR)-$(NOPE)-$$(A)"] });
    world
        .put("vars", json!({ "terminationGracePeriodSeconds": 1, "containers": [printing("c", env, args)] }))
        .unwrap();
    let log = world.logged("vars", "c", "printed").unwrap();
    assert_lines(
        &log,
        &[
            "A=one|",
            "B=one two|",
            "LATER=$(C)|",
            "ESCAPED=$(A) $A $ $( $(A|",
            "FROM_MAP=blue/red|",
            "COLOUR=blue|",
            "P_COLOUR=red|",
            "odd.key-1=dots|",
            "P_odd.key-1=dots|",
            "S_TOKEN=abc|",
            "USER_OF=alice|",
            "RAW=p$(USER)w|",
            "KEY=dots|",
            "SIZE=own|",
            "P_SIZE=1|",
            "EMPTY=|",
            "arg=one-blue-$(NOPE)-$(A)",
        ],
    );
    for absent in ["NO_KEY", "NO_MAP", "NO_SECRET"] {
        assert!(!log.contains(absent), "an optional one that is missing is left out:\n{log}");
    }
}

#[test]
fn a_pod_is_told_of_itself_and_its_resources() {
    for flavor in Flavor::ALL {
        let world = World::start(flavor).unwrap();
        let env = json!([
            field("NAME", "metadata.name"),
            field("NAMESPACE", "metadata.namespace"),
            field("UID", "metadata.uid"),
            field("LABEL", "metadata.labels['app.test/name']"),
            field("NO_LABEL", "metadata.labels['none']"),
            field("ANNOTATION", "metadata.annotations['note']"),
            field("NODE", "spec.nodeName"),
            field("ACCOUNT", "spec.serviceAccountName"),
            field("HOST_IP", "status.hostIP"),
            field("HOST_IPS", "status.hostIPs"),
            field("POD_IP", "status.podIP"),
            field("POD_IPS", "status.podIPs"),
            resource("CPU_LIMIT", "limits.cpu", "", "1m"),
            resource("CPU_CORES", "limits.cpu", "", "1"),
            resource("CPU_REQUEST", "requests.cpu", "", "1m"),
            resource("MEMORY_LIMIT", "limits.memory", "", "1Mi"),
            resource("MEMORY_REQUEST", "requests.memory", "", "0"),
            resource("STORAGE_LIMIT", "limits.ephemeral-storage", "", "1Mi"),
            resource("OTHER_CPU", "requests.cpu", "other", "1m"),
        ]);
        let resources = json!({
            "requests": { "cpu": "50m", "memory": "16Mi" },
            "limits": { "cpu": "150m", "memory": "33Mi", "ephemeral-storage": "100Mi" },
        });
        let other = with(idle("other"), json!({ "resources": { "requests": { "cpu": "20m" } } }));
        let mut manifest = pod(
            "self",
            json!({
                "terminationGracePeriodSeconds": 1,
                "serviceAccountName": "",
                "containers": [printing("c", env, json!({ "resources": resources })), other],
            }),
        );
        manifest["metadata"]["labels"] = json!({ "app.test/name": "x y".replace(' ', "-") });
        manifest["metadata"]["annotations"] = json!({ "note": "two words" });
        world.put_manifest("self", &manifest).unwrap();
        let seen = world.running("self").unwrap();
        let log = world.logged("self", "c", "printed").unwrap();
        let (ip, host) = (seen.text("/status/podIP"), seen.text("/status/hostIP"));
        assert!(!ip.is_empty() && !host.is_empty() && ip != host);
        let hosts: Vec<&str> = seen.0["status"]["hostIPs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|ip| ip["ip"].as_str().unwrap())
            .collect();
        assert_lines(
            &log,
            &[
                "NAME=self-node|",
                "NAMESPACE=default|",
                &format!("UID={}|", seen.uid()),
                "LABEL=x-y|",
                "NO_LABEL=|",
                "ANNOTATION=two words|",
                "NODE=node|",
                "ACCOUNT=|",
                &format!("HOST_IP={host}|"),
                &format!("HOST_IPS={}|", hosts.join(",")),
                &format!("POD_IP={ip}|"),
                &format!("POD_IPS={ip}|"),
                "CPU_LIMIT=150|",
                "CPU_CORES=1|",
                "CPU_REQUEST=50|",
                "MEMORY_LIMIT=33|",
                "MEMORY_REQUEST=16777216|",
                "STORAGE_LIMIT=100|",
                "OTHER_CPU=20|",
            ],
        );
    }
}

#[test]
fn what_is_missing_is_named_in_the_status_and_in_an_event_and_awaited() {
    let world = World::start(Flavor::Debian16).unwrap();
    world.node.write_manifest("objects.yaml", OBJECTS).unwrap();
    world.put("bystander", json!({ "containers": [idle("c")] })).unwrap();
    let key = |kind: &str, name: &str, key: &str| json!([{ "name": "X", "valueFrom": { kind: { "name": name, "key": key } } }]);
    let cases = [
        (
            "no-map",
            json!({ "env": key("configMapKeyRef", "absent", "k") }),
            r#"configmap "absent" not found"#,
        ),
        ("no-secret", json!({ "env": key("secretKeyRef", "absent", "k") }), r#"secret "absent" not found"#),
        (
            "no-map-key",
            json!({ "env": key("configMapKeyRef", "first", "k") }),
            "couldn't find key k in ConfigMap default/first",
        ),
        (
            "no-secret-key",
            json!({ "env": key("secretKeyRef", "login", "k") }),
            "couldn't find key k in Secret default/login",
        ),
        (
            "no-map-from",
            json!({ "envFrom": [{ "configMapRef": { "name": "absent" } }] }),
            r#"configmap "absent" not found"#,
        ),
        (
            "binary",
            json!({ "env": key("secretKeyRef", "login", "BINARY") }),
            "key BINARY in Secret default/login is not UTF-8 text and cannot be an environment variable; mount the Secret as a volume instead",
        ),
    ];
    for (name, more, _) in &cases {
        world.put(name, json!({ "containers": [with(idle("c"), more.clone()), idle("other")] })).unwrap();
    }
    for (name, _, message) in &cases {
        let seen = world
            .wait(name, message, |pod| {
                pod.waits("c") == "CreateContainerConfigError" && pod.waiting_message("c") == *message
            })
            .unwrap();
        assert_eq!(seen.phase(), "Pending", "{name}");
        let event = world.event(name, "Failed", message).unwrap();
        assert_eq!(
            (event.message.as_str(), event.field_path.as_str()),
            (&*format!("Error: {message}"), "spec.containers{c}")
        );
        world.wait(name, "the other container", |pod| pod.runs("other")).unwrap();
    }
    let bystander = world.running("bystander").unwrap();
    assert_eq!(bystander.restarts("c"), 0);
    // Both objects come, and what waited for them starts.
    let late = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: absent}\ndata: {k: v}\n---\n\
                apiVersion: v1\nkind: Secret\nmetadata: {name: absent}\nstringData: {k: v}\n";
    world.node.write_manifest("late.yaml", late).unwrap();
    for name in ["no-map", "no-secret", "no-map-from"] {
        world.running(name).unwrap();
    }
}
