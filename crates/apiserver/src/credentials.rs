//! The kubeconfig in force: read again when one of its files changes, and completed by an exec program.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::HeaderValue;
use jiff::Timestamp;
use mainstay_task::TaskGroup;
use mainstay_types::ApiCalls;
use tokio::{sync::watch, time::Instant};

use crate::{
    ApiError,
    exec::{ExecConfig, ExecCredential},
    kubeconfig::{self, Access, Authority, Identity, KubeconfigError, Login, Server},
    validity,
};

/// The files are looked at no more often than this, and only when there is a request.
const LOOK: Duration = Duration::from_secs(5);
/// How long a look may hold up a request; a disk that hangs makes the old values do.
const LOOK_DEADLINE: Duration = Duration::from_secs(2);

/// Everything that a connection depends on: when it changes, a new one is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Material {
    pub(crate) server: Server,
    pub(crate) authority: Authority,
    pub(crate) identity: Option<Identity>,
    pub(crate) server_name: Option<String>,
    pub(crate) proxy: Option<(String, u16)>,
    pub(crate) cluster: String,
    pub(crate) user: String,
}

/// What a request is made with.
#[derive(Clone, Debug)]
pub(crate) struct Ready {
    /// The same allocation as long as nothing changes.
    pub(crate) material: Arc<Material>,
    pub(crate) header: Option<HeaderValue>,
}

#[derive(Debug)]
pub(crate) struct Credentials {
    path: PathBuf,
    state: Mutex<State>,
    /// Held while files are looked at, by whoever is at it, however long that takes: one look at a time.
    looking: Arc<tokio::sync::Mutex<()>>,
    program: Arc<Mutex<Program>>,
    /// Where it is told until when the client certificate is good, and what could not be read anew.
    calls: Arc<ApiCalls>,
    tasks: TaskGroup,
}

/// The exec program: what it said last, and whether it runs. Each with the kubeconfig that named it.
#[derive(Debug, Default)]
struct Program {
    said: Option<(Arc<Access>, ExecCredential)>,
    runs: Option<(Arc<Access>, watch::Receiver<Option<Said>>)>,
}

type Said = Result<ExecCredential, String>;

#[derive(Debug)]
struct State {
    access: Arc<Access>,
    material: Arc<Material>,
    looked: Instant,
    told: Option<String>,
}

impl Credentials {
    /// Reads the kubeconfig for the first time. Blocks.
    pub(crate) fn open(
        path: PathBuf,
        calls: Arc<ApiCalls>,
        tasks: &TaskGroup,
    ) -> Result<Self, KubeconfigError> {
        let access = kubeconfig::load(&path)?;
        let material = Arc::new(material(&access, access.identity.clone()));
        tell_span(&calls, &material);
        let state = State { access: Arc::new(access), material, looked: Instant::now(), told: None };
        Ok(Self {
            path,
            state: Mutex::new(state),
            looking: Arc::default(),
            program: Arc::default(),
            calls,
            tasks: tasks.clone(),
        })
    }

    /// The server's URL, for messages.
    pub(crate) fn server(&self) -> String {
        self.lock().access.server.to_string()
    }

    /// The newest good values.
    pub(crate) async fn ready(&self) -> Result<Ready, ApiError> {
        if self.lock().looked.elapsed() >= LOOK {
            self.look().await;
        }
        let (access, material) = {
            let state = self.lock();
            (Arc::clone(&state.access), Arc::clone(&state.material))
        };
        let bearer = |token: &str| header(&format!("Bearer {token}"));
        match &access.login {
            Login::None => Ok(Ready { material, header: None }),
            Login::Token(token) => Ok(Ready { material, header: Some(bearer(token)?) }),
            Login::Basic(encoded) => {
                Ok(Ready { material, header: Some(header(&format!("Basic {encoded}"))?) })
            }
            Login::Exec(exec) => {
                let credential = self.said(&access, exec).await.map_err(ApiError::Credentials)?;
                let material = self.with_identity(&access, &material, credential.identity);
                let header = credential.token.as_deref().map(bearer).transpose()?;
                Ok(Ready { material, header })
            }
        }
    }

    /// What the exec program says. It runs in a task of its own, once for all who wait: it may take longer than any of them
    /// does, and the next one finds its answer.
    async fn said(&self, access: &Arc<Access>, exec: &ExecConfig) -> Said {
        let mut runs = {
            let mut program = lock(&self.program);
            if let Some((of, said)) = &program.said
                && Arc::ptr_eq(of, access)
                && said.holds_at(Timestamp::now())
            {
                return Ok(said.clone());
            }
            match &program.runs {
                Some((of, runs)) if Arc::ptr_eq(of, access) && runs.has_changed().is_ok() => runs.clone(),
                _ => {
                    let runs = self.run(access, exec);
                    program.runs = Some((Arc::clone(access), runs.clone()));
                    runs
                }
            }
        };
        let ended = || Err("the program was ended, because mainstay ends".to_owned());
        match runs.wait_for(Option::is_some).await {
            Ok(said) => said.clone().unwrap_or_else(ended),
            Err(_) => ended(),
        }
    }

    fn run(&self, access: &Arc<Access>, exec: &ExecConfig) -> watch::Receiver<Option<Said>> {
        let (tell, runs) = watch::channel(None);
        let (program, access, exec) = (Arc::clone(&self.program), Arc::clone(access), exec.clone());
        let (shutdown, calls) = (self.tasks.shutdown(), Arc::clone(&self.calls));
        self.tasks.spawn("credentials program", async move {
            let Some(said) = shutdown.run_until_signalled(exec.run(&access)).await else { return };
            if said.is_err() {
                calls.certificate.errors.add();
            }
            let mut program = lock(&program);
            if let Ok(said) = &said {
                program.said = Some((Arc::clone(&access), said.clone()));
            }
            if program.runs.as_ref().is_some_and(|(of, _)| Arc::ptr_eq(of, &access)) {
                program.runs = None;
            }
            drop(program);
            tell.send_replace(Some(said));
        });
        runs
    }

    /// The server refused what [`Self::ready`] gave. Returns whether the next try will be made with something else.
    pub(crate) async fn refused(&self, used: &Ready) -> bool {
        lock(&self.program).said = None;
        self.look().await;
        match self.ready().await {
            Ok(now) => now.header != used.header || !Arc::ptr_eq(&now.material, &used.material),
            Err(_) => false,
        }
    }

    /// Reads the files again if they changed.
    async fn look(&self) {
        // Whoever comes second takes what the first found. On a disk that hangs that is nothing, and there is no second: each would hold
        // another of the threads that everybody shares.
        let Ok(one) = Arc::clone(&self.looking).try_lock_owned() else { return };
        let access = {
            let mut state = self.lock();
            state.looked = Instant::now();
            Arc::clone(&state.access)
        };
        let path = self.path.clone();
        let work = tokio::task::spawn_blocking(move || {
            // It is the thread's, not the caller's, who stops waiting before the thread does.
            let _one = one;
            let changed = access.files.iter().any(|(path, was)| kubeconfig::stamp(path) != *was);
            changed.then(|| kubeconfig::load(&path))
        });
        match tokio::time::timeout(LOOK_DEADLINE, work).await {
            Ok(Ok(Some(Ok(access)))) => {
                tracing::info!(kubeconfig = %self.path.display(), "the kubeconfig or a file that it names changed; it was read again");
                let mut state = self.lock();
                let new = material(&access, access.identity.clone());
                if new != *state.material {
                    tell_span(&self.calls, &new);
                    state.material = Arc::new(new);
                }
                state.access = Arc::new(access);
                state.told = None;
            }
            Ok(Ok(Some(Err(error)))) => {
                let text = error.to_string();
                // Each look that finds it so counts: as long as nobody mends it, the counter rises.
                self.calls.certificate.errors.add();
                let mut state = self.lock();
                // Half of a pair may be there already and the other still on its way: told once, tried again.
                if state.told.as_ref() != Some(&text) {
                    tracing::warn!(%error, "the kubeconfig or a file that it names changed and cannot be used; what was read before stays in force");
                    state.told = Some(text);
                }
            }
            Ok(Ok(None) | Err(_)) => {}
            Err(_) => {
                tracing::warn!(kubeconfig = %self.path.display(), "cannot look at the kubeconfig's files; does their disk answer?")
            }
        }
    }

    fn with_identity(
        &self,
        access: &Access,
        known: &Arc<Material>,
        identity: Option<Identity>,
    ) -> Arc<Material> {
        if identity.is_none() || known.identity == identity {
            return Arc::clone(known);
        }
        let new = Arc::new(material(access, identity));
        tell_span(&self.calls, &new);
        self.lock().material = Arc::clone(&new);
        new
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tell_span(calls: &ApiCalls, material: &Material) {
    let identity = material.identity.as_ref();
    let span = identity.and_then(|identity| validity::span_of_pem(&identity.certificate));
    calls.certificate.in_force(span, Timestamp::now());
}

fn material(access: &Access, identity: Option<Identity>) -> Material {
    Material {
        server: access.server.clone(),
        authority: access.authority.clone(),
        identity,
        server_name: access.server_name.clone(),
        proxy: access.proxy.clone(),
        cluster: access.cluster.clone(),
        user: access.user.clone(),
    }
}

fn header(text: &str) -> Result<HeaderValue, ApiError> {
    let mut value = HeaderValue::try_from(text)
        .map_err(|_| ApiError::Credentials("the token has characters that no header can carry".into()))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;
    use crate::tests::server::kubeconfig;

    /// A pipe that nobody writes into takes the place of a disk that hangs: who opens it to read waits.
    #[tokio::test]
    async fn a_disk_that_hangs_costs_one_thread() {
        let dir = tempfile::tempdir().unwrap();
        let token = dir.path().join("token");
        fs::write(&token, "first").unwrap();
        let path = kubeconfig(dir.path(), "http://127.0.0.1:1", "", "tokenFile: token");
        let tasks = TaskGroup::new();
        let credentials = Credentials::open(path, Arc::default(), &tasks).unwrap();
        fs::remove_file(&token).unwrap();
        assert!(Command::new("mkfifo").arg(&token).status().unwrap().success());
        credentials.look().await;
        for _ in 0..100 {
            // Each would wait for its deadline if it began a look of its own.
            let second = tokio::time::timeout(LOOK_DEADLINE / 2, credentials.look());
            second.await.expect("nobody begins another look");
        }
        let said = |ready: Ready| ready.header.unwrap().to_str().unwrap().to_owned();
        assert_eq!(said(credentials.ready().await.unwrap()), "Bearer first", "what was read before holds");

        // The disk answers, and the next look finds what is there.
        let writer = token.clone();
        tokio::task::spawn_blocking(move || fs::write(writer, "late")).await.unwrap().unwrap();
        fs::write(dir.path().join("new"), "new").unwrap();
        fs::rename(dir.path().join("new"), &token).unwrap();
        let found = tokio::time::timeout(Duration::from_secs(60), async {
            loop {
                credentials.look().await;
                let ready = said(credentials.ready().await.unwrap());
                if ready == "Bearer new" {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        found.await.expect("it is looked at again");
    }
}
