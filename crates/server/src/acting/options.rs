//! Which streams a client wants, as upstream's `remotecommand.NewOptions` reads them.

use std::time::Duration;

use http::{HeaderMap, Method, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use mainstay_cri::StreamsWanted;
use mainstay_stream::remotecommand::Wanted;

use super::Refused;
use crate::{answer, request::Query};

/// The longest form that is read, and how long it may take to come.
const MAX_FORM_BYTES: usize = 64 << 10;
const FORM_DEADLINE: Duration = Duration::from_secs(10);

/// The form that a POST request may carry beside its query. Anything that is none is not read.
pub(super) async fn form(method: &Method, headers: &HeaderMap, body: Incoming) -> String {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if *method != Method::POST || !kind.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        return String::new();
    }
    match tokio::time::timeout(FORM_DEADLINE, Limited::new(body, MAX_FORM_BYTES).collect()).await {
        Ok(Ok(whole)) => String::from_utf8_lossy(&whole.to_bytes()).into_owned(),
        Ok(Err(_)) | Err(_) => String::new(),
    }
}

/// Reads `input`, `output`, `error` and `tty`, each on only if it is `1`, from the form and the query.
pub(super) fn streams(query: &Query<'_>, form: &str) -> Result<StreamsWanted, Refused> {
    let form = Query::parse(Some(form));
    // Go puts a form's values before the query's.
    let on = |name: &str| form.first(name).or_else(|| query.first(name)) == Some("1");
    let tty = on("tty");
    // With a terminal there is one stream of output.
    let wanted = StreamsWanted { stdin: on("input"), stdout: on("output"), stderr: on("error") && !tty, tty };
    if !wanted.stdin && !wanted.stdout && !wanted.stderr {
        let text = "you must specify at least 1 of stdin, stdout, stderr";
        return Err(answer::plain(StatusCode::BAD_REQUEST, text).into());
    }
    Ok(wanted)
}

/// The same in the words of the streaming protocols.
pub(super) fn of_stream(wanted: StreamsWanted) -> Wanted {
    let StreamsWanted { stdin, stdout, stderr, tty } = wanted;
    Wanted { stdin, stdout, stderr, tty }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_digit_one_turns_a_stream_on() {
        let read = |query: &str, form: &str| {
            streams(&Query::parse(Some(query)), form).map(|wanted| {
                let on = |on: bool, letter| if on { letter } else { "" };
                [on(wanted.stdin, "i"), on(wanted.stdout, "o"), on(wanted.stderr, "e"), on(wanted.tty, "t")]
                    .concat()
            })
        };
        for (query, form, expected) in [
            ("input=1&output=1&error=1", "", "ioe"),
            ("output=1&error=1&tty=1", "", "ot"),
            ("output=1&input=true&tty=0", "", "o"),
            ("output=0&output=1&input=1", "", "i"),
            ("", "output=1", "o"),
            ("output=1", "output=0&input=1", "i"),
        ] {
            assert_eq!(read(query, form).unwrap(), expected, "{query} {form}");
        }
        for query in ["", "stdin=1&stdout=true", "error=1&tty=1", "tty=1", "command=ls", "output=true"] {
            assert_eq!(read(query, "").unwrap_err().status(), StatusCode::BAD_REQUEST, "{query}");
        }
    }
}
