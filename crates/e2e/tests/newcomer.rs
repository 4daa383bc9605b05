//! What somebody meets who tries mainstay for the first time: each mistake is named where it was made.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use mainstay_testkit::mainstay_binary;

fn mainstay(args: &[&str]) -> Result<Output> {
    Command::new(mainstay_binary()?).args(args).output().context("cannot run mainstay")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

#[test]
fn a_node_name_that_cannot_be_one_is_blamed_and_not_the_pods() -> Result<()> {
    let root = tempfile::tempdir()?;
    let dir = root.path().display().to_string();
    let ended = mainstay(&[
        "run",
        "--root-dir",
        &dir,
        "--manifests",
        &dir,
        "--node-name",
        "N_1",
        "--healthz-port",
        "0",
    ])?;
    let text = said(&ended);
    ensure!(ended.status.code() == Some(1), "{}: {text}", ended.status);
    ensure!(text.contains("\"n_1\" cannot be the name of a node") && text.contains("--node-name"), "{text}");
    Ok(())
}

#[test]
fn a_port_that_is_none_is_told_with_what_may_be_one() -> Result<()> {
    for port in ["0", "65536", "-1", "web"] {
        let ended = mainstay(&["run", &format!("--port={port}")])?;
        ensure!(ended.status.code() == Some(64), "{port}: {}: {}", ended.status, said(&ended));
        ensure!(said(&ended).contains("--port"), "{port}: {}", said(&ended));
    }
    let zero = said(&mainstay(&["run", "--port=0"])?);
    ensure!(zero.contains("1..=65535") || zero.contains("1..65536"), "{zero}");
    Ok(())
}

#[test]
fn check_tells_what_will_never_work_and_who_could_let_himself_in() -> Result<()> {
    let root = tempfile::tempdir()?;
    let write = |name: &str, text: &str| -> Result<String> {
        let path = root.path().join(name);
        fs::write(&path, text)?;
        Ok(path.display().to_string())
    };
    let pod = write(
        "pod.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: c\n    image: busybox\n    \
         securityContext: {capabilities: {add: [FLY]}}\n    readinessProbe: {httpGet: {port: web}}\n  \
         volumes: [{name: v, gitRepo: {repository: x}}]\n  readinessGates: [{conditionType: fed}]\n",
    )?;
    let checked = mainstay(&["check", "-f", &pod])?;
    let text = said(&checked);
    ensure!(checked.status.success() && text.matches("warning:").count() == 4, "{text}");
    ensure!(text.contains("\"FLY\"") && text.contains("\"web\""), "{text}");
    // Fields that do nothing here yet.
    ensure!(text.contains("spec.volumes[0].gitRepo: ") && text.contains("spec.readinessGates: "), "{text}");

    let config = write(
        "config.yaml",
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nstaticPodPath: pods\n",
    )?;
    let text = said(&mainstay(&["check", "--config", &config])?);
    let absolute = root.path().join("pods").display().to_string();
    ensure!(text.contains("staticPodPath is relative") && text.contains(&absolute), "{text}");

    let access =
        write("access.yaml", "apiVersion: access.mainstay.io/v1\nkind: LocalAccess\nusers: []\nrules: []\n")?;
    let with = |mode: u32| -> Result<Output> {
        fs::set_permissions(&access, fs::Permissions::from_mode(mode))?;
        mainstay(&["check", "--access", &access])
    };
    ensure!(with(0o600)?.status.success());
    let open = with(0o666)?;
    ensure!(open.status.code() == Some(1) && said(&open).contains("chmod 600"), "{}", said(&open));
    let broken = write("access.yaml", "kind: [")?;
    ensure!(mainstay(&["check", "--access", &broken])?.status.code() == Some(1));
    Ok(())
}
