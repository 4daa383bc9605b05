//! A small D-Bus client: method calls, their replies, and signals, over a unix socket, with deadlines.
//!
//! [`Connection::system`] speaks through the system bus, [`Connection::peer`] to one program directly. A connection is
//! cheap and used for one piece of work: nothing is kept open, so no signals pile up for a reader that is not there.
//! What comes in is never trusted: [`Message::parse`] takes any bytes and answers with a message or an error.
//!
//! What it does not do: it serves no objects, passes no file descriptors and starts no task. Every call blocks up to its
//! deadline; call it off the async workers.

#![forbid(unsafe_code)]

mod connection;
mod error;
mod message;
mod read;
mod value;
mod write;

pub use connection::{Call, Connection, Signal};
pub use error::{DbusError, WireError};
pub use message::{Kind, Message};
pub use value::Value;
