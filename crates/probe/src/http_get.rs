//! An HTTP GET: 200 to 399 is well.

use std::time::Duration;

use k8s_openapi::api::core::v1::HTTPGetAction;
use mainstay_http::{HttpError, Redirects, Request, Verify};
use mainstay_types::user_agent_version;

use crate::{Answer, MAX_OUTPUT_BYTES, ProbeError, error::system_text, join};

/// A request, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpTarget {
    request: Request,
}

impl HttpTarget {
    /// The request of a probe. Headers are settled as upstream does: `User-Agent` and `Accept` are added unless given, and
    /// not sent at all if given empty; `Host` replaces the one made from the URL.
    pub(crate) fn new(pod: &str, action: &HTTPGetAction, host: &str, port: u16) -> Self {
        let scheme = if action.scheme.as_deref() == Some("HTTPS") { "https" } else { "http" };
        let path = action.path.as_deref().unwrap_or_default();
        let slash = if path.starts_with('/') { "" } else { "/" };
        let given = action.http_headers.iter().flatten();
        let mut headers: Vec<(String, String)> =
            given.map(|header| (header.name.clone(), header.value.clone())).collect();
        for (name, value) in
            [("User-Agent", format!("kube-probe/{}", user_agent_version())), ("Accept", "*/*".into())]
        {
            match headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)) {
                None => headers.push((name.into(), value)),
                Some((_, empty)) if empty.is_empty() => {
                    headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name))
                }
                Some(_) => {}
            }
        }
        let request = Request {
            asker: pod.into(),
            url: format!("{scheme}://{}{slash}{path}", join(host, port)),
            headers,
            deadline: Duration::ZERO,
            max_body_bytes: MAX_OUTPUT_BYTES,
            verify: Verify::Nothing,
            http2: true,
        };
        Self { request }
    }
}

pub(crate) async fn attempt(target: &HttpTarget, timeout: Duration) -> Result<Answer, ProbeError> {
    let request = Request { deadline: timeout, ..target.request.clone() };
    let (status, body) = match mainstay_http::get_following(&request, Redirects::SameHost).await {
        Ok(response) => (response.status, response.body),
        // Only the body was not to be had, and nobody needs more of it.
        Err(HttpError::TooLarge { status, .. }) => (status, Default::default()),
        Err(error @ (HttpError::InvalidUrl { .. } | HttpError::InvalidHeader { .. })) => {
            return Err(error.into());
        }
        Err(error) => return Ok(Answer::Failure(format!("Get {:?}: {}", request.url, text(&error)))),
    };
    Ok(match status.as_u16() {
        200..300 => Answer::Success,
        300..400 => Answer::Warning(format!(
            "Probe terminated redirects, Response body: {}",
            String::from_utf8_lossy(&body)
        )),
        code => Answer::Failure(format!("HTTP probe failed with statuscode: {code}")),
    })
}

/// An error in the words of Go's client.
fn text(error: &HttpError) -> String {
    match error {
        HttpError::Connect { address, source } => {
            format!("dial tcp {address}: connect: {}", system_text(source))
        }
        HttpError::Resolve { host, source } => format!("dial tcp: lookup {host}: {}", system_text(source)),
        HttpError::Timeout { phase, .. } => {
            format!("context deadline exceeded (Client.Timeout exceeded while {phase})")
        }
        HttpError::PlainHttpOnTls { .. } => "http: server gave HTTP response to HTTPS client".into(),
        HttpError::TooManyRedirects { limit, .. } => format!("stopped after {limit} redirects"),
        HttpError::Protocol { source, .. } if source.is_incomplete_message() => "EOF".into(),
        HttpError::Protocol { source, .. } => match std::error::Error::source(source) {
            Some(cause) => format!("{source}: {cause}"),
            None => source.to_string(),
        },
        HttpError::Tls { source, .. } => source.to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
