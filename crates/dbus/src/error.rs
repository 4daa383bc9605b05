//! What can go wrong.

use std::io;
use std::path::PathBuf;

/// Why a call had no good answer.
#[derive(Debug, thiserror::Error)]
pub enum DbusError {
    /// Nobody listens at the socket.
    #[error("cannot reach D-Bus at {path}; is it running?", path = path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The address in the environment is of a kind that is not spoken.
    #[error(
        "the D-Bus address {address:?} is not a unix socket; unset DBUS_SYSTEM_BUS_ADDRESS or set unix:path=…"
    )]
    Address {
        /// As it was given.
        address: String,
    },
    /// The other side does not let us in.
    #[error("D-Bus refused to let us in (it said {answer:?}); mainstay has to run as root")]
    Refused {
        /// Its words.
        answer: String,
    },
    /// The connection broke.
    #[error("the D-Bus connection broke while trying to {action}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// It took too long.
    #[error("no answer over D-Bus in time while waiting for {what}")]
    Deadline {
        /// For what.
        what: String,
    },
    /// What came makes no sense.
    #[error("D-Bus sent something that is no message")]
    Wire(#[from] WireError),
    /// The method answered with an error.
    #[error("{member} failed over D-Bus: {message} ({name})")]
    Replied {
        /// The method.
        member: String,
        /// The error's name, such as `org.freedesktop.systemd1.NoSuchUnit`.
        name: String,
        /// Its text for people.
        message: String,
    },
    /// The answer has another form than the method promises.
    #[error("{member} answered over D-Bus in a form that is not understood")]
    Form {
        /// The method.
        member: String,
    },
}

impl DbusError {
    /// Whether the method answered with the error of this name.
    #[must_use]
    pub fn is(&self, error_name: &str) -> bool {
        matches!(self, Self::Replied { name, .. } if name == error_name)
    }
}

/// Why bytes are not a message, or a message cannot be made of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// It ends too early.
    #[error("the message is cut short")]
    Short,
    /// It is larger than anything that is expected here.
    #[error("the message is too large")]
    Large,
    /// A field has a value that it cannot have.
    #[error("the message has an invalid {0}")]
    Invalid(&'static str),
    /// Containers in containers without end.
    #[error("the message is nested too deeply")]
    Deep,
}
