//! An image that was pulled with somebody's secret is not everybody's because it is there
//! (`imagePullCredentialsVerificationPolicy`), on either runtime.

use std::fs;

use anyhow::{Context, Result, ensure};
use mainstay_e2e::{
    idle,
    member::{Member, PODS},
    seen::PATIENCE,
    with,
};
use mainstay_testkit::{Containerd, ControlPlane, Flavor, Image, Registry, wait_until};
use serde_json::{Value, json};

const IMAGE: &str = "closed.test/team/private:1";

fn login(member: &Member, name: &str, password: &str) -> Result<()> {
    let config = json!({ "auths": { "closed.test": { "username": "puller", "password": password } } });
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "type": "kubernetes.io/dockerconfigjson",
        "stringData": { ".dockerconfigjson": config.to_string() },
    });
    member.plane.create("/api/v1/namespaces/default/secrets", &secret).map(drop)
}

fn uses(member: &Member, name: &str, secret: Option<&str>, policy: &str) -> Result<()> {
    let image = json!({ "image": IMAGE, "imagePullPolicy": policy });
    let secrets: Vec<Value> = secret.iter().map(|name| json!({ "name": name })).collect();
    let spec = json!({
        "terminationGracePeriodSeconds": 1, "containers": [with(idle("c"), image)], "imagePullSecrets": secrets,
    });
    member.bind(name, spec).map(drop)
}

fn waits(member: &Member, name: &str, reasons: &[&str]) -> Result<()> {
    member
        .until(&format!("{PODS}/{name}"), &format!("{name} to wait with {reasons:?}"), |pod| {
            let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"];
            reasons.iter().any(|reason| waiting == reason)
        })
        .map(drop)
}

fn shown_on(flavor: Flavor) -> Result<()> {
    let containerd = Containerd::start(flavor)?;
    let mut registry = Registry::with_login("puller", "s3cret")?;
    registry.serve_as("closed.test", &containerd)?;
    registry.push(&containerd, &Image::named("docker.io/local/private:1"), "team/private:1")?;
    let plane = ControlPlane::start(containerd.dir().join("cluster"))?;
    let mut member = Member::on(containerd, plane, None, |_, builder| Ok(builder))?;
    login(&member, "login", "s3cret")?;
    login(&member, "copy", "s3cret")?;
    login(&member, "wrong", "guess")?;

    uses(&member, "owner", Some("login"), "IfNotPresent")?;
    member.ready("owner")?;
    member.told("owner", "Pulled", "Successfully pulled image")?;
    let dir = member.node.root().join("image_manager");
    let record = wait_until(PATIENCE, "what it was pulled with", || {
        let mut files = fs::read_dir(dir.join("pulled")).map_err(|error| error.to_string())?.flatten();
        let file = files.find(|entry| !entry.file_name().to_string_lossy().ends_with(".tmp"));
        let text = fs::read_to_string(file.ok_or("none")?.path()).map_err(|error| error.to_string())?;
        if text.contains("closed.test/team/private") { Ok(text) } else { Err(text) }
    })?;
    ensure!(record.contains(r#""name":"login""#) && !record.contains("s3cret"), "{record}");

    // Whoever cannot show it is refused by the registry, or told that there is no image for it.
    let refused = ["ErrImagePull", "ImagePullBackOff"];
    uses(&member, "stranger", None, "IfNotPresent")?;
    uses(&member, "mistaken", Some("wrong"), "IfNotPresent")?;
    uses(&member, "waiting", None, "Never")?;
    waits(&member, "stranger", &refused)?;
    waits(&member, "mistaken", &refused)?;
    waits(&member, "waiting", &["ErrImageNeverPull"])?;
    // The same password in another Secret is as good, without a pull; and for a pod that must never pull.
    uses(&member, "friend", Some("copy"), "Never")?;
    member.ready("friend")?;
    member.told("friend", "Pulled", "already present on machine and can be accessed by the pod")?;

    // Also after a restart, and without the registry: what is noted is proof enough.
    member.node.kill9();
    registry.kill9();
    member.node.start_again()?;
    uses(&member, "again", Some("login"), "IfNotPresent")?;
    member.ready("again")?;
    uses(&member, "another", None, "IfNotPresent")?;
    waits(&member, "another", &refused)?;
    waits(&member, "stranger", &refused)?;
    ensure!(!member.node.log().contains("s3cret"), "a password is not logged");
    Ok(())
}

#[test]
fn only_those_who_have_the_secret_use_the_image_on_containerd_1() -> Result<()> {
    shown_on(Flavor::Debian16).context("containerd 1.6")
}

#[test]
fn only_those_who_have_the_secret_use_the_image_on_containerd_2() -> Result<()> {
    shown_on(Flavor::Built24).context("containerd 2.4")
}
