//! Which protocol a request asks for, and the answers that upstream gives.
//!
//! SPDY: `k8s.io/streaming/pkg/httpstream` v0.37. WebSocket: `golang.org/x/net/websocket`, which upstream's servers use.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Response, StatusCode};

use crate::remotecommand::{Protocol, Version};
use crate::ws::{Codec, accept_key};

/// The protocol of SPDY port-forwarding.
pub const PORT_FORWARD: &str = "portforward.k8s.io";
/// What stands before the name of a SPDY protocol that is tunnelled through WebSocket.
pub const TUNNEL_PREFIX: &str = "SPDY/3.1+";
/// The value of `Upgrade` for SPDY.
pub const SPDY: &str = "SPDY/3.1";
/// The header in which SPDY peers name their protocols.
pub const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("x-stream-protocol-version");

const ACCEPTED_PROTOCOLS: HeaderName = HeaderName::from_static("x-accepted-stream-protocol-versions");
const MAX_PORTS: usize = 127;

const EXEC_SPDY: [(&str, Version); 4] = [
    ("v4.channel.k8s.io", Version::V4),
    ("v3.channel.k8s.io", Version::V3),
    ("v2.channel.k8s.io", Version::V2),
    ("channel.k8s.io", Version::V1),
];

/// Without the v5 that only a kubelet ends, see [`wants_v5`].
const EXEC_WEBSOCKET: [(&str, Version, Codec); 5] = [
    ("", Version::V1, Codec::Binary),
    ("channel.k8s.io", Version::V1, Codec::Binary),
    ("base64.channel.k8s.io", Version::V1, Codec::Base64),
    ("v4.channel.k8s.io", Version::V4, Codec::Binary),
    ("v4.base64.channel.k8s.io", Version::V4, Codec::Base64),
];
const V5: &str = "v5.channel.k8s.io";

const PORT_FORWARD_WEBSOCKET: [(&str, Codec); 3] =
    [("", Codec::Binary), ("v4.channel.k8s.io", Codec::Binary), ("v4.base64.channel.k8s.io", Codec::Base64)];

/// What is answered instead of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status.
    pub status: StatusCode,
    /// Headers beside those that every answer has.
    pub headers: HeaderMap,
    /// A text for people.
    pub body: String,
}

/// What was agreed upon, and the answer that says so.
#[derive(Clone, Debug)]
pub struct Agreed<P> {
    /// What is spoken once the answer is sent.
    pub protocol: P,
    /// The answer, `101 Switching Protocols`.
    pub response: Response<()>,
}

/// How a port-forward is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortForwardProtocol {
    /// SPDY/3.1.
    Spdy,
    /// SPDY/3.1 inside WebSocket messages.
    Tunnel,
    /// A pair of channels for each port that the request names.
    WebSocket(Codec),
}

/// Whether a request asks for an upgrade at all.
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::CONNECTION).iter();
    values.filter_map(|value| value.to_str().ok()).any(|value| value.to_ascii_lowercase().contains("upgrade"))
}

/// Whether a request asks for an upgrade to WebSocket.
pub fn is_websocket(headers: &HeaderMap) -> bool {
    is_upgrade(headers) && text(headers, &header::UPGRADE).eq_ignore_ascii_case("websocket")
}

/// Whether an exec or attach request is one that the kubelet ends itself: a WebSocket that offers v5, wherever in its list.
pub fn wants_v5(headers: &HeaderMap) -> bool {
    is_websocket(headers) && offered(headers).any(|protocol| protocol == V5)
}

/// Whether a port-forward request wants SPDY tunnelled through WebSocket.
pub fn wants_tunnel(headers: &HeaderMap) -> bool {
    is_websocket(headers) && offered(headers).any(|protocol| tunnelled(protocol).is_some())
}

/// The SPDY protocols that a request wants tunnelled, without their prefix.
pub fn tunnelled_protocols(headers: &HeaderMap) -> Vec<&str> {
    offered(headers).filter_map(tunnelled).collect()
}

/// Agrees on how exec or attach is spoken: SPDY v4 to v1, WebSocket v5, v4 and v1. A WebSocket that offers v5 gets v5.
///
/// # Errors
///
/// The answer, if nothing can be agreed upon.
pub fn remote_command(method: &Method, headers: &HeaderMap) -> Result<Agreed<Protocol>, Box<Refusal>> {
    if !is_websocket(headers) {
        let (version, response) = spdy(headers, &EXEC_SPDY)?;
        return Ok(Agreed { protocol: Protocol::Spdy(version), response });
    }
    let v5 = [(V5, (Version::V5, Codec::Binary))];
    let others = EXEC_WEBSOCKET.map(|(name, version, codec)| (name, (version, codec)));
    let known = if wants_v5(headers) { v5.as_slice() } else { others.as_slice() };
    let ((version, codec), response) = websocket(method, headers, known)?;
    Ok(Agreed { protocol: Protocol::WebSocket(version, codec), response })
}

/// Agrees on how a port-forward is spoken.
///
/// # Errors
///
/// The answer, if nothing can be agreed upon.
pub fn port_forward(
    method: &Method,
    headers: &HeaderMap,
) -> Result<Agreed<PortForwardProtocol>, Box<Refusal>> {
    if !is_websocket(headers) {
        let ((), response) = spdy(headers, &[(PORT_FORWARD, ())])?;
        return Ok(Agreed { protocol: PortForwardProtocol::Spdy, response });
    }
    if wants_tunnel(headers) {
        let name = format!("{TUNNEL_PREFIX}{PORT_FORWARD}");
        let ((), response) = websocket(method, headers, &[(name.as_str(), ())])?;
        return Ok(Agreed { protocol: PortForwardProtocol::Tunnel, response });
    }
    let (codec, response) = websocket(method, headers, &PORT_FORWARD_WEBSOCKET)?;
    Ok(Agreed { protocol: PortForwardProtocol::WebSocket(codec), response })
}

/// The headers of a 101 that accepts a WebSocket with a subprotocol which the caller has chosen.
///
/// # Errors
///
/// The answer, if the request is no proper one.
pub fn accept_websocket(
    method: &Method,
    headers: &HeaderMap,
    protocol: &str,
) -> Result<HeaderMap, Box<Refusal>> {
    let ((), response) = websocket(method, headers, &[(protocol, ())])?;
    Ok(response.into_parts().0.headers)
}

/// The ports that a WebSocket request names: every value of its `port` parameters, each a list with commas.
///
/// # Errors
///
/// What the client is told with status 400, in upstream's words.
pub fn ports<'a>(values: impl IntoIterator<Item = &'a str>) -> Result<Vec<u16>, String> {
    let mut ports = Vec::new();
    let mut any = false;
    for value in values {
        any = true;
        if value.is_empty() {
            return Err("query parameter \"port\" cannot be empty".to_owned());
        }
        for part in value.split(',') {
            let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            match part.parse() {
                Ok(0_u16) if digits => return Err(format!("port {value:?} must be > 0")),
                Ok(port) if digits => ports.push(port),
                _ => {
                    let why = if digits { "value out of range" } else { "invalid syntax" };
                    return Err(format!(
                        "unable to parse {value:?} as a port: strconv.ParseUint: parsing {part:?}: {why}"
                    ));
                }
            }
        }
    }
    match ports.len() {
        _ if !any => Err("query parameter \"port\" is required".to_owned()),
        0..=MAX_PORTS => Ok(ports),
        // Channels are numbered with a byte; upstream goes on and mixes them up.
        many => {
            Err(format!("{many} ports are more than the {MAX_PORTS} that one WebSocket connection can carry"))
        }
    }
}

impl Refusal {
    fn new(status: StatusCode, body: impl Into<String>) -> Box<Self> {
        Box::new(Self { status, headers: HeaderMap::new(), body: body.into() })
    }

    /// A plain text with a newline, as Go's `http.Error` writes it.
    fn plain(status: StatusCode, body: String) -> Box<Self> {
        let mut refusal = Self::new(status, body + "\n");
        let plain = HeaderValue::from_static("text/plain; charset=utf-8");
        refusal.headers.insert(header::CONTENT_TYPE, plain);
        refusal.headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        refusal
    }

    /// What golang.org/x/net/websocket answers: neither type nor length, and the connection ends.
    fn bare(status: StatusCode, body: &str) -> Box<Self> {
        let mut refusal = Self::new(status, body);
        refusal.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        refusal
    }
}

impl From<Refusal> for Response<String> {
    fn from(refusal: Refusal) -> Self {
        let mut response = Response::new(refusal.body);
        *response.status_mut() = refusal.status;
        *response.headers_mut() = refusal.headers;
        response
    }
}

/// The first of the client's protocols that is known.
fn spdy<T: Copy>(headers: &HeaderMap, known: &[(&str, T)]) -> Result<(T, Response<()>), Box<Refusal>> {
    let bad = |body: String| Refusal::plain(StatusCode::BAD_REQUEST, body);
    if !headers.contains_key(&PROTOCOL_VERSION) {
        return Err(bad(format!(
            "unable to upgrade: header X-Stream-Protocol-Version does not exist in request with {} headers",
            headers.keys_len()
        )));
    }
    let values: Vec<&str> =
        headers.get_all(&PROTOCOL_VERSION).iter().filter_map(|value| value.to_str().ok()).collect();
    let offered: Vec<&str> = values
        .iter()
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect();
    if offered.is_empty() {
        return Err(bad(format!(
            "unable to upgrade: header X-Stream-Protocol-Version contains [{}], but no valid protocols",
            values.join(" ")
        )));
    }
    let chosen = offered.iter().find_map(|name| known.iter().find(|(known, _)| known == name));
    let Some((name, protocol)) = chosen else {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        let mut refusal = Refusal::plain(
            StatusCode::FORBIDDEN,
            format!(
                "unable to upgrade: unable to negotiate protocol: client supports [{}], server accepts [{}]",
                offered.join(" "),
                names.join(" ")
            ),
        );
        for name in names.iter().filter_map(|name| HeaderValue::from_str(name).ok()) {
            refusal.headers.append(ACCEPTED_PROTOCOLS, name);
        }
        return Err(refusal);
    };
    let upgrade = text(headers, &header::UPGRADE).to_ascii_lowercase();
    if !is_upgrade(headers) || !upgrade.contains(&SPDY.to_ascii_lowercase()) {
        return Err(bad(format!(
            "unable to upgrade: missing upgrade headers in request: it needs Connection: Upgrade and Upgrade: {SPDY}"
        )));
    }
    let mut response = switching(SPDY);
    insert(&mut response, PROTOCOL_VERSION, name);
    Ok((*protocol, response))
}

/// The first of the client's subprotocols that is known. A client that names none wants the one without a name.
fn websocket<T: Copy>(
    method: &Method,
    headers: &HeaderMap,
    known: &[(&str, T)],
) -> Result<(T, Response<()>), Box<Refusal>> {
    if method != Method::GET {
        return Err(Refusal::bare(StatusCode::METHOD_NOT_ALLOWED, "bad method"));
    }
    let key = text(headers, &header::SEC_WEBSOCKET_KEY);
    if key.is_empty() {
        return Err(Refusal::bare(StatusCode::BAD_REQUEST, "mismatch challenge/response"));
    }
    if text(headers, &header::SEC_WEBSOCKET_VERSION) != "13" {
        let mut refusal = Refusal::bare(StatusCode::BAD_REQUEST, "missing or bad WebSocket Version");
        refusal.headers.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        return Err(refusal);
    }
    let chosen = offered(headers).find_map(|name| known.iter().find(|(known, _)| *known == name));
    let Some((name, protocol)) = chosen else {
        return Err(Refusal::bare(StatusCode::FORBIDDEN, ""));
    };
    let mut response = switching("websocket");
    insert(&mut response, header::SEC_WEBSOCKET_ACCEPT, &accept_key(key));
    // Also when it has no name: upstream then sends an empty line.
    insert(&mut response, header::SEC_WEBSOCKET_PROTOCOL, name);
    Ok((*protocol, response))
}

/// The subprotocols that a WebSocket request offers; one without a name if it offers none.
fn offered(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    text(headers, &header::SEC_WEBSOCKET_PROTOCOL).split(',').map(str::trim)
}

fn tunnelled(protocol: &str) -> Option<&str> {
    protocol.strip_prefix(TUNNEL_PREFIX).filter(|name| name.ends_with(".k8s.io"))
}

fn switching(upgrade: &'static str) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    insert(&mut response, header::CONNECTION, "Upgrade");
    insert(&mut response, header::UPGRADE, upgrade);
    response
}

fn insert(response: &mut Response<()>, name: HeaderName, value: &str) {
    // Every value is one of ours, or base64.
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().trim()
}

#[cfg(test)]
mod tests;
