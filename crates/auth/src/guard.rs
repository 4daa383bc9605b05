//! The one place where a request is let through or refused.

use std::{
    future::Future,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use http::{HeaderMap, StatusCode};
use rustls::pki_types::{CertificateDer, UnixTime};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use crate::{
    ANONYMOUS, Attributes, Authorities, Cache, Identity, LocalAccess, Token,
    audit::Audit,
    bearer,
    merge::Merge,
    places::{Places, full},
    reload::Reloaded,
};

/// Questions about tokens that may be open at once. Strangers cause them: further ones are answered no, at once, so that a slow
/// API server does not fill the memory with requests that wait.
const TOKEN_QUESTIONS: usize = 128;
/// Of these, as many may come from one address, so that one that sends forged tokens without end does not shut out the others.
const PER_ADDRESS: usize = 32;
/// Questions about the rights of those who are known, which no flood of tokens delays.
const RIGHT_QUESTIONS: usize = 128;

/// An answer that is still to come.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, ReviewError>> + Send + 'a>>;

/// Somebody who knows tokens and rights: the API server.
pub trait Reviewer: std::fmt::Debug + Send + Sync {
    /// Whose token it is; `None` when it is nobody's. Has a deadline of its own.
    fn token<'a>(&'a self, token: &'a Token) -> Answer<'a, Option<Identity>>;
    /// Whether this user may do this to this node. Has a deadline of its own.
    fn access<'a>(&'a self, who: &'a Identity, verb: &'a str, subresource: &'a str) -> Answer<'a, bool>;
}

/// The reviewer could not be asked, or gave no answer.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ReviewError(pub String);

/// How users are known.
#[derive(Debug, Default)]
pub struct Authentication {
    /// `authentication.anonymous.enabled`.
    pub anonymous: bool,
    /// `authentication.x509.clientCAFile`.
    pub authorities: Option<Reloaded<Authorities>>,
    /// `authentication.webhook`: how long an answer holds.
    pub token_review: Option<Duration>,
}

/// Who decides.
#[derive(Debug)]
pub enum Authorization {
    /// `AlwaysAllow`.
    AlwaysAllow,
    /// `Webhook`: how long a yes and a no hold.
    Review {
        /// `cacheAuthorizedTTL`.
        allowed_ttl: Duration,
        /// `cacheUnauthorizedTTL`.
        refused_ttl: Duration,
    },
    /// The rules of the local access file, and nothing without one.
    Local,
}

/// By whose word somebody is known. Local users are judged by local rules only, and all others never by them while there is
/// an API server to ask: a name in one world is not the same name in the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    LocalToken,
    Elsewhere,
}

/// Judges requests.
#[derive(Debug)]
pub struct Guard {
    authentication: Authentication,
    authorization: Authorization,
    local: Option<Reloaded<LocalAccess>>,
    reviewer: Option<Arc<dyn Reviewer>>,
    tokens: Cache<[u8; 32], Identity>,
    /// Tokens that are nobody's, kept apart: they are as many as strangers want.
    forged: Cache<[u8; 32], ()>,
    rights: Cache<[u8; 32], bool>,
    token_questions: Merge<[u8; 32], Option<Identity>>,
    right_questions: Merge<[u8; 32], bool>,
    token_places: Places,
    right_places: Arc<Semaphore>,
    audit: Audit,
}

/// A request, as far as the guard looks at it.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The certificates that the client showed, its own first.
    pub chain: &'a [CertificateDer<'a>],
    /// Where it came from, if over the network.
    pub address: Option<IpAddr>,
    /// For the audit log: method and path, and what else names the deed.
    pub what: &'a str,
}

/// A request that goes no further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// 401, 403 or 500.
    pub status: StatusCode,
    /// The body, as upstream words it.
    pub text: String,
}

/// Not said to clients: why a request was let through or not.
type Why = String;

impl Guard {
    /// A guard. Without a reviewer, whatever asks for one refuses.
    #[must_use]
    pub fn new(
        authentication: Authentication,
        authorization: Authorization,
        local: Option<Reloaded<LocalAccess>>,
        reviewer: Option<Arc<dyn Reviewer>>,
    ) -> Self {
        Self {
            authentication,
            authorization,
            local,
            reviewer,
            tokens: Cache::default(),
            forged: Cache::default(),
            rights: Cache::default(),
            token_questions: Merge::default(),
            right_questions: Merge::default(),
            token_places: Places::new(TOKEN_QUESTIONS, PER_ADDRESS),
            right_places: Arc::new(Semaphore::new(RIGHT_QUESTIONS)),
            audit: Audit::default(),
        }
    }

    /// The authorities whose names are hinted at in a TLS handshake.
    pub fn authorities(&self) -> Option<Arc<Authorities>> {
        self.authentication.authorities.as_ref().map(Reloaded::get)
    }

    /// Lets a request through as somebody, or refuses it.
    ///
    /// # Errors
    /// [`Refusal`], to be sent as it is.
    pub async fn judge(&self, asking: Asking<'_>, attributes: &Attributes) -> Result<Identity, Refusal> {
        if let Some(authorities) = &self.authentication.authorities {
            authorities.refresh().await;
        }
        if let Some(local) = &self.local {
            local.refresh().await;
        }
        let Asking { address, what, .. } = asking;
        let (who, origin) = match self.authenticate(asking).await {
            Ok(Some(known)) => known,
            refused => {
                let why = refused.err().unwrap_or_else(|| "no credentials".into());
                self.audit.stranger(address, what, StatusCode::UNAUTHORIZED, &why);
                return Err(Refusal { status: StatusCode::UNAUTHORIZED, text: "Unauthorized".into() });
            }
        };
        let (verdict, why) = self.authorize(&who, origin, attributes).await;
        match &verdict {
            Err(refusal) if who.user == ANONYMOUS => {
                self.audit.stranger(address, what, refusal.status, &why);
            }
            Err(refusal) => self.audit.refused(&who, address, what, refusal.status, &why),
            Ok(()) => self.audit.allowed(&who, address, what, attributes, &why),
        }
        verdict.map(|()| who)
    }

    /// Who is asking; `None` when nobody says. Certificate, header, WebSocket: the first that succeeds counts. One that was
    /// tried and failed shuts the way that anonymous users come in by.
    async fn authenticate(&self, asking: Asking<'_>) -> Result<Option<(Identity, Origin)>, Why> {
        let Asking { headers, chain, address, .. } = asking;
        let mut failures = Vec::new();
        if let Some(authorities) = &self.authentication.authorities {
            match authorities.get().identify(chain, UnixTime::now()) {
                Ok(Some(who)) => return Ok(Some((who.authenticated(), Origin::Elsewhere))),
                Ok(None) => {}
                Err(error) => failures.push(error.to_string()),
            }
        }
        if self.knows_tokens() {
            let socket = bearer::from_web_socket(headers).unwrap_or_else(|error| {
                failures.push(error.to_string());
                None
            });
            for token in [bearer::from_header(headers), socket].into_iter().flatten() {
                match self.token(&token, address).await {
                    Ok((who, origin)) => return Ok(Some((who.authenticated(), origin))),
                    Err(why) => failures.push(why),
                }
            }
        }
        match (failures.is_empty(), self.authentication.anonymous) {
            (true, true) => Ok(Some((Identity::anonymous(), Origin::Elsewhere))),
            (true, false) => Ok(None),
            (false, _) => Err(failures.join("; ")),
        }
    }

    /// Whether there is anybody who knows tokens. Where there is nobody, a token says nothing, for or against.
    fn knows_tokens(&self) -> bool {
        let reviewed = self.authentication.token_review.is_some() && self.reviewer.is_some();
        reviewed || self.local.as_ref().is_some_and(|local| local.get().counts().0 > 0)
    }

    async fn token(&self, token: &Token, address: Option<IpAddr>) -> Result<(Identity, Origin), Why> {
        if let Some(who) = self.local.as_ref().and_then(|local| local.get().identify(token)) {
            return Ok((who, Origin::LocalToken));
        }
        let (Some(ttl), Some(reviewer)) = (self.authentication.token_review, &self.reviewer) else {
            return Err("a bearer token that no local user has".into());
        };
        let forged = || "a bearer token that the API server does not accept".to_owned();
        let key = Sha256::digest(token.expose()).into();
        if let Some(who) = self.tokens.get(&key, Instant::now()) {
            return Ok((who, Origin::Elsewhere));
        }
        if self.forged.get(&key, Instant::now()).is_some() {
            return Err(forged());
        }
        let (reviewer, token, places) = (Arc::clone(reviewer), token.clone(), self.token_places.clone());
        let ask = || -> Answer<'static, Option<Identity>> {
            Box::pin(async move {
                let _place = places.take(address)?;
                reviewer.token(&token).await
            })
        };
        let found = self.token_questions.run(key, ask).await;
        match found.map_err(|error| format!("TokenReview: {error}"))? {
            Some(who) => {
                self.tokens.put(key, who.clone(), ttl, Instant::now());
                Ok((who, Origin::Elsewhere))
            }
            None => {
                self.forged.put(key, (), ttl, Instant::now());
                Err(forged())
            }
        }
    }

    async fn authorize(
        &self,
        who: &Identity,
        origin: Origin,
        attributes: &Attributes,
    ) -> (Result<(), Refusal>, Why) {
        match &self.authorization {
            Authorization::AlwaysAllow => (Ok(()), "authorization.mode is AlwaysAllow".into()),
            Authorization::Review { allowed_ttl, refused_ttl } if origin == Origin::Elsewhere => {
                self.review(who, attributes, *allowed_ttl, *refused_ttl).await
            }
            Authorization::Local | Authorization::Review { .. } => self.by_local_rules(who, attributes),
        }
    }

    fn by_local_rules(&self, who: &Identity, attributes: &Attributes) -> (Result<(), Refusal>, Why) {
        match &self.local {
            Some(local) if local.get().allows(who, attributes) => (Ok(()), "a rule for local access".into()),
            Some(local) => {
                let why = format!("no rule in {} allows it", local.path().display());
                (Err(forbidden(who, attributes)), why)
            }
            None => (Err(forbidden(who, attributes)), "there is no file with rules for local access".into()),
        }
    }

    async fn review(
        &self,
        who: &Identity,
        attributes: &Attributes,
        allowed_ttl: Duration,
        refused_ttl: Duration,
    ) -> (Result<(), Refusal>, Why) {
        let Some(reviewer) = &self.reviewer else {
            return (Err(forbidden(who, attributes)), "there is no API server to ask".into());
        };
        for subresource in attributes.subresources {
            let key = right_key(who, attributes.verb, subresource);
            let allowed = match self.rights.get(&key, Instant::now()) {
                Some(known) => known,
                None => match self.ask_right(reviewer, who, attributes.verb, subresource, key).await {
                    Ok(allowed) => {
                        let ttl = if allowed { allowed_ttl } else { refused_ttl };
                        self.rights.put(key, allowed, ttl, Instant::now());
                        allowed
                    }
                    Err(error) => {
                        let refusal = Refusal {
                            status: StatusCode::INTERNAL_SERVER_ERROR,
                            text: format!(
                                "Authorization error (user={}, verb={}, resource=nodes, subresource={subresource})",
                                who.user, attributes.verb
                            ),
                        };
                        return (Err(refusal), format!("SubjectAccessReview: {error}"));
                    }
                },
            };
            if allowed {
                return (Ok(()), format!("the API server allows {} on nodes/{subresource}", attributes.verb));
            }
        }
        (Err(forbidden(who, attributes)), "the API server does not allow it".into())
    }

    async fn ask_right(
        &self,
        reviewer: &Arc<dyn Reviewer>,
        who: &Identity,
        verb: &'static str,
        subresource: &'static str,
        key: [u8; 32],
    ) -> Result<bool, ReviewError> {
        let (reviewer, who) = (Arc::clone(reviewer), who.clone());
        let places = Arc::clone(&self.right_places);
        let ask = || -> Answer<'static, bool> {
            Box::pin(async move {
                let _place = places.try_acquire_owned().map_err(|_| full(RIGHT_QUESTIONS))?;
                reviewer.access(&who, verb, subresource).await
            })
        };
        self.right_questions.run(key, ask).await
    }
}

fn forbidden(who: &Identity, attributes: &Attributes) -> Refusal {
    Refusal {
        status: StatusCode::FORBIDDEN,
        text: format!(
            "Forbidden (user={}, verb={}, resource=nodes, subresource(s)=[{}])\n",
            who.user,
            attributes.verb,
            attributes.subresources.join(" ")
        ),
    }
}

/// Everything a right depends on, each part with its length and each list with its count, so that no two users look alike.
fn right_key(who: &Identity, verb: &str, subresource: &str) -> [u8; 32] {
    let mut hash = Sha256::new();
    add(&mut hash, verb);
    add(&mut hash, subresource);
    add(&mut hash, &who.user);
    add(&mut hash, who.uid.as_deref().unwrap_or_default());
    add_all(&mut hash, &who.groups);
    hash.update((who.extra.len() as u64).to_le_bytes());
    for (key, values) in &who.extra {
        add(&mut hash, key);
        add_all(&mut hash, values);
    }
    hash.finalize().into()
}

fn add(hash: &mut Sha256, text: &str) {
    hash.update((text.len() as u64).to_le_bytes());
    hash.update(text);
}

fn add_all(hash: &mut Sha256, texts: &[String]) {
    hash.update((texts.len() as u64).to_le_bytes());
    texts.iter().for_each(|text| add(hash, text));
}

#[cfg(test)]
mod tests;
