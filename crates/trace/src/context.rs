//! Which span of which trace, and how that is said in headers (W3C Trace Context).

use std::{
    fmt::{self, Write as _},
    hash::{BuildHasher as _, Hasher as _, RandomState},
    sync::Arc,
};

/// The longest `tracestate` that is handed on, as the standard asks for at least.
const MAX_STATE: usize = 512;
/// The lowest bit of the flags: somebody records this.
const SAMPLED: u8 = 1;

/// Identifies a trace; never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(pub(crate) [u8; 16]);

/// Identifies a span of a trace; never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(pub(crate) [u8; 8]);

/// A span as others refer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// The trace.
    pub trace: TraceId,
    /// The span.
    pub span: SpanId,
    /// Whether it is recorded.
    pub sampled: bool,
    /// What vendors add; handed on as it came.
    pub state: Option<Arc<str>>,
}

impl Context {
    /// Reads the headers of a request. `None` without a `traceparent`, or with one that cannot be understood: then the request
    /// begins a trace of its own.
    #[must_use]
    pub fn from_headers(headers: &http::HeaderMap) -> Option<Self> {
        let mut parents = headers.get_all("traceparent").iter();
        let parent = parents.next()?.to_str().ok()?;
        if parents.next().is_some() {
            return None;
        }
        let context = Self::parse(parent)?;
        let states: Vec<&str> =
            headers.get_all("tracestate").iter().map_while(|value| value.to_str().ok()).collect();
        let state = states.join(",");
        let state = Some(state).filter(|state| !state.is_empty() && state.len() <= MAX_STATE);
        Some(Self { state: state.map(Into::into), ..context })
    }

    /// Reads a `traceparent`. Versions to come may say more behind what is known.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let [version] = bytes(version)?;
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return None;
        }
        let (trace, span, [flags]) = (bytes(trace)?, bytes(span)?, bytes(flags)?);
        if trace == [0; 16] || span == [0; 8] {
            return None;
        }
        Some(Self { trace: TraceId(trace), span: SpanId(span), sampled: flags & SAMPLED != 0, state: None })
    }

    /// The `traceparent` of requests that belong to this span.
    #[must_use]
    pub fn traceparent(&self) -> String {
        format!("00-{}-{}-{:02x}", self.trace, self.span, self.flags())
    }

    pub(crate) fn flags(&self) -> u8 {
        u8::from(self.sampled) * SAMPLED
    }
}

impl TraceId {
    pub(crate) fn random() -> Self {
        let mut id = [0; 16];
        let (high, low) = id.split_at_mut(8);
        high.copy_from_slice(&random().to_be_bytes());
        low.copy_from_slice(&random().to_be_bytes());
        Self(id)
    }

    /// Whether a share of all traces has this one among it. Everybody who asks for the same share says the same of the same trace:
    /// it is the rule of OpenTelemetry's SDKs (`TraceIDRatioBased`).
    pub(crate) fn is_within(self, per_million: u32) -> bool {
        let [.., a, b, c, d, e, f, g, h] = self.0;
        let place = u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1;
        let bound = (u128::from(per_million) << 63) / 1_000_000;
        u128::from(place) < bound
    }
}

impl SpanId {
    pub(crate) fn random() -> Self {
        Self(random().to_be_bytes())
    }
}

/// Not zero.
fn random() -> u64 {
    // The standard library seeds every RandomState apart, so an empty hash is a random number.
    RandomState::new().build_hasher().finish().max(1)
}

/// Lower-case hexadecimal digits, as the standard has them.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}

fn hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

/// For what is sent as an attribute.
pub(crate) fn cut(mut text: String, max_bytes: usize) -> String {
    if text.len() > max_bytes {
        text.truncate(text.floor_char_boundary(max_bytes));
        // Writing to a string does not fail.
        write!(text, "…").ok();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_traceparent_is_read_as_the_standard_has_it() {
        for (text, expected) in [
            (PARENT, Some(true)),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", Some(false)),
            // Other flags are somebody else's.
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff", Some(true)),
            // A version to come.
            ("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-else", Some(true)),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-else", None),
            ("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None),
            ("00-00000000000000000000000000000000-b7ad6b7169203331-01", None),
            ("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", None),
            ("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", None),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", None),
            ("00-0af7651916cd43dd8448eb211c80319-b7ad6b71692033311-01", None),
            ("0-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None),
            ("00-€€€€€€€€€€-b7ad6b7169203331-01", None),
            ("", None),
        ] {
            assert_eq!(Context::parse(text).map(|context| context.sampled), expected, "{text}");
        }
        assert_eq!(Context::parse(PARENT).unwrap().traceparent(), PARENT);
    }

    #[test]
    fn headers_are_read_once_and_within_bounds() {
        let mut headers = http::HeaderMap::new();
        assert_eq!(Context::from_headers(&headers), None);
        headers.append("traceparent", PARENT.parse().unwrap());
        headers.append("tracestate", "a=1".parse().unwrap());
        headers.append("tracestate", "b=2".parse().unwrap());
        assert_eq!(Context::from_headers(&headers).unwrap().state.as_deref(), Some("a=1,b=2"));
        headers.append("tracestate", "x".repeat(MAX_STATE).parse().unwrap());
        let context = Context::from_headers(&headers).unwrap();
        assert_eq!((context.sampled, context.state), (true, None));
        headers.append("traceparent", PARENT.parse().unwrap());
        assert_eq!(Context::from_headers(&headers), None, "two parents are none");
    }

    #[test]
    fn a_share_of_all_traces_is_that_share() {
        let ids: Vec<_> = (0..20_000).map(|_| TraceId::random()).collect();
        for per_million in [0, 100_000, 500_000, 1_000_000] {
            let within = ids.iter().filter(|id| id.is_within(per_million)).count();
            let expected = f64::from(per_million) / 1e6 * 20_000.0;
            // Eight standard deviations of the widest of them.
            assert!((within as f64 - expected).abs() <= 600.0, "{per_million}: {within}");
        }
        let mut highest = [0xff; 16];
        assert!(TraceId(highest).is_within(1_000_000) && !TraceId(highest).is_within(999_999));
        highest[8..].fill(0);
        assert!(TraceId(highest).is_within(1) && !TraceId(highest).is_within(0));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(cut("abc".into(), 3), "abc");
        assert_eq!(cut("aßc".into(), 2), "a…");
    }
}
