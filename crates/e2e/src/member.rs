//! A node of a real cluster, asked the way a user of the API server would ask.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, ensure};
use mainstay_testkit::{Containerd, ControlPlane, Flavor, Node, NodeBuilder, wait_until};
use serde_json::{Value, json};

use crate::{pod, seen::PATIENCE, with};

/// The path of the default namespace's pods.
pub const PODS: &str = "/api/v1/namespaces/default/pods";
/// The path of the node's object.
pub const NODE: &str = "/api/v1/nodes/node";

/// A private containerd, a control plane and a node called `node`, which goes first when all are dropped.
#[derive(Debug)]
pub struct Member {
    /// mainstay.
    pub node: Node,
    /// etcd and the API server.
    pub plane: ControlPlane,
    /// The node's runtime.
    pub containerd: Containerd,
}

impl Member {
    /// All three, with KubeletConfiguration fields as YAML laid over the kit's configuration. Returns when the node is Ready.
    ///
    /// # Errors
    /// When one of them does not start.
    pub fn start(config: &str) -> Result<Self> {
        let config = config.to_owned();
        Self::start_with(|_, builder| Ok(builder.config(config)))
    }

    /// The same with a node that `build` has the last word on.
    ///
    /// # Errors
    /// When one of them does not start.
    pub fn start_with(build: impl FnOnce(&Containerd, NodeBuilder) -> Result<NodeBuilder>) -> Result<Self> {
        let containerd = Containerd::start(Flavor::Debian16)?;
        let plane = ControlPlane::start(containerd.dir().join("cluster"))?;
        Self::on(containerd, plane, None, build)
    }

    /// The same on parts that are there, through another kubeconfig if one is given.
    ///
    /// # Errors
    /// When the node does not start.
    pub fn on(
        containerd: Containerd,
        plane: ControlPlane,
        kubeconfig: Option<PathBuf>,
        build: impl FnOnce(&Containerd, NodeBuilder) -> Result<NodeBuilder>,
    ) -> Result<Self> {
        let clients = containerd.dir().join("clients.crt");
        fs::write(&clients, &plane.authority().pem).context("cannot write the clients' authority")?;
        let kubeconfig = match kubeconfig {
            Some(given) => given,
            None => plane.node_kubeconfig("node")?,
        };
        let builder = Node::builder()
            .containerd(&containerd)
            .config(format!("authentication: {{x509: {{clientCAFile: {}}}}}", clients.display()))
            .args([format!("--kubeconfig={}", kubeconfig.display()), "--node-ip=127.0.0.1".to_owned()]);
        let node = build(&containerd, builder)?.start()?;
        let member = Self { node, plane, containerd };
        member.until(NODE, "the node to be Ready", |node| condition(node, "Ready") == "True")?;
        Ok(member)
    }

    /// An object as the API server has it.
    ///
    /// # Errors
    /// With what the API server said instead.
    pub fn get(&self, path: &str) -> Result<Value, String> {
        let answer = self.plane.send("GET", path, None).map_err(|error| format!("{error:#}"))?;
        if answer.status != 200 {
            return Err(format!("{path}: {} {}", answer.status, answer.text()));
        }
        serde_json::from_slice(&answer.body).map_err(|error| error.to_string())
    }

    /// A pod as the node itself has it.
    ///
    /// # Errors
    /// When it does not answer, or has no such pod.
    pub fn own(&self, name: &str) -> Result<Value, String> {
        let pods = self.node.get("/pods").map_err(|error| format!("{error:#}"))?;
        let pods: Value = serde_json::from_str(&pods).map_err(|error| error.to_string())?;
        let mut all = pods["items"].as_array().into_iter().flatten();
        let found = all.find(|pod| pod["metadata"]["name"] == name);
        found.cloned().ok_or_else(|| format!("no {name}: {pods}"))
    }

    /// Waits for an event of a pod, as the API server has it.
    ///
    /// # Errors
    /// When there is none, with those that there are.
    pub fn told(&self, pod: &str, reason: &str, text: &str) -> Result<()> {
        let path = format!(
            "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D{pod},reason%3D{reason}"
        );
        wait_until(3 * PATIENCE, &format!("{reason} of {pod}: {text}"), || {
            let events = self.get(&path)?;
            let mut all = events["items"].as_array().into_iter().flatten();
            let says = all.any(|event| event["message"].as_str().unwrap_or_default().contains(text));
            if says { Ok(()) } else { Err(events.to_string()) }
        })
    }

    /// The object, once it is as wanted.
    ///
    /// # Errors
    /// After [`PATIENCE`], with the object.
    pub fn until(&self, path: &str, what: &str, is: impl Fn(&Value) -> bool) -> Result<Value> {
        // Those who listen to an API server that was away come back after up to a minute.
        wait_until(3 * PATIENCE, what, || {
            let object = self.get(path)?;
            if is(&object) { Ok(object) } else { Err(object.to_string()) }
        })
    }

    /// Makes a pod in the default namespace, bound to the node without a scheduler.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub fn bind(&self, name: &str, spec: Value) -> Result<Value> {
        self.plane.create(PODS, &pod(name, with(spec, json!({ "nodeName": "node" }))))
    }

    /// The pod, once it is Ready.
    ///
    /// # Errors
    /// After [`PATIENCE`].
    pub fn ready(&self, name: &str) -> Result<Value> {
        self.until(&format!("{PODS}/{name}"), "the pod to be Ready", |pod| condition(pod, "Ready") == "True")
    }

    /// Asks for an object's end; `query` such as `gracePeriodSeconds=0`.
    ///
    /// # Errors
    /// When the API server refuses.
    pub fn delete(&self, path: &str, query: &str) -> Result<()> {
        let answer = self.plane.send("DELETE", &format!("{path}?{query}"), None)?;
        ensure!(answer.status == 200, "{path}: {} {}", answer.status, answer.text());
        Ok(())
    }

    /// Waits until there is no such object.
    ///
    /// # Errors
    /// After [`PATIENCE`].
    pub fn gone(&self, path: &str) -> Result<()> {
        wait_until(3 * PATIENCE, "the end of an object", || {
            let answer = self.plane.send("GET", path, None).map_err(|error| format!("{error:#}"))?;
            if answer.status == 404 { Ok(()) } else { Err(answer.text()) }
        })
    }

    /// Changes an object, or its `/status`, as a strategic merge.
    ///
    /// # Errors
    /// When the API server refuses.
    pub fn patch(&self, path: &str, change: &Value) -> Result<()> {
        let headers = [("Content-Type", "application/strategic-merge-patch+json")];
        let answer = self.plane.admin()?.send("PATCH", path, &headers, change.to_string().as_bytes())?;
        ensure!(answer.status == 200, "{path}: {} {}", answer.status, answer.text());
        Ok(())
    }
}

/// The status of a condition; empty if the object has none of that type.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().find(|it| it["type"] == kind).and_then(|it| it["status"].as_str()).unwrap_or_default()
}

/// The ID of a pod's first container.
pub fn container_id(pod: &Value) -> &str {
    pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap_or_default()
}
