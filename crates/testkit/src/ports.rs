//! Loopback ports that nobody else is given, handed out by lock files like the subnets.

use anyhow::{Context, Result};
use std::fs::{self, File, TryLockError};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

const DIR: &str = "/run/mainstay-testkit";
/// Below the kernel's own range: from there every client on the machine is given ports, so that one which was free a moment
/// ago, or whose server restarts, would be taken now and then.
const PORTS: std::ops::Range<u16> = 21_000..31_000;

/// The locks of this process. A port stays its own until it ends: servers are stopped and started again on their ports.
static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// A loopback address that is this process's from now on, and on which nobody listens.
///
/// # Errors
/// When there is none, or the locks cannot be had.
pub fn free_address() -> Result<SocketAddr> {
    fs::create_dir_all(DIR).with_context(|| format!("cannot make {DIR}; the kit needs root"))?;
    for port in PORTS {
        let path = Path::new(DIR).join(format!("port-{port}"));
        let file = File::options().write(true).create(true).truncate(false).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => continue,
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
            Ok(()) => {}
        }
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        // Somebody who knows nothing of the locks may have it, on this address or on all.
        let free =
            TcpListener::bind(address).is_ok() && TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok();
        HELD.lock().unwrap_or_else(PoisonError::into_inner).push(file);
        if free {
            return Ok(address);
        }
    }
    anyhow::bail!("all ports of {PORTS:?} are taken; whose are the files {DIR}/port-*?")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_port_is_given_twice() {
        let given: Vec<SocketAddr> = std::thread::scope(|scope| {
            let asking: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..5).map(|_| free_address().unwrap()).collect::<Vec<_>>()))
                .collect();
            asking.into_iter().flat_map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(given.iter().collect::<HashSet<_>>().len(), 20, "{given:?}");
        assert!(given.iter().all(|address| PORTS.contains(&address.port())), "{given:?}");
    }
}
