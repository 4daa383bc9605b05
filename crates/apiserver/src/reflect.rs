//! A set of objects, kept current: list, then watch from there, and again when that ends.

use std::time::Duration;

use k8s_openapi::{
    ListableResource, Metadata,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, WatchEvent},
};
use mainstay_task::{Backoff, random_unit};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::{ApiError, Client, Listing, Query, Scope, Unreadable, readable::Readable};

/// Between attempts that fail; client-go's.
const RETRY: Backoff =
    Backoff::doubling(Duration::from_millis(800), Duration::from_secs(30)).with_jitter(1.0);
/// A watch is renewed after this, and up to twice this, so that those of many nodes do not end together.
const LIFETIME: Duration = Duration::from_secs(300);
/// A watch that ended sooner, without a word, counts as a failure: it would only be asked for again and again.
const TOO_SHORT: Duration = Duration::from_secs(1);

/// What fails so often in a row is asked for in another way.
const FEW: u32 = 2;

/// What a reflector tells.
#[derive(Clone, Debug)]
pub enum Change<T> {
    /// All there are: the first of these says that the set is known.
    Listed(Listing<T>),
    /// One is new or has changed.
    Applied(T),
    /// One is gone; as it was last.
    Deleted(T),
    /// One is new or has changed, and cannot be read; what was told of it holds until it can.
    Unreadable(Unreadable),
    /// The server cannot be listened to now; what was told holds until it can.
    Interrupted(ApiError),
}

/// What is wanted of the server.
#[derive(Clone, Debug)]
pub struct Reflected {
    /// The namespace; `None` for all, or for objects that are in none.
    pub namespace: Option<String>,
    /// `fieldSelector`.
    pub fields: Option<String>,
    /// `labelSelector`.
    pub labels: Option<String>,
    /// The first list must not be older than this version, which was acted upon; `None` if any will do.
    pub since: Option<String>,
}

/// Tells what there is and what changes, for ever; ends only by being dropped. `tell` is called in order and must not block.
pub async fn reflect<T>(client: &Client, what: &Reflected, mut tell: impl FnMut(Change<T>))
where
    T: ListableResource + Metadata<Ty = ObjectMeta> + DeserializeOwned,
{
    let scope = what.namespace.as_deref().map_or(Scope::Cluster, Scope::Namespace);
    let query = |version: Option<String>| Query {
        fields: what.fields.clone(),
        labels: what.labels.clone(),
        resource_version: version,
    };
    let mut attempts = RETRY.attempts();
    let mut watching = Watching::default();
    // Any version will do that is not older than what was told, in this life or before.
    let mut version = Some(what.since.clone().unwrap_or_else(|| "0".to_owned()));
    'listing: loop {
        match client.list::<T>(scope, &query(version.clone())).await {
            Ok(list) => {
                version = Some(list.version.clone());
                tell(Change::Listed(list));
            }
            Err(error) => {
                // The version is too old, or newer than this server knows: the newest, whatever it costs. So it may be where a
                // server answers nothing but errors.
                let refused = is_about_the_version(&error) && attempts.failures() >= FEW;
                if refused || matches!(error.status(), Some(410 | 504)) {
                    version = None;
                }
                pause(&mut attempts, error, &mut tell).await;
                continue;
            }
        }
        // Until the version is too old, or may be what the server cannot cope with. A watch that breaks is taken up where it broke.
        'watching: loop {
            let lifetime = LIFETIME + LIFETIME.mul_f64(random_unit());
            let begun = Instant::now();
            let mut told = false;
            let end = match client.watch::<T>(scope, &query(version.clone()), lifetime).await {
                Err(error) => Some(error),
                Ok(mut watch) => loop {
                    let event = match watch.next().await {
                        None => break None,
                        Some(Err(error)) => break Some(error),
                        Some(Ok(event)) => event,
                    };
                    let (change, at) = match event {
                        WatchEvent::Added(Readable::Whole(object))
                        | WatchEvent::Modified(Readable::Whole(object)) => {
                            let at = object.metadata().resource_version.clone();
                            (Some(Change::Applied(object)), at)
                        }
                        WatchEvent::Deleted(Readable::Whole(object)) => {
                            let at = object.metadata().resource_version.clone();
                            (Some(Change::Deleted(object)), at)
                        }
                        WatchEvent::Added(Readable::Not(object))
                        | WatchEvent::Modified(Readable::Not(object)) => {
                            let at = Some(object.version.clone()).filter(|version| !version.is_empty());
                            (Some(Change::Unreadable(object)), at)
                        }
                        // The next list does without it.
                        WatchEvent::Deleted(Readable::Not(object)) => {
                            version = Some(object.version).filter(|version| !version.is_empty()).or(version);
                            break 'watching;
                        }
                        WatchEvent::Bookmark { resource_version, .. } => (None, Some(resource_version)),
                        WatchEvent::ErrorStatus(status) => {
                            break Some(ApiError::Status {
                                request: format!("a watch of {}", T::URL_PATH_SEGMENT),
                                status: status.code.and_then(|code| u16::try_from(code).ok()).unwrap_or(500),
                                reason: status.reason.unwrap_or_default(),
                                message: status.message.unwrap_or_default(),
                                retry_after: None,
                            });
                        }
                        WatchEvent::ErrorOther(other) => {
                            break Some(ApiError::Decode {
                                request: format!("a watch of {}", T::URL_PATH_SEGMENT),
                                problem: format!("an error that is no Status: {}", other.0),
                            });
                        }
                    };
                    told = true;
                    attempts.succeeded();
                    watching.works();
                    version = at.or(version);
                    if let Some(change) = change {
                        tell(change);
                    }
                },
            };
            let failure = match end {
                Some(error) if error.status() == Some(410) => break,
                None if !told && begun.elapsed() < TOO_SHORT => Some(ApiError::Broken {
                    server: client.server(),
                    request: format!("a watch of {}", T::URL_PATH_SEGMENT),
                    problem: "it ended at once".into(),
                }),
                end => end,
            };
            let Some(error) = failure else {
                attempts.succeeded();
                watching.works();
                continue;
            };
            let list_again = watching.failed(&error, T::URL_PATH_SEGMENT);
            pause(&mut attempts, error, &mut tell).await;
            if list_again {
                continue 'listing;
            }
        }
        // One that says so for ever would be listed without a pause.
        let wait = attempts.failed();
        tokio::time::sleep(wait).await;
        version = version.filter(|_| attempts.failures() < FEW);
    }
}

/// How watches have ended since the last that was of use.
#[derive(Debug, Default)]
pub(crate) struct Watching {
    broken: u32,
    warned: bool,
}

impl Watching {
    pub(crate) fn works(&mut self) {
        *self = Self::default();
    }

    /// Whether it is to be listed again, instead of asking for the same watch for ever: what a server (or a gateway before it) cannot do
    /// from this version on it may well do from another, and what is listed is known even if watches never work. client-go
    /// lists after all but what says that nobody is there, or too many are.
    pub(crate) fn failed(&mut self, error: &ApiError, kind: &str) -> bool {
        let list_again = match error {
            ApiError::Connect { .. } | ApiError::Busy { .. } | ApiError::Status { status: 429, .. } => false,
            ApiError::Broken { .. } | ApiError::Timeout { .. } => {
                self.broken += 1;
                self.broken >= FEW
            }
            _ => true,
        };
        if list_again {
            self.broken = 0;
            if !std::mem::replace(&mut self.warned, true) {
                tracing::warn!(kind, %error, "the API server lets nobody watch; until it does it is asked for lists, now and then");
            }
        }
        list_again
    }
}

/// Whether it may be the version that was asked for what the server cannot cope with.
fn is_about_the_version(error: &ApiError) -> bool {
    match error {
        ApiError::Status { status, .. } => !matches!(status, 401 | 403 | 404 | 429),
        ApiError::Decode { .. } | ApiError::TooLarge { .. } => true,
        _ => false,
    }
}

async fn pause<T>(attempts: &mut mainstay_task::Attempts, error: ApiError, tell: &mut impl FnMut(Change<T>)) {
    let wait = attempts.failed().max(error.retry_after().unwrap_or_default().min(Duration::from_secs(60)));
    tracing::debug!(%error, ?wait, "the API server cannot be listened to; trying again");
    tell(Change::Interrupted(error));
    tokio::time::sleep(wait).await;
}
