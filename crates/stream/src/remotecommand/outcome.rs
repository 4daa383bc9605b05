//! How a command ended, and how that is told.

use std::io;

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use super::{Input, Version};

/// The longest text that is read from the error stream.
const MAX_STATUS_BYTES: u64 = 64 * 1024;

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With exit code 0; for attach, the container's output has ended.
    Success,
    /// With another exit code.
    Exited {
        /// The code.
        code: i32,
        /// What is told to a person.
        message: String,
    },
    /// It was not run, or not to its end.
    Failed {
        /// What is told to a person, without `Internal error occurred: ` in front.
        message: String,
    },
}

impl Outcome {
    /// What is written to the error stream.
    pub(super) fn encode(&self, version: Version) -> Vec<u8> {
        if !version.tells_status() {
            return match self {
                Self::Success => Vec::new(),
                Self::Exited { message, .. } => message.as_bytes().to_vec(),
                Self::Failed { message } => format!("Internal error occurred: {message}").into_bytes(),
            };
        }
        let mut status = match self {
            Self::Success => json!({"status": "Success"}),
            Self::Exited { code, message } => json!({
                "status": "Failure",
                "message": message,
                "reason": "NonZeroExitCode",
                "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
            }),
            Self::Failed { message } => json!({
                "status": "Failure",
                "message": format!("Internal error occurred: {message}"),
                "reason": "InternalError",
                "details": {"causes": [{"message": message}]},
                "code": 500,
            }),
        };
        // v5 ends in upstream's kubelet, which writes a whole metav1.Status; v4 ends in runtimes, which do not.
        if version == Version::V5
            && let Value::Object(fields) = &mut status
        {
            fields.shift_insert(0, "metadata".to_owned(), json!({}));
        }
        status.to_string().into_bytes()
    }

    /// Reads what was written to the error stream.
    pub(super) fn decode(text: &[u8], version: Version) -> Self {
        let plain = || String::from_utf8_lossy(text).into_owned();
        if !version.tells_status() {
            return match text {
                [] => Self::Success,
                _ => Self::Failed { message: plain() },
            };
        }
        let Ok(status) = serde_json::from_slice::<Value>(text) else {
            return Self::Failed { message: format!("no status was told but {:?}", plain()) };
        };
        let message = status["message"].as_str().unwrap_or_default().to_owned();
        if status["status"] == "Success" {
            return Self::Success;
        }
        let causes = status["details"]["causes"].as_array().map(Vec::as_slice).unwrap_or_default();
        let code = causes.iter().find(|cause| cause["reason"] == "ExitCode");
        let code = code.and_then(|cause| cause["message"].as_str()?.parse().ok());
        match (status["reason"].as_str(), code) {
            (Some("NonZeroExitCode"), Some(code)) => Self::Exited { code, message },
            _ => Self::Failed { message },
        }
    }
}

/// Tells how the command ended, once it has.
#[derive(Debug)]
pub struct OutcomeReader {
    pub(super) stream: Input,
    pub(super) version: Version,
}

impl OutcomeReader {
    /// Waits for the end.
    ///
    /// # Errors
    ///
    /// If the connection ended before.
    pub async fn read(self) -> io::Result<Outcome> {
        let mut text = Vec::new();
        self.stream.take(MAX_STATUS_BYTES).read_to_end(&mut text).await?;
        Ok(Outcome::decode(&text, self.version))
    }
}
