//! Access without an API server: a file that names users by their tokens, and rules that say who may do what.
//!
//! ```yaml
//! apiVersion: access.mainstay.io/v1
//! kind: LocalAccess
//! users:
//! - name: prometheus
//!   groups: [monitoring]
//!   tokenSHA256: 5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8
//! rules:
//! - groups: [monitoring]
//!   verbs: [get]
//!   subresources: [metrics, stats, pods]
//! ```
//!
//! The file holds no token, only its SHA-256: who reads it cannot come in. Users with client certificates need no entry
//! under `users`; rules name them by their common name and organizations.

use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::{Attributes, Identity, Token};

/// The API version of the file.
pub const API_VERSION: &str = "access.mainstay.io/v1";
/// Its kind.
pub const KIND: &str = "LocalAccess";
/// Every verb, every subresource, or everyone who is authenticated.
const ALL: &str = "*";
/// What rules may name.
const SUBRESOURCES: [&str; 11] = [
    "checkpoint",
    "configz",
    "healthz",
    "log",
    "metrics",
    "node",
    "pods",
    "proxy",
    "spec",
    "stats",
    "statusz",
];
const VERBS: [&str; 5] = ["get", "create", "update", "patch", "delete"];

/// Users and rules, as read from the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalAccess {
    users: Vec<User>,
    rules: Vec<Rule>,
}

/// A file that cannot be used: every problem in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct LocalAccessError(pub Vec<String>);

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    api_version: String,
    kind: String,
    #[serde(default)]
    users: Vec<User>,
    #[serde(default)]
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct User {
    name: String,
    #[serde(default)]
    groups: Vec<String>,
    #[serde(rename = "tokenSHA256")]
    token_sha256: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    groups: Vec<String>,
    verbs: Vec<String>,
    subresources: Vec<String>,
}

impl LocalAccess {
    /// Reads the file's text.
    ///
    /// # Errors
    /// Every problem at once, each naming its field and the remedy.
    pub fn parse(text: &str) -> Result<Self, LocalAccessError> {
        let document: Document =
            serde_yaml_ng::from_str(text).map_err(|error| LocalAccessError(vec![error.to_string()]))?;
        let mut problems = Vec::new();
        if document.api_version != API_VERSION {
            problems
                .push(format!("apiVersion: {:?} is not known; write {API_VERSION}", document.api_version));
        }
        if document.kind != KIND {
            problems.push(format!("kind: {:?} is not known; write {KIND}", document.kind));
        }
        check_users(&document.users, &mut problems);
        for (index, rule) in document.rules.iter().enumerate() {
            check_rule(rule, &format!("rules[{index}]"), &mut problems);
        }
        if problems.is_empty() {
            Ok(Self { users: document.users, rules: document.rules })
        } else {
            Err(LocalAccessError(problems))
        }
    }

    /// Whose token it is.
    #[must_use]
    pub fn identify(&self, token: &Token) -> Option<Identity> {
        let sent = fingerprint(token.expose());
        // The hash of what was sent is compared, so that how long it takes tells nothing about a token.
        let user = self.users.iter().find(|user| user.token_sha256.eq_ignore_ascii_case(&sent))?;
        Some(Identity { user: user.name.clone(), groups: user.groups.clone(), ..Identity::default() })
    }

    /// Whether a rule lets this user do this.
    #[must_use]
    pub fn allows(&self, who: &Identity, what: &Attributes) -> bool {
        self.rules.iter().any(|rule| rule.is_for(who) && rule.covers(what))
    }

    /// How many users and rules there are, for a line in the log.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.users.len(), self.rules.len())
    }
}

impl Rule {
    fn is_for(&self, who: &Identity) -> bool {
        self.users.iter().any(|user| *user == who.user || (user == ALL && who.is_in(crate::AUTHENTICATED)))
            || self.groups.iter().any(|group| who.is_in(group))
    }

    fn covers(&self, what: &Attributes) -> bool {
        let verb = self.verbs.iter().any(|verb| verb == ALL || verb == what.verb);
        verb && self
            .subresources
            .iter()
            .any(|allowed| allowed == ALL || what.subresources.contains(&allowed.as_str()))
    }
}

/// The form in which the file knows a token.
#[must_use]
pub fn fingerprint(token: &str) -> String {
    Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn check_users(users: &[User], problems: &mut Vec<String>) {
    for (index, user) in users.iter().enumerate() {
        let field = format!("users[{index}]");
        if user.name.is_empty() {
            problems.push(format!("{field}.name: give the user a name"));
        }
        if user.name.starts_with("system:") || user.groups.iter().any(|group| group.starts_with("system:")) {
            problems.push(format!(
                "{field}: names and groups that begin with \"system:\" are Kubernetes' own; choose others"
            ));
        }
        let hex =
            user.token_sha256.len() == 64 && user.token_sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !hex {
            problems.push(format!(
                "{field}.tokenSHA256: not a SHA-256 in 64 hex digits; make one with: printf %s TOKEN | sha256sum"
            ));
        }
        if users
            .iter()
            .take(index)
            .any(|earlier| earlier.token_sha256.eq_ignore_ascii_case(&user.token_sha256))
        {
            problems.push(format!("{field}.tokenSHA256: another user has the same token"));
        }
    }
}

fn check_rule(rule: &Rule, field: &str, problems: &mut Vec<String>) {
    if rule.users.is_empty() && rule.groups.is_empty() {
        problems.push(format!("{field}: it is for nobody; name users or groups"));
    }
    for verb in rule.verbs.iter().filter(|verb| *verb != ALL && !VERBS.contains(&verb.as_str())) {
        problems.push(format!("{field}.verbs: {verb:?} is not one of {} or *", VERBS.join(", ")));
    }
    for name in rule.subresources.iter().filter(|name| *name != ALL && !SUBRESOURCES.contains(&name.as_str()))
    {
        problems
            .push(format!("{field}.subresources: {name:?} is not one of {} or *", SUBRESOURCES.join(", ")));
    }
    if rule.verbs.is_empty() {
        problems.push(format!("{field}.verbs: it allows nothing; name verbs, or * for all"));
    }
    if rule.subresources.is_empty() {
        problems.push(format!("{field}.subresources: it allows nothing; name subresources, or * for all"));
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::ActingVerb;

    const GOOD: &str = "
apiVersion: access.mainstay.io/v1
kind: LocalAccess
users:
- {name: prometheus, groups: [monitoring], tokenSHA256: 2BB80D537B1DA3E38BD30361AA855686BDE0EACD7162FEF6A25FE97BF527A25B}
rules:
- {groups: [monitoring], verbs: [get], subresources: [metrics, pods]}
- {users: [root], verbs: ['*'], subresources: ['*']}
- {users: ['*'], verbs: [get], subresources: [healthz]}
";

    fn what(method: Method, path: &str) -> Attributes {
        Attributes::of(&method, path, ActingVerb::Create)
    }

    #[test]
    fn tokens_and_rules() {
        let access = LocalAccess::parse(GOOD).unwrap();
        let user = access.identify(&Token::from("secret")).unwrap().authenticated();
        assert_eq!(
            (user.user.as_str(), user.groups.join(",")),
            ("prometheus", "monitoring,system:authenticated".into())
        );
        assert_eq!(access.identify(&Token::from("secre")), None);
        assert_eq!(
            access.identify(&Token::from("2BB80D537B1DA3E38BD30361AA855686BDE0EACD7162FEF6A25FE97BF527A25B")),
            None
        );

        let root = Identity { user: "root".into(), ..Identity::default() };
        for (who, method, path, allowed) in [
            (&user, Method::GET, "/metrics/cadvisor", true),
            (&user, Method::POST, "/metrics", false),
            (&user, Method::GET, "/pods", true),
            (&user, Method::GET, "/configz", false),
            (&user, Method::GET, "/exec/a/b/c", false),
            (&user, Method::GET, "/healthz", true),
            (&root, Method::GET, "/exec/a/b/c", true),
            (&root, Method::HEAD, "/pods", true),
            (&Identity::anonymous(), Method::GET, "/healthz", false),
        ] {
            assert_eq!(
                access.allows(who, &what(method.clone(), path)),
                allowed,
                "{} {method} {path}",
                who.user
            );
        }
    }

    #[test]
    fn every_problem_is_named() {
        let bad = "
apiVersion: v1
kind: LocalAccess
users:
- {name: '', tokenSHA256: abc}
- {name: system:admin, tokenSHA256: abc}
rules:
- {verbs: [list], subresources: [pods]}
- {users: [a], verbs: [], subresources: [podz]}
";
        let LocalAccessError(problems) = LocalAccess::parse(bad).unwrap_err();
        assert_eq!(problems.len(), 10, "{problems:#?}");
        for (text, part) in
            [("users: [{name: a, token: x}]", "token"), ("[1]", "sequence"), ("{}", "apiVersion")]
        {
            let LocalAccessError(problems) = LocalAccess::parse(text).unwrap_err();
            assert!(problems.iter().any(|problem| problem.contains(part)), "{text}: {problems:?}");
        }
        let empty = "apiVersion: access.mainstay.io/v1\nkind: LocalAccess\n";
        let access = LocalAccess::parse(empty).unwrap();
        assert!(!access.allows(&Identity::default(), &what(Method::GET, "/pods")), "closed by default");
    }
}
