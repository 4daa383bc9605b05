//! Limits of our own process.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the number of files this process may have open to `wanted` (`maxOpenFiles`), or as near to it as it is allowed
/// to; never lowers it. Returns the limit that holds now.
///
/// # Errors
/// What `setrlimit` says if not even the present hard limit can be used.
pub fn raise_open_file_limit(wanted: u64) -> io::Result<u64> {
    let now = getrlimit(Resource::Nofile);
    let current = now.current.unwrap_or(u64::MAX);
    let hard = now.maximum.unwrap_or(u64::MAX);
    if current >= wanted {
        return Ok(current);
    }
    if hard < wanted {
        // Beyond the hard limit only with CAP_SYS_RESOURCE; without it the hard limit has to do.
        let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: Some(wanted) });
        if raised.is_ok() {
            return Ok(wanted);
        }
    }
    let reachable = wanted.min(hard);
    setrlimit(Resource::Nofile, Rlimit { current: Some(reachable), maximum: now.maximum })?;
    Ok(reachable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_raised_but_never_lowered() {
        let before = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert_eq!(raise_open_file_limit(1).unwrap(), before);
        let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        assert_eq!(raise_open_file_limit(hard).unwrap(), hard);
        assert_eq!(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), hard);
    }
}
