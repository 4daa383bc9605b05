//! `mainstay exec`, `attach` and `port-forward`, over the socket and through the secure port.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mainstay_e2e::{LISTENER, Ran, StreamClient, World, finish, idle, noise, sh, speak, with};
use mainstay_testkit::{Authority, CertificateWish, Containerd, Flavor, patient, wait_until};
use serde_json::json;

/// What should take a moment, on a machine that is slow and busy.
const PATIENCE: Duration = Duration::from_secs(120);

fn world() -> World {
    let world = World::start(Flavor::Debian16).unwrap();
    let two = json!({ "containers": [idle("c"), idle("other")] });
    world.put("web", two).unwrap();
    world
}

/// Starts the client against the node's socket; the connection's options stand right behind the verb.
fn begin(world: &World, args: &[&str]) -> Child {
    begin_with(world, &["--root-dir", world.node.root().to_str().unwrap()], args)
}

fn begin_with(world: &World, connection: &[&str], args: &[&str]) -> Child {
    let (verb, rest) = args.split_first().unwrap();
    let mut command = Command::new(world.node.program());
    command.arg(verb).args(connection).args(rest);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn ran(world: &World, args: &[&str], input: &[u8]) -> Ran {
    finish(begin(world, args), input).unwrap()
}

#[test]
fn a_command_is_run_and_its_code_is_ours() {
    let world = world();
    world.running("web").unwrap();
    let script = "echo out; echo err >&2; exit 7";
    let seen = ran(&world, &["exec", "web", "-c", "c", "--", "sh", "-c", script], b"");
    assert_eq!((seen.code, seen.text().as_str()), (Some(7), "out\n"), "{seen:?}");
    assert_eq!(seen.stderr, "err\ncommand terminated with exit code 7\n");
    // The first container, and that it was chosen is said.
    let seen = ran(&world, &["exec", "-n", "default", "web", "--", "true"], b"");
    assert_eq!((seen.code, seen.text().as_str()), (Some(0), ""), "{seen:?}");
    assert_eq!(seen.stderr, "Defaulted container \"c\" out of: c, other\n");
    // Input, which ends, and comes back.
    let bytes = noise(10 << 20);
    let seen = ran(&world, &["exec", "-i", "web", "-c", "c", "--", "cat"], &bytes);
    assert_eq!((seen.code, seen.stderr.as_str()), (Some(0), ""));
    assert!(seen.stdout == bytes, "{} bytes came back, of {}", seen.stdout.len(), bytes.len());
    // No input unless it is asked for, and no terminal where there is none.
    let seen = ran(&world, &["exec", "-t", "web", "-c", "c", "--", "sh", "-c", "cat; tty"], b"lost");
    assert_eq!(seen.text(), "not a tty\n", "{seen:?}");
    assert!(seen.stderr.starts_with("Unable to use a TTY"), "{seen:?}");
    // A reader that has had enough ends it.
    let mut child = begin(&world, &["exec", "web", "-c", "c", "--", "yes"]);
    let mut first = [0; 2];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    drop(child.stdout.take());
    assert_eq!(finish(child, b"").unwrap().code, Some(0));
}

#[test]
fn what_cannot_be_done_is_told() {
    let world = world();
    world.running("web").unwrap();
    for (args, code, text) in [
        (&["exec", "wbe", "--", "true"][..], 1, "there is no pod wbe"),
        (
            &["exec", "web", "-c", "d", "--", "true"],
            1,
            "pod default/web-node has no container \"d\"; it has: c, other",
        ),
        (&["exec", "web", "-c", "c", "--", "/no/such/thing"], 1, "no such file"),
        (&["exec", "web"], 64, "<COMMAND>"),
        (&["port-forward", "web", "80:x"], 2, "write LOCAL:REMOTE, PORT or :REMOTE"),
        (&["port-forward", "--address", "here", "web", "80"], 2, "write an IP address or localhost"),
        (&["port-forward", "web"], 64, "<PORTS>"),
    ] {
        let seen = ran(&world, args, b"");
        assert_eq!(seen.code, Some(code), "{args:?} {seen:?}");
        assert!(seen.stderr.contains(text), "{args:?} {}", seen.stderr);
    }
}

#[test]
fn through_the_secure_port_with_a_token() {
    let world = world();
    world.running("web").unwrap();
    StreamClient::new(&world).unwrap();
    let file = |name: &str| world.node.root().join(name).to_str().unwrap().to_owned();
    let (url, ca) = (format!("https://localhost:{}", world.node.secure().port()), file("pki/kubelet.crt"));
    let (admin, viewer) = (file("admin-token"), file("viewer-token"));
    let trust = ["--server", &url, "--certificate-authority", &ca];
    let args = ["exec", "web", "-c", "c", "--", "sh", "-c", "echo hello; exit 3"];
    let as_admin = [&trust[..], &["--token-file", &admin]].concat();
    let seen = finish(begin_with(&world, &as_admin, &args), b"").unwrap();
    assert_eq!((seen.code, seen.text().as_str()), (Some(3), "hello\n"), "{seen:?}");
    let seen = finish(begin_with(&world, &as_admin, &["pods"]), b"").unwrap();
    assert!(seen.code == Some(0) && seen.text().contains("web-node"), "{seen:?}");
    // Reading rights alone run nothing.
    let as_viewer = [&trust[..], &["--token-file", &viewer]].concat();
    let seen = finish(begin_with(&world, &as_viewer, &args), b"").unwrap();
    assert_eq!((seen.code, seen.text().as_str()), (Some(1), ""), "{seen:?}");
    assert!(seen.stderr.contains("Forbidden (user=viewer, verb=create"), "{seen:?}");
    let seen = finish(begin_with(&world, &trust, &args), b"").unwrap();
    assert!(
        seen.code == Some(1) && seen.stderr.contains("Unauthorized; show who you are by --token-file"),
        "{seen:?}"
    );
    let strange = ["--server", url.as_str(), "--token-file", &admin];
    let seen = finish(begin_with(&world, &strange, &args), b"").unwrap();
    assert!(seen.code == Some(3) && seen.stderr.contains("--certificate-authority"), "{seen:?}");
}

#[test]
fn through_the_secure_port_with_a_certificate() {
    let containerd = Containerd::start(Flavor::Debian16).unwrap();
    let dir = containerd.dir().to_owned();
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let authority = Authority::new("clients").unwrap();
    let clients = write("clients.crt", &authority.pem);
    let x509 = format!("authentication: {{x509: {{clientCAFile: {clients}}}}}");
    let world = World::on(containerd, &x509).unwrap();
    world.put("web", json!({ "containers": [idle("c")] })).unwrap();
    world.running("web").unwrap();
    // Makes the rules for the names.
    StreamClient::new(&world).unwrap();
    let url = format!("https://localhost:{}", world.node.secure().port());
    let ca = world.node.root().join("pki/kubelet.crt").to_str().unwrap().to_owned();
    let asked = |authority: &Authority, name: &str, args: &[&str]| {
        let made = authority.issue(&CertificateWish::client(name, &["team"])).unwrap();
        let (certificate, key) = (write("client.crt", &made.certificate), write("client.key", &made.key));
        let connection = [
            "--server",
            &url,
            "--certificate-authority",
            &ca,
            "--client-certificate",
            &certificate,
            "--client-key",
            &key,
        ];
        finish(begin_with(&world, &connection, args), b"").unwrap()
    };
    let args = ["exec", "web", "-c", "c", "--", "sh", "-c", "echo hello; exit 3"];
    let seen = asked(&authority, "admin", &args);
    assert_eq!((seen.code, seen.text().as_str()), (Some(3), "hello\n"), "{seen:?}");
    let seen = asked(&authority, "admin", &["pods"]);
    assert!(seen.code == Some(0) && seen.text().contains("web-node"), "{seen:?}");
    let seen = asked(&authority, "viewer", &args);
    assert_eq!((seen.code, seen.text().as_str()), (Some(1), ""), "{seen:?}");
    assert!(seen.stderr.contains("Forbidden (user=viewer, verb=create"), "{seen:?}");
    let seen = asked(&Authority::new("strangers").unwrap(), "admin", &args);
    assert!(seen.code == Some(1) && seen.stderr.contains("Unauthorized"), "{seen:?}");
    // One without the other says nothing about anybody.
    let half = ["--server", &url, "--client-certificate", &clients];
    let seen = finish(begin_with(&world, &half, &["pods"]), b"").unwrap();
    assert!(seen.code != Some(0) && seen.stderr.contains("--client-key"), "{seen:?}");
}

#[test]
fn attach_speaks_to_the_containers_process() {
    let world = world();
    let reader = with(sh("c", LISTENER), json!({ "stdin": true }));
    world.put("reader", json!({ "containers": [reader], "restartPolicy": "Never" })).unwrap();
    world.running("reader").unwrap();
    let (seen, answers) = speak(begin(&world, &["attach", "-i", "reader"]), b"one\nbye\n").unwrap();
    assert_eq!((seen.code, answers.as_str()), (Some(0), "got one\ngot bye"), "{seen:?}");
    world.wait("reader", "it ended as it was told to", |pod| pod.exit_code("c") == Some(3)).unwrap();
}

#[test]
fn input_that_is_given_once_ends_with_the_first_who_attaches() {
    let world = world();
    let script = "echo up; while read line; do echo \"got $line\"; done; echo over; sleep 2";
    let says = |name: &str, word: &str| {
        let mut child = begin(&world, &["attach", "-i", name]);
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(format!("{word}\n").as_bytes()).unwrap();
        world.logged(name, "c", &format!("got {word}")).unwrap();
        drop(stdin);
        assert_eq!(finish(child, b"").unwrap().code, Some(0), "{name}");
    };
    for (name, once) in [("once", true), ("more", false)] {
        let container = with(sh("c", script), json!({ "stdin": true, "stdinOnce": once }));
        let spec = json!({ "containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1 });
        world.put(name, spec).unwrap();
        world.running(name).unwrap();
        says(name, "one");
    }
    // The end of his input is the end of the container's, and here the container's own.
    world.wait("once", "its end", |pod| pod.exit_code("c") == Some(0)).unwrap();
    assert_eq!(world.logged("once", "c", "over\n").unwrap(), "up\ngot one\nover\n");
    says("more", "two");
    assert_eq!(world.logged("more", "c", "got two\n").unwrap(), "up\ngot one\ngot two\n");
}

#[test]
fn ports_are_forwarded_until_it_is_ended() {
    let world = world();
    let serve =
        "trap 'exit 0' TERM; nc -ll -p 8001 -e cat & nc -ll -p 8002 -e cat & while :; do sleep 0.1; done";
    world.put("echo", json!({ "containers": [sh("c", serve)] })).unwrap();
    world.running("echo").unwrap();
    let mut child =
        begin(&world, &["port-forward", "--address", "127.0.0.1", "echo", ":8001", ":8002", ":9"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut local = Vec::new();
    for remote in [8001, 8002, 9] {
        let line = lines.next().unwrap().unwrap();
        let (from, to) = line.strip_prefix("Forwarding from 127.0.0.1:").unwrap().split_once(" -> ").unwrap();
        assert_eq!(to, remote.to_string());
        local.push(from.parse::<u16>().unwrap());
    }
    let reading = std::thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>());
    let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
    for port in &local[..2] {
        for _ in 0..3 {
            // The servers of the pod may need a moment to listen.
            wait_until(PATIENCE, "the bytes come back", || echoed(*port)).unwrap();
        }
    }
    let mut stream = TcpStream::connect(("127.0.0.1", local[2])).unwrap();
    stream.set_read_timeout(Some(patient(PATIENCE))).unwrap();
    let mut rest = Vec::new();
    // However it ends, nothing comes.
    stream.read_to_end(&mut rest).ok();
    assert_eq!(rest, b"");
    // The line for the port on which nobody listens, behind those for servers that were not up yet.
    let nobody = format!("an error occurred forwarding {} -> 9: ", local[2]);
    let told = errors.by_ref().map_while(Result::ok).find(|line| line.starts_with(&nobody));
    assert!(told.as_deref().is_some_and(|line| line.contains("refused")), "{told:?}");
    let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let seen = finish(child, b"").unwrap();
    assert_eq!(seen.code, Some(0), "{seen:?}");
    let told = reading.join().unwrap();
    assert!(told.contains(&format!("Handling connection for {}", local[0])), "{told:?}");
}

fn echoed(port: u16) -> Result<(), String> {
    let bytes = noise(100_000);
    let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string())?;
    stream.set_read_timeout(Some(patient(PATIENCE))).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let mut back = vec![0; bytes.len()];
    std::thread::scope(|scope| {
        scope.spawn(|| writer.write_all(&bytes));
        stream.read_exact(&mut back).map_err(|error| error.to_string())
    })?;
    assert!(back == bytes, "what came back is not what was sent");
    Ok(())
}

#[test]
fn a_terminal_is_raw_while_it_runs_and_as_it_was_afterwards() {
    let world = world();
    world.running("web").unwrap();
    let program = world.node.program().display().to_string();
    let root = world.node.root().display().to_string();
    let remote =
        "while [ \"$(stty size)\" != \"50 120\" ]; do sleep 0.1; done; tty; echo then $(stty size); exit 5";
    let exec = format!("{program} exec --root-dir {root} -it web -c c -- sh -c '{remote}'");
    // In a terminal of its own: its size changes while the command runs, and its settings are looked at before and after.
    let script = format!(
        "stty rows 24 cols 80; before=$(stty -g); (sleep 1; stty rows 50 cols 120 < /dev/tty) & {exec}; code=$?; \
         [ \"$before\" = \"$(stty -g)\" ] && echo restored; echo code $code"
    );
    let mut command = Command::new("script");
    command.args(["-qec", &script, "/dev/null"]).env("SHELL", "/bin/sh");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The terminal lives as long as this.
    let stdin = child.stdin.take();
    let seen = finish(child, b"").unwrap();
    drop(stdin);
    let text = seen.text();
    assert!(text.contains("/dev/pts/") && text.contains("then 50 120"), "{text:?}");
    assert!(text.contains("restored") && text.contains("code 5"), "{text:?}");
}
