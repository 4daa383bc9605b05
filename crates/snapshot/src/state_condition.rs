//! The node condition that says whether a state file had to be set aside.

use std::{io, path::PathBuf, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::NodeCondition, apimachinery::pkg::apis::meta::v1::Time};
use mainstay_checkpoint::{AsideFile, files_set_aside, files_set_aside_in};
use mainstay_lifecycle::STATE_INTACT;

/// A directory that takes longer to list is on a disk that hangs; the node goes on.
const PATIENCE: Duration = Duration::from_secs(5);
/// More names than this help nobody.
const NAMED: usize = 5;

/// Looks at what lies in the state directory: a file set aside there is evidence until somebody takes it away, whatever
/// life of mainstay set it aside.
pub(crate) async fn look(directory: PathBuf) -> NodeCondition {
    let looking = tokio::task::spawn_blocking(move || {
        let mut found = files_set_aside(&directory)?;
        // Upstream's files of who holds what are where upstream has them.
        found.extend(files_set_aside(&directory.with_file_name("device-plugins"))?);
        if let Some(root) = directory.parent() {
            found.extend(files_set_aside_in(root)?);
        }
        found.sort();
        Ok(found)
    });
    condition(match tokio::time::timeout(PATIENCE, looking).await {
        Ok(Ok(found)) => found,
        Ok(Err(panicked)) => Err(io::Error::other(panicked)),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    })
}

fn condition(found: io::Result<Vec<AsideFile>>) -> NodeCondition {
    let (status, reason, message, since) = match found {
        Ok(files) => match files.first() {
            None => ("True", "NoFileSetAside", "no state file had to be set aside".to_owned(), None),
            Some(oldest) => ("False", "StateFileSetAside", message(&files), time(oldest.unix_seconds)),
        },
        Err(error) => {
            ("Unknown", "StateUnreadable", format!("the state directory cannot be listed: {error}"), None)
        }
    };
    NodeCondition {
        type_: STATE_INTACT.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_transition_time: since,
        last_heartbeat_time: None,
    }
}

fn message(files: &[AsideFile]) -> String {
    let names: Vec<String> = files.iter().take(NAMED).map(|file| file.path.display().to_string()).collect();
    let more = files.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(
        "could not be used and was set aside: {}{more}; what it held was rebuilt as far as possible; look at it, then \
         remove it to end this condition",
        names.join(", ")
    )
}

fn time(unix_seconds: u64) -> Option<Time> {
    let seconds = i64::try_from(unix_seconds).ok()?;
    Timestamp::from_second(seconds).ok().map(Time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_what_lies_there() {
        let words = |found| {
            let condition = condition(found);
            let since = condition.last_transition_time.map(|Time(time)| time.as_second());
            (condition.status, condition.message.unwrap(), since)
        };
        assert_eq!(words(Ok(Vec::new())).0, "True");
        assert_eq!(words(Err(io::ErrorKind::PermissionDenied.into())).0, "Unknown");
        let files: Vec<_> = (10..17)
            .map(|unix_seconds| AsideFile { unix_seconds, path: format!("/s/{unix_seconds}").into() })
            .collect();
        let (status, message, since) = words(Ok(files));
        assert_eq!((status.as_str(), since), ("False", Some(10)));
        assert!(message.contains("/s/10, /s/11, /s/12, /s/13, /s/14 and 2 more;"), "{message}");
    }
}
