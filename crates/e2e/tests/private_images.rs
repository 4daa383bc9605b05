//! An image that was pulled with somebody's secret is not everybody's because it is there
//! (`imagePullCredentialsVerificationPolicy`), on either runtime.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

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

/// Starts the node anew with another policy; its pods and what it has noted stay.
fn with_policy(member: &mut Member, policy: &str, more: &str) -> Result<()> {
    const FIELD: &str = "imagePullCredentialsVerificationPolicy";
    member.node.sigterm()?;
    let path = member.node.config_path();
    let text = fs::read_to_string(&path)?;
    let old = text.lines().filter(|line| !line.starts_with(FIELD) && !line.starts_with("preloadedImages"));
    let text: String = old.map(|line| format!("{line}\n")).collect();
    fs::write(&path, format!("{text}{FIELD}: {policy}\n{more}"))?;
    member.node.start_again()
}

/// A pod that would use an image only if it may without a pull.
fn without_pulling(member: &Member, name: &str, image: &str) -> Result<()> {
    let image = json!({ "image": image, "imagePullPolicy": "Never" });
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [with(idle("c"), image)] });
    member.bind(name, spec).map(drop)
}

#[test]
fn each_policy_asks_for_proof_where_it_says() -> Result<()> {
    let (put_there, listed) = (mainstay_testkit::BUSYBOX, "closed.test/listed/tool:1");
    let containerd = Containerd::start(Flavor::Debian16)?;
    let registry = Registry::with_login("puller", "s3cret")?;
    registry.serve_as("closed.test", &containerd)?;
    // Their own bytes: what is known of an image is known by its ID, whatever it is called.
    let private = Image::named("docker.io/local/private:1").file("whose", "private");
    registry.push(&containerd, &private, "team/private:1")?;
    registry.push(
        &containerd,
        &Image::named("docker.io/local/tool:1").file("whose", "tool"),
        "listed/tool:1",
    )?;
    let plane = ControlPlane::start(containerd.dir().join("cluster"))?;
    let mut member = Member::on(containerd, plane, None, |_, builder| {
        Ok(builder.config("imagePullCredentialsVerificationPolicy: NeverVerify"))
    })?;
    login(&member, "login", "s3cret")?;
    uses(&member, "owner", Some("login"), "IfNotPresent")?;
    member.ready("owner")?;
    let image = json!({ "image": listed, "imagePullPolicy": "IfNotPresent" });
    let spec = json!({
        "terminationGracePeriodSeconds": 1, "containers": [with(idle("c"), image)], "imagePullSecrets": [{ "name": "login" }],
    });
    member.bind("tool", spec)?;
    member.ready("tool")?;
    // What it was pulled with is noted, and nobody asks.
    for (name, image) in [("a1", IMAGE), ("a2", listed), ("a3", put_there)] {
        without_pulling(&member, name, image)?;
        member.ready(name)?;
    }

    let refused = ["ErrImageNeverPull"];
    with_policy(&mut member, "NeverVerifyPreloadedImages", "")?;
    without_pulling(&member, "b1", IMAGE)?;
    without_pulling(&member, "b2", listed)?;
    without_pulling(&member, "b3", put_there)?;
    waits(&member, "b1", &refused)?;
    waits(&member, "b2", &refused)?;
    member.ready("b3")?;

    with_policy(
        &mut member,
        "NeverVerifyAllowlistedImages",
        "preloadedImagesVerificationAllowlist: [\"closed.test/listed/*\"]\n",
    )?;
    without_pulling(&member, "c1", IMAGE)?;
    without_pulling(&member, "c2", listed)?;
    without_pulling(&member, "c3", put_there)?;
    waits(&member, "c1", &refused)?;
    member.ready("c2")?;
    waits(&member, "c3", &refused)?;

    with_policy(&mut member, "AlwaysVerify", "")?;
    without_pulling(&member, "d2", listed)?;
    without_pulling(&member, "d3", put_there)?;
    uses(&member, "d4", Some("login"), "Never")?;
    waits(&member, "d2", &refused)?;
    waits(&member, "d3", &refused)?;
    member.ready("d4")?;
    // What ran before any of this goes on.
    for name in ["owner", "tool", "a1", "a3"] {
        let pod = member.ready(name)?;
        ensure!(pod["status"]["containerStatuses"][0]["restartCount"] == 0, "{pod}");
    }
    Ok(())
}

/// A program that gives a login only for a token, and keeps what it was asked in a file.
fn provider(dir: &Path) -> Result<[String; 2]> {
    let (bin, file, asked) = (dir.join("providers"), dir.join("providers.json"), dir.join("asked"));
    fs::create_dir(&bin)?;
    let version = "credentialprovider.kubelet.k8s.io/v1";
    let answer = json!({
        "kind": "CredentialProviderResponse", "apiVersion": version, "cacheKeyType": "Registry",
        "auth": { "closed.test": { "username": "puller", "password": "s3cret" } },
    });
    let script = format!(
        "#!/bin/sh\nread -r question || :\necho \"$question\" >> {asked}\n\
         case \"$question\" in *'\"serviceAccountToken\":\"'*'\"example.com/team\":\"red\"'*) echo '{answer}' ;; *) exit 1 ;; esac\n",
        asked = asked.display()
    );
    fs::write(bin.join("provider"), script)?;
    fs::set_permissions(bin.join("provider"), fs::Permissions::from_mode(0o755))?;
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig",
        "providers": [{
            "name": "provider", "matchImages": ["*.test"], "defaultCacheDuration": "10m", "apiVersion": version,
            "tokenAttributes": {
                "serviceAccountTokenAudience": "registry", "cacheType": "ServiceAccount", "requireServiceAccount": true,
                "requiredServiceAccountAnnotationKeys": ["example.com/team"],
            },
        }],
    });
    fs::write(&file, config.to_string())?;
    Ok([
        format!("--image-credential-provider-config={}", file.display()),
        format!("--image-credential-provider-bin-dir={}", bin.display()),
    ])
}

fn of_account(member: &Member, name: &str, account: &str, policy: &str) -> Result<()> {
    let image = json!({ "image": IMAGE, "imagePullPolicy": policy });
    let spec = json!({
        "terminationGracePeriodSeconds": 1, "serviceAccountName": account, "containers": [with(idle("c"), image)],
    });
    member.bind(name, spec).map(drop)
}

#[test]
fn a_program_logs_in_by_the_pods_service_account() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let registry = Registry::with_login("puller", "s3cret")?;
    registry.serve_as("closed.test", &containerd)?;
    registry.push(&containerd, &Image::named("docker.io/local/private:1"), "team/private:1")?;
    let plane = ControlPlane::start(containerd.dir().join("cluster"))?;
    let asked = containerd.dir().join("asked");
    let member = Member::on(containerd, plane, None, |containerd, builder| {
        Ok(builder.args(provider(containerd.dir())?))
    })?;
    for (name, annotations) in
        [("red", json!({ "example.com/team": "red", "other": "unseen" })), ("plain", json!({}))]
    {
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name, "annotations": annotations },
        });
        member.plane.create("/api/v1/namespaces/default/serviceaccounts", &account)?;
    }
    // Nodes may not have tokens for whomever they like.
    of_account(&member, "first", "red", "IfNotPresent")?;
    member.told("first", "FailedToRetrieveImagePullSecret", "request-serviceaccounts-token-audience")?;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "registry-tokens" },
        "rules": [{ "apiGroups": [""], "resources": ["registry"], "verbs": ["request-serviceaccounts-token-audience"] }],
    });
    member.plane.create(&format!("{rbac}/clusterroles"), &role)?;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "registry-tokens" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "registry-tokens" },
        "subjects": [{ "kind": "Group", "name": "system:nodes", "apiGroup": "rbac.authorization.k8s.io" }],
    });
    member.plane.create(&format!("{rbac}/clusterrolebindings"), &binding)?;
    member.ready("first")?;

    // The token that the program was given is one of the pod's account, bound to the pod, for the registry alone.
    let text = fs::read_to_string(&asked)?;
    let question: Value = serde_json::from_str(text.lines().last().context("the program was not asked")?)?;
    ensure!(question["serviceAccountAnnotations"] == json!({ "example.com/team": "red" }), "{text}");
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "spec": { "token": question["serviceAccountToken"], "audiences": ["registry"] },
    });
    let verdict = member.plane.create("/apis/authentication.k8s.io/v1/tokenreviews", &review)?;
    let status = &verdict["status"];
    ensure!(status["authenticated"] == true && status["audiences"] == json!(["registry"]), "{verdict}");
    ensure!(status["user"]["username"] == "system:serviceaccount:default:red", "{verdict}");
    ensure!(
        status["user"]["extra"]["authentication.kubernetes.io/pod-name"] == json!(["first"]),
        "{verdict}"
    );

    // Who has the account may use the image, another may not; what the program said holds for the account.
    let times = text.lines().count();
    of_account(&member, "second", "red", "Never")?;
    member.ready("second")?;
    of_account(&member, "stranger", "plain", "IfNotPresent")?;
    waits(&member, "stranger", &["ErrImagePull", "ImagePullBackOff"])?;
    ensure!(
        fs::read_to_string(&asked)?.lines().count() == times,
        "it was asked again, or for one that lacks what it must have"
    );
    let log = member.node.log();
    let token = question["serviceAccountToken"].as_str().context("no token")?;
    ensure!(!log.contains(token) && !log.contains("s3cret"), "what is secret is not logged");
    Ok(())
}
