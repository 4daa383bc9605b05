//! The server of `tools/probe-target`: what probes and hooks ask.

use anyhow::Result;
use mainstay_testkit::{Containerd, Flavor, Image, tool};
use serde_json::{Value, json};

use crate::World;

const TARGET: &str = "docker.io/local/probe-target:1";

impl World {
    /// A node whose runtime has the server, with KubeletConfiguration fields as YAML.
    ///
    /// # Errors
    /// When the server was not built, or containerd or mainstay does not start.
    pub fn with_target(flavor: Flavor, config: &str) -> Result<Self> {
        let image = Image::named(TARGET).program("/bin/probe-target", &tool("probe-target")?)?;
        Self::on(Containerd::builder(flavor).image(image).start()?, config)
    }
}

/// A container that serves HTTP (8080), HTTPS (8443) and gRPC health (9090).
pub fn target(name: &str) -> Value {
    json!({
        "name": name, "image": TARGET, "imagePullPolicy": "IfNotPresent", "command": ["/bin/probe-target"],
        "ports": [{ "name": "web", "containerPort": 8080 }],
    })
}
