//! Who is asking.

use std::collections::BTreeMap;

/// The group of everyone who has shown who they are.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of those who have not.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The name of those who have not.
pub const ANONYMOUS: &str = "system:anonymous";

/// A user as authentication found it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The name.
    pub user: String,
    /// An ID that outlives the name, where there is one.
    pub uid: Option<String>,
    /// The groups.
    pub groups: Vec<String>,
    /// What else the authenticator tells; handed on to who decides.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Identity {
    /// Somebody who showed nothing.
    #[must_use]
    pub fn anonymous() -> Self {
        Self { user: ANONYMOUS.into(), groups: vec![UNAUTHENTICATED.into()], ..Self::default() }
    }

    /// The same user as one of those who have shown who they are.
    #[must_use]
    pub fn authenticated(mut self) -> Self {
        if !self.groups.iter().any(|group| group == AUTHENTICATED || group == UNAUTHENTICATED) {
            self.groups.push(AUTHENTICATED.into());
        }
        self
    }

    /// Whether the user is in the group.
    #[must_use]
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }
}
