//! What is wrong with a configuration, said so that it can be put right.

use std::fmt;

/// One thing that is wrong with the configuration.
///
/// Loading collects every problem before it gives up, so a user mends a file once.
/// No problem ever quotes a header value of `staticPodURLHeader`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    /// The file or `command line` that the problem came from; empty when nobody set the value.
    pub source_name: String,
    /// Dotted path of the field (`authentication.webhook.cacheTTL`) or the flag (`--cluster-dns`); empty for a whole file.
    pub path: String,
    /// What is wrong, naming the value.
    pub message: String,
    /// What to do about it; empty when the message says it already.
    pub remedy: String,
}

impl Problem {
    /// A problem of an option, with what to do about it.
    pub fn new(path: impl Into<String>, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { source_name: String::new(), path: path.into(), message: message.into(), remedy: remedy.into() }
    }

    /// The same problem, found in `source_name`.
    pub(crate) fn at(mut self, source_name: &str) -> Self {
        self.source_name = source_name.to_owned();
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.source_name.is_empty() {
            write!(f, "{}: ", self.source_name)?;
        }
        // A message that already names its field need not be preceded by it.
        if !self.path.is_empty() && !self.message.contains(self.path.as_str()) {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}
