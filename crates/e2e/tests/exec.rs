//! exec, attach, port-forward, run and checkpoint, by upstream's own client code and by plain requests.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use mainstay_e2e::{
    LISTENER, PodSeen, StreamClient, Transport, User, World, finish, idle, noise, sh, speak, with,
};
use mainstay_testkit::{Flavor, patient, wait_until};
use serde_json::json;

/// What should take a moment, on a machine that is slow and busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// A node with a pod `web` that does nothing in its container `c`.
fn world(flavor: Flavor, config: &str) -> (World, PodSeen, StreamClient) {
    let world = World::with_config(flavor, config).unwrap();
    world.put("web", json!({ "containers": [idle("c")] })).unwrap();
    let client = StreamClient::new(&world).unwrap();
    let pod = world.running("web").unwrap();
    // What mainstay opens once and keeps is open from now on, so that sockets can be counted.
    let path = script(&world, "output=1", "true");
    for transport in Transport::ALL {
        let ran = client.exec(User::Admin, transport, &path, &["-stdout"], b"").unwrap();
        assert_eq!(ran.code, Some(0), "{transport:?} {ran:?}");
    }
    (world, pod, client)
}

/// The path of an exec in `web`, with a shell script for a command.
fn script(world: &World, streams: &str, script: &str) -> String {
    let pod = world.full_name("web");
    format!("/exec/default/{pod}/c?command=/bin/sh&command=-c&command={}&{streams}", escaped(script))
}

fn escaped(text: &str) -> String {
    text.bytes()
        .map(
            |byte| {
                if byte.is_ascii_alphanumeric() {
                    char::from(byte).to_string()
                } else {
                    format!("%{byte:02X}")
                }
            },
        )
        .collect()
}

/// Open sockets of mainstay; files it may keep for reasons of its own.
fn sockets(world: &World) -> usize {
    let open = std::fs::read_dir(format!("/proc/{}/fd", world.node.pid().unwrap())).unwrap();
    // One that was closed in between has no name any more.
    let names = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    names.filter(|name| name.to_string_lossy().starts_with("socket:")).count()
}

/// A line of mainstay's `/proc/PID/status`, in kB.
fn memory(world: &World, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", world.node.pid().unwrap())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The number of sockets once it stays the same for a while.
fn settled(world: &World) -> usize {
    let (mut last, mut same) = (0, 0);
    wait_until(PATIENCE, "mainstay settles down", || {
        let now = sockets(world);
        same = if now == last { same + 1 } else { 0 };
        last = now;
        if same >= 30 { Ok(now) } else { Err(format!("{now} are open")) }
    })
    .unwrap()
}

/// Waits until mainstay has no more sockets than it had.
fn closed_again(world: &World, before: usize) {
    wait_until(PATIENCE, "sockets are closed again", || match sockets(world) {
        now if now <= before => Ok(()),
        now => Err(format!("{now} are open, {before} were")),
    })
    .unwrap();
}

#[test]
fn a_command_gives_its_output_its_errors_and_its_exit_code() {
    for flavor in Flavor::ALL {
        let (world, _, client) = world(flavor, "{}");
        let path = script(&world, "output=1&error=1", "echo out; echo err >&2; exit 7");
        for transport in Transport::ALL {
            let ran = client.exec(User::Admin, transport, &path, &["-stdout", "-stderr"], b"").unwrap();
            assert_eq!(
                (ran.code, ran.text().as_str()),
                (Some(7), "out\n"),
                "{flavor:?} {transport:?} {ran:?}"
            );
            assert!(ran.stderr.starts_with("err\n"), "{flavor:?} {transport:?} {}", ran.stderr);
        }
        // The older protocols, which go to the runtime as they are.
        for (transport, protocol) in [
            (Transport::Spdy, "v3.channel.k8s.io"),
            (Transport::Spdy, "channel.k8s.io"),
            (Transport::WebSocket, "v4.channel.k8s.io"),
        ] {
            let flags = ["-stdout", "-stderr", "-protocols", protocol];
            let path = script(&world, "output=1&error=1", "echo out; echo err >&2");
            let ran = client.exec(User::Admin, transport, &path, &flags, b"").unwrap();
            let seen = (ran.code, ran.text(), ran.stderr);
            assert_eq!(seen, (Some(0), "out\n".to_owned(), "err\n".to_owned()), "{flavor:?} {protocol}");
        }
        // The UID of a path is not looked at, and half-close ends a command that reads.
        let pod = world.full_name("web");
        let path = format!("/exec/default/{pod}/some-uid/c?command=wc&command=-c&input=1&output=1");
        for transport in Transport::ALL {
            let ran = client.exec(User::Admin, transport, &path, &["-stdin", "-stdout"], b"12345").unwrap();
            assert_eq!(
                (ran.code, ran.text().trim()),
                (Some(0), "5"),
                "{flavor:?} {transport:?} {}",
                ran.stderr
            );
        }
    }
}

#[test]
fn a_terminal_has_the_size_of_the_clients() {
    let (world, _, client) = world(Flavor::Built24, "{}");
    let path = script(
        &world,
        "input=1&output=1&error=1&tty=1",
        "while [ \"$(stty size)\" != '50 120' ]; do sleep 0.1; done; echo then $(stty size); tty; read line; echo \"read $line\"",
    );
    for transport in Transport::ALL {
        let flags = ["-tty", "-stdin", "-stdout", "-sizes", "80x24,100x40,120x50"];
        let mut child = client.begin(User::Admin, transport, &path, &flags).unwrap();
        // A terminal whose input ends hangs up, so it stays open.
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"hello\n").unwrap();
        let ran = finish(child, b"").unwrap();
        let text = ran.text();
        assert_eq!(ran.code, Some(0), "{transport:?} {ran:?}");
        assert!(text.contains("then 50 120\r\n"), "{transport:?} {text:?}");
        assert!(text.contains("/dev/pts/") && text.contains("read hello"), "{transport:?} {text:?}");
    }
}

#[test]
fn a_hundred_megabytes_come_back_unchanged() {
    let (world, _, client) = world(Flavor::Debian16, "{}");
    let path = script(&world, "input=1&output=1", "exec cat");
    let before = memory(&world, "VmRSS:");
    let bytes = noise(100 << 20);
    for transport in Transport::ALL {
        let ran = client.exec(User::Admin, transport, &path, &["-stdin", "-stdout"], &bytes).unwrap();
        assert_eq!(ran.code, Some(0), "{transport:?} {}", ran.stderr);
        assert!(
            ran.stdout == bytes,
            "{transport:?}: {} bytes came back, of {}",
            ran.stdout.len(),
            bytes.len()
        );
    }
    let grown = memory(&world, "VmHWM:").saturating_sub(before);
    assert!(grown < 50 << 10, "mainstay grew by {grown} kB while bytes went through");
}

#[test]
fn attach_is_to_the_containers_own_streams() {
    for flavor in Flavor::ALL {
        let (world, _, client) = world(flavor, "{}");
        let reader = with(sh("c", LISTENER), json!({ "stdin": true }));
        for (number, transport) in Transport::ALL.into_iter().enumerate() {
            let name = format!("reader{number}");
            world.put(&name, json!({ "containers": [reader], "restartPolicy": "Never" })).unwrap();
            let pod = world.running(&name).unwrap();
            let full = world.full_name(&name);
            let path = format!("/attach/default/{full}/{}/c?input=1&output=1&error=1", pod.uid());
            let flags = ["-stdin", "-stdout", "-stderr"];
            let child = client.begin(User::Admin, transport, &path, &flags).unwrap();
            let (ran, answers) = speak(child, b"one\nbye\n").unwrap();
            assert_eq!((ran.code, answers.as_str()), (Some(0), "got one\ngot bye"), "{flavor:?} {ran:?}");
            world.wait(&name, "it ended as it was told to", |pod| pod.exit_code("c") == Some(3)).unwrap();
        }
        let reader = world.full_name("reader0");
        let path = format!("/attach/default/{reader}/c?output=1");
        let ran = client.exec(User::Admin, Transport::Spdy, &path, &["-stdout"], b"").unwrap();
        let text = format!("container c not found in pod {reader}_default");
        assert!(ran.stderr.contains(&text), "{}", ran.stderr);
        let web = world.full_name("web");
        let path = format!("/attach/default/{web}/another-uid/c?output=1");
        let ran = client.exec(User::Admin, Transport::Spdy, &path, &["-stdout"], b"").unwrap();
        assert!(ran.stderr.contains(&format!("pod {web}_default not found")), "{}", ran.stderr);
    }
}

#[test]
fn many_ports_and_connections_are_forwarded() {
    for flavor in Flavor::ALL {
        let (world, _, client) = world(flavor, "{}");
        let ports: Vec<u16> = (8001..8006).collect();
        let servers: String = ports.iter().map(|port| format!("nc -ll -p {port} -e cat & ")).collect();
        let serve = format!("trap 'exit 0' TERM; {servers} while :; do sleep 0.1; done");
        world.put("echo", json!({ "containers": [sh("c", &serve)] })).unwrap();
        let pod = world.running("echo").unwrap();
        let full = world.full_name("echo");
        listens(&world, &pod, &ports);
        let before = settled(&world);
        for (transport, path) in [
            (Transport::Spdy, format!("/portForward/default/{full}")),
            (Transport::WebSocket, format!("/portForward/default/{full}/{}", pod.uid())),
        ] {
            let (mut child, local) = client.forward(transport, &path, &ports).unwrap();
            std::thread::scope(|scope| {
                for (number, port) in local.iter().cycle().take(15).enumerate() {
                    scope.spawn(move || echoed(*port, &noise(200_000 + number)));
                }
            });
            drop(child.stdin.take());
            let ran = finish(child, b"").unwrap();
            assert_eq!(ran.code, Some(0), "{flavor:?} {transport:?} {}", ran.stderr);
            // Where nobody listens, the connection ends and the client is told why.
            let (mut child, local) = client.forward(transport, &path, &[9, 8001]).unwrap();
            let mut stream = TcpStream::connect(("127.0.0.1", local[0])).unwrap();
            stream.set_read_timeout(Some(patient(PATIENCE))).unwrap();
            let mut rest = Vec::new();
            // However it ends, nothing comes.
            stream.read_to_end(&mut rest).ok();
            assert_eq!(rest, b"", "{flavor:?} {transport:?}");
            drop(child.stdin.take());
            let ran = finish(child, b"").unwrap();
            assert!(ran.stderr.contains("refused"), "{flavor:?} {transport:?} {}", ran.stderr);
        }
        closed_again(&world, before);
    }
}

/// Waits until the servers of a pod listen: where nobody does, upstream's client gives up all connections.
fn listens(world: &World, pod: &PodSeen, ports: &[u16]) {
    wait_until(PATIENCE, "the servers", || {
        let table = world.exec(pod, "c", "cat /proc/net/tcp*").map_err(|error| format!("{error:#}"))?;
        // Of each line: number, own address, that of the other end, state.
        let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        let listening = |port: &u16| {
            let end = format!(":{port:04X}");
            lines.iter().any(|words| matches!(words[..], [_, own, _, "0A", ..] if own.ends_with(&end)))
        };
        if ports.iter().all(listening) { Ok(()) } else { Err(table.clone()) }
    })
    .unwrap();
}

/// Sends bytes and wants them back.
fn echoed(port: u16, bytes: &[u8]) {
    let back = wait_until(PATIENCE, "the bytes come back", || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string())?;
        stream.set_read_timeout(Some(patient(PATIENCE))).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let mut back = vec![0; bytes.len()];
        std::thread::scope(|scope| {
            scope.spawn(move || writer.write_all(bytes));
            stream.read_exact(&mut back).map_err(|error| error.to_string())
        })?;
        Ok(back)
    });
    assert!(back.unwrap() == bytes, "what came back is not what was sent");
}

#[test]
fn clients_that_vanish_leave_nothing_behind() {
    for flavor in Flavor::ALL {
        let (world, pod, client) = world(flavor, "{}");
        let before = settled(&world);
        for transport in Transport::ALL {
            let path = script(&world, "input=1&output=1", "echo begun; exec cat");
            let mut children = Vec::new();
            for _ in 0..5 {
                let mut child = client.begin(User::Admin, transport, &path, &["-stdin", "-stdout"]).unwrap();
                let mut first = [0; 6];
                child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
                assert_eq!(&first, b"begun\n");
                children.push(child);
            }
            wait_until(PATIENCE, "all commands run", || match cats(&world, &pod)? {
                5 => Ok(()),
                other => Err(format!("{other} run")),
            })
            .unwrap();
            for child in &mut children {
                child.kill().unwrap();
                child.wait().unwrap();
            }
            // cat's input has ended, so it ends.
            wait_until(PATIENCE, "the commands end", || match cats(&world, &pod)? {
                0 => Ok(()),
                left => Err(format!("{left} run")),
            })
            .unwrap_or_else(|error| panic!("{flavor:?} {transport:?} {error}"));
            closed_again(&world, before);
        }
    }
}

/// A client that is killed while its command takes no input. Its going is seen because it answers no ping; over SPDY, which is
/// put through as it is, only the kernel can tell, after minutes.
#[test]
fn a_client_that_vanishes_behind_unread_input_is_noticed() {
    let (world, _, client) = world(Flavor::Built24, "{}");
    let before = settled(&world);
    let path = script(&world, "input=1&output=1", "echo begun; exec sleep 1000");
    let mut child = client.begin(User::Admin, Transport::WebSocket, &path, &["-stdin", "-stdout"]).unwrap();
    let mut first = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // More than all places in between can hold, so that it never ends.
    let feeding = std::thread::spawn(move || stdin.write_all(&noise(64 << 20)));
    wait_until(PATIENCE, "input is on its way", || match read_bytes(child.id()) {
        Some(count) if count > 4 << 20 => Ok(()),
        count => Err(format!("{count:?} bytes were read")),
    })
    .unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    feeding.join().unwrap().unwrap_err();
    closed_again(&world, before);
}

/// How much a process has read.
fn read_bytes(pid: u32) -> Option<u64> {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    io.lines().find_map(|line| line.strip_prefix("rchar: "))?.parse().ok()
}

fn cats(world: &World, pod: &PodSeen) -> Result<usize, String> {
    let count =
        world.exec(pod, "c", "ps | grep -c '[c]at$' || true").map_err(|error| format!("{error:#}"))?;
    count.trim().parse::<usize>().map_err(|error| format!("{error}: {count:?}"))
}

#[test]
fn only_those_who_may_create_act_in_containers() {
    let (world, pod, client) = world(Flavor::Debian16, "{}");
    let path = script(&world, "output=1", "touch /tmp/was-here");
    let full = world.full_name("web");
    let attach = format!("/attach/default/{full}/c?output=1");
    for transport in Transport::ALL {
        for path in [&path, &attach] {
            let ran = client.exec(User::Viewer, transport, path, &["-stdout"], b"").unwrap();
            assert_eq!(ran.code, Some(125), "{transport:?} {ran:?}");
            assert!(ran.stderr.contains("orbidden"), "{transport:?} {}", ran.stderr);
            let ran = client.exec(User::Nobody, transport, path, &["-stdout"], b"").unwrap();
            assert!(ran.stderr.contains("nauthorized"), "{transport:?} {}", ran.stderr);
        }
    }
    assert_eq!(world.exec(&pod, "c", "ls /tmp").unwrap(), "");
    let ran = client.exec(User::Admin, Transport::WebSocket, &path, &["-stdout"], b"").unwrap();
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(world.exec(&pod, "c", "ls /tmp").unwrap(), "was-here");
    wait_until(PATIENCE, "a line of the audit log", || {
        let log = world.node.log();
        if log.contains("audit") && log.contains("viewer") { Ok(()) } else { Err(log) }
    })
    .unwrap();
}

/// Method, path, headers, and the status and text of the answer.
type Case<'a> = (&'a str, String, &'a [(&'a str, &'a str)], u16, String);

#[test]
fn what_is_wrong_with_a_request_is_told_in_upstreams_words() {
    for flavor in Flavor::ALL {
        let (world, _, _) = world(flavor, "{}");
        let pod = world.full_name("web");
        let upgrade = [("connection", "Upgrade"), ("upgrade", "SPDY/3.1")];
        let websocket = [
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ];
        let none: [(&str, &str); 0] = [];
        let exec = |rest: &str| format!("/exec/default/{pod}/{rest}");
        let forward = |rest: &str| format!("/portForward/default/{pod}{rest}");
        let cases: Vec<Case<'_>> = vec![
            ("POST", exec("c"), &none, 400, "you must specify at least 1 of stdin, stdout, stderr".into()),
            (
                "POST",
                exec("c?stdout=1&output=true"),
                &none,
                400,
                "you must specify at least 1 of stdin, stdout, stderr".into(),
            ),
            ("POST", "/exec/default/nope/c?output=1".into(), &none, 404, "pod does not exist".into()),
            ("POST", exec("nope?output=1"), &upgrade, 500, "container not found (\"nope\")".into()),
            ("POST", exec("c?output=1&command=ls"), &none, 500, "Upgrade request required\n".into()),
            ("PUT", exec("c?output=1"), &none, 405, "405: Method Not Allowed".into()),
            ("GET", forward(""), &websocket, 400, "query parameter \"port\" is required".into()),
            (
                "GET",
                forward("?port=80,abc"),
                &websocket,
                400,
                "unable to parse \"80,abc\" as a port: strconv.ParseUint: parsing \"abc\": invalid syntax"
                    .into(),
            ),
            ("GET", forward("?port=0"), &websocket, 400, "port \"0\" must be > 0".into()),
            ("POST", forward("/another-uid"), &upgrade, 404, "pod not found".into()),
            ("POST", forward(""), &none, 500, "Upgrade request required\n".into()),
            ("POST", "/portForward/default/nope".into(), &upgrade, 404, "pod does not exist".into()),
            ("POST", format!("/run/default/{pod}/c?cmd=echo%20a%20b"), &none, 200, "a b\n".into()),
            ("POST", format!("/run/default/{pod}/any-uid/c?cmd=true"), &none, 200, String::new()),
            (
                "POST",
                format!("/run/default/{pod}/c?cmd=ls%20/nope"),
                &none,
                500,
                "command 'ls /nope' exited with 1: ls: /nope: No such file or directory\n".into(),
            ),
            (
                "POST",
                format!("/run/default/{pod}/nope?cmd=ls"),
                &none,
                500,
                "container not found (\"nope\")".into(),
            ),
            ("POST", "/run/default/nope/c?cmd=ls".into(), &none, 404, "pod does not exist".into()),
            ("POST", "/checkpoint/default/nope/c".into(), &none, 404, "pod does not exist".into()),
            (
                "POST",
                format!("/checkpoint/default/{pod}/nope"),
                &none,
                404,
                "container nope does not exist".into(),
            ),
            (
                "POST",
                format!("/checkpoint/default/{pod}/c?timeout=1m"),
                &none,
                404,
                "cannot parse value of timeout parameter".into(),
            ),
            (
                "POST",
                format!("/checkpoint/default/{pod}/c?timeout=-1"),
                &none,
                500,
                format!(
                    "checkpointing of default/{pod}/c failed (CheckpointContainer requires the timeout value to be > 0)"
                ),
            ),
            ("GET", "/cri/exec/unknown".into(), &upgrade, 404, "404 page not found\n".into()),
        ];
        for (method, path, headers, status, text) in cases {
            let answer = world.node.http().request(method, &path, headers).unwrap();
            assert_eq!((answer.status, answer.text()), (status, text), "{flavor:?} {method} {path}");
        }
        // What the runtime itself refuses comes as it says it.
        let answer = world.node.http().request("POST", &exec("c?output=1&command=ls"), &upgrade).unwrap();
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.text().contains("unable to upgrade"), "{}", answer.text());
        // containerd 1.6 cannot; what 2.4 does stands in `facilities`.
        if flavor == Flavor::Debian16 {
            let path = format!("/checkpoint/default/{pod}/c");
            let answer = world.node.http().request("POST", &path, &none).unwrap();
            assert_eq!(answer.status, 500);
            let text = answer.text();
            assert!(text.starts_with(&format!("checkpointing of default/{pod}/c failed (")), "{text}");
            assert!(text.contains("Unimplemented"), "{text}");
        }
    }
}

#[test]
fn a_redirected_client_comes_back_once() {
    let (world, _, _) = world(Flavor::Built24, "{}");
    let path = script(&world, "output=1&redirect=1", "echo hello");
    let answer = world.node.http().request("POST", &path, &[]).unwrap();
    assert_eq!(answer.status, 302, "{}", answer.text());
    let location = answer.header("location").unwrap().to_owned();
    assert!(location.starts_with("/cri/exec/"), "{location}");
    let socket = world.node.root().join("mainstay.sock");
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(patient(PATIENCE))).unwrap();
    let key = "dGhlIHNhbXBsZSBub25jZQ==";
    write!(
        stream,
        "GET {location} HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: {key}\r\nsec-websocket-protocol: v4.channel.k8s.io\r\n\r\n"
    )
    .unwrap();
    let mut all = Vec::new();
    let mut part = [0; 4096];
    while !String::from_utf8_lossy(&all).contains("\"Success\"") {
        let length = stream.read(&mut part).unwrap();
        assert!(length > 0, "{}", String::from_utf8_lossy(&all));
        all.extend_from_slice(&part[..length]);
    }
    let all = String::from_utf8_lossy(&all).into_owned();
    assert!(all.starts_with("HTTP/1.1 101 ") && all.contains("\u{1}hello\n"), "{all}");
    let again = world.node.http().request("GET", &location, &[("connection", "Upgrade")]).unwrap();
    assert_eq!(again.status, 404);
}

#[test]
fn a_session_ends_when_nothing_moves_and_when_mainstay_does() {
    // Not so short that a slow start of a command is taken for silence.
    let (mut world, _, client) = world(Flavor::Debian16, "streamingConnectionIdleTimeout: 15s");
    let before = settled(&world);
    let socket = world.node.root().join("mainstay.sock");
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(patient(PATIENCE))).unwrap();
    // A client that does not even ping.
    let path = script(&world, "output=1&input=1", "exec cat");
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\nx-stream-protocol-version: v4.channel.k8s.io\r\ncontent-length: 0\r\n\r\n"
    )
    .unwrap();
    let mut all = Vec::new();
    // It ends although nobody says anything.
    stream.read_to_end(&mut all).unwrap();
    assert!(all.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&all));
    drop(stream);
    closed_again(&world, before);

    // The others take their time: what ends them is the end of mainstay.
    world.node.sigterm().unwrap();
    let config = std::fs::read_to_string(world.node.config_path()).unwrap();
    let config = config.replace("streamingConnectionIdleTimeout: 15s", "streamingConnectionIdleTimeout: 1h");
    std::fs::write(world.node.config_path(), config).unwrap();
    world.node.start_again().unwrap();
    world.running("web").unwrap();
    let path = script(&world, "input=1&output=1", "echo begun; exec cat");
    let mut children = Vec::new();
    for transport in Transport::ALL {
        let mut child = client.begin(User::Admin, transport, &path, &["-stdin", "-stdout"]).unwrap();
        let mut first = [0; 6];
        child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        children.push(child);
    }
    assert!(world.node.sigterm().unwrap().success(), "{}", world.node.log());
    for child in children {
        // Over SPDY upstream's client takes the end of a connection for that of the command.
        finish(child, b"").unwrap();
    }
}

#[test]
fn a_runtime_that_is_away_is_told_of() {
    let (world, _, client) = world(Flavor::Debian16, "{}");
    world.containerd.stop();
    let path = script(&world, "output=1", "true");
    for transport in Transport::ALL {
        // A call that was under way when it went may fail in another way.
        wait_until(PATIENCE, "the reason", || {
            let ran = client.exec(User::Admin, transport, &path, &["-stdout"], b"").unwrap();
            assert_eq!(ran.code, Some(125), "{transport:?} {ran:?}");
            // Upstream's client shows nothing of the text over WebSocket.
            let told = ran.stderr.contains("cannot reach the CRI socket");
            if told || transport == Transport::WebSocket { Ok(()) } else { Err(ran.stderr) }
        })
        .unwrap();
    }
    world.containerd.start_again().unwrap();
    wait_until(PATIENCE, "commands run again", || {
        let ran = client.exec(User::Admin, Transport::Spdy, &path, &["-stdout"], b"").unwrap();
        if ran.code == Some(0) { Ok(()) } else { Err(ran.stderr) }
    })
    .unwrap();
}
