//! Service accounts of pods, for programs that log in to registries by them: who an account is, and a token of it.
//!
//! What the API server says is asked for when an image is to be pulled, and not kept on disk: a node that cannot ask
//! has images only as its other credentials go.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ServiceAccount;
use mainstay_apiserver::{Client, Scope, bound_token, renew_token_after};
use mainstay_config::TokenAttributes;
use mainstay_policy::PullAccount;
use mainstay_task::random_unit;
use mainstay_types::{DesiredPod, FullName, PodExt as _, TokenKey};
use tokio::time::Instant;

/// What a token is asked to be good for; upstream's (the API's default).
const LIFETIME_SECONDS: i64 = 3600;

/// The pod that an image is for.
#[derive(Clone, Debug)]
pub(crate) struct ForPod {
    key: TokenKey,
    full_name: FullName,
    /// `serviceAccountName`; empty for none.
    account: String,
}

impl ForPod {
    pub(crate) fn of(desired: &DesiredPod) -> Self {
        let account = desired.pod.spec_ref().service_account_name.clone().unwrap_or_default();
        let key = TokenKey {
            pod: desired.uid.clone(),
            audience: String::new(),
            expiration_seconds: LIFETIME_SECONDS,
        };
        Self { key, full_name: desired.full_name.clone(), account }
    }

    #[cfg(test)]
    pub(crate) fn nobody() -> Self {
        let key = TokenKey { pod: "u".into(), audience: String::new(), expiration_seconds: LIFETIME_SECONDS };
        Self { key, full_name: FullName::new("default", "p"), account: String::new() }
    }

    pub(crate) fn has_account(&self) -> bool {
        !self.account.is_empty()
    }
}

/// A service account, as a program is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) who: PullAccount,
    /// Those that the program wants to know.
    pub(crate) annotations: BTreeMap<String, String>,
    /// Never logged.
    pub(crate) token: Token,
}

/// A token, whose `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token(pub(crate) String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

/// Who answers for accounts: the API server, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    client: Option<Client>,
    /// Tokens that need not be renewed yet, with the UID of their account.
    tokens: Mutex<HashMap<(TokenKey, String), (Instant, Token)>>,
}

impl Accounts {
    pub(crate) fn new(client: Option<Client>) -> Self {
        Self { client, tokens: Mutex::default() }
    }

    fn tokens(&self) -> MutexGuard<'_, HashMap<(TokenKey, String), (Instant, Token)>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is an API server, which is whose accounts are.
    pub(crate) fn is_there(&self) -> bool {
        self.client.is_some()
    }

    /// The pod's account with a token for the program; `None` if the program is not for accounts like this one.
    pub(crate) async fn of(&self, pod: &ForPod, wanted: &TokenAttributes) -> Result<Option<Account>, String> {
        let Some(client) = &self.client else {
            return Err("there is no API server to ask for the pod's service account".to_owned());
        };
        let scope = Scope::Namespace(&pod.full_name.namespace);
        let account: ServiceAccount = client
            .get(scope, &pod.account)
            .await
            .map_err(|error| format!("cannot get the service account {}: {error}", pod.account))?;
        let Some(annotations) = annotations(account.metadata.annotations.unwrap_or_default(), wanted) else {
            return Ok(None);
        };
        let uid = account.metadata.uid.unwrap_or_default();
        let token = self.token(client, pod, &wanted.audience, &uid).await?;
        let who =
            PullAccount { namespace: pod.full_name.namespace.to_string(), name: pod.account.clone(), uid };
        Ok(Some(Account { who, annotations, token }))
    }

    async fn token(&self, client: &Client, pod: &ForPod, audience: &str, uid: &str) -> Result<Token, String> {
        let key = (TokenKey { audience: audience.to_owned(), ..pod.key.clone() }, uid.to_owned());
        let now = Instant::now();
        if let Some((_, token)) = self.tokens().get(&key).filter(|(until, _)| *until > now) {
            return Ok(token.clone());
        }
        let made = bound_token(client, &key.0, &pod.full_name, &pod.account).await.map_err(|error| {
            let hint = match error.status() {
                Some(403) => format!(
                    "; may nodes have tokens for it (verb request-serviceaccounts-token-audience, resource {audience})?"
                ),
                _ => String::new(),
            };
            format!("no token of the service account {} for {audience:?}: {error}{hint}", pod.account)
        })?;
        let left = Duration::try_from(made.expires.duration_since(Timestamp::now())).unwrap_or_default();
        let token = Token(made.token);
        let mut tokens = self.tokens();
        tokens.retain(|_, (until, _)| *until > now);
        tokens.insert(key, (now + renew_token_after(left, random_unit()), token.clone()));
        Ok(token)
    }
}

/// What the program wants to know of an account; `None` if that lacks something without which it is not to be asked.
fn annotations(
    mut all: BTreeMap<String, String>,
    wanted: &TokenAttributes,
) -> Option<BTreeMap<String, String>> {
    let mut told = BTreeMap::new();
    for key in &wanted.required_annotations {
        told.insert(key.clone(), all.remove(key)?);
    }
    let optional = wanted.optional_annotations.iter();
    told.extend(optional.filter_map(|key| Some((key.clone(), all.remove(key)?))));
    Some(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_told_what_it_wants_to_know() {
        let wanted = TokenAttributes {
            audience: "registry".into(),
            per_token: true,
            required: true,
            required_annotations: vec!["a".into()],
            optional_annotations: vec!["b".into(), "c".into()],
        };
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let told = annotations(map(&[("a", "1"), ("b", "2"), ("secret", "3")]), &wanted);
        assert_eq!(told, Some(map(&[("a", "1"), ("b", "2")])));
        assert_eq!(annotations(map(&[("b", "2")]), &wanted), None, "without the one it must have");
        assert_eq!(format!("{:?}", Token("s3cret".into())), "Token");
    }
}
