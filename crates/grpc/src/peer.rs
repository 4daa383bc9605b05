//! Who calls, and how often each may: limits are everybody's own, so that one who asks too much takes nothing from others.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use tokio::net::UnixStream;

/// Connections that a socket has at once.
const MAX_CONNECTIONS: usize = 1024;
/// Those of one peer.
const MAX_PEER_CONNECTIONS: usize = 512;
/// Peers that are remembered beyond those that are connected.
const MAX_IDLE_PEERS: usize = 256;

/// How often somebody may ask.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Calls per second in the long run.
    pub per_second: f64,
    /// Calls at once after a pause.
    pub burst: f64,
}

impl Default for Rate {
    /// Upstream's.
    fn default() -> Self {
        Self { per_second: 100.0, burst: 10.0 }
    }
}

/// Who is at the other end: the pod that the process belongs to, else its user.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Peer {
    Pod(Box<str>),
    User(u32),
}

impl Peer {
    /// As the kernel says it.
    pub(crate) async fn of(stream: &UnixStream) -> Self {
        let Ok(credentials) = stream.peer_cred() else { return Self::User(u32::MAX) };
        // A process of another PID namespace than ours has no number here.
        if let Some(pid) = credentials.pid().filter(|pid| *pid > 0)
            && let Ok(cgroups) = tokio::fs::read_to_string(format!("/proc/{pid}/cgroup")).await
            && let Some(uid) = cgroups.lines().find_map(pod_of)
        {
            return Self::Pod(uid.into());
        }
        Self::User(credentials.uid())
    }
}

/// The pod's UID in a line of `/proc/PID/cgroup`, by either driver's names.
fn pod_of(line: &str) -> Option<String> {
    let path = line.splitn(3, ':').nth(2)?;
    path.split('/').rev().find_map(|part| match part.strip_suffix(".slice") {
        Some(slice) => {
            let (_, uid) = slice.rsplit_once("-pod")?;
            is_uid(uid).then(|| uid.replace('_', "-"))
        }
        None => part.strip_prefix("pod").filter(|uid| is_uid(uid)).map(str::to_owned),
    })
}

fn is_uid(text: &str) -> bool {
    text.len() >= 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b'-' | b'_'))
}

/// Everybody's bucket and connections.
#[derive(Debug)]
pub(crate) struct Peers {
    rate: Rate,
    known: Mutex<HashMap<Peer, Known>>,
}

#[derive(Debug)]
struct Known {
    tokens: f64,
    at: Instant,
    connections: usize,
}

impl Peers {
    pub(crate) fn new(rate: Rate) -> Self {
        Self { rate, known: Mutex::default() }
    }

    /// A place for a connection; `None` when the peer, or all together, have too many.
    pub(crate) fn enter(self: &Arc<Self>, peer: Peer, now: Instant) -> Option<Place> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.values().map(|known| known.connections).sum::<usize>() >= MAX_CONNECTIONS {
            return None;
        }
        if known.len() > MAX_IDLE_PEERS && !known.contains_key(&peer) {
            // Whose bucket is full again is as good as unknown.
            let rate = self.rate;
            known.retain(|_, known| known.connections > 0 || known.refilled(rate, now) < rate.burst);
        }
        let entry = known.entry(peer.clone()).or_insert_with(|| Known {
            tokens: self.rate.burst,
            at: now,
            connections: 0,
        });
        if entry.connections >= MAX_PEER_CONNECTIONS {
            return None;
        }
        entry.connections += 1;
        drop(known);
        Some(Place { peers: Arc::clone(self), peer })
    }

    /// Whether the peer may ask once more.
    fn take(&self, peer: &Peer, now: Instant) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(bucket) = known.get_mut(peer) else { return false };
        bucket.tokens = bucket.refilled(self.rate, now);
        bucket.at = now;
        let has = bucket.tokens >= 1.0;
        if has {
            bucket.tokens -= 1.0;
        }
        has
    }
}

impl Known {
    fn refilled(&self, rate: Rate, now: Instant) -> f64 {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        since.mul_add(rate.per_second, self.tokens).min(rate.burst)
    }
}

/// A connection's place, given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    peers: Arc<Peers>,
    peer: Peer,
}

impl Place {
    /// Whether one more call may be made now.
    pub(crate) fn may_ask(&self) -> bool {
        self.peers.take(&self.peer, Instant::now())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut known = self.peers.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get_mut(&self.peer) {
            known.connections = known.connections.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_pod_of_a_process() {
        let uid = "12345678-1234-1234-1234-123456789abc";
        let hash = "eb8fb727cc315a8f12cd138a5a7f5ddb";
        for (line, expected) in [
            (format!("0::/kubepods/burstable/pod{uid}/abc"), Some(uid)),
            (format!("5:cpu,cpuacct:/root/kubepods/pod{hash}/abc"), Some(hash)),
            (
                format!(
                    "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{}.slice/cri-containerd-1.scope",
                    uid.replace('-', "_")
                ),
                Some(uid),
            ),
            ("0::/user.slice/user-0.slice/session-podman.scope".to_owned(), None),
            ("0::/pods/podium".to_owned(), None),
            ("0::/machine.slice/x-pod.slice".to_owned(), None),
            ("nonsense".to_owned(), None),
            ("0::/".to_owned(), None),
        ] {
            assert_eq!(pod_of(&line).as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn each_has_a_bucket_of_its_own() {
        let peers = Arc::new(Peers::new(Rate::default()));
        let start = Instant::now();
        let (greedy, other) = (Peer::User(1), Peer::Pod("p".into()));
        let places: Vec<_> = [&greedy, &other].map(|peer| peers.enter(peer.clone(), start).unwrap()).into();
        let taken = |peer: &Peer, times: usize, after: u64| {
            let now = start + Duration::from_millis(after);
            (0..times).filter(|_| peers.take(peer, now)).count()
        };
        assert_eq!(taken(&greedy, 200, 0), 10, "the bucket starts full");
        assert_eq!(taken(&greedy, 1, 5), 0);
        assert_eq!(taken(&greedy, 5, 20), 2, "one each 10 ms");
        assert_eq!(taken(&greedy, 200, 10_000), 10, "no more than the bucket holds");
        assert_eq!(taken(&other, 200, 0), 10, "whatever the other did");
        drop(places);
        assert!(peers.enter(greedy.clone(), start).is_some());
        assert_eq!(taken(&greedy, 1, 10_000), 0, "a new connection is not a new bucket");
    }

    #[test]
    fn nobody_takes_all_places() {
        let peers = Arc::new(Peers::new(Rate::default()));
        let now = Instant::now();
        let enter = |peer: u32| peers.enter(Peer::User(peer), now);
        let mut places: Vec<_> = (0..2000).filter_map(|_| enter(1)).collect();
        assert_eq!(places.len(), MAX_PEER_CONNECTIONS);
        assert!(enter(2).is_some());
        places.extend((0..2000).filter_map(|_| enter(3)));
        assert_eq!(places.len(), MAX_CONNECTIONS);
        assert!(enter(2).is_none());
        places.clear();
        for user in 0..10_000 {
            drop(enter(user));
        }
        assert!(peers.known.lock().unwrap().len() <= MAX_IDLE_PEERS + 1);
    }
}
