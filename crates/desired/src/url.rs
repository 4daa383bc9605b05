//! Asking `staticPodURL`.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use mainstay_http::{Redirects, Request, Verify, get_following};
use mainstay_podspec::{MAX_MANIFEST_BYTES, StaticPodPlace};
use mainstay_task::Shutdown;
use mainstay_types::PodSource;
use tokio::sync::mpsc;

use crate::{
    book::Reading,
    config::{SourcesConfig, SourcesError, UrlSource},
    entry::read_entries,
};

/// As upstream's `pkg/kubelet/config/http.go`.
const DEADLINE: Duration = Duration::from_secs(10);

/// What the URL answered.
#[derive(Debug)]
pub(crate) struct UrlAnswer {
    pub(crate) reading: Reading,
    /// It said which pods it wants; a failure says nothing.
    pub(crate) delivered: bool,
}

/// Refuses a URL that can never work, without repeating a password that may be in it.
pub(crate) fn check(source: &UrlSource) -> Result<(), SourcesError> {
    let (scheme, rest) = source.url.split_once("://").unwrap_or(("", &source.url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let (why, shown) = if let Some((_, host)) = authority.rsplit_once('@') {
        ("user and password cannot be part of it, use staticPodURLHeader", format!("{scheme}://…@{host}"))
    } else if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        ("only http and https are spoken", source.url.clone())
    } else if authority.is_empty() {
        ("it names no host", source.url.clone())
    } else {
        return Ok(());
    };
    Err(SourcesError::Url { url: shown, why: why.to_owned() })
}

/// Asks until shutdown. Every answer that differs from the last one is sent on; the receiver is waited for.
pub(crate) async fn ask(
    source: UrlSource,
    config: Arc<SourcesConfig>,
    answers: mpsc::Sender<UrlAnswer>,
    shutdown: Shutdown,
) {
    let mut last: Option<Result<Bytes, String>> = None;
    loop {
        let answer = fetch(&source);
        // Dropping a request closes its connection.
        let Some(answer) = shutdown.run_until_signalled(answer).await else { return };
        if last.as_ref() != Some(&answer) {
            let read = read(answer.clone(), &source.url, Arc::clone(&config)).await;
            if answers.send(read).await.is_err() {
                return;
            }
            last = Some(answer);
        }
        let pause = tokio::time::sleep(source.check_frequency.max(Duration::from_secs(1)));
        if shutdown.run_until_signalled(pause).await.is_none() {
            return;
        }
    }
}

async fn fetch(source: &UrlSource) -> Result<Bytes, String> {
    let request = Request {
        asker: "staticPodURL".into(),
        url: source.url.clone(),
        headers: source.headers.clone(),
        deadline: DEADLINE,
        max_body_bytes: MAX_MANIFEST_BYTES,
        verify: Verify::SystemRoots,
        http2: false,
    };
    match get_following(&request, Redirects::Any).await {
        Ok(response) if response.status.as_u16() == 200 => Ok(response.body),
        Ok(response) => {
            Err(format!("{} answered {}; only 200 gives pods", source.url, response.status.as_u16()))
        }
        Err(error) => Err(error.to_string()),
    }
}

async fn read(answer: Result<Bytes, String>, url: &str, config: Arc<SourcesConfig>) -> UrlAnswer {
    let body = match answer {
        Ok(body) => body,
        Err(problem) => return UrlAnswer { reading: Reading::Unreadable(vec![problem]), delivered: false },
    };
    if body.trim_ascii().is_empty() {
        // Upstream takes this for "no pods" and stops them all. An empty PodList says that, nothing at all says nothing.
        let problem = "the answer is empty; to delete its pods answer with an empty PodList".to_owned();
        return UrlAnswer { reading: Reading::Unreadable(vec![problem]), delivered: true };
    }
    let url = url.to_owned();
    // A large manifest takes its time, which the async workers do not have.
    let entries = tokio::task::spawn_blocking(move || {
        let place = StaticPodPlace {
            node_name: &config.node_name,
            source: PodSource::Http,
            origin: &url,
            api_server: config.api_server.is_some(),
            gates: config.gates,
        };
        read_entries(&body, &place)
    });
    match entries.await {
        Ok(Ok(entries)) => UrlAnswer { reading: Reading::Documents(entries), delivered: true },
        Ok(Err(error)) => {
            UrlAnswer { reading: Reading::Unreadable(vec![error.to_string()]), delivered: false }
        }
        Err(error) => UrlAnswer { reading: Reading::Unreadable(vec![error.to_string()]), delivered: false },
    }
}
