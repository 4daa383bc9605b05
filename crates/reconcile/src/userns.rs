//! User namespaces: which users of the node a pod's users are (`hostUsers: false`).
//!
//! Each pod has a range of IDs of its own, written to `<root>/pods/<uid>/userns` (upstream's file) before it is used and
//! gone with the pod's directory. A range is free when no file names it, and no sandbox of a pod whose file, or directory, is
//! gone or cannot be used.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    path::{Path, PathBuf},
};

use k8s_cri::v1::{IdMapping, NamespaceMode, UserNamespace};
use mainstay_cri::CriError;
use mainstay_podspec::runtime::SpecError;
use mainstay_types::{PodExt as _, PodUid, labels};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use crate::{
    files::pod_dir,
    worker::{Order, Shared},
};

/// The IDs that pods may be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdPool {
    /// The first.
    pub first: u32,
    /// How many.
    pub length: u32,
    /// How many each pod gets: `userNamespaces.idsPerPod`.
    pub per_pod: u32,
}

impl Default for IdPool {
    /// Everything above the node's own users, 65536 for each pod.
    fn default() -> Self {
        Self { first: 65536, length: u32::MAX - 65535, per_pod: 65536 }
    }
}

impl IdPool {
    /// The lowest range that meets none of the taken ones.
    fn lowest_free(&self, taken: &[Mapping]) -> Option<Mapping> {
        let end = u64::from(self.first) + u64::from(self.length);
        let mut first = u64::from(self.first);
        let per_pod = u64::from(self.per_pod);
        loop {
            if per_pod == 0 || first + per_pod > end {
                return None;
            }
            let meets = |other: &&Mapping| {
                first < u64::from(other.host_id) + u64::from(other.length)
                    && u64::from(other.host_id) < first + per_pod
            };
            match taken
                .iter()
                .filter(meets)
                .map(|other| u64::from(other.host_id) + u64::from(other.length))
                .max()
            {
                // Ranges begin at multiples of their size behind the first, so that a smaller one wastes no more than itself.
                Some(behind) => {
                    first =
                        u64::from(self.first) + (behind - u64::from(self.first)).div_ceil(per_pod) * per_pod
                }
                None => {
                    let host_id = u32::try_from(first).ok()?;
                    return Some(Mapping { host_id, container_id: 0, length: self.per_pod });
                }
            }
        }
    }
}

/// Why a pod has no user namespace.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UsernsError {
    /// The runtime cannot.
    #[error(transparent)]
    Unsupported(#[from] SpecError),
    /// The runtime was asked and did not answer.
    #[error(transparent)]
    Runtime(#[from] CriError),
    /// Every range is taken.
    #[error(
        "no range of {per_pod} user IDs is free for `spec.hostUsers: false`; remove pods, or give `kubelet` more IDs in /etc/subuid and /etc/subgid"
    )]
    Exhausted { per_pod: u32 },
    /// The disk.
    #[error("cannot {action} {path}: {source}; check that the file system is writable and not full", path = path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

/// Upstream's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    uid_mappings: Vec<Mapping>,
    gid_mappings: Vec<Mapping>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    host_id: u32,
    container_id: u32,
    length: u32,
}

impl Record {
    fn one(mapping: Mapping) -> Self {
        Self { uid_mappings: vec![mapping], gid_mappings: vec![mapping] }
    }

    fn of(namespace: &UserNamespace) -> Option<Self> {
        let mapping = |ids: &IdMapping| Mapping {
            host_id: ids.host_id,
            container_id: ids.container_id,
            length: ids.length,
        };
        let all = |ids: &[IdMapping]| ids.iter().map(mapping).collect();
        let record = Self { uid_mappings: all(&namespace.uids), gid_mappings: all(&namespace.gids) };
        (namespace.mode == NamespaceMode::Pod as i32 && record.is_usable()).then_some(record)
    }

    fn is_usable(&self) -> bool {
        self.uid_mappings.len() == 1 && self.uid_mappings == self.gid_mappings
    }

    fn namespace(&self) -> UserNamespace {
        let ids = |mappings: &[Mapping]| {
            let one = |mapping: &Mapping| IdMapping {
                host_id: mapping.host_id,
                container_id: mapping.container_id,
                length: mapping.length,
            };
            mappings.iter().map(one).collect()
        };
        UserNamespace {
            mode: NamespaceMode::Pod.into(),
            uids: ids(&self.uid_mappings),
            gids: ids(&self.gid_mappings),
        }
    }
}

/// The pod's user namespace: the one it has, or a new one. `None` for pods with the node's users.
pub(crate) async fn ensure(shared: &Shared, order: &Order) -> Result<Option<UserNamespace>, UsernsError> {
    let desired = &order.desired;
    if desired.pod.spec_ref().host_users != Some(false) {
        return Ok(None);
    }
    let path = file(shared, &desired.uid);
    if let Found::Good(record) = read(&path).await? {
        return Ok(Some(record.namespace()));
    }
    if !is_supported(shared, order.handler()).await? {
        return Err(SpecError::UserNamespace.into());
    }
    // One at a time: who comes second must see the first one's file.
    let mut without = shared.user_namespaces.lock().await;
    let sandboxes = sandboxes(shared).await?;
    let own = sandboxes.get(&desired.uid).map(Vec::as_slice).unwrap_or_default();
    let record = match made_with(shared, own).await? {
        Sandboxes::Apart(record) => record,
        Sandboxes::None | Sandboxes::NodesUsers => {
            let pool = shared.config.id_pool;
            let taken = taken(shared, &desired.uid, &sandboxes, &mut without).await?;
            let mapping = pool.lowest_free(&taken).ok_or(UsernsError::Exhausted { per_pod: pool.per_pod })?;
            info!(first = mapping.host_id, length = mapping.length, "user IDs for the pod");
            Record::one(mapping)
        }
    };
    write(&path, &record).await?;
    Ok(Some(record.namespace()))
}

/// Whether a handler can give pods users of their own. Older runtimes do not even tell.
async fn is_supported(shared: &Shared, handler: &str) -> Result<bool, CriError> {
    let status = shared.config.cri.status().await?;
    let handler = status.runtime_handlers.into_iter().find(|found| found.name == handler);
    Ok(handler.and_then(|handler| handler.features).is_some_and(|features| features.user_namespaces))
}

/// What a pod's sandboxes were made with.
enum Sandboxes {
    None,
    /// All of them with the node's users.
    NodesUsers,
    Apart(Record),
}

/// What some sandboxes, all of one pod, were made with.
async fn made_with(shared: &Shared, sandboxes: &[String]) -> Result<Sandboxes, CriError> {
    let mut found = Sandboxes::None;
    for sandbox in sandboxes {
        let status = match shared.config.cri.sandbox_status(sandbox).await {
            Ok(response) => response.status.unwrap_or_default(),
            Err(error) if error.is_not_found() => continue,
            Err(error) => return Err(error),
        };
        let options =
            status.linux.and_then(|linux| linux.namespaces).and_then(|namespaces| namespaces.options);
        if let Some(record) = options.and_then(|options| options.userns_options).as_ref().and_then(Record::of)
        {
            return Ok(Sandboxes::Apart(record));
        }
        found = Sandboxes::NodesUsers;
    }
    Ok(found)
}

/// The sandboxes that the runtime has, by the UID of their pod.
async fn sandboxes(shared: &Shared) -> Result<HashMap<PodUid, Vec<String>>, CriError> {
    let mut found: HashMap<PodUid, Vec<String>> = HashMap::new();
    for sandbox in shared.config.cri.list_sandboxes(None).await? {
        if let Some(uid) = labels::owner(&sandbox.labels) {
            found.entry(uid).or_default().push(sandbox.id);
        }
    }
    Ok(found)
}

/// The ranges of all other pods: by their files, and by the sandboxes of those whose file is gone or cannot be used, with their
/// directory perhaps. Such a file is written again. `without` has the pods whose sandboxes have the node's users, so that the runtime is
/// asked about each of them once.
async fn taken(
    shared: &Shared,
    own: &PodUid,
    sandboxes: &HashMap<PodUid, Vec<String>>,
    without: &mut HashSet<PodUid>,
) -> Result<Vec<Mapping>, UsernsError> {
    let pods = shared.config.node.root_dir.join("pods");
    let uids = blocking("list", &pods, |dir| {
        let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect::<io::Result<Vec<String>>>()
    })
    .await?;
    let mut taken = Vec::new();
    let mut good = HashSet::new();
    for uid in uids.into_iter().map(PodUid::from) {
        if let Found::Good(record) = read(&file(shared, &uid)).await? {
            if uid != *own {
                taken.extend(record.uid_mappings);
            }
            good.insert(uid);
        }
    }
    without.retain(|uid| sandboxes.contains_key(uid));
    for (uid, sandboxes) in sandboxes {
        if uid == own || good.contains(uid) || without.contains(uid) {
            continue;
        }
        match made_with(shared, sandboxes).await? {
            Sandboxes::Apart(record) => {
                let path = file(shared, uid);
                warn!(path = %path.display(), "the file with a pod's user IDs is gone or cannot be used; its IDs are known from the runtime");
                if path.parent().is_some_and(Path::is_dir) {
                    write(&path, &record).await?;
                }
                taken.extend(record.uid_mappings);
            }
            Sandboxes::NodesUsers => {
                without.insert(uid.clone());
            }
            Sandboxes::None => {}
        }
    }
    Ok(taken)
}

enum Found {
    Nothing,
    Bad,
    Good(Record),
}

fn file(shared: &Shared, uid: &PodUid) -> PathBuf {
    pod_dir(&shared.config.node.root_dir, uid).join("userns")
}

async fn read(path: &Path) -> Result<Found, UsernsError> {
    blocking("read", path, |path| match fs::read(path) {
        Ok(bytes) => Ok(match serde_json::from_slice::<Record>(&bytes) {
            Ok(record) if record.is_usable() => Found::Good(record),
            _ => Found::Bad,
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::Nothing),
        Err(error) => Err(error),
    })
    .await
}

/// Writes the file so that it is whole or not there, even after a power failure: IDs must never be given twice.
async fn write(path: &Path, record: &Record) -> Result<(), UsernsError> {
    let bytes = serde_json::to_vec(record).unwrap_or_default();
    blocking("write", path, move |path| {
        use std::io::Write as _;
        let temporary = path.with_extension("tmp");
        let mut file = fs::File::create(&temporary)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        path.parent().map_or(Ok(()), |dir| fs::File::open(dir)?.sync_all())
    })
    .await
}

/// Disk work off the async workers.
async fn blocking<T: Send + 'static>(
    action: &'static str,
    path: &Path,
    work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> Result<T, UsernsError> {
    let owned = path.to_owned();
    let outcome = tokio::task::spawn_blocking(move || work(&owned))
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)));
    outcome.map_err(|source| UsernsError::Io { action, path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(host_id: u32, length: u32) -> Mapping {
        Mapping { host_id, container_id: 0, length }
    }

    #[test]
    fn ranges_are_given_from_below_and_never_twice() {
        let pool = IdPool { first: 65536, length: 3 * 65536, per_pod: 65536 };
        let next = |taken: &[Mapping]| pool.lowest_free(taken).map(|mapping| mapping.host_id);
        let (a, b, c) = (range(65536, 65536), range(2 * 65536, 65536), range(3 * 65536, 65536));
        assert_eq!(next(&[]), Some(a.host_id));
        assert_eq!(next(&[a]), Some(b.host_id));
        assert_eq!(next(&[c, a]), Some(b.host_id));
        assert_eq!(next(&[b, c]), Some(a.host_id));
        assert_eq!(next(&[a, b, c]), None);
        // Ranges of another size, from another configuration, are kept clear of as well.
        assert_eq!(next(&[range(65536, 1)]), Some(b.host_id));
        assert_eq!(next(&[range(0, 65537)]), Some(b.host_id));
        assert_eq!(next(&[range(65536, 2 * 65536)]), Some(c.host_id));
        // The last IDs of all.
        let all = IdPool::default();
        assert_eq!(all.lowest_free(&[range(0, u32::MAX - 65535)]), Some(range(u32::MAX - 65535, 65536)));
        assert_eq!(IdPool { per_pod: 0, ..pool }.lowest_free(&[]), None);
    }

    #[test]
    fn the_file_is_upstreams() {
        let text = r#"{"uidMappings":[{"hostId":131072,"containerId":0,"length":65536}],"gidMappings":[{"hostId":131072,"containerId":0,"length":65536}]}"#;
        let record: Record = serde_json::from_str(text).unwrap();
        assert_eq!(record, Record::one(range(131072, 65536)));
        assert_eq!(serde_json::to_string(&record).unwrap(), text);
        assert_eq!(Record::of(&record.namespace()), Some(record));
        let node = UserNamespace { mode: NamespaceMode::Node.into(), ..UserNamespace::default() };
        assert_eq!(Record::of(&node), None);
    }
}
