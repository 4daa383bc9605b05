//! Taking the addresses, and giving the socket file back.

use std::{
    fs, io,
    net::{SocketAddr, TcpListener},
    os::{
        fd::OwnedFd,
        unix::{
            fs::{FileTypeExt, MetadataExt, PermissionsExt},
            net::UnixListener,
        },
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use mainstay_auth::{ActingVerb, Guard};
use mainstay_host::Host;
use mainstay_task::TaskGroup;
use rustix::{
    fs::Mode,
    io::Errno,
    net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};

use crate::{
    NodeLogs,
    acting::{Acting, ActingConfig},
    choice::FamilyChoice,
    connection::{self, Limits, Listener},
    health::{Counts, LogCheck},
    own_metrics::OwnMetrics,
    representation::Kept,
    resource_metrics::ResourceTexts,
    route::{App, ServerState},
    stats,
    table::{Face, Switches},
    tls::Tls,
    watch::Feed,
};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Where to listen, and what handlers must know of the configuration.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The unix socket, `<root>/mainstay.sock`.
    pub socket: PathBuf,
    /// `port`, unless the server is switched off.
    pub secure: Option<SecureConfig>,
    /// `readOnlyPort`, if it is configured.
    pub read_only: Option<SocketAddr>,
    /// `healthzPort`, if it is configured.
    pub healthz: Option<SocketAddr>,
    /// `syncFrequency`: how long the sync loop may be silent follows from it.
    pub sync_frequency: Duration,
    /// Feature gate `PodLogsQuerySplitStreams`: whether a log may be asked for by stream.
    pub split_log_streams: bool,
    /// What is turned on.
    pub switches: Switches,
    /// What exec, attach, port-forward, run and checkpoint need; without it they are refused.
    pub acting: Option<ActingConfig>,
    /// What `/logs/` shows.
    pub node_logs: NodeLogs,
    /// The machine, of which `/spec/` tells.
    pub host: Host,
    /// Which families of metrics are served.
    pub families: FamilyChoice,
}

/// The TLS port.
#[derive(Clone, Debug)]
pub struct SecureConfig {
    /// Where.
    pub address: SocketAddr,
    /// What it shows and speaks.
    pub tls: Arc<Tls>,
    /// Who may do what.
    pub guard: Arc<Guard>,
    /// Which right opens exec, attach, run and portForward.
    pub acting_verb: ActingVerb,
}

/// Why the server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Somebody answers there.
    #[error(
        "another mainstay already answers at {path}; stop it, or give this one a --root-dir of its own", path = path.display()
    )]
    SocketInUse {
        /// The socket.
        path: PathBuf,
    },
    /// Something else has the socket's name.
    #[error("{path} is in the way: it is not a socket; move it elsewhere, or use another --root-dir", path = path.display())]
    NotASocket {
        /// What is in the way.
        path: PathBuf,
    },
    /// The kernel has room for 107 bytes.
    #[error(
        "the socket's path {path} has {length} bytes, and 107 is the most that Linux takes; use a shorter --root-dir", path = path.display()
    )]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        length: usize,
    },
    /// Something else is wrong with the socket.
    #[error("cannot listen on {path}; does its directory exist, and may this user write to it?", path = path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The secure port cannot be had.
    #[error(
        "cannot listen on {address} for port; stop whoever has it (another kubelet?), choose another port, or set enableServer to false"
    )]
    SecurePort {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The read-only port cannot be had.
    #[error(
        "cannot listen on {address} for readOnlyPort; stop whoever has it (another kubelet?), choose another port, or set readOnlyPort to 0"
    )]
    ReadOnlyPort {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
}

/// Listeners that are open and not served yet. Dropping it closes them and removes the socket file.
#[derive(Debug)]
pub struct Bound {
    config: ServerConfig,
    socket: (UnixListener, SocketFile),
    secure: Option<(TcpListener, SocketAddr)>,
    read_only: Option<(TcpListener, SocketAddr)>,
    /// `None` when it could not be had yet.
    healthz: Option<(TcpListener, SocketAddr)>,
}

/// Opens all listeners. Blocks only for system calls that answer at once.
///
/// The healthz port is the exception that upstream makes: when it cannot be had, that is logged and tried again every
/// five seconds while serving.
///
/// # Errors
/// [`ServeError`], which names the address and what to do.
pub fn bind(config: ServerConfig) -> Result<Bound, ServeError> {
    let socket = bind_socket(&config.socket)?;
    let secure = match config.secure.as_ref().map(|secure| secure.address) {
        Some(address) => {
            Some(bind_tcp(address).map_err(|source| ServeError::SecurePort { address, source })?)
        }
        None => None,
    };
    let read_only = match config.read_only {
        Some(address) => {
            Some(bind_tcp(address).map_err(|source| ServeError::ReadOnlyPort { address, source })?)
        }
        None => None,
    };
    let healthz = config.healthz.and_then(|address| match bind_tcp(address) {
        Ok(bound) => Some(bound),
        Err(error) => {
            connection::warn_healthz(address, &error);
            None
        }
    });
    Ok(Bound { config, socket, secure, read_only, healthz })
}

impl Bound {
    /// The unix socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.config.socket
    }

    /// The secure port's address, with the port that the system chose if 0 was asked for.
    #[must_use]
    pub fn secure_address(&self) -> Option<SocketAddr> {
        self.secure.as_ref().map(|(_, address)| *address)
    }

    /// The read-only port's address, with the port that the system chose if 0 was asked for.
    #[must_use]
    pub fn read_only_address(&self) -> Option<SocketAddr> {
        self.read_only.as_ref().map(|(_, address)| *address)
    }

    /// The healthz port's address; `None` if there is none, or it could not be had yet.
    #[must_use]
    pub fn healthz_address(&self) -> Option<SocketAddr> {
        self.healthz.as_ref().map(|(_, address)| *address)
    }

    /// Answers on all listeners until `tasks` are shut down; then no connection is accepted any more, streams end, and
    /// requests that were begun are finished.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time.
    pub fn serve(self, state: ServerState, tasks: &TaskGroup) {
        let booted = self.config.host.boot_time().and_then(|second| Timestamp::from_second(second).ok());
        let app = Arc::new(App {
            state,
            sync_frequency: self.config.sync_frequency,
            split_log_streams: self.config.split_log_streams,
            switches: self.config.switches,
            pod_list: Kept::default(),
            node: Kept::default(),
            feed: Feed::default(),
            metrics: OwnMetrics::default(),
            health_counts: Counts::default(),
            acting: Acting::new(self.config.acting),
            node_logs: self.config.node_logs,
            host: self.config.host,
            machine: stats::KeptMachine::default(),
            families: Arc::new(self.config.families),
            log_check: LogCheck::default(),
            resource_texts: ResourceTexts::default(),
            cadvisor: Default::default(),
            summaries: Default::default(),
            booted: booted.unwrap_or(Timestamp::UNIX_EPOCH),
            guard: self.config.secure.as_ref().map(|secure| Arc::clone(&secure.guard)),
            acting_verb: self.config.secure.as_ref().map(|secure| secure.acting_verb).unwrap_or_default(),
            tls: self.config.secure.as_ref().map(|secure| Arc::clone(&secure.tls)),
            tasks: tasks.clone(),
            shutdown: tasks.shutdown(),
        });
        let looking = app.clone();
        tasks.spawn("machine", async move {
            // Fails only when the process ends.
            drop(tokio::task::spawn_blocking(move || looking.cadvisor.look(&looking.host)).await);
        });
        let (listener, file) = self.socket;
        let serving = app.clone();
        tasks.spawn_critical("server socket", async move {
            connection::serve(serving, Face::Local, Listener::Unix(listener), Limits::LOCAL).await;
            drop(file);
        });
        if let Some((listener, _)) = self.secure {
            let serving = app.clone();
            tasks.spawn_critical("server secure port", async move {
                connection::serve(serving, Face::Secure, Listener::Tcp(listener), Limits::SECURE).await;
            });
        }
        if let Some((listener, _)) = self.read_only {
            let serving = app.clone();
            tasks.spawn_critical("server read-only port", async move {
                connection::serve(serving, Face::ReadOnly, Listener::Tcp(listener), Limits::PORT).await;
            });
        }
        if let Some(address) = self.config.healthz {
            let listener = self.healthz.map(|(listener, _)| listener);
            tasks.spawn_critical("server healthz port", async move {
                connection::serve_healthz(app, address, listener).await;
            });
        }
    }
}

/// Opens a TCP listener; also tells the address it got.
pub(crate) fn bind_tcp(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    // The library's own backlog is short; where a flood fills it, others wait a second for their next try.
    net::listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

fn bind_socket(path: &Path) -> Result<(UnixListener, SocketFile), ServeError> {
    let length = path.as_os_str().len();
    if length > 107 {
        return Err(ServeError::PathTooLong { path: path.to_owned(), length });
    }
    let failed = |source: io::Error| ServeError::Socket { path: path.to_owned(), source };
    let address = SocketAddrUnix::new(path).map_err(|errno| failed(errno.into()))?;
    remove_stale(path, &address)?;
    let socket = new_socket().map_err(failed)?;
    // The mode of the socket becomes the mode of the file, so there is no moment in which others could connect.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(|errno| failed(errno.into()))?;
    net::bind(&socket, &address).map_err(|errno| failed(errno.into()))?;
    let file = SocketFile::of(path).map_err(failed)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    net::listen(&socket, BACKLOG).map_err(|errno| failed(errno.into()))?;
    Ok((UnixListener::from(socket), file))
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Removes a socket file that a killed mainstay left behind: one on which nobody listens.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), ServeError> {
    let failed = |source: io::Error| ServeError::Socket { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ServeError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    // Never waits: a full backlog is `AGAIN`, which only a listener has.
    match net::connect(&new_socket().map_err(failed)?, address) {
        Ok(()) | Err(Errno::AGAIN) => Err(ServeError::SocketInUse { path: path.to_owned() }),
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed),
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(failed(errno.into())),
    }
}

/// Our socket's file: removed when dropped, unless another has taken its place.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket; the next start will");
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}
