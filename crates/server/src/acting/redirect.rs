//! `/cri/`: the form that kubelets had up to 1.19, in which a request for a stream is answered with a redirect and the client comes
//! back for the stream itself. A client asks for it with `redirect=1`; the address is good for one use within a minute.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderValue, StatusCode, header};
use mainstay_stream::negotiate::is_upgrade;
use tokio::time::Instant;

use super::{Refused, Upgrade, forwarded, internal, not_an_upgrade, runtime, try_later};
use crate::{
    answer::{self, Answer},
    call::Call,
    request::Query,
    route::App,
};

/// How long an address is good, and how many there may be, as runtimes have it for theirs.
const LIFETIME: Duration = Duration::from_secs(60);
const MAX_WAITING: usize = 1000;

/// What a client comes back for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    Exec,
    Attach,
    PortForward,
}

impl Service {
    fn name(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::PortForward => "portforward",
        }
    }
}

/// The addresses that were given out and not used yet.
#[derive(Debug, Default)]
pub(super) struct Redirects {
    waiting: Mutex<HashMap<String, Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    service: Service,
    url: String,
    /// What was asked for, for the audit log.
    asked: String,
    until: Instant,
}

pub(super) fn is_wanted(query: &Query<'_>) -> bool {
    query.first("redirect") == Some("1")
}

impl Redirects {
    /// Keeps the runtime's address, and sends the client to ours.
    pub(super) fn redirect(&self, service: Service, url: String, asked: String) -> Result<Answer, Refused> {
        let mut random = [0_u8; 16];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(|_| internal("the system has no random numbers"))?;
        let token = URL_SAFE_NO_PAD.encode(random);
        if !self.keep(token.clone(), Waiting { service, url, asked, until: Instant::now() + LIFETIME }) {
            let text = "maximum number of in-flight requests exceeded";
            return Err(try_later(answer::plain(StatusCode::TOO_MANY_REQUESTS, text)).into());
        }
        let mut answer = answer::empty(StatusCode::FOUND);
        if let Ok(location) = HeaderValue::from_str(&format!("/cri/{}/{token}", service.name())) {
            answer.headers_mut().insert(header::LOCATION, location);
        }
        Ok(answer)
    }

    fn keep(&self, token: String, new: Waiting) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|_, it| it.until + LIFETIME > new.until);
        if waiting.len() >= MAX_WAITING {
            return false;
        }
        waiting.insert(token, new);
        true
    }

    /// What was asked for by somebody who comes back for `SERVICE/TOKEN`.
    pub(super) fn asked_before(&self, rest: &str) -> Option<String> {
        let (_, token) = rest.trim_end_matches('/').split_once('/')?;
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.get(token).map(|it| it.asked.clone())
    }

    /// The runtime's address, once.
    fn take(&self, service: &str, token: &str, now: Instant) -> Option<String> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let found = waiting.get(token).is_some_and(|it| it.service.name() == service && it.until > now);
        waiting.remove(token).filter(|_| found).map(|it| it.url)
    }
}

/// `/cri/{exec,attach,portforward}/TOKEN`.
pub(crate) async fn cri(app: &Arc<App>, call: Call<'_>) -> Answer {
    come_back(app, call).await.unwrap_or_else(|refusal| *refusal)
}

async fn come_back(app: &Arc<App>, call: Call<'_>) -> Result<Answer, Refused> {
    let rest = call.values.first().copied().unwrap_or_default().trim_end_matches('/');
    let (service, token) = rest.split_once('/').unwrap_or_default();
    let url = app.acting.redirects.take(service, token, Instant::now()).ok_or_else(answer::unknown_path)?;
    let Some(client) = call.upgrade.filter(|_| is_upgrade(call.headers)) else {
        return Err(not_an_upgrade());
    };
    let upgrade = Upgrade::new(client, call.peer, call.counted, app.acting.place()?);
    runtime::put_through(app, upgrade, &url, call.method, forwarded(call.headers, call.peer)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_good_once_and_for_a_minute() {
        let redirects = Redirects::default();
        let now = Instant::now();
        let keep = |token: &str, now| {
            let (url, asked) = ("http://r/1".into(), "POST /exec/a/b/c".into());
            redirects
                .keep(token.into(), Waiting { service: Service::Exec, url, asked, until: now + LIFETIME })
        };
        assert!(keep("a", now) && keep("b", now) && keep("c", now));
        assert_eq!(redirects.asked_before("exec/a").as_deref(), Some("POST /exec/a/b/c"));
        assert_eq!(redirects.asked_before("exec/unknown"), None);
        assert_eq!(redirects.take("exec", "a", now).as_deref(), Some("http://r/1"));
        assert_eq!(redirects.take("exec", "a", now), None, "used");
        assert_eq!(redirects.take("attach", "b", now), None, "of another service");
        assert_eq!(redirects.take("exec", "c", now + LIFETIME), None, "too late");
        for number in 0..MAX_WAITING {
            assert!(keep(&number.to_string(), now));
        }
        assert!(!keep("more", now));
        assert!(keep("more", now + LIFETIME), "those that nobody came for are forgotten");
    }
}
