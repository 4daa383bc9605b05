//! Which fields of a pod somebody wants.

use std::collections::BTreeMap;

use super::{Kind, Message, table};

/// How many paths a mask may have.
const MAX_PATHS: usize = 64;

/// A set of paths through a pod, checked against what a pod can have.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mask {
    /// By name; nothing below means all of it.
    fields: BTreeMap<&'static str, Option<Self>>,
}

/// Why a mask is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MaskError {
    /// No pod has it.
    #[error("field mask: {path:?} is not a field of a pod: {message} has no {segment:?}")]
    NoSuchField {
        /// The path.
        path: String,
        /// The part of it that is wrong.
        segment: String,
        /// Where it was looked for.
        message: &'static str,
    },
    /// The path goes on where nothing is below.
    #[error(
        "field mask: {path:?} goes on below {segment:?}, which has no fields of its own; ask for the whole of it"
    )]
    NothingBelow {
        /// The path.
        path: String,
        /// The part of it that is the last one possible.
        segment: String,
    },
    /// A path is empty.
    #[error("field mask: an empty path; separate paths by single commas")]
    Empty,
    /// There are too many.
    #[error("field mask: more than {MAX_PATHS} paths; ask for a field above them instead")]
    TooMany,
}

impl Mask {
    /// Reads paths in JSON names, separated by commas (`metadata.name,status.conditions`). A path goes through lists as if they
    /// were what they hold.
    ///
    /// # Errors
    /// When a path leads nowhere.
    pub fn parse(text: &str) -> Result<Self, MaskError> {
        let mut mask = Self::default();
        for (count, path) in text.split(',').map(str::trim).enumerate() {
            if count == MAX_PATHS {
                return Err(MaskError::TooMany);
            }
            if path.is_empty() {
                return Err(MaskError::Empty);
            }
            mask.add(path)?;
        }
        Ok(mask)
    }

    fn add(&mut self, path: &str) -> Result<(), MaskError> {
        let mut of = Some(&table::POD);
        let mut last = "";
        let mut names = Vec::new();
        for segment in path.split('.') {
            let Some(message) = of else {
                return Err(MaskError::NothingBelow { path: path.to_owned(), segment: last.to_owned() });
            };
            let Some((name, kind)) = find(message, segment) else {
                let (path, segment) = (path.to_owned(), segment.to_owned());
                return Err(MaskError::NoSuchField { path, segment, message: message.name });
            };
            names.push(name);
            last = segment;
            of = match kind {
                Kind::Message(inner) => Some(inner),
                _ => None,
            };
        }
        self.insert(&names);
        Ok(())
    }

    fn insert(&mut self, names: &[&'static str]) {
        let Some((first, rest)) = names.split_first() else { return };
        if rest.is_empty() {
            self.fields.insert(first, None);
        } else if let Some(below) = self.fields.entry(first).or_insert_with(|| Some(Self::default())) {
            below.insert(rest);
        }
    }

    /// Whether a field is wanted, and what below it; `Some(None)` is all of it.
    pub(super) fn below(&self, name: &str) -> Option<Option<&Self>> {
        self.fields.get(name).map(Option::as_ref)
    }
}

fn find(of: &'static Message, name: &str) -> Option<(&'static str, &'static Kind)> {
    of.fields.iter().find_map(|field| match &field.kind {
        Kind::Message(inner) if field.inline => find(inner, name),
        kind => (field.name == name).then_some((field.name, kind)),
    })
}
