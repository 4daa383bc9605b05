//! A wire to the API server that can be cut or fall silent. Nobody on it understands what goes through: TLS and HTTP/2 are agreed upon by
//! those at its ends.

use crate::open_streams::OpenStreams;
use crate::reviews::write_kubeconfig;
use crate::{CertificateWish, ControlPlane};
use anyhow::{Context, Result};
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A TCP proxy between one node and a control plane. Ends with its handle.
#[derive(Debug)]
pub struct ThinWire {
    address: SocketAddr,
    kubeconfig: PathBuf,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    silent: Mutex<bool>,
    speaks: Condvar,
    open: OpenStreams,
    count: AtomicUsize,
    ended: AtomicBool,
}

impl ThinWire {
    /// Starts it for a node of that name; its files go below the control plane's.
    ///
    /// # Errors
    /// When it cannot listen, or its files cannot be written.
    pub fn start(plane: &ControlPlane, node: &str) -> Result<Self> {
        let authority = plane.authority();
        let shown =
            authority.issue(&CertificateWish::client(&format!("system:node:{node}"), &["system:nodes"]))?;
        let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen")?;
        let address = listener.local_addr().context("no address")?;
        let dir = plane.dir().join(format!("wire-{node}"));
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let kubeconfig = write_kubeconfig(&dir, &format!("https://{address}"), &authority.pem, &shown)?;
        let shared = Arc::new(Shared {
            server: plane.address(),
            silent: Mutex::new(false),
            speaks: Condvar::new(),
            open: OpenStreams::default(),
            count: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        });
        let serving = shared.clone();
        std::thread::spawn(move || serve(&listener, &serving));
        Ok(Self { address, kubeconfig, shared })
    }

    /// The node's kubeconfig, which leads here.
    pub fn kubeconfig(&self) -> &PathBuf {
        &self.kubeconfig
    }

    /// Lets nothing through any more, in either direction, or goes on where it stopped. Nobody is told: connections stay as they are, and
    /// new ones are taken.
    pub fn silence(&self, silent: bool) {
        *self.shared.silent() = silent;
        self.shared.speaks.notify_all();
    }

    /// Ends all connections.
    pub fn cut(&self) {
        self.shared.open.close_all();
    }

    /// How many connections go through it.
    pub fn connections(&self) -> usize {
        self.shared.count.load(Ordering::SeqCst)
    }
}

impl Drop for ThinWire {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.silence(false);
        self.cut();
        // Wakes the thread that accepts.
        TcpStream::connect(self.address).ok();
    }
}

impl Shared {
    fn silent(&self) -> MutexGuard<'_, bool> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until_it_speaks(&self) {
        let silent = self.silent();
        drop(self.speaks.wait_while(silent, |silent| *silent).unwrap_or_else(PoisonError::into_inner));
    }
}

fn serve(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.ended.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let shared = shared.clone();
        std::thread::spawn(move || {
            shared.count.fetch_add(1, Ordering::SeqCst);
            // A connection that breaks is what it is for.
            connection(&stream, &shared).ok();
            shared.count.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

fn connection(outside: &TcpStream, shared: &Shared) -> Result<()> {
    let _outside = shared.open.keep(outside)?;
    shared.wait_until_it_speaks();
    let inside = TcpStream::connect(shared.server)?;
    let _inside = shared.open.keep(&inside)?;
    std::thread::scope(|scope| {
        scope.spawn(|| pass(outside, &inside, shared));
        pass(&inside, outside, shared);
    });
    Ok(())
}

/// Until one of them ends; then both do.
fn pass(mut from: &TcpStream, mut to: &TcpStream, shared: &Shared) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = from.read(&mut buffer).unwrap_or(0);
        shared.wait_until_it_speaks();
        if count == 0 || to.write_all(buffer.get(..count).unwrap_or_default()).is_err() {
            for stream in [from, to] {
                // The other direction may have ended it already.
                stream.shutdown(Shutdown::Both).ok();
            }
            return;
        }
    }
}
