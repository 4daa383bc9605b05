//! What the API server would refuse, for all that a node depends on (upstream: ValidatePodCreate in
//! `pkg/apis/core/validation/validation.go`, 1.37), every problem at once and in its words.
//!
//! Scheduling rules that only a scheduler reads (pod affinity, topology spread) are not looked at.

mod containers;
mod metadata;
mod names;
mod objects;
mod placement;
mod resources;
mod security;
mod spec;
mod volumes;
mod warnings;

use std::fmt;

pub(crate) use objects::{runtime_class_warnings, validate_runtime_class};
pub use objects::{validate_config_map, validate_config_map_change, validate_secret, validate_secret_change};
pub use resources::is_extended as is_extended_resource;
pub use spec::validate_pod;
pub use warnings::pod_warnings;

/// One thing that is wrong, and where: `spec.containers[0].image: Required value: …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    field: String,
    what: String,
}

impl Problem {
    pub(crate) fn new(field: impl Into<String>, what: impl Into<String>) -> Self {
        Self { field: field.into(), what: what.into() }
    }

    /// The path of the field, empty when it is about the whole object.
    #[must_use]
    pub fn field(&self) -> &str {
        &self.field
    }

    /// Whether it is about `field` or something below.
    pub(crate) fn concerns(&self, field: &str) -> bool {
        self.field.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            f.write_str(&self.what)
        } else {
            write!(f, "{}: {}", self.field, self.what)
        }
    }
}

/// The way to a field.
#[derive(Clone, Debug)]
struct Field(String);

impl Field {
    fn new(name: &str) -> Self {
        Self(name.to_owned())
    }

    fn child(&self, name: &str) -> Self {
        Self(format!("{}.{name}", self.0))
    }

    fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }
}

/// Problems found so far, in upstream's categories.
#[derive(Debug, Default)]
struct Problems(Vec<Problem>);

impl Problems {
    fn add(&mut self, field: &Field, what: String) {
        self.0.push(Problem::new(field.0.clone(), what));
    }

    fn required(&mut self, field: &Field, advice: &str) {
        self.add(field, format!("Required value: {advice}"));
    }

    fn invalid(&mut self, field: &Field, value: impl fmt::Debug, why: impl fmt::Display) {
        let value = format!("{value:?}");
        // A value may be a megabyte of text; its beginning is enough to find it.
        let shown: String = if value.chars().count() > 256 {
            value.chars().take(256).chain("…".chars()).collect()
        } else {
            value
        };
        self.add(field, format!("Invalid value: {shown}: {why}"));
    }

    fn duplicate(&mut self, field: &Field, value: &str) {
        self.add(field, format!("Duplicate value: {value:?}: give each its own"));
    }

    fn unsupported(&mut self, field: &Field, value: &str, supported: &[&str]) {
        let list = supported.iter().map(|value| format!("{value:?}")).collect::<Vec<_>>().join(", ");
        let advice =
            crate::manifest::nearest(value, supported).map(|near| format!(" (did you mean {near}?)"));
        self.add(
            field,
            format!("Unsupported value: {value:?}: supported values: {list}{}", advice.unwrap_or_default()),
        );
    }

    fn not_found(&mut self, field: &Field, value: &str, advice: &str) {
        self.add(field, format!("Not found: {value:?}: {advice}"));
    }

    fn forbidden(&mut self, field: &Field, why: &str) {
        self.add(field, format!("Forbidden: {why}"));
    }

    fn too_long(&mut self, field: &Field, limit: usize) {
        self.add(field, format!("Too long: may not be more than {limit} bytes"));
    }

    fn too_many(&mut self, field: &Field, count: usize, limit: usize) {
        self.add(field, format!("Too many: {count}: must have at most {limit} items"));
    }

    /// A value that one of the checks in [`names`] refused.
    fn check(&mut self, field: &Field, value: &str, check: fn(&str) -> Option<String>) {
        if let Some(why) = check(value) {
            self.invalid(field, value, why);
        }
    }

    /// As [`Self::check`], when there is something to check.
    fn check_filled(&mut self, field: &Field, value: Option<&String>, check: fn(&str) -> Option<String>) {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            self.check(field, value, check);
        }
    }

    fn one_of(&mut self, field: &Field, value: Option<&String>, supported: &[&str]) {
        if let Some(value) = value
            && !supported.contains(&value.as_str())
        {
            self.unsupported(field, value, supported);
        }
    }

    fn non_negative(&mut self, field: &Field, value: Option<impl Into<i64>>) {
        if let Some(value) = value.map(Into::into)
            && value < 0
        {
            self.invalid(field, value, "must be greater than or equal to 0");
        }
    }

    fn in_range(&mut self, field: &Field, value: impl Into<i64>, least: i64, most: i64) {
        let value = value.into();
        if !(least..=most).contains(&value) {
            self.invalid(field, value, format_args!("must be between {least} and {most}, inclusive"));
        }
    }
}

#[cfg(test)]
mod tests;
