//! Tokens in a request: in the `Authorization` header, or smuggled through a WebSocket handshake by browsers, which can
//! set no header.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{
    HeaderMap, HeaderValue,
    header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL},
};

/// The subprotocol that carries a token.
const PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// A token that must not be shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// The text itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Token {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// A token that was sent in a form nobody can accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadToken {
    /// Two of them.
    #[error("more than one bearer token among the WebSocket subprotocols")]
    Twice,
    /// Broken encoding.
    #[error("the WebSocket subprotocol's bearer token is not base64url without padding, of UTF-8")]
    Encoding,
    /// It stands alone.
    #[error("a WebSocket bearer token needs another subprotocol beside it")]
    Alone,
}

/// The token of the `Authorization` header; `None` when there is none, or it is empty, or of another scheme.
#[must_use]
pub fn from_header(headers: &HeaderMap) -> Option<Token> {
    let text = headers.get(AUTHORIZATION)?.to_str().ok()?.trim();
    let mut words = text.split(' ');
    if !words.next()?.eq_ignore_ascii_case("bearer") {
        return None;
    }
    // Two spaces make an empty token; words behind the token are nobody's.
    let token = words.next().filter(|token| !token.is_empty())?;
    Some(Token(token.to_owned()))
}

/// The token among the WebSocket subprotocols, if there is one.
///
/// # Errors
/// [`BadToken`]: a try that failed is not the same as none.
pub fn from_web_socket(headers: &HeaderMap) -> Result<Option<Token>, BadToken> {
    let mut token = None;
    let mut others = 0_usize;
    for protocol in protocols(headers) {
        match protocol.strip_prefix(PREFIX) {
            Some(_) if token.is_some() => return Err(BadToken::Twice),
            Some(encoded) => token = Some(encoded),
            None => others += 1,
        }
    }
    let Some(encoded) = token else { return Ok(None) };
    let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| BadToken::Encoding)?;
    let text = String::from_utf8(bytes).map_err(|_| BadToken::Encoding)?;
    if others == 0 {
        return Err(BadToken::Alone);
    }
    Ok(Some(Token(text)).filter(|token| !token.0.is_empty()))
}

/// Takes what was used to authenticate out of the request, so that it goes nowhere else.
pub fn remove(headers: &mut HeaderMap) {
    if from_header(headers).is_some() {
        headers.remove(AUTHORIZATION);
    }
    let kept: Vec<&str> = protocols(headers).filter(|protocol| !protocol.starts_with(PREFIX)).collect();
    if kept.len() == protocols(headers).count() {
        return;
    }
    let kept = HeaderValue::try_from(kept.join(", "));
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    // Pieces of a valid value are valid.
    if let Some(kept) = kept.ok().filter(|kept| !kept.is_empty()) {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, kept);
    }
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|protocol| !protocol.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(value: &str) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::try_from(value).unwrap());
        from_header(&headers).map(|token| token.expose().to_owned())
    }

    #[test]
    fn the_header_is_read_as_upstream_reads_it() {
        for (value, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer abc", Some("abc")),
            ("  BEARER abc more words ", Some("abc")),
            ("Bearer  abc", None),
            ("Bearer", None),
            ("Bearer ", None),
            ("Basic abc", None),
            ("", None),
        ] {
            assert_eq!(header(value).as_deref(), token, "{value:?}");
        }
        assert_eq!(from_header(&HeaderMap::new()), None);
    }

    #[test]
    fn browsers_send_it_as_a_subprotocol() {
        let read = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(SEC_WEBSOCKET_PROTOCOL, HeaderValue::try_from(*value).unwrap());
            }
            from_web_socket(&headers).map(|token| token.map(|token| token.expose().to_owned()))
        };
        let token = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode("abc"));
        let padded = format!("{PREFIX}YQ==, x");
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&["v4.channel.k8s.io"]), Ok(None));
        assert_eq!(read(&[&format!("{token}, v4.channel.k8s.io")]), Ok(Some("abc".into())));
        assert_eq!(read(&["v4.channel.k8s.io", &token]), Ok(Some("abc".into())));
        assert_eq!(read(&[&token]), Err(BadToken::Alone));
        assert_eq!(read(&[&token, &token, "x"]), Err(BadToken::Twice));
        assert_eq!(read(&[&padded]), Err(BadToken::Encoding));
    }

    #[test]
    fn what_was_used_is_taken_out() {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer abc"));
        let protocols = format!("{PREFIX}YWJj, v4.channel.k8s.io, x");
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::try_from(protocols).unwrap());
        remove(&mut headers);
        assert_eq!(headers.get(AUTHORIZATION), None);
        assert_eq!(headers.get(SEC_WEBSOCKET_PROTOCOL).unwrap(), "v4.channel.k8s.io, x");

        headers.insert(AUTHORIZATION, HeaderValue::from_static("Basic abc"));
        remove(&mut headers);
        assert_eq!(headers.get(AUTHORIZATION).unwrap(), "Basic abc", "that was not what authenticated");
    }

    #[test]
    fn a_token_is_not_shown() {
        assert_eq!(format!("{:?}", Token::from("secret")), "Token(…)");
    }
}
