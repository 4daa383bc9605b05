//! Who calls, and how often each may: limits are everybody's own, so that one who asks too much takes nothing from others.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use mainstay_types::fnv1a_64;
use tokio::net::UnixStream;

use crate::wire::{Code, Status};

/// Connections that a socket has at once.
const MAX_CONNECTIONS: usize = 1024;
/// Streams of one peer.
const MAX_PEER_STREAMS: usize = 512;
/// Streams of all of them.
const MAX_STREAMS: usize = 2048;
/// Calls of one peer whose answers have not been taken; as many as it may make at once if those are more.
const MAX_PEER_ANSWERS: usize = 16;
/// Those of all of them.
const MAX_ANSWERS: usize = 128;
/// Different field masks that a peer uses at a time: each is work for every pod.
const MAX_PEER_MASKS: usize = 8;
/// Those of all of them; one that several use is one.
pub(crate) const MAX_MASKS: usize = 32;
/// How long a mask counts as used.
const MASK_MEMORY: Duration = Duration::from_secs(60);
/// Refused calls of one peer of which the rest is waited for: as many as a connection may have open.
const MAX_PEER_REFUSALS: usize = 1024;
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

/// Who is at the other end: the pod that the process belongs to, else the service of the machine and its user, else its user.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Peer {
    Pod(Box<str>),
    Service(Box<str>, u32),
    User(u32),
    /// All whose process had ended before anybody could look: a connection that was handed on. Whose it is now nobody says.
    Orphan,
}

impl Peer {
    /// As the kernel says it.
    pub(crate) async fn of(stream: &UnixStream, is_pod: impl Fn(&str) -> bool) -> Self {
        let Ok(credentials) = stream.peer_cred() else { return Self::Orphan };
        // A process of another PID namespace than ours has no number here.
        let Some(pid) = credentials.pid().filter(|pid| *pid > 0) else {
            return Self::User(credentials.uid());
        };
        match tokio::fs::read_to_string(format!("/proc/{pid}/cgroup")).await {
            Ok(cgroups) => Self::in_cgroups(&cgroups, credentials.uid(), is_pod),
            Err(_) => Self::Orphan,
        }
    }

    /// `is_pod` says whether there may be a pod with a UID: anybody can name a cgroup after one.
    pub(crate) fn in_cgroups(cgroups: &str, user: u32, is_pod: impl Fn(&str) -> bool) -> Self {
        if let Some(uid) = cgroups.lines().flat_map(pods_of).find(|uid| is_pod(uid)) {
            return Self::Pod(uid.into());
        }
        match cgroups.lines().find_map(service_of) {
            Some(service) => Self::Service(service.into(), user),
            None => Self::User(user),
        }
    }
}

/// The service that systemd runs, in a line of `/proc/PID/cgroup`. Only below the system's own slice: there nobody but root makes one, while
/// users make as many as they like in theirs.
fn service_of(line: &str) -> Option<&str> {
    let path = line.splitn(3, ':').nth(2)?.strip_prefix("/system.slice/")?;
    // The outermost: what is below it is the service's own.
    path.split('/').find(|part| part.ends_with(".service"))
}

/// UIDs of pods in a line of `/proc/PID/cgroup`, by either driver's names. No pod is in the slice of users: what is below it they make themselves,
/// and give it what name they like. So do pods below their own cgroups, which come first.
fn pods_of(line: &str) -> impl Iterator<Item = String> {
    let path = line.splitn(3, ':').nth(2).filter(|path| !path.starts_with("/user.slice/"));
    path.into_iter().flat_map(|path| path.split('/')).filter_map(|part| match part.strip_suffix(".slice") {
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
    streams: usize,
    answers: usize,
    masks: Vec<UsedMask>,
    /// Refused calls that are read to their end.
    refusals: usize,
}

/// A field mask, by a print of it.
#[derive(Debug)]
struct UsedMask {
    print: u64,
    /// When a call last asked for it, or a stream with it ended.
    used: Instant,
    /// Streams that are open with it: for them every pod that changes is encoded.
    streams: usize,
}

/// Whether one who has so many of what there is `most` of, where `taken` are, may have another: nobody has more than is still free. So one takes half
/// of all at most, the next half of what is left, and whoever comes after them finds something.
const fn leaves_enough(own: usize, taken: usize, most: usize) -> bool {
    own < most.saturating_sub(taken)
}

impl Peers {
    pub(crate) fn new(rate: Rate) -> Self {
        Self { rate, known: Mutex::default() }
    }

    /// A place for a connection; `None` when the peer has as many as are free, or none is.
    pub(crate) fn enter(self: &Arc<Self>, peer: Peer, now: Instant) -> Option<Place> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = known.values().map(|known| known.connections).sum();
        let own = known.get(&peer).map_or(0, |known| known.connections);
        if !leaves_enough(own, taken, MAX_CONNECTIONS) {
            return None;
        }
        if known.len() > MAX_IDLE_PEERS && !known.contains_key(&peer) {
            // Whose bucket is full again is as good as unknown.
            let rate = self.rate;
            known.retain(|_, known| {
                let is_here = known.connections > 0 || known.streams > 0 || known.answers > 0;
                is_here || known.refilled(rate, now) < rate.burst
            });
        }
        let entry = known.entry(peer.clone()).or_insert_with(|| Known {
            tokens: self.rate.burst,
            at: now,
            connections: 0,
            streams: 0,
            answers: 0,
            masks: Vec::new(),
            refusals: 0,
        });
        entry.connections += 1;
        drop(known);
        Some(Place { peers: Arc::clone(self), peer })
    }

    /// A place for a stream; `None` when the peer has too many, or as many as are free. A field mask, which the peer may use, is used as long as
    /// the stream is open.
    fn enter_stream(self: &Arc<Self>, peer: &Peer, mask: Option<u64>) -> Option<StreamPlace> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = known.values().map(|known| known.streams).sum();
        let own = known
            .get_mut(peer)
            .filter(|own| own.streams < MAX_PEER_STREAMS && leaves_enough(own.streams, taken, MAX_STREAMS))?;
        own.streams += 1;
        if let Some(used) = own.masks.iter_mut().find(|it| Some(it.print) == mask) {
            used.streams += 1;
        }
        drop(known);
        Some(StreamPlace { peers: Arc::clone(self), peer: peer.clone(), mask })
    }

    fn leave_stream(&self, peer: &Peer, mask: Option<u64>, now: Instant) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(own) = known.get_mut(peer) else { return };
        own.streams = own.streams.saturating_sub(1);
        if let Some(used) = own.masks.iter_mut().find(|it| Some(it.print) == mask) {
            used.streams = used.streams.saturating_sub(1);
            used.used = now;
        }
    }

    /// Calls whose answers have not been taken, of one peer.
    fn most_answers(&self) -> usize {
        // What may be asked for at once may be waited for at once.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a float becomes the nearest number there is"
        )]
        let burst = self.rate.burst as usize;
        burst.clamp(MAX_PEER_ANSWERS, MAX_ANSWERS)
    }

    /// A place for an answer; `None` when the peer has too many that it does not take, or as many as are free.
    fn enter_answer(self: &Arc<Self>, peer: &Peer) -> Option<AnswerPlace> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = known.values().map(|known| known.answers).sum();
        let most = self.most_answers();
        let own = known
            .get_mut(peer)
            .filter(|own| own.answers < most && leaves_enough(own.answers, taken, MAX_ANSWERS))?;
        own.answers += 1;
        drop(known);
        Some(AnswerPlace { peers: Arc::clone(self), peer: peer.clone() })
    }

    /// A place for a refused call; `None` when the peer has too many.
    fn enter_refusal(self: &Arc<Self>, peer: &Peer) -> Option<RefusalPlace> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let own = known.get_mut(peer).filter(|known| known.refusals < MAX_PEER_REFUSALS)?;
        own.refusals += 1;
        drop(known);
        Some(RefusalPlace { peers: Arc::clone(self), peer: peer.clone() })
    }

    /// Whether the peer may use this field mask beside those that it uses, and others use.
    fn take_mask(&self, peer: &Peer, print: u64, now: Instant) -> Result<(), MaskRefusal> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(own) = known.get_mut(peer) else { return Err(MaskRefusal::Own) };
        own.masks.retain(|it| it.is_used(now));
        if let Some(used) = own.masks.iter_mut().find(|it| it.print == print) {
            used.used = now;
            return Ok(());
        }
        let count = own.masks.len();
        if count >= MAX_PEER_MASKS {
            return Err(MaskRefusal::Own);
        }
        let used = known.values().flat_map(|known| &known.masks).filter(|it| it.is_used(now));
        let used: HashSet<u64> = used.map(|it| it.print).collect();
        // One that another uses is no more work.
        if !used.contains(&print) && !leaves_enough(count, used.len(), MAX_MASKS) {
            return Err(MaskRefusal::All);
        }
        if let Some(own) = known.get_mut(peer) {
            own.masks.push(UsedMask { print, used: now, streams: 0 });
        }
        Ok(())
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

impl UsedMask {
    fn is_used(&self, now: Instant) -> bool {
        self.streams > 0 || now.saturating_duration_since(self.used) < MASK_MEMORY
    }
}

/// Why a field mask may not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MaskRefusal {
    /// The peer uses too many.
    Own,
    /// It uses as many as are left, or none is.
    All,
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

    /// A place for one more stream, with this field mask.
    ///
    /// # Errors
    /// What to say when there is none.
    pub(crate) fn enter_stream(&self, mask: Option<MaskPrint>) -> Result<CallPlace, Status> {
        let place = self.peers.enter_stream(&self.peer, mask.map(|MaskPrint(print)| print));
        place.map(CallPlace::Stream).ok_or_else(|| {
            let message = format!(
                "too many streams: a caller may have {MAX_PEER_STREAMS} open, all callers together {MAX_STREAMS}, and none more than are still free"
            );
            Status::new(Code::ResourceExhausted, message)
        })
    }

    /// A place for one more call that is no stream.
    ///
    /// # Errors
    /// What to say when there is none.
    pub(crate) fn enter_answer(&self) -> Result<CallPlace, Status> {
        self.peers.enter_answer(&self.peer).map(CallPlace::Answer).ok_or_else(|| {
            let message = format!(
                "too many answers wait to be taken: {} of a caller may, {MAX_ANSWERS} of all callers together, and nobody's more than could still be others'; read those that came",
                self.peers.most_answers()
            );
            Status::new(Code::ResourceExhausted, message)
        })
    }

    /// A place for one more refused call that is read to its end.
    pub(crate) fn enter_refusal(&self) -> Option<RefusalPlace> {
        self.peers.enter_refusal(&self.peer)
    }

    /// Whether a call with this field mask may be made now.
    ///
    /// # Errors
    /// What to say when it may not.
    pub(crate) fn may_mask(&self, mask: &[u8]) -> Result<MaskPrint, Status> {
        let print = fnv1a_64(mask);
        let message = match self.peers.take_mask(&self.peer, print, Instant::now()) {
            Ok(()) => return Ok(MaskPrint(print)),
            Err(MaskRefusal::Own) => format!(
                "too many different field masks: a caller may use {MAX_PEER_MASKS} a minute, those of open streams among them"
            ),
            Err(MaskRefusal::All) => format!(
                "too many different field masks: all callers together may use {MAX_MASKS} a minute, those of open streams among them, and none more than are still free; one that another caller uses does not count"
            ),
        };
        Err(Status::new(Code::ResourceExhausted, message))
    }
}

/// A field mask that a call may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MaskPrint(u64);

/// A call's place, given back when all of its answer has been taken.
#[derive(Debug)]
#[expect(dead_code, reason = "places are there to be dropped")]
pub(crate) enum CallPlace {
    Stream(StreamPlace),
    Answer(AnswerPlace),
}

/// The place of an answer, given back when dropped.
#[derive(Debug)]
pub(crate) struct AnswerPlace {
    peers: Arc<Peers>,
    peer: Peer,
}

impl Drop for AnswerPlace {
    fn drop(&mut self) {
        let mut known = self.peers.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get_mut(&self.peer) {
            known.answers = known.answers.saturating_sub(1);
        }
    }
}

/// A stream's place, given back when dropped.
#[derive(Debug)]
pub(crate) struct StreamPlace {
    peers: Arc<Peers>,
    peer: Peer,
    mask: Option<u64>,
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        self.peers.leave_stream(&self.peer, self.mask, Instant::now());
    }
}

/// A refused call's place, given back when dropped.
#[derive(Debug)]
pub(crate) struct RefusalPlace {
    peers: Arc<Peers>,
    peer: Peer,
}

impl Drop for RefusalPlace {
    fn drop(&mut self) {
        let mut known = self.peers.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get_mut(&self.peer) {
            known.refusals = known.refusals.saturating_sub(1);
        }
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
    use super::*;

    #[test]
    fn streams_and_masks_are_bounded_for_each() {
        let peers = Arc::new(Peers::new(Rate::default()));
        let now = Instant::now();
        let [greedy, other] = [1, 2].map(|user| peers.enter(Peer::User(user), now).unwrap());
        let mut streams: Vec<_> = (0..2000).filter_map(|_| greedy.enter_stream(None).ok()).collect();
        assert_eq!(streams.len(), MAX_PEER_STREAMS);
        assert_eq!(greedy.enter_stream(None).unwrap_err().code, Code::ResourceExhausted);
        assert!(other.enter_stream(None).is_ok(), "whatever the first one has");
        streams.pop();
        assert!(greedy.enter_stream(None).is_ok(), "one has ended");
        let mut answers: Vec<_> = (0..2000).filter_map(|_| greedy.enter_answer().ok()).collect();
        assert_eq!(answers.len(), MAX_PEER_ANSWERS);
        let refused = greedy.enter_answer().unwrap_err();
        assert_eq!(refused.code, Code::ResourceExhausted);
        assert!(refused.message.contains("16 of a caller may, 128 of all"), "{}", refused.message);
        assert!(other.enter_answer().is_ok(), "whatever the first one has");
        answers.pop();
        assert!(greedy.enter_answer().is_ok(), "one was taken");
        let mut refusals: Vec<_> = (0..2000).filter_map(|_| greedy.enter_refusal()).collect();
        assert_eq!(refusals.len(), MAX_PEER_REFUSALS);
        assert!(greedy.enter_refusal().is_none() && other.enter_refusal().is_some());
        refusals.pop();
        assert!(greedy.enter_refusal().is_some(), "one was read");

        let used = |peer: u32, masks: std::ops::Range<u64>, after: u64| {
            let now = now + Duration::from_secs(after);
            masks.filter(|mask| peers.take_mask(&Peer::User(peer), *mask, now).is_ok()).count()
        };
        assert_eq!(used(1, 0..100, 0), MAX_PEER_MASKS);
        assert_eq!(used(1, 0..100, 30), MAX_PEER_MASKS, "the same ones");
        assert_eq!(used(2, 50..60, 30), MAX_PEER_MASKS, "whatever the first one uses");
        assert_eq!(used(1, 100..200, 80), 0);
        assert_eq!(used(1, 100..200, 91), MAX_PEER_MASKS, "the others are a minute old");
    }

    #[test]
    fn streams_and_masks_are_bounded_for_all() {
        let peers = Arc::new(Peers::new(Rate::default()));
        let now = Instant::now();
        let places: Vec<_> = (0..12).map(|user| peers.enter(Peer::User(user), now).unwrap()).collect();
        let mut streams = Vec::new();
        let mut counts = Vec::new();
        for place in &places[..6] {
            let taken: Vec<_> = (0..1000).filter_map(|_| place.enter_stream(None).ok()).collect();
            counts.push(taken.len());
            streams.extend(taken);
        }
        assert_eq!(counts, [512, 512, 512, 256, 128, 64]);
        assert!(places[6].enter_stream(None).is_ok(), "whatever the others have");

        let counts: Vec<_> = places
            .iter()
            .scan(Vec::new(), |answers, place| {
                let before = answers.len();
                answers.extend((0..100).map_while(|_| place.enter_answer().ok()));
                Some(answers.len() - before)
            })
            .collect();
        assert_eq!(counts, [16, 16, 16, 16, 16, 16, 16, 8, 4, 2, 1, 1]);
        let often = Arc::new(Peers::new(Rate { per_second: 1.0, burst: 50.0 }));
        let place = often.enter(Peer::User(1), now).unwrap();
        let answers: Vec<_> = (0..100).map_while(|_| place.enter_answer().ok()).collect();
        assert_eq!(answers.len(), 50, "as many as may be asked for at once");

        let take = |peer: u32, mask: u64, at: Instant| peers.take_mask(&Peer::User(peer), mask, at);
        let different = |peer: u32, at: Instant| {
            let masks = u64::from(peer) * 1000..u64::from(peer) * 1000 + 100;
            masks.filter(|mask| take(peer, *mask, at).is_ok()).count()
        };
        let counts: Vec<_> = (0..8).map(|peer| different(peer, now)).collect();
        assert_eq!(counts, [8, 8, 8, 4, 2, 1, 1, 0]);
        assert_eq!(take(0, 1, now), Ok(()), "it uses that one");
        assert_eq!(take(0, 99, now), Err(MaskRefusal::Own));
        assert_eq!(take(9, 9999, now), Err(MaskRefusal::All));
        assert_eq!(take(9, 0, now), Ok(()), "what another uses costs nothing");
        let later = now + MASK_MEMORY;
        assert_eq!(take(9, 9999, later), Ok(()), "the others are a minute old");
    }

    #[test]
    fn the_masks_of_open_streams_are_used() {
        let peers = Arc::new(Peers::new(Rate::default()));
        let (start, peer) = (Instant::now(), Peer::User(1));
        let _place = peers.enter(peer.clone(), start).unwrap();
        let late = |seconds: u64| start + Duration::from_secs(seconds);
        let used = |masks: std::ops::Range<u64>, at: u64| {
            masks.filter(|mask| peers.take_mask(&peer, *mask, late(at)).is_ok()).count()
        };
        assert_eq!(used(0..5, 0), 5);
        let streams: Vec<_> = (0..5).map(|mask| peers.enter_stream(&peer, Some(mask)).unwrap()).collect();
        let twice = peers.enter_stream(&peer, Some(4)).unwrap();
        assert_eq!(used(100..200, 3600), 3, "five watches go on, however long ago they began");
        assert_eq!(used(0..5, 3600), 5, "what is used may be used");
        drop(streams);
        assert_eq!(used(200..300, 3700), 7, "one is open still, the others are a minute old");
        drop(twice);
    }

    #[test]
    fn the_service_of_a_process() {
        let user = |number| Peer::User(number);
        let service = |name: &str, number| Peer::Service(name.into(), number);
        let uid = "12345678-1234-1234-1234-123456789abc";
        for (cgroups, expected) in [
            ("0::/system.slice/agent.service", service("agent.service", 7)),
            ("0::/system.slice/agent.service/own/x.service", service("agent.service", 7)),
            ("0::/system.slice/system-agent.slice/agent@1.service", service("agent@1.service", 7)),
            ("2:cpu:/\n1:name=systemd:/system.slice/agent.service\n0::/", service("agent.service", 7)),
            // Whoever makes these himself gets no more for it.
            ("0::/user.slice/user-7.slice/user@7.service/app.slice/x.service", user(7)),
            ("0::/user.slice/user-7.slice/session-1.scope", user(7)),
            ("0::/system.slice/docker-1.scope", user(7)),
            ("0::/", user(7)),
        ] {
            assert_eq!(Peer::in_cgroups(cgroups, 7, |_| true), expected, "{cgroups}");
        }
        let pod = format!("0::/system.slice/containerd.service/kubepods/pod{uid}/c");
        assert_eq!(
            Peer::in_cgroups(&pod, 7, |known| known == uid),
            Peer::Pod(uid.into()),
            "a pod before all"
        );
        // Whoever has cgroups of his own names them after pods: only those that there are count.
        assert_eq!(Peer::in_cgroups(&pod, 7, |_| false), service("containerd.service", 7));
        // In a pod that makes cgroups, and in one of another kubelet around this one.
        let other = uid.replace('1', "2");
        let nested = format!("0::/kubepods/pod{uid}/c/kubepods/pod{other}/c");
        for (here, expected) in
            [(&[uid, other.as_str()][..], uid), (&[uid], uid), (&[other.as_str()], &other)]
        {
            let found = Peer::in_cgroups(&nested, 7, |known| here.contains(&known));
            assert_eq!(found, Peer::Pod(expected.into()), "{here:?}");
        }
    }

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
            // systemd lets users have cgroups of their own below their manager's.
            (format!("0::/user.slice/user-1000.slice/user@1000.service/pod{uid}"), None),
            (format!("0::/user.slice/user-1000.slice/user@1000.service/app.slice/pod{hash}/x"), None),
            (
                format!(
                    "0::/user.slice/user-1000.slice/user@1000.service/kubepods-pod{}.slice",
                    uid.replace('-', "_")
                ),
                None,
            ),
            ("0::/pods/podium".to_owned(), None),
            ("0::/machine.slice/x-pod.slice".to_owned(), None),
            ("nonsense".to_owned(), None),
            ("0::/".to_owned(), None),
        ] {
            assert_eq!(pods_of(&line).next().as_deref(), expected, "{line}");
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
        assert_eq!(places.len(), MAX_CONNECTIONS / 2);
        // Whoever else takes what he can leaves something to the next.
        for (peer, most) in [(2, 256), (3, 128), (4, 64)] {
            let before = places.len();
            places.extend((0..2000).filter_map(|_| enter(peer)));
            assert_eq!(places.len() - before, most, "{peer}");
        }
        assert!(enter(1).is_none() && enter(2).is_none());
        let modest: Vec<_> = (100..110).map(|peer| enter(peer).unwrap()).collect();
        drop(modest);
        // Only as many callers as there are places have all of them.
        places.clear();
        places.extend((0..2000).filter_map(enter));
        assert_eq!(places.len(), MAX_CONNECTIONS);
        assert!(enter(5000).is_none());
        places.clear();
        for user in 0..10_000 {
            drop(enter(user));
        }
        assert!(peers.known.lock().unwrap().len() <= MAX_IDLE_PEERS + 1);
    }
}
