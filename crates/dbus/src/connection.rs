//! A connection: in, calls and their answers, signals.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType,
    sockopt::{Timeout, set_socket_timeout},
};

use crate::message::FIXED;
use crate::{DbusError, Kind, Message, Value};

const SYSTEM_BUS: &str = "/run/dbus/system_bus_socket";
/// More than a bus ever says before it lets somebody in.
const MAX_AUTH_LINE: usize = 1024;
/// So many signals may wait to be asked for; the oldest are dropped.
const SIGNAL_BOUND: usize = 1024;

/// A method to call.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Whose, on a bus; a peer ignores it.
    pub destination: &'a str,
    /// The object.
    pub path: &'a str,
    /// The interface.
    pub interface: &'a str,
    /// The method.
    pub member: &'a str,
}

/// A signal that came in.
#[derive(Clone, Debug, PartialEq)]
pub struct Signal {
    /// The interface.
    pub interface: String,
    /// Its name.
    pub member: String,
    /// The object that it is about.
    pub path: String,
    /// Its values.
    pub body: Vec<Value>,
}

/// An open connection.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    last_serial: u32,
    signals: VecDeque<Signal>,
    is_bus: bool,
}

impl Connection {
    /// Connects to the system bus: `DBUS_SYSTEM_BUS_ADDRESS`, else where it always is.
    ///
    /// # Errors
    /// [`DbusError::Connect`] if there is none, [`DbusError::Refused`], or a broken connection.
    pub fn system(deadline: Instant) -> Result<Self, DbusError> {
        let path = match std::env::var("DBUS_SYSTEM_BUS_ADDRESS") {
            Ok(address) => socket_of(&address)?,
            Err(_) => SYSTEM_BUS.into(),
        };
        Self::bus(&path, deadline)
    }

    /// Connects to the bus at that socket.
    ///
    /// # Errors
    /// As [`Connection::system`].
    pub fn bus(path: &Path, deadline: Instant) -> Result<Self, DbusError> {
        let mut connection = Self::peer(path, deadline)?;
        connection.is_bus = true;
        connection.call_bus("Hello", &[], deadline)?;
        Ok(connection)
    }

    /// Connects to a program that speaks D-Bus on its own socket, such as systemd on `/run/systemd/private`.
    ///
    /// # Errors
    /// As [`Connection::system`].
    pub fn peer(path: &Path, deadline: Instant) -> Result<Self, DbusError> {
        let stream =
            connect(path, deadline).map_err(|source| DbusError::Connect { path: path.to_owned(), source })?;
        let mut connection = Self { stream, last_serial: 0, signals: VecDeque::new(), is_bus: false };
        connection.authenticate(deadline)?;
        Ok(connection)
    }

    /// Asks for signals that match the rule. On a peer's own socket there is nothing to ask for: it sends all it has.
    ///
    /// # Errors
    /// As [`Connection::call`].
    pub fn watch(&mut self, rule: &str, deadline: Instant) -> Result<(), DbusError> {
        if self.is_bus {
            self.call_bus("AddMatch", &[Value::text(rule)], deadline)?;
        }
        Ok(())
    }

    /// Calls a method and waits for its answer. Signals that come meanwhile are kept for [`Connection::next_signal`].
    ///
    /// # Errors
    /// [`DbusError::Replied`] if the method failed; otherwise the connection is of no use any more.
    pub fn call(
        &mut self,
        call: &Call<'_>,
        arguments: &[Value],
        deadline: Instant,
    ) -> Result<Vec<Value>, DbusError> {
        self.last_serial = self.last_serial.wrapping_add(1).max(1);
        let serial = self.last_serial;
        let message = Message {
            serial,
            destination: if self.is_bus { call.destination.to_owned() } else { String::new() },
            path: call.path.to_owned(),
            interface: call.interface.to_owned(),
            member: call.member.to_owned(),
            body: arguments.to_vec(),
            ..Message::default()
        };
        self.send(&message.encode()?, call.member, deadline)?;
        loop {
            let message = self.receive(call.member, deadline)?;
            let answers = message.reply_serial == Some(serial);
            match message.kind {
                Kind::Return if answers => return Ok(message.body),
                Kind::Error if answers => {
                    let text = message.body.first().and_then(Value::as_str).unwrap_or_default();
                    return Err(DbusError::Replied {
                        member: call.member.to_owned(),
                        name: message.error_name,
                        message: text.to_owned(),
                    });
                }
                Kind::Signal => self.keep(message),
                // Answers to calls that were given up, and calls: nothing here is to be called.
                Kind::Return | Kind::Error | Kind::Call => {}
            }
        }
    }

    /// The next signal, of those kept or still to come.
    ///
    /// # Errors
    /// [`DbusError::Deadline`] if none comes, or a broken connection.
    pub fn next_signal(&mut self, what: &str, deadline: Instant) -> Result<Signal, DbusError> {
        loop {
            if let Some(signal) = self.signals.pop_front() {
                return Ok(signal);
            }
            let message = self.receive(what, deadline)?;
            if message.kind == Kind::Signal {
                self.keep(message);
            }
        }
    }

    fn call_bus(&mut self, member: &str, arguments: &[Value], deadline: Instant) -> Result<(), DbusError> {
        let call = Call {
            destination: "org.freedesktop.DBus",
            path: "/org/freedesktop/DBus",
            interface: "org.freedesktop.DBus",
            member,
        };
        self.call(&call, arguments, deadline).map(drop)
    }

    fn keep(&mut self, message: Message) {
        if self.signals.len() == SIGNAL_BOUND {
            self.signals.pop_front();
        }
        let Message { interface, member, path, body, .. } = message;
        self.signals.push_back(Signal { interface, member, path, body });
    }

    /// Says who we are; the kernel vouches for it.
    fn authenticate(&mut self, deadline: Instant) -> Result<(), DbusError> {
        let uid = rustix::process::geteuid().as_raw().to_string();
        let hex: String = uid.bytes().map(|byte| format!("{byte:02x}")).collect();
        self.send(format!("\0AUTH EXTERNAL {hex}\r\n").as_bytes(), "authentication", deadline)?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n") {
            let mut byte = [0];
            self.fill(&mut byte, "authentication", deadline)?;
            answer.push(byte[0]);
            if answer.len() > MAX_AUTH_LINE {
                break;
            }
        }
        if !answer.starts_with(b"OK") {
            return Err(DbusError::Refused { answer: String::from_utf8_lossy(&answer).trim().to_owned() });
        }
        self.send(b"BEGIN\r\n", "authentication", deadline)
    }

    fn receive(&mut self, what: &str, deadline: Instant) -> Result<Message, DbusError> {
        let mut fixed = [0; FIXED];
        self.fill(&mut fixed, what, deadline)?;
        let mut bytes = vec![0; Message::length(&fixed)?];
        let (begin, rest) = bytes.split_at_mut_checked(FIXED).ok_or(crate::WireError::Short)?;
        begin.copy_from_slice(&fixed);
        self.fill(rest, what, deadline)?;
        Ok(Message::parse(&bytes)?)
    }

    fn fill(&mut self, mut buffer: &mut [u8], what: &str, deadline: Instant) -> Result<(), DbusError> {
        while !buffer.is_empty() {
            let left = remaining(what, deadline)?;
            let failed = |source| DbusError::Io { action: "read an answer", source };
            self.stream.set_read_timeout(Some(left)).map_err(failed)?;
            match self.stream.read(buffer) {
                Ok(0) => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => buffer = buffer.get_mut(count..).unwrap_or_default(),
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }

    fn send(&mut self, mut bytes: &[u8], what: &str, deadline: Instant) -> Result<(), DbusError> {
        while !bytes.is_empty() {
            let left = remaining(what, deadline)?;
            let failed = |source| DbusError::Io { action: "send a message", source };
            self.stream.set_write_timeout(Some(left)).map_err(failed)?;
            match self.stream.write(bytes) {
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }
}

/// A socket whose connecting ends by the deadline too: a program that does not accept lets others wait.
fn connect(path: &Path, deadline: Instant) -> io::Result<UnixStream> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let left = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
    let left = left.ok_or(io::ErrorKind::TimedOut)?;
    // Linux lets this timeout count for connecting as well.
    set_socket_timeout(&socket, Timeout::Send, Some(left))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

fn remaining(what: &str, deadline: Instant) -> Result<Duration, DbusError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(DbusError::Deadline { what: what.to_owned() }) } else { Ok(left) }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

/// The first unix socket in an address such as `unix:path=/run/x,guid=…;tcp:…`.
fn socket_of(address: &str) -> Result<PathBuf, DbusError> {
    address
        .split(';')
        .filter_map(|one| one.strip_prefix("unix:"))
        .flat_map(|keys| keys.split(','))
        .find_map(|key| key.strip_prefix("path="))
        .map(PathBuf::from)
        .ok_or_else(|| DbusError::Address { address: address.to_owned() })
}

#[cfg(test)]
mod tests;
