//! Telling systemd how we are (sd_notify(3)), without systemd's library.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The service manager that started us, if there is one. Without one every call does nothing.
#[derive(Clone, Debug, Default)]
pub struct ServiceManager {
    socket: Option<SocketAddr>,
    watchdog_timeout: Option<Duration>,
}

impl ServiceManager {
    /// From `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`. An address that cannot be understood is logged and
    /// counts as no service manager: it must not stop the agent.
    #[must_use]
    pub fn from_environment() -> Self {
        Self::from_values(|name| std::env::var_os(name), std::process::id())
    }

    fn from_values(value: impl Fn(&str) -> Option<OsString>, own_pid: u32) -> Self {
        let socket = value("NOTIFY_SOCKET").filter(|address| !address.is_empty()).and_then(|address| {
            parse_address(&address)
                .inspect_err(|error| {
                    tracing::warn!(?address, %error, "NOTIFY_SOCKET is unusable; systemd will not be told of our state");
                })
                .ok()
        });
        let number = |name: &str| value(name)?.to_str()?.parse::<u64>().ok();
        // Set for another process when a wrapper started us.
        let for_us = value("WATCHDOG_PID").is_none() || number("WATCHDOG_PID") == Some(u64::from(own_pid));
        let watchdog_timeout =
            number("WATCHDOG_USEC").filter(|usec| for_us && *usec > 0).map(Duration::from_micros);
        Self { socket, watchdog_timeout }
    }

    /// How often [`ServiceManager::watchdog`] has to be called: half of the time after which systemd kills us. `None`
    /// if no watchdog waits.
    #[must_use]
    pub fn watchdog_interval(&self) -> Option<Duration> {
        self.socket.as_ref().and(self.watchdog_timeout).map(|timeout| timeout / 2)
    }

    /// We are up: what depends on us can start.
    pub fn ready(&self) {
        self.notify("READY=1");
    }

    /// We are shutting down.
    pub fn stopping(&self) {
        self.notify("STOPPING=1");
    }

    /// We are alive.
    pub fn watchdog(&self) {
        self.notify("WATCHDOG=1");
    }

    /// One line for `systemctl status`.
    pub fn status(&self, text: &str) {
        self.notify(&format!("STATUS={}", text.replace('\n', " ")));
    }

    fn notify(&self, message: &str) {
        let Some(socket) = &self.socket else { return };
        // Not to block: a service manager that does not read must not stop us.
        let sent = UnixDatagram::unbound().and_then(|sender| {
            sender.set_nonblocking(true)?;
            sender.send_to_addr(message.as_bytes(), socket)
        });
        if let Err(error) = sent {
            tracing::warn!(message, %error, "cannot notify the service manager");
        }
    }
}

/// A path, or `@name` for the abstract namespace.
fn parse_address(address: &OsStr) -> io::Result<SocketAddr> {
    match address.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name),
        Some((b'/', _)) => SocketAddr::from_pathname(address),
        _ => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "neither an absolute path nor an abstract name"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager(values: &[(&str, &str)]) -> ServiceManager {
        ServiceManager::from_values(
            |name| values.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value)),
            42,
        )
    }

    fn received(socket: &UnixDatagram) -> String {
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut buffer = [0; 200];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer.iter().take(length).copied().collect()).unwrap()
    }

    #[test]
    fn messages_arrive_at_a_path_and_at_an_abstract_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("mainstay-test-{}", std::process::id());
        let at_path = UnixDatagram::bind(&path).unwrap();
        let at_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let abstract_address = format!("@{name}");
        for (socket, address) in [(at_path, path.to_str().unwrap()), (at_name, abstract_address.as_str())] {
            let manager = manager(&[("NOTIFY_SOCKET", address)]);
            manager.ready();
            manager.status("100 pods\nrunning");
            manager.watchdog();
            manager.stopping();
            let messages: Vec<String> = (0..4).map(|_| received(&socket)).collect();
            assert_eq!(messages, ["READY=1", "STATUS=100 pods running", "WATCHDOG=1", "STOPPING=1"]);
        }
    }

    #[test]
    fn watchdog_is_for_the_process_it_names() {
        let interval = |values: &[(&str, &str)]| {
            let values = [values, &[("NOTIFY_SOCKET", "/run/x")]].concat();
            manager(&values).watchdog_interval()
        };
        let ten_seconds = ("WATCHDOG_USEC", "20000000");
        assert_eq!(interval(&[ten_seconds]), Some(Duration::from_secs(10)));
        assert_eq!(interval(&[ten_seconds, ("WATCHDOG_PID", "42")]), Some(Duration::from_secs(10)));
        assert_eq!(interval(&[ten_seconds, ("WATCHDOG_PID", "43")]), None);
        assert_eq!(interval(&[("WATCHDOG_USEC", "0")]), None);
        assert_eq!(interval(&[("WATCHDOG_USEC", "soon")]), None);
        assert_eq!(interval(&[]), None);
        assert_eq!(manager(&[ten_seconds]).watchdog_interval(), None, "nobody to tell");
    }

    #[test]
    fn without_a_usable_socket_nothing_happens() {
        for values in [
            &[][..],
            &[("NOTIFY_SOCKET", "")],
            &[("NOTIFY_SOCKET", "relative")],
            &[("NOTIFY_SOCKET", "/no/such")],
        ] {
            manager(values).ready();
        }
    }
}
