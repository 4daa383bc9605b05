//! Bad manifests, bad paths, bad configuration: each has an answer that names the fault and the remedy, and costs nothing else.

use anyhow::{Context, Result, ensure};
use mainstay_e2e::seen::{
    OBEDIENT, PATIENCE, Seen, in_runtime, listed, manifest, persisted, pod, quick, rejected, running, same,
    server, shell, start, touch, verdicts,
};
use mainstay_testkit::{Containerd, Flavor, Http, Node, mainstay_binary, wait_until};
use serde_json::json;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

/// Some files, what their rejection must say, and whether a file may be said to be no manifest instead.
const BAD: [(&str, &str, &[&str]); 6] = [
    (
        "syntax.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: syntax\nspec:\n  containers: [{name: c\n",
        &["not valid YAML", "line", "correct the syntax"],
    ),
    (
        "empty-pod.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: empty-pod}\nspec: {containers: []}\n",
        &["spec.containers: Required value", "at least one container"],
    ),
    (
        "quantity.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: quantity}\nspec: {containers: [{name: c, image: x, resources: {limits: {cpu: 12oranges, memory: -5}}}]}\n",
        &["spec.containers[0].resources.limits[cpu]", "12oranges", "such as 500m", "limits[memory]"],
    ),
    (
        "kind.yaml",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: kind}\n",
        &["kind: Unsupported value", "apps/v1 Deployment", "supported are v1 Pod"],
    ),
    ("binary.yaml", "\u{0}\u{1}\u{2}", &["not valid YAML"]),
    (
        "name.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: ../../etc}\nspec: {containers: [{name: c, image: x}]}\n",
        &["metadata.name", "../../etc"],
    ),
];

#[test]
fn each_bad_manifest_is_rejected_by_name_and_the_other_pods_do_not_notice() -> Result<()> {
    let (containerd, node) = start(Flavor::Debian16)?;
    node.write_manifest("web.yaml", &server("web"))?;
    let web = running(&node, "web")?;
    for (file, text, _) in BAD {
        node.write_manifest(file, text)?;
    }
    // Whole at once, as the others: an empty file has other problems.
    let big = node.manifests().join(".big.yaml.new");
    fs::File::create(&big)?.set_len(11 << 20)?;
    fs::rename(&big, node.manifests().join("big.yaml"))?;
    for (file, _, expected) in
        BAD.into_iter().chain([("big.yaml", "", &["larger than 10 MiB", "split the file"][..])])
    {
        let problems = rejected(&node, file)?;
        for text in expected {
            ensure!(problems.contains(text), "{file}: {text:?} is not in {problems:?}");
        }
    }
    // The same words before the file is put there.
    for (file, _, expected) in BAD {
        let output = node_check(&node.manifests().join(file))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.code() == Some(1), "{file}: {}", output.status);
        ensure!(expected.iter().all(|expected| text.contains(expected)) && text.contains(file), "{text}");
    }
    node.write_manifest("late.yaml", &server("late"))?;
    running(&node, "late")?;
    same(&web, &pod(&node, "web")?)?;
    listed(&node, &["late", "web"])?;
    // A mended file is taken.
    node.write_manifest("syntax.yaml", &server("syntax"))?;
    running(&node, "syntax")?;
    accepted(&node, "syntax.yaml")?;
    ensure!(in_runtime(&containerd, None)?.sandboxes.len() == 3);
    Ok(())
}

/// Waits until a file is accepted.
fn accepted(node: &Node, file: &str) -> Result<()> {
    wait_until(PATIENCE, &format!("acceptance of {file}"), || {
        let found = verdicts(node, file).map_err(|error| format!("{error:#}"))?;
        let good = !found.is_empty() && found.iter().all(|verdict| verdict["verdict"] == "accepted");
        if good { Ok(()) } else { Err(format!("{found:?}")) }
    })
}

fn node_check(file: &Path) -> Result<Output> {
    Command::new(mainstay_binary()?).args(["check", "-f"]).arg(file).output().context("cannot run mainstay")
}

#[test]
fn a_second_file_with_the_same_pod_is_refused_and_takes_over_when_the_first_goes() -> Result<()> {
    let (containerd, mut node) = start(Flavor::Debian16)?;
    node.write_manifest("first.yaml", &server("web"))?;
    let web = running(&node, "web")?;
    let other = manifest("web", json!({ "containers": [shell("other", OBEDIENT)] }));
    // Of two the first by path is meant; the order in which they came must not matter after a restart.
    node.write_manifest("second.yaml", &other)?;
    let problems = rejected(&node, "second.yaml")?;
    ensure!(problems.contains("first.yaml"), "the other file is not named: {problems}");
    same(&web, &pod(&node, "web")?)?;
    ensure!(in_runtime(&containerd, None)?.sandboxes.len() == 1);
    persisted(&node)?;
    node.kill9();
    node.start_again()?;
    running(&node, "web")?;
    same(&web, &pod(&node, "web")?)?;
    node.remove_manifest("first.yaml")?;
    let taken = wait_until(PATIENCE, "the other pod", || {
        let pod = pod(&node, "web").map_err(|error| format!("{error:#}"))?;
        if pod.ready() && pod.uid() != web.uid() { Ok(pod) } else { Err(pod.0["status"].to_string()) }
    })?;
    ensure!(taken.container("other")["state"]["running"].is_object());
    Ok(())
}

#[test]
fn odd_things_in_the_manifest_directory_neither_hang_nor_crash_mainstay() -> Result<()> {
    let (_containerd, node) = start(Flavor::Debian16)?;
    node.write_manifest("web.yaml", &server("web"))?;
    let web = running(&node, "web")?;
    let dir = node.manifests();
    fs::create_dir(dir.join("directory.yaml"))?;
    fs::write(dir.join("directory.yaml/inner.yaml"), server("inner"))?;
    symlink("loop-b.yaml", dir.join("loop-a.yaml"))?;
    symlink("loop-a.yaml", dir.join("loop-b.yaml"))?;
    symlink("/no/such/file", dir.join("dangling.yaml"))?;
    rustix::fs::mknodat(rustix::fs::CWD, dir.join("fifo.yaml"), rustix::fs::FileType::Fifo, 0o600.into(), 0)?;
    let _socket = std::os::unix::net::UnixListener::bind(dir.join("s.yaml"))?;
    let hostile =
        ["new\nline.yaml", "quo\"te'.yaml", "$(reboot).yaml", " .yaml", "-rf.yaml", "%s%n.yaml", "ünï.yaml"];
    for (i, name) in hostile.iter().enumerate() {
        fs::write(dir.join(name), server(&format!("odd-{i}")))?;
    }
    fs::write(dir.join("readme.txt"), "not a manifest")?;
    fs::write(dir.join("old.yaml.bak"), server("bak"))?;
    fs::write(dir.join(".hidden.yaml"), server("hidden"))?;
    let target = dir.parent().context("no parent")?.join("elsewhere.yaml");
    fs::write(&target, server("linked"))?;
    symlink(&target, dir.join("linked.yaml"))?;

    let names: Vec<String> = (0..hostile.len()).map(|i| format!("odd-{i}")).collect();
    let mut expected: Vec<&str> = names.iter().map(String::as_str).collect();
    expected.extend(["linked", "web"]);
    listed(&node, &expected)?;
    for name in &expected {
        running(&node, name)?;
    }
    same(&web, &pod(&node, "web")?)?;
    node.healthz()?;
    // A writer that comes late must not be waited for, nor must a pod come of it.
    ensure!(verdicts(&node, "readme.txt")?.iter().all(|verdict| verdict["verdict"] == "ignored"));
    for name in ["loop-a.yaml", "fifo.yaml", "directory.yaml"] {
        let found = wait_until(PATIENCE, &format!("a word about {name}"), || {
            let found = verdicts(&node, name).map_err(|error| format!("{error:#}"))?;
            if found.is_empty() { Err("nothing is said".to_owned()) } else { Ok(found) }
        })?;
        ensure!(found.iter().all(|verdict| verdict["verdict"] != "accepted"), "{name}: {found:?}");
    }
    let log = node.log();
    ensure!(!log.contains("panicked"), "{log}");
    Ok(())
}

#[test]
fn a_manifest_directory_that_is_swapped_or_vanishes_keeps_its_pods_and_is_followed_again() -> Result<()> {
    let (containerd, node) = start(Flavor::Debian16)?;
    for name in ["a", "b"] {
        node.write_manifest(&format!("{name}.yaml"), &server(name))?;
    }
    let before = [running(&node, "a")?, running(&node, "b")?];
    // As deployment tools do: a new directory takes the place of the old one, with a gap between.
    let (new, away) = (node.manifests().with_extension("new"), node.manifests().with_extension("away"));
    fs::create_dir(&new)?;
    for name in ["a.yaml", "b.yaml"] {
        fs::copy(node.manifests().join(name), new.join(name))?;
    }
    fs::rename(node.manifests(), &away)?;
    fs::rename(&new, node.manifests())?;
    node.write_manifest("c.yaml", &server("c"))?;
    running(&node, "c")?;
    for before in &before {
        same(before, &pod(&node, before.name())?)?;
    }
    // Away for longer (unmounted, say), nothing is lost: each file says so, also across a restart of mainstay.
    fs::rename(node.manifests(), &new)?;
    for name in ["a.yaml", "b.yaml", "c.yaml"] {
        rejected(&node, name)?;
    }
    listed(&node, &["a", "b", "c"])?;
    for before in &before {
        same(before, &pod(&node, before.name())?)?;
    }
    fs::rename(&new, node.manifests())?;
    node.remove_manifest("b.yaml")?;
    listed(&node, &["a", "c"])?;
    wait_until(PATIENCE, "the end of its sandbox", || {
        let found = in_runtime(&containerd, None).map_err(|error| format!("{error:#}"))?;
        if found.sandboxes.len() == 2 { Ok(()) } else { Err(format!("{found:?}")) }
    })
}

#[test]
fn a_file_that_turns_bad_or_unreadable_keeps_its_pod_and_half_written_ones_start_none() -> Result<()> {
    let (containerd, node) = start(Flavor::Debian16)?;
    node.write_manifest("web.yaml", &server("web"))?;
    let web = running(&node, "web")?;
    let path = node.manifests().join("web.yaml");
    // In place, in pieces, as an editor or a slow copy does.
    let whole = server("late");
    let (first, rest) = whole.split_at(whole.len() / 2);
    let mut file = fs::File::create(node.manifests().join("late.yaml"))?;
    file.write_all(first.as_bytes())?;
    file.flush()?;
    std::thread::sleep(Duration::from_millis(400));
    file.write_all(rest.as_bytes())?;
    drop(file);
    running(&node, "late")?;

    for bad in ["", "kind: [", "just text"] {
        fs::write(&path, bad)?;
        if bad.is_empty() {
            continue;
        }
        rejected(&node, "web.yaml")?;
        same(&web, &pod(&node, "web")?).with_context(|| format!("{bad:?}"))?;
    }
    fs::write(&path, server("web"))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000))?;
    same(&web, &pod(&node, "web")?)?;
    accepted(&node, "web.yaml")?;
    same(&web, &pod(&node, "web")?)?;
    ensure!(in_runtime(&containerd, Some(web.uid()))?.containers.len() == 1);
    Ok(())
}

fn mainstay(args: &[&str]) -> Result<(i32, String)> {
    let output = Command::new(mainstay_binary()?).args(args).output().context("cannot run mainstay")?;
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Ok((output.status.code().unwrap_or(-1), text))
}

#[test]
fn every_problem_of_a_configuration_is_told_at_once_with_exit_code_64() -> Result<()> {
    let dir = std::env::temp_dir().join(format!("mainstay-config-{}", std::process::id()));
    // A run that failed under the same number may have left one.
    fs::remove_dir_all(&dir).ok();
    fs::create_dir_all(&dir)?;
    let file = dir.join("config.yaml");
    let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nstaticPodPaht: /etc/x\nmaxPods: -3\ncontainerLogMaxSize: 5oranges\nauthentication: {webhok: {}}\n";
    fs::write(&file, text)?;
    let path = file.to_string_lossy().into_owned();
    for (args, code) in [(vec!["kubelet", "--config", &path], 64), (vec!["check", "--config", &path], 1)] {
        let (found, text) = mainstay(&args)?;
        ensure!(found == code, "{args:?}: {found}\n{text}");
        for part in [
            "unknown field \"staticPodPaht\"; did you mean \"staticPodPath\"?",
            "unknown field \"authentication.webhok\"; did you mean \"authentication.webhook\"?",
            "maxPods (--max-pods) -3 must not be a negative number",
            "containerLogMaxSize (--container-log-max-size): \"5oranges\" is not a quantity",
            "config.yaml: ",
        ] {
            ensure!(text.contains(part), "{args:?}: {part:?} is not in\n{text}");
        }
    }
    let (code, text) = mainstay(&["kubelet", "--no-such-flag=1", "--v=x"])?;
    ensure!(
        code == 64 && text.contains("unknown flag: --no-such-flag") && text.contains("--v"),
        "{code}: {text}"
    );
    let (code, text) = mainstay(&["kubelet", "--config", "/no/such/file"])?;
    ensure!(code == 64 && text.contains("/no/such/file"), "{code}: {text}");

    fs::write(&file, "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: 10\n")?;
    let (code, text) = mainstay(&["check", "--config", &path])?;
    ensure!(code == 0 && text.contains("the configuration is valid"), "{code}: {text}");
    ensure!(mainstay(&["check", "--strict", "--config", &path])?.0 == 0);
    fs::write(
        &file,
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nimageMinimumGCAge: 5m\n",
    )?;
    let (code, text) = mainstay(&["check", "--config", &path])?;
    ensure!(code == 0 && text.contains("not yet acted upon: imageMinimumGCAge"), "{code}: {text}");
    ensure!(mainstay(&["check", "--strict", "--config", &path])? == (1, text));
    let (code, text) = mainstay(&["check", "--explain", "containerLogMaxSize"])?;
    ensure!(
        code == 0 && text.contains("10Mi") && text.contains("--container-log-max-size"),
        "{code}: {text}"
    );
    let (code, text) = mainstay(&["check", "--explain", "containerLogMaxSiz"])?;
    ensure!(code == 1 && text.contains("did you mean \"containerLogMaxSize\"?"), "{code}: {text}");

    let kubelet = dir.join("kubelet");
    symlink(mainstay_binary()?, &kubelet)?;
    let output = Command::new(&kubelet).arg("--version").output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success() && text.starts_with("Kubernetes v1.37.1+mainstay."), "{text:?}");
    ensure!(mainstay(&["--version"])?.1 == text && mainstay(&["kubelet", "--version"])?.1 == text);
    fs::remove_dir_all(&dir)?;
    Ok(())
}

#[test]
fn a_hundred_odd_edits_of_one_file_end_with_the_last_one_running() -> Result<()> {
    let (containerd, node) = start(Flavor::Debian16)?;
    for i in 0..100 {
        let mut main = shell("main", OBEDIENT);
        main["env"] = json!([{ "name": "ROUND", "value": i.to_string() }]);
        node.write_manifest("web.yaml", &manifest("web", json!({ "containers": [main] })))?;
        if i % 10 == 0 {
            node.write_manifest("web.yaml", "broken: [")?;
        }
    }
    let last = wait_until(PATIENCE * 3, "the last version", || {
        let pod = pod(&node, "web").map_err(|error| format!("{error:#}"))?;
        let round = pod.0["spec"]["containers"][0]["env"][0]["value"].clone();
        if pod.ready() && round == "99" { Ok(pod) } else { Err(format!("round {round}")) }
    })?;
    listed(&node, &["web"])?;
    wait_until(PATIENCE, "the end of the others", || {
        let found = in_runtime(&containerd, None).map_err(|error| format!("{error:#}"))?;
        if found.sandboxes.len() == 1 && found.containers.len() == 1 {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })?;
    same(&last, &pod(&node, "web")?)
}

#[test]
fn a_file_taken_away_and_put_back_at_once_gives_a_new_pod() -> Result<()> {
    let (containerd, node) = start(Flavor::Debian16)?;
    // It ends when the test has seen that it is ending.
    let stubborn = shell("main", "trap '' TERM; while [ ! -e /tmp/end ]; do sleep 0.1; done");
    let text = manifest("web", json!({ "terminationGracePeriodSeconds": 600, "containers": [stubborn] }));
    node.write_manifest("web.yaml", &text)?;
    let before = running(&node, "web")?;
    // Times are told in seconds: the next start has to be in another one.
    std::thread::sleep(Duration::from_millis(1100));
    node.remove_manifest("web.yaml")?;
    wait_until(PATIENCE, "its end to begin", || {
        let pod = pod(&node, "web").map_err(|error| format!("{error:#}"))?;
        if pod.0["metadata"]["deletionTimestamp"].is_string() { Ok(()) } else { Err("it runs".to_owned()) }
    })?;
    node.write_manifest("web.yaml", &text)?;
    touch(&containerd, &before, "main", "/tmp/end")?;
    let after = wait_until(PATIENCE, "the new pod", || {
        let pod = pod(&node, "web").map_err(|error| format!("{error:#}"))?;
        let new = pod.container_id("main") != before.container_id("main")
            && pod.0["metadata"]["deletionTimestamp"].is_null();
        if new && pod.ready() { Ok(pod) } else { Err(pod.0.to_string()) }
    })?;
    ensure!(after.restarts("main") == 0, "{} restarts", after.restarts("main"));
    ensure!(after.container("main")["lastState"] == json!({}), "{}", after.container("main"));
    ensure!(after.0["status"]["startTime"] != before.0["status"]["startTime"], "the start of the old pod");
    let found = in_runtime(&containerd, None)?;
    ensure!(found.sandboxes.len() == 1 && found.containers.len() == 1, "{found:?}");
    listed(&node, &["web"])
}

#[test]
fn a_taken_healthz_port_is_told_of_and_pods_run_all_the_same() -> Result<()> {
    let containerd = Containerd::start(Flavor::Debian16)?;
    let mut node: Node = quick(&containerd).prepare()?;
    let squatter = std::net::TcpListener::bind(node.healthz_address())?;
    node.start_again()?;
    node.write_manifest("web.yaml", &server("web"))?;
    let web: Seen = running(&node, "web")?;
    wait_until(PATIENCE, "a word about the port", || {
        let log = node.log();
        if log.contains("healthzPort") { Ok(()) } else { Err(log) }
    })?;
    drop(squatter);
    let http = Http::Tcp(node.healthz_address());
    wait_until(PATIENCE, "the healthz port", || match http.get("/healthz") {
        Ok(answer) if answer.status == 200 => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    same(&web, &pod(&node, "web")?)
}
