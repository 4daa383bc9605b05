//! Where the verbs print to.

use std::io::{self, BufWriter, Write};

use serde::Serialize;

use crate::{args::StructuredFormat, error::ClientError};

/// Standard output and standard error, or whatever a test has put in their place.
pub(crate) struct Output {
    out: Box<dyn Write>,
    err: Box<dyn Write>,
}

impl Output {
    pub(crate) fn standard() -> Self {
        Self::new(io::stdout(), io::stderr())
    }

    pub(crate) fn new(out: impl Write + 'static, err: impl Write + 'static) -> Self {
        Self { out: Box::new(BufWriter::new(out)), err: Box::new(err) }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        self.out.write_all(bytes).map_err(|source| ClientError::Output { source })
    }

    pub(crate) fn text(&mut self, text: &str) -> Result<(), ClientError> {
        self.bytes(text.as_bytes())
    }

    pub(crate) fn flush(&mut self) -> Result<(), ClientError> {
        self.out.flush().map_err(|source| ClientError::Output { source })
    }

    /// Data in the form asked for, indented as kubectl does it.
    pub(crate) fn data(
        &mut self,
        value: &impl Serialize,
        format: StructuredFormat,
    ) -> Result<(), ClientError> {
        match format {
            StructuredFormat::Json => {
                let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
                let mut serializer = serde_json::Serializer::with_formatter(&mut self.out, formatter);
                value
                    .serialize(&mut serializer)
                    .map_err(|error| ClientError::Output { source: error.into() })?;
                self.text("\n")
            }
            StructuredFormat::Yaml => {
                let text = serde_yaml_ng::to_string(value).map_err(|source| ClientError::Yaml { source })?;
                self.text(&text)
            }
        }
    }

    /// A remark that is not part of the output.
    pub(crate) fn note(&mut self, text: &str) {
        // There is nobody left to tell when this fails.
        drop(writeln!(self.err, "{text}"));
    }

    /// An error, with its causes.
    pub(crate) fn complain(&mut self, error: &ClientError) {
        drop(self.out.flush());
        self.note(&format!("error: {}", error.whole_chain()));
    }
}
