//! The readers.

use mainstay_podspec::{Content, PodGates, StaticPodPlace, decode_manifest, runtime};
use mainstay_types::PodSource;

use crate::{answers, elf, machine};

/// Something that reads bytes from outside.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it reads.
    pub reads: &'static str,
    /// Inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Reads an input and says what came of it; panics where the reader breaks a promise.
    pub read: fn(&[u8]) -> String,
    /// Inputs of the run that is part of `cargo test`.
    pub short_run: u64,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target {
        name: "manifest",
        reads: "pod, config map and secret manifests",
        seeds: manifests,
        read: manifest,
        short_run: 1500,
    },
    Target {
        name: "config",
        reads: "KubeletConfiguration files",
        seeds: configs,
        read: config,
        short_run: 1500,
    },
    Target {
        name: "flags",
        reads: "the flags of `mainstay kubelet`, one a line",
        seeds: command_lines,
        read: flags,
        short_run: 1500,
    },
    Target {
        name: "log",
        reads: "container logs in the runtime's format",
        seeds: log_files,
        read: log,
        short_run: 10_000,
    },
    Target {
        name: "checkpoint",
        reads: "state files",
        seeds: state_files,
        read: checkpoint,
        short_run: 5000,
    },
    Target { name: "spdy", reads: "SPDY/3.1 frames", seeds: spdy_frames, read: spdy, short_run: 10_000 },
    Target {
        name: "websocket",
        reads: "WebSocket frames",
        seeds: ws_frames,
        read: websocket,
        short_run: 10_000,
    },
    Target {
        name: "request",
        reads: "paths and queries of HTTP requests",
        seeds: request_targets,
        read: request,
        short_run: 10_000,
    },
    Target {
        name: "cgroup",
        reads: "the kernel's files about cgroups, processes and networks",
        seeds: kernel_files,
        read: kernel_file,
        short_run: 10_000,
    },
    Target {
        name: "process",
        reads: "the kernel's files about processes, disks and the machine",
        seeds: process_files,
        read: process_file,
        short_run: 10_000,
    },
    Target {
        name: "client",
        reads: "answers of a server, by the verbs of `mainstay`",
        seeds: answers::seeds,
        read: answers::read,
        short_run: 200,
    },
    Target { name: "dbus", reads: "messages of D-Bus", seeds: dbus_messages, read: dbus, short_run: 10_000 },
    Target {
        name: "access",
        reads: "access.yaml, who may use the secure port",
        seeds: access_files,
        read: access,
        short_run: 1500,
    },
    Target {
        name: "machine",
        reads: "resolv.conf, mountinfo and lists of CPUs",
        seeds: machine_files,
        read: machine_file,
        short_run: 10_000,
    },
    Target {
        name: "topology",
        reads: "/sys about CPUs, caches, NUMA nodes and memory, a file a line",
        seeds: machine::seeds,
        read: machine::read,
        short_run: 400,
    },
    Target {
        name: "elf",
        reads: "symbol tables of programs",
        seeds: elf::seeds,
        read: elf::read,
        short_run: 10_000,
    },
    Target {
        name: "place",
        reads: "/proc/self/cgroup and /proc/self/mountinfo: where mainstay itself is",
        seeds: places,
        read: place,
        short_run: 10_000,
    },
    Target {
        name: "holdings",
        reads: "upstream's files of who holds CPUs, memory and devices",
        seeds: holding_files,
        read: holdings,
        short_run: 5000,
    },
    Target {
        name: "words",
        reads: "quantities and selectors",
        seeds: words_of_the_api,
        read: words,
        short_run: 10_000,
    },
    Target {
        name: "trace",
        reads: "traceparent, tracestate and addresses of collectors",
        seeds: trace_headers,
        read: trace,
        short_run: 10_000,
    },
];

/// The one of that name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn manifests() -> Vec<Vec<u8>> {
    texts(&[
        include_str!("../../../examples/web.yaml"),
        include_str!("../../../examples/sidecar.yaml"),
        include_str!("../../../examples/settings.yaml"),
        include_str!("../../../examples/job.yaml"),
        include_str!("../seeds/wide.yaml"),
        r#"{"apiVersion":"v1","kind":"PodList","items":[{"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i"}]}}]}"#,
    ])
}

/// What is accepted can be worked with: its resources are added up and its class is found without a panic.
fn manifest(bytes: &[u8]) -> String {
    let documents = match decode_manifest(bytes) {
        Ok(documents) => documents,
        Err(error) => return error.to_string(),
    };
    let place = StaticPodPlace {
        node_name: "node",
        source: PodSource::File,
        origin: "/etc/kubernetes/manifests/a.yaml",
        api_server: false,
        gates: PodGates::DEFAULT,
    };
    let mut words = String::new();
    for document in documents {
        match document.content.and_then(|content| content.prepare(&place)) {
            Ok((content, warnings)) => {
                if let Content::Pod(pod) = &content {
                    words.push_str(runtime::qos_class(pod).as_str());
                    let requests = runtime::pod_requests(pod, runtime::Overhead::Included);
                    let limits = runtime::pod_limits(pod, runtime::Overhead::Included);
                    words.extend(requests.into_keys().chain(limits.into_keys()));
                }
                words.extend(warnings);
            }
            Err(problems) => words.extend(problems.iter().map(ToString::to_string)),
        }
        words.extend(document.warnings);
    }
    words
}

fn configs() -> Vec<Vec<u8>> {
    texts(&[
        include_str!("../seeds/config.yaml"),
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfeatureGates: {SidecarContainers: true}\n",
        r#"{"apiVersion":"kubelet.config.k8s.io/v1beta1","kind":"KubeletConfiguration","maxPods":10,"evictionHard":{"memory.available":"5%"}}"#,
    ])
}

fn config(bytes: &[u8]) -> String {
    match mainstay_config::load_text("/etc/kubelet.yaml", &String::from_utf8_lossy(bytes)) {
        Ok(loaded) => loaded.notices.concat(),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

fn command_lines() -> Vec<Vec<u8>> {
    texts(&[
        "--max-pods=20\n-v2\n--node-labels=a=b,c=d\n--feature-gates=SidecarContainers=true\n",
        "--eviction-hard=memory.available<100Mi\n--address\n127.0.0.1\n--fail-swap-on=false\n--system-reserved=cpu=100m\n",
        "--hostname-override=a\n--sync-frequency=1m0s\n--kube-reserved\nmemory=1Gi\n--version=raw\n",
    ])
}

fn flags(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    match mainstay_config::parse_kubelet_flags(text.lines()) {
        Ok(flags) => format!("good {}", flags.settings().root_dir.len()),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

fn log_files() -> Vec<Vec<u8>> {
    texts(&[
        "2026-01-02T03:04:05.678901234Z stdout F hello\n2026-01-02T03:04:06Z stderr P wor\n2026-01-02T03:04:06Z stderr F ld\n",
        "2016-10-06T00:17:09.669794202Z stdout P:TAG1:TAG2 log content 2\n2016-10-20T18:39:20.57606443+02:00 stdout F x\n",
        "{\"log\":\"1\\n\",\"stream\":\"stdout\",\"time\":\"2020-10-20T18:39:20.57606443Z\"}\n{\"log\":\"2\",\"stream\":\"stderr\",\"time\":\"2020-10-20T18:39:21Z\"}\n",
    ])
}

/// A log reads the same however it is cut into blocks.
fn log(bytes: &[u8]) -> String {
    let whole = mainstay_logs::fuzz::decode(bytes, usize::MAX);
    let cut = mainstay_logs::fuzz::decode(bytes, 1 + bytes.len() % 7);
    assert_eq!(whole, cut, "a log that reads differently when it is read in pieces");
    let lines = whole.iter().filter(|byte| **byte == b'\n').count();
    let rough = ["nothing", "one line", "some lines", "many lines"][lines.min(9).div_ceil(3)];
    format!("{rough} {}", if whole.ends_with(b"\n") { "whole" } else { "open" })
}

fn state_files() -> Vec<Vec<u8>> {
    vec![
        mainstay_checkpoint::fuzz::encode(&["a", "b"]),
        mainstay_checkpoint::fuzz::encode(&[]),
        br#"{"mainstay":"other","version":1,"checksum":"sha256:00","data":[]}"#.to_vec(),
    ]
}

/// Data that were not written are not read: what passes the checksum is what it was.
fn checkpoint(bytes: &[u8]) -> String {
    match mainstay_checkpoint::fuzz::decode(bytes) {
        Ok(values) => {
            let written: Vec<&str> = values.iter().map(String::as_str).collect();
            let again = mainstay_checkpoint::fuzz::decode(&mainstay_checkpoint::fuzz::encode(&written));
            assert_eq!(again.ok(), Some(values), "data that change when they are written");
            "good".to_owned()
        }
        Err(error) => error.to_string(),
    }
}

fn spdy_frames() -> Vec<Vec<u8>> {
    vec![mainstay_stream::spdy::fuzz::example()]
}

fn spdy(bytes: &[u8]) -> String {
    count(mainstay_stream::spdy::fuzz::frames(bytes))
}

fn ws_frames() -> Vec<Vec<u8>> {
    vec![
        // A masked text, a masked ping, a masked close with a code; then one with a length of two bytes.
        b"\x81\x83\x01\x02\x03\x04\x60\x60\x60\x89\x80\x01\x02\x03\x04\x88\x82\x00\x00\x00\x00\x03\xe8"
            .to_vec(),
        [&b"\x82\xfe\x00\x80\x00\x00\x00\x00"[..], &[7; 128]].concat(),
        b"\x01\x81\x00\x00\x00\x00a\x80\x81\x00\x00\x00\x00b".to_vec(),
    ]
}

fn websocket(bytes: &[u8]) -> String {
    count(mainstay_stream::ws::fuzz::frames(bytes))
}

/// A rough count in words, by which inputs that get further are told apart.
fn count(frames: usize) -> String {
    "frame ".repeat(frames.min(12))
}

fn request_targets() -> Vec<Vec<u8>> {
    texts(&[
        "/pods?labelSelector=a%3Db,c&watch=true",
        "/containerLogs/default/web-node/main?tailLines=5&follow=1&sinceTime=2026-01-02T03:04:05Z&limitBytes=10&timestamps=true",
        "//a/../b/./c%2fd/?x=1;2&y=%zz&z=+",
        "/containerLogs/default/web/main?tail=all&previous=true&sinceSeconds=10&stream=Stdout",
    ])
}

fn request(bytes: &[u8]) -> String {
    mainstay_server::fuzz::request(&String::from_utf8_lossy(bytes))
}

fn kernel_files() -> Vec<Vec<u8>> {
    texts(&[
        "usage_usec 12\nuser_usec 3\nnr_periods 4\n",
        "max 100000\n",
        "8:0 rbytes=4096 wbytes=512 rios=1 wios=2 dbytes=0 dios=0 cost.usage=3\n",
        "8:0 Read 4096\n8:0 Write 512\nTotal 4608\n",
        "some avg10=1.50 avg60=0.20 avg300=0.00 total=12345\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n",
        "MemTotal:       24682316 kB\nSwapTotal: 0 kB\n",
        "a\nb\n  eth0: 3774 41 1 2 0 0 0 0 682 9 3 4 0 0 0 0\n",
        "Max open files            1024                 1048576              files     \n",
        "1\n42\n",
        "hugepages-2048kB",
        "max 3\n",
        "0.20 0.18 0.12 1/246 11206\n",
    ])
}

fn kernel_file(bytes: &[u8]) -> String {
    mainstay_sample::fuzz::formats(bytes)
}

fn process_files() -> Vec<Vec<u8>> {
    let mut files = texts(&[
        " 254       0 vda 100 5 2000 30 40 6 700 80 9 10 11 0 0 0 0 0 0\n   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0\n",
        "low 0\nhigh 2\nmax 3\noom 1\noom_kill 1\n",
        "42 (a ) b) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 3 0 99 1000000 25 18446744073709551615",
        "TcpExt: A B\nTcpExt: 1 2\nIpExt: InMcastPkts InOctets OutOctets\nIpExt: 1 22 333\n",
        "Limit                     Soft Limit           Hard Limit           Units     \nMax open files            1024                 unlimited            files     \n",
        "12:memory:/kubepods/burstable/pod0a1b2c3d-0000-1111-2222-333344445555/c1\n1:name=systemd:/system.slice/a.service\n0::/kubepods.slice/kubepods-pod0a1b2c3d_0000_1111_2222_333344445555.slice\n",
        "55e0a000-55e0b000 r-xp 00001000 08:01 123                        /usr/bin/a b (deleted)\n7ffd1000-7ffd3000 r-xp 00000000 00:00 0 [vdso]\n",
        "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n/dev/vda\\040x partition\t8388604\t0\t-2\n",
        "MemTotal:       24682316 kB\nSwapTotal: 0 kB\n",
        "processor\t: 0\ncpu MHz\t\t: 2200.123\ncpu MHz : 3000\n",
        "NAME=x\nPRETTY_NAME=\"A system 1.0\"\nkubelet:65536:131072\n",
    ]);
    files.push([3_u64, 64, 6, 4096, 0, 0].iter().flat_map(|word| word.to_ne_bytes()).collect());
    files
}

fn process_file(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    [
        mainstay_observe::fuzz::formats(bytes),
        mainstay_server::fuzz::process(&text),
        mainstay_grpc::fuzz::peer(&text).to_owned(),
        count(mainstay_profile::fuzz::mappings(&text)),
        mainstay_host::fuzz::formats(bytes),
    ]
    .join(" ")
}

fn dbus_messages() -> Vec<Vec<u8>> {
    let value = |text: &str| mainstay_dbus::Value::text(text);
    let call = mainstay_dbus::Message {
        serial: 3,
        path: "/org/freedesktop/systemd1".into(),
        interface: "org.freedesktop.systemd1.Manager".into(),
        member: "StartTransientUnit".into(),
        destination: "org.freedesktop.systemd1".into(),
        body: vec![value("a.slice"), value("replace")],
        ..mainstay_dbus::Message::default()
    };
    let answer = mainstay_dbus::Message { reply_serial: Some(3), sender: ":1.2".into(), ..call.clone() };
    [call, answer].iter().filter_map(|message| message.encode().ok()).collect()
}

/// What was understood is written and understood again as the same.
fn dbus(bytes: &[u8]) -> String {
    match mainstay_dbus::Message::parse(bytes) {
        Ok(message) => {
            if let Ok(again) = message.encode() {
                let read = mainstay_dbus::Message::parse(&again);
                // A number that is none is not even itself.
                let same = read.as_ref().is_ok_and(|read| format!("{read:?}") == format!("{message:?}"));
                assert!(same, "{message:?} became {read:?}");
            }
            format!("{:?} with {}", message.kind, count(message.body.len()))
        }
        Err(error) => outcome(&error),
    }
}

fn access_files() -> Vec<Vec<u8>> {
    texts(&[
        "apiVersion: access.mainstay.io/v1\nkind: LocalAccess\nusers: [{name: a, groups: [g], tokenSHA256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08}]\nrules: [{users: [a], verbs: [get], subresources: [metrics]}]\n",
        "apiVersion: access.mainstay.io/v1\nkind: LocalAccess\nrules: [{groups: ['*'], verbs: ['*'], paths: ['/healthz*']}]\n",
    ])
}

fn access(bytes: &[u8]) -> String {
    match mainstay_auth::LocalAccess::parse(&String::from_utf8_lossy(bytes)) {
        Ok(_) => "understood".into(),
        Err(error) => outcome(&error),
    }
}

fn machine_files() -> Vec<Vec<u8>> {
    texts(&[
        "nameserver 10.0.0.1\nnameserver fe80::1%eth0\nsearch a.example b.example .\noptions ndots:5 timeout:1\n# no\n",
        "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue\n37 36 0:5 / /a\\040b\\134 ro - tmpfs tmpfs rw\n",
        "0-3,5,7-8\n",
    ])
}

fn machine_file(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mounts = mainstay_host::MountTable::parse(&text).iter().count();
    let cpus = mainstay_host::parse_cpu_list(&text).map(|cpus| cpus.len());
    let resolver = match mainstay_host::ResolvConf::parse(&text) {
        Ok(conf) => count(conf.nameservers.len() + conf.searches.len() + conf.options.len()),
        Err(error) => outcome(&error),
    };
    format!("{resolver} {} {}", count(mounts), cpus.map_or("none".into(), count))
}

fn places() -> Vec<Vec<u8>> {
    texts(&[
        "0::/system.slice/mainstay.service\n",
        "5:memory:/kubelet\n4:cpu,cpuacct:/kubelet\n1:name=systemd:/other\n0::/\n",
        "0::/../elsewhere\n3:cpuacct:/a:b/c\n2:memory:/a:b/c\n",
        "36 35 98:0 /mnt1 / rw,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue\n37 36 0:5 / /var/lib rw shared:1 - tmpfs tmpfs rw\n",
    ])
}

/// A cgroup that is found is a path that leads below the hierarchy, and says the same when it is read again. The mount of a path is one of
/// the table's.
fn place(bytes: &[u8]) -> String {
    use mainstay_cgroup::CgroupPath;
    let text = String::from_utf8_lossy(bytes);
    let mut words = String::new();
    for unified in [true, false] {
        let Some(path) = CgroupPath::of_process(&text, unified) else { continue };
        assert!(path.as_str() != "/" && path.as_str().split('/').all(|part| part != ".."), "{path:?}");
        assert_eq!(CgroupPath::parse(path.as_str()).as_ref(), Ok(&path));
        words.push_str(if unified { "unified " } else { "controllers " });
        words.push_str(&"below ".repeat(path.as_str().matches('/').count().min(4)));
    }
    let table = mainstay_host::MountTable::parse(&text);
    for path in ["/", "/var/lib/kubelet", "/mnt2"].map(std::path::Path::new) {
        let mount = table.mount_of(path);
        assert!(mount.is_none_or(|mount| path.starts_with(&mount.mount_point)));
        assert_eq!(table.is_mount_point(path), table.at_or_below(path).any(|it| it.mount_point == path));
        words.push_str(match mount {
            None => "nowhere ",
            Some(mount) if mount.propagation.is_empty() => "private ",
            Some(_) => "shared ",
        });
    }
    words
}

fn holding_files() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"policyName":"static","defaultCpuSet":"0,2-3","entries":{"uid":{"c":"1"}},"checksum":1}"#,
        r#"{"policyName":"Static","machineState":{"0":{"numberOfAssignments":0,"memoryMap":{"memory":{"total":4,"systemReserved":1,"allocatable":3,"reserved":0,"free":3}},"cells":[0]}},"entries":{"uid":{"c":[{"numaAffinity":[0],"type":"memory","size":1}]}},"checksum":2}"#,
        r#"{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"a/b","DeviceIDs":{"0":["d"]},"AllocResp":""}],"RegisteredDevices":{"a/b":["d"]}},"Checksum":3}"#,
    ])
}

fn holdings(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let said = |result: Result<(), String>| result.err().unwrap_or_else(|| "understood".into());
    [
        said(mainstay_alloc::CpuState::from_text(&text).map(drop).map_err(|error| outcome(&error))),
        said(mainstay_alloc::MemoryState::from_text(&text).map(drop).map_err(|error| outcome(&error))),
        said(mainstay_alloc::Ledger::from_text(&text).map(drop).map_err(|error| outcome(&error))),
    ]
    .join(" ")
}

fn words_of_the_api() -> Vec<Vec<u8>> {
    texts(&[
        "100m",
        "1.5Gi",
        "1e3",
        "-0.25",
        "12345678901234567890E",
        "a=b,c!=d,e in (f,g),!h",
        "tier notin (x)",
    ])
}

fn words(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let quantity = match mainstay_types::Quantity::parse(&text) {
        Ok(_) => "a quantity".into(),
        Err(error) => outcome(&error),
    };
    let selector = match mainstay_types::LabelSelector::parse(&text) {
        Ok(_) => "a selector".into(),
        Err(error) => outcome(&error),
    };
    format!("{quantity} {selector}")
}

fn trace_headers() -> Vec<Vec<u8>> {
    texts(&[
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\na=1,b=2",
        "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-more",
        "localhost:4317",
        "dns://8.8.8.8/collector:1",
        "unix:///run/otel.sock",
        "unix-abstract:otel",
    ])
}

/// What was understood is said and understood again as the same.
fn trace(bytes: &[u8]) -> String {
    use mainstay_trace::{Context, Target};
    let text = String::from_utf8_lossy(bytes);
    let mut headers = http::HeaderMap::new();
    for (name, line) in ["traceparent", "tracestate", "traceparent"].into_iter().zip(text.split('\n')) {
        if let Ok(value) = line.parse() {
            headers.append(name, value);
        }
    }
    let context = Context::from_headers(&headers);
    if let Some(context) = &context {
        let again = Context::parse(&context.traceparent());
        assert_eq!(
            again.as_ref().map(|it| (it.trace, it.span, it.sampled)),
            Some((context.trace, context.span, context.sampled))
        );
    }
    let target = match Target::parse(Some(&text)) {
        Ok(Target::Network(_)) => "network",
        Ok(Target::Path(_)) => "path",
        Ok(Target::Abstract(_)) => "abstract",
        Err(_) => "none",
    };
    format!(
        "{} {target}",
        context.map_or("none", |context| if context.state.is_some() { "with state" } else { "plain" })
    )
}

/// The first words of an error: what it quotes of the input would make each look new.
fn outcome(error: &impl ToString) -> String {
    error
        .to_string()
        .split(['"', ':', '`'])
        .next()
        .unwrap_or_default()
        .chars()
        .filter(|it| !it.is_ascii_digit())
        .take(60)
        .collect()
}
