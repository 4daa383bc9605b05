use std::{
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use hyper::server::conn::http2;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use mainstay_proto::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
    registration_server::{Registration, RegistrationServer},
};
use tokio::{net::UnixListener, sync::watch};
use tonic::{Request, Response, Status};

use super::*;

/// For what comes by itself.
const SOON: Duration = Duration::from_secs(60);

/// A plugin that says what it is told to say, and keeps what it hears.
#[derive(Clone, Debug)]
struct Plugin {
    info: PluginInfo,
    /// It does not want to hear what came of it.
    deaf: bool,
    heard: watch::Sender<Vec<String>>,
}

impl Plugin {
    fn new(kind: &str, name: &str) -> Self {
        let info = PluginInfo {
            r#type: kind.to_owned(),
            name: name.to_owned(),
            endpoint: String::new(),
            supported_versions: vec!["v1".to_owned()],
        };
        Self { info, deaf: false, heard: watch::channel(Vec::new()).0 }
    }

    /// Serves on a socket until the group ends.
    fn serve(&self, socket: &Path) -> TaskGroup {
        let tasks = TaskGroup::new();
        let (listener, plugin, group) = (UnixListener::bind(socket).unwrap(), self.clone(), tasks.clone());
        let shutdown = tasks.shutdown();
        tasks.spawn("plugin", async move {
            while let Some(Ok((stream, _))) = shutdown.run_until_signalled(listener.accept()).await {
                let service = TowerToHyperService::new(RegistrationServer::new(plugin.clone()));
                let connection =
                    http2::Builder::new(Calls(group.clone())).serve_connection(TokioIo::new(stream), service);
                group.spawn("connection", async move {
                    connection.await.ok();
                });
            }
        });
        tasks
    }

    async fn hears(&self, words: &str) {
        let mut heard = self.heard.subscribe();
        let waiting = heard.wait_for(|heard| heard.iter().any(|it| it.contains(words)));
        tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    }
}

#[tonic::async_trait]
impl Registration for Plugin {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        self.heard.send_modify(|heard| heard.push(format!("{plugin_registered} {error}")));
        if self.deaf {
            return Err(Status::internal("not now"));
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[derive(Clone)]
struct Calls(TaskGroup);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Calls {
    fn execute(&self, call: F) {
        self.0.spawn("call", call);
    }
}

/// Keeps what it is asked. Takes every name but `no.example.com`, and `later.example.com` only the second time.
#[derive(Debug, Default)]
struct Taker {
    asked: watch::Sender<Vec<String>>,
    put_off: Mutex<bool>,
}

impl Taker {
    fn note(&self, line: String) {
        self.asked.send_modify(|asked| asked.push(line));
    }

    async fn is_asked(&self, lines: &[&str]) {
        let mut asked = self.asked.subscribe();
        let waiting = asked.wait_for(|asked| asked == lines);
        let done = tokio::time::timeout(SOON, waiting).await.map(drop);
        assert!(done.is_ok(), "{:?} is not {lines:?}", self.asked.borrow());
    }
}

impl Handler for Taker {
    fn validate(&self, plugin: &Candidate) -> Result<(), String> {
        if plugin.name == "no.example.com" { Err("not this one".to_owned()) } else { Ok(()) }
    }

    fn register<'a>(&'a self, plugin: &'a Candidate) -> Work<'a, Result<(), String>> {
        Box::pin(async move {
            self.note(format!("+{}", plugin.name));
            let mut put_off = self.put_off.lock().unwrap_or_else(PoisonError::into_inner);
            if plugin.name == "later.example.com" && !std::mem::replace(&mut *put_off, true) {
                return Err("come back".to_owned());
            }
            Ok(())
        })
    }

    fn deregister(&self, plugin: &Candidate) {
        self.note(format!("-{}", plugin.name));
    }
}

struct World {
    root: tempfile::TempDir,
    tasks: TaskGroup,
    taker: Arc<Taker>,
}

impl World {
    fn new() -> Self {
        let (root, taker) = (tempfile::tempdir().unwrap(), Arc::<Taker>::default());
        Self { root, tasks: TaskGroup::new(), taker }
    }

    fn start(&self) {
        let handlers: Handlers = [("Test", Arc::clone(&self.taker) as Arc<dyn Handler>)].into();
        start(self.root.path().join("registry"), handlers, &self.tasks).unwrap();
    }

    fn socket(&self, name: &str) -> PathBuf {
        let path = self.root.path().join("registry").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }
}

#[tokio::test]
async fn sockets_come_and_go() {
    let world = World::new();
    // One that was there before, one that comes below a new directory.
    let (early, late) = (Plugin::new("Test", "early"), Plugin::new("Test", "late"));
    let _early = early.serve(&world.socket("early.sock"));
    world.start();
    early.hears("true").await;
    let serving = late.serve(&world.socket("deep/er/late.sock"));
    late.hears("true").await;
    world.taker.is_asked(&["+early", "+late"]).await;
    // Made anew at the same place: the old one's end comes first.
    serving.drain(Duration::ZERO).await;
    fs::remove_file(world.socket("deep/er/late.sock")).unwrap();
    let again = Plugin::new("Test", "again");
    let _again = again.serve(&world.socket("deep/er/late.sock"));
    world.taker.is_asked(&["+early", "+late", "-late", "+again"]).await;
    fs::remove_file(world.socket("early.sock")).unwrap();
    world.taker.is_asked(&["+early", "+late", "-late", "+again", "-early"]).await;
    world.tasks.drain(SOON).await;
}

#[tokio::test]
async fn who_is_not_taken_is_told_why_and_asked_again() {
    let world = World::new();
    world.start();
    let stranger = Plugin::new("Other", "x");
    let _stranger = stranger.serve(&world.socket("stranger.sock"));
    stranger
        .hears("false RegisterPlugin error -- no handler registered for plugin type: Other at socket")
        .await;
    let refused = Plugin::new("Test", "no.example.com");
    let _refused = refused.serve(&world.socket("no.sock"));
    refused.hears("false RegisterPlugin error -- plugin validation failed with err: not this one").await;
    let later = Plugin::new("Test", "later.example.com");
    let _later = later.serve(&world.socket("later.sock"));
    later.hears("false RegisterPlugin error -- plugin registration failed with err: come back").await;
    later.hears("true").await;
    world.taker.is_asked(&["+later.example.com", "+later.example.com"]).await;
    world.tasks.drain(SOON).await;
}

#[tokio::test]
async fn who_cannot_be_told_is_taken_back() {
    let world = World::new();
    world.start();
    let deaf = Plugin { deaf: true, ..Plugin::new("Test", "deaf") };
    let _deaf = deaf.serve(&world.socket("deaf.sock"));
    let mut asked = world.taker.asked.subscribe();
    let taken_back = asked.wait_for(|asked| asked.starts_with(&["+deaf".to_owned(), "-deaf".to_owned()]));
    tokio::time::timeout(SOON, taken_back).await.unwrap().unwrap();
    world.tasks.drain(SOON).await;
}

/// A socket that nobody answers on, and one that speaks something else, hold up nobody.
#[tokio::test]
async fn silence_and_noise_hold_up_nobody() {
    let world = World::new();
    world.start();
    let _silent = std::os::unix::net::UnixListener::bind(world.socket("a-silent.sock")).unwrap();
    let noisy = UnixListener::bind(world.socket("b-noisy.sock")).unwrap();
    world.tasks.spawn("noise", async move {
        while let Ok((mut stream, _)) = noisy.accept().await {
            tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n").await.ok();
        }
    });
    let plugin = Plugin::new("Test", "good");
    let _plugin = plugin.serve(&world.socket("c-good.sock"));
    world.taker.is_asked(&["+good"]).await;
    plugin.hears("true").await;
    world.tasks.drain(Duration::ZERO).await;
}

/// What is no message of the protocol is a reason not to take that plugin, and is no other's trouble.
#[tokio::test]
async fn what_cannot_be_read_is_told_of_as_such() {
    let world = World::new();
    // A field of no type; less than it says; no frame at all; nothing.
    for (at, (text, why)) in [
        ("\0\0\0\0\x01\x0f", "failed to decode Protobuf message"),
        ("\0\0\0\0\x05", "missing grpc-status trailer"),
        ("<html>", "invalid compression flag"),
        ("", "missing grpc-status trailer"),
    ]
    .into_iter()
    .enumerate()
    {
        let socket = world.socket(&format!("garbles{at}.sock"));
        let listener = UnixListener::bind(&socket).unwrap();
        let group = world.tasks.clone();
        world.tasks.spawn("plugin", async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = hyper::service::service_fn(move |_| async move {
                    let answer = hyper::Response::builder().header("content-type", "application/grpc");
                    answer.body(text.to_owned())
                });
                let connection =
                    http2::Builder::new(Calls(group.clone())).serve_connection(TokioIo::new(stream), service);
                group.spawn("connection", async move {
                    connection.await.ok();
                });
            }
        });
        let handlers: Handlers = [("Test", Arc::clone(&world.taker) as Arc<dyn Handler>)].into();
        let refused = call::register(socket.clone(), &handlers).await.unwrap_err();
        let expected = format!(
            "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {}, err: ",
            socket.display()
        );
        assert!(refused.starts_with(&expected) && refused.contains(why), "{refused}");
    }
    world.start();
    let plugin = Plugin::new("Test", "good");
    let _plugin = plugin.serve(&world.socket("good.sock"));
    world.taker.is_asked(&["+good"]).await;
    plugin.hears("true").await;
    world.tasks.drain(Duration::ZERO).await;
}
