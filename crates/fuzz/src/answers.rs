//! The verbs of `mainstay` against a server that says whatever it is given.

use std::{
    fs,
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

/// Answers every request with the same bytes and ends the connection, until it is dropped.
struct Parrot {
    socket: PathBuf,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Parrot {
    fn start(answer: &[u8]) -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("mainstay-fuzz-{}-{number}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&socket)?;
        let (ends, answer) = (Arc::new(AtomicBool::new(false)), answer.to_vec());
        let end = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if end.load(Ordering::Relaxed) {
                    return;
                }
                // A client that does not listen to the end is no concern of the server.
                drop(answer_one(&stream, &answer));
            }
        });
        Ok(Self { socket, ends, thread: Some(thread) })
    }
}

impl Drop for Parrot {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // It waits for somebody.
        if UnixStream::connect(&self.socket).is_ok() {
            drop(self.thread.take().map(JoinHandle::join));
        }
        drop(fs::remove_file(&self.socket));
    }
}

fn answer_one(mut stream: &UnixStream, answer: &[u8]) -> io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    stream.write_all(answer)
}

pub(crate) fn read(bytes: &[u8]) -> String {
    match Parrot::start(bytes) {
        Ok(parrot) => mainstay_client::fuzz::verbs(&parrot.socket),
        Err(error) => format!("no server: {error}"),
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let pods = r#"{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"web-n","namespace":"default","uid":"u","creationTimestamp":"2026-01-02T03:04:05Z","labels":{"a":"b"},"annotations":{"kubernetes.io/config.source":"file"}},"spec":{"nodeName":"n","containers":[{"name":"main","image":"i","ports":[{"containerPort":80}],"env":[{"name":"A","value":"1"}],"resources":{"limits":{"cpu":"1"}}}],"volumes":[{"name":"v","emptyDir":{}}]},"status":{"phase":"Running","podIP":"10.0.0.1","startTime":"2026-01-02T03:04:05Z","containerStatuses":[{"name":"main","ready":true,"restartCount":2,"image":"i","imageID":"","state":{"running":{"startedAt":"2026-01-02T03:04:06Z"}},"lastState":{"terminated":{"exitCode":1,"finishedAt":"2026-01-02T03:04:05Z"}}}]}}]}"#;
    let summary = r#"{"node":{"nodeName":"n","cpu":{"time":"2026-01-02T03:04:05Z","usageNanoCores":5},"memory":{"availableBytes":5,"workingSetBytes":6},"network":{"interfaces":[{"name":"eth0","rxBytes":1,"txBytes":2}]},"fs":{"availableBytes":1,"usedBytes":2}},"pods":[{"podRef":{"name":"web-n","namespace":"default","uid":"u"},"containers":[{"name":"main","cpu":{"usageNanoCores":7},"memory":{"workingSetBytes":8},"rootfs":{"usedBytes":9},"logs":{"usedBytes":18446744073709551615}}],"cpu":{"time":"2026-01-02T03:04:05Z","usageNanoCores":18446744073709551615},"network":{"interfaces":[{"rxBytes":1,"txBytes":2},{"rxBytes":3}]},"ephemeral-storage":{"usedBytes":3}}]}"#;
    let resources = r#"{"devices":[{"resource":"a/b","id":"d","healthy":true,"numaNodes":[0,1],"holder":null}],"cpus":[{"cpu":0,"numaNode":0,"socket":0,"core":0,"state":"Shared","holders":[]}],"memory":[]}"#;
    let events = r#"{"kind":"List","items":[{"uid":"u","namespace":"default","name":"web-n","kind":"Pod","type":"Warning","reason":"Failed","message":"no\nway","count":3,"first_timestamp":"2026-01-02T03:04:05Z","last_timestamp":"2026-01-02T03:04:05Z"}]}"#;
    let metrics = "# HELP container_fs_reads_bytes_total x\n# TYPE container_fs_reads_bytes_total counter\ncontainer_fs_reads_bytes_total{container=\"\",device=\"\",id=\"/\",image=\"\",name=\"\",namespace=\"\",pod=\"\"} 4096 1\n";
    let mut seeds: Vec<Vec<u8>> =
        [pods, summary, resources, events, metrics, "{}", "[]", "{\"items\":null,\"pods\":[]}"]
            .iter()
            .map(|body| {
                format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{body}").into_bytes()
            })
            .collect();
    seeds.push(b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nno!".to_vec());
    seeds.push(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n0\r\n\r\n".to_vec());
    seeds.push(b"HTTP/1.1 503 Service Unavailable\r\n\r\nlater".to_vec());
    seeds
}
