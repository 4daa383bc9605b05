//! The shapes that answers have. Two kinds of error text exist upstream, and clients see the difference:
//! [`plain`] (no newline, from its service router) and [`error`] (newline and `nosniff`, from Go's `http.Error`).

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header};

use crate::body::Body;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");

/// An answer on its way to the client.
pub(crate) type Answer = Response<Body>;

/// A text as it is.
pub(crate) fn plain(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    let text = text.into();
    let mut answer = with(status, Body::Whole(text));
    answer.headers_mut().insert(header::CONTENT_TYPE, TEXT);
    answer
}

/// A text with a newline, and the header that keeps browsers from guessing.
pub(crate) fn error(status: StatusCode, text: &str) -> Answer {
    let mut answer = plain(status, format!("{text}\n"));
    answer.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    answer
}

/// `nosniff` on a text that is no error.
pub(crate) fn nosniff(mut answer: Answer) -> Answer {
    answer.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    answer
}

/// JSON that is there already.
pub(crate) fn json(bytes: Bytes) -> Answer {
    let mut answer = with(StatusCode::OK, Body::Whole(bytes));
    answer.headers_mut().insert(header::CONTENT_TYPE, JSON);
    answer
}

/// The same, told to be compressed, which its body is.
pub(crate) fn compressed(mut answer: Answer) -> Answer {
    answer.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    answer
}

/// The 500 of an answer whose compressing failed: an empty one would look like one that has nothing to tell.
pub(crate) fn not_compressed() -> Answer {
    plain(
        StatusCode::INTERNAL_SERVER_ERROR,
        "Internal Error: the answer could not be compressed; ask for it without gzip",
    )
}

/// Lines of JSON that are still to come.
pub(crate) fn json_stream(body: Body) -> Answer {
    let mut answer = with(StatusCode::OK, body);
    answer.headers_mut().insert(header::CONTENT_TYPE, JSON);
    answer
}

/// A body in chunks, of no declared type.
pub(crate) fn untyped(status: StatusCode, body: Body) -> Answer {
    with(status, body)
}

/// No body at all.
pub(crate) fn empty(status: StatusCode) -> Answer {
    with(status, Body::Whole(Bytes::new()))
}

/// The 404 of a path that nobody registered.
pub(crate) fn unknown_path() -> Answer {
    error(StatusCode::NOT_FOUND, "404 page not found")
}

/// The 404 of a path below a registered service.
pub(crate) fn unknown_sub_path() -> Answer {
    plain(StatusCode::NOT_FOUND, "404: Page Not Found")
}

/// The 405 of a service's router.
pub(crate) fn method_not_allowed(allowed: &[&str]) -> Answer {
    let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed");
    if let Ok(value) = HeaderValue::from_str(&allowed.join(", ")) {
        answer.headers_mut().insert(header::ALLOW, value);
    }
    answer
}

/// The 406 of a service; `produced` is what it could send.
pub(crate) fn not_acceptable(produced: &str) -> Answer {
    plain(StatusCode::NOT_ACCEPTABLE, format!("406: Not Acceptable\n\nAvailable representations: {produced}"))
}

/// The 400 of a request that is not HTTP as Go understands it.
pub(crate) fn bad_request() -> Answer {
    let mut answer = plain(StatusCode::BAD_REQUEST, "400 Bad Request");
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// The 503 before the first complete snapshot.
pub(crate) fn not_ready() -> Answer {
    let mut answer = error(
        StatusCode::SERVICE_UNAVAILABLE,
        "the node's state is not complete yet: mainstay still waits for its pod sources, the runtime's first list, \
         or its first look at each pod; try again in a moment",
    );
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

/// A redirect as Go's `http.Redirect` makes it.
pub(crate) fn redirect(method: &Method, location: &str) -> Answer {
    let Ok(value) = HeaderValue::from_str(location) else { return bad_request() };
    let mut answer = if *method == Method::GET || *method == Method::HEAD {
        let mut answer = with(
            StatusCode::TEMPORARY_REDIRECT,
            Body::Whole(format!("<a href=\"{}\">Temporary Redirect</a>.\n\n", html_escaped(location)).into()),
        );
        answer.headers_mut().insert(header::CONTENT_TYPE, HTML);
        answer
    } else {
        empty(StatusCode::TEMPORARY_REDIRECT)
    };
    answer.headers_mut().insert(header::LOCATION, value);
    answer
}

pub(crate) fn html_escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&#34;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

fn with(status: StatusCode, body: Body) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer
}
