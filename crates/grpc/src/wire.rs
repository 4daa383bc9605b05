//! gRPC on HTTP/2: a request's one message, an answer's messages, and how calls end.
//!
//! Written by hand because answers are bytes that were made once and belong to many: a message with its prefix is sent as it
//! is, without a copy for each client.

use std::{
    borrow::Cow,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::Stream;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Limited};
use prost::Message;

use crate::{
    peer::CallPlace,
    piece::{Lent, Piece},
};

/// Requests are a name or nothing.
const MAX_REQUEST: usize = 64 << 10;
/// How long one may take to arrive.
const ARRIVAL: Duration = Duration::from_secs(10);
/// One byte says whether the message is compressed, four its length.
const PREFIX: usize = 5;
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// The codes of gRPC that are used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Ok = 0,
    Canceled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    NotFound = 5,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
}

impl Code {
    /// Go's name, which upstream's metrics have.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Canceled => "Canceled",
            Self::Unknown => "Unknown",
            Self::InvalidArgument => "InvalidArgument",
            Self::NotFound => "NotFound",
            Self::ResourceExhausted => "ResourceExhausted",
            Self::FailedPrecondition => "FailedPrecondition",
            Self::Unimplemented => "Unimplemented",
            Self::Internal => "Internal",
            Self::Unavailable => "Unavailable",
        }
    }
}

/// How a call fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) code: Code,
    pub(crate) message: Cow<'static, str>,
}

impl Status {
    pub(crate) fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(2);
        headers.insert("grpc-status", HeaderValue::from(self.code as i32));
        if !self.message.is_empty()
            && let Ok(message) = HeaderValue::from_str(&escaped(&self.message))
        {
            headers.insert("grpc-message", message);
        }
        headers
    }
}

/// What gRPC wants of text in a header: printable ASCII but `%` stays, all else is by the byte.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if matches!(byte, b' '..=b'~') && byte != b'%' {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Messages of a stream, with their prefixes, in any pieces; an error ends it.
pub(crate) type Messages = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

/// What a call comes to.
pub(crate) enum Answer {
    /// One message with its prefix.
    One(Bytes),
    /// Any number of them.
    Many(Messages),
}

/// A message with its prefix, ready to be sent.
pub(crate) fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut out = BytesMut::with_capacity(PREFIX + length);
    put_prefix(&mut out, length);
    // A buffer of that capacity takes it.
    message.encode(&mut out).ok();
    out.freeze()
}

/// The prefix of a message that is so long.
pub(crate) fn put_prefix(out: &mut BytesMut, length: usize) {
    out.put_u8(0);
    out.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
}

/// Takes in a request that nobody wants to read.
pub(crate) async fn skip<B>(body: B)
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    // What is too long or too slow is the caller's trouble.
    tokio::time::timeout(ARRIVAL, Limited::new(body, MAX_REQUEST).collect()).await.ok();
}

/// The one message of a request.
pub(crate) async fn read<M, B>(body: B) -> Result<M, Status>
where
    M: Message + Default,
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let collected = tokio::time::timeout(ARRIVAL, Limited::new(body, MAX_REQUEST).collect()).await;
    let bytes = match collected {
        Ok(Ok(collected)) => collected.to_bytes(),
        Ok(Err(_)) => {
            return Err(Status::new(
                Code::ResourceExhausted,
                format!("the request cannot be read, or is larger than {MAX_REQUEST} bytes"),
            ));
        }
        Err(_) => return Err(Status::new(Code::Canceled, "the request did not arrive in time")),
    };
    let malformed = |what: &'static str| Status::new(Code::Internal, what);
    let (Some(&[compressed, a, b, c, d]), Some(message)) =
        (bytes.first_chunk::<PREFIX>(), bytes.get(PREFIX..))
    else {
        return Err(malformed("the request has no message"));
    };
    if compressed != 0 {
        return Err(Status::new(Code::Unimplemented, "compressed messages are not understood here"));
    }
    if usize::try_from(u32::from_be_bytes([a, b, c, d])) != Ok(message.len()) {
        return Err(malformed("the request is not one whole message"));
    }
    M::decode(message)
        .map_err(|error| Status::new(Code::Internal, format!("the request is malformed: {error}")))
}

/// The path's service and method, if it is a gRPC call at all; else the answer to it.
pub(crate) fn method<B>(request: &Request<B>) -> Result<(&str, &str), Box<Response<Reply>>> {
    let plain = |code: StatusCode| {
        let mut response = Response::new(Reply::nothing());
        *response.status_mut() = code;
        Box::new(response)
    };
    if request.method() != Method::POST {
        return Err(plain(StatusCode::METHOD_NOT_ALLOWED));
    }
    let kind = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    if !kind.starts_with(b"application/grpc") {
        return Err(plain(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    let path = request.uri().path();
    let parts = path.strip_prefix('/').and_then(|path| path.split_once('/'));
    let refused = || Status::new(Code::Unimplemented, format!("malformed method name: {path:?}"));
    parts.ok_or_else(|| Box::new(refuse(&refused())))
}

/// An answer that is only a status.
pub(crate) fn refuse(status: &Status) -> Response<Reply> {
    let mut response = Response::new(Reply::nothing());
    *response.headers_mut() = status.headers();
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    response
}

/// The answer; `ended` is told once how it went, `Canceled` if the client did not wait. The place is the call's until all that was sent has been taken.
pub(crate) fn respond(answer: Result<Answer, Status>, mut ended: Ended, place: CallPlace) -> Response<Reply> {
    let content = match answer {
        Ok(Answer::One(message)) => Content::One(message),
        Ok(Answer::Many(messages)) => Content::Many(messages),
        Err(status) => {
            ended.tell(status.code);
            return refuse(&status);
        }
    };
    let mut response = Response::new(Reply { content, sent: Some((Lent::new(place), ended)) });
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    response
}

/// Somebody who wants to know how a call went.
pub(crate) struct Ended(Option<Box<dyn FnOnce(Code) + Send>>);

impl Ended {
    pub(crate) fn new(tell: impl FnOnce(Code) + Send + 'static) -> Self {
        Self(Some(Box::new(tell)))
    }

    fn tell(&mut self, code: Code) {
        if let Some(tell) = self.0.take() {
            tell(code);
        }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.tell(Code::Canceled);
    }
}

/// The body of an answer.
pub(crate) struct Reply {
    content: Content,
    /// What of it is out, and who is told how it went; nothing where there is nothing but a status.
    sent: Option<(Arc<Lent>, Ended)>,
}

enum Content {
    One(Bytes),
    Many(Messages),
    /// All is sent but how it went.
    Trailers(Status),
    Nothing,
}

impl Reply {
    fn nothing() -> Self {
        Self { content: Content::Nothing, sent: None }
    }

    /// The next bytes, or how it went. Whatever the messages held goes with the last of them, not when the client closes.
    fn poll_content(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let status = match &mut self.content {
            Content::One(message) => {
                let message = std::mem::take(message);
                self.content = Content::Trailers(Status::new(Code::Ok, ""));
                return Poll::Ready(Some(message));
            }
            Content::Many(messages) => match ready!(messages.as_mut().poll_next(context)) {
                Some(Ok(piece)) => return Poll::Ready(Some(piece)),
                Some(Err(status)) => status,
                None => Status::new(Code::Ok, ""),
            },
            Content::Trailers(_) | Content::Nothing => return Poll::Ready(None),
        };
        self.content = Content::Trailers(status);
        Poll::Ready(None)
    }
}

impl Body for Reply {
    type Data = Piece;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, Self::Error>>> {
        let bytes = ready!(self.poll_content(context));
        let Some((lent, _)) = &self.sent else { return Poll::Ready(None) };
        if let Some(bytes) = bytes {
            return Poll::Ready(Some(Ok(Frame::data(lent.piece(bytes)))));
        }
        // A call that has ended is nobody's any more, and what is left of it would lie there without a deadline.
        ready!(lent.poll_taken(context));
        let Content::Trailers(status) = std::mem::replace(&mut self.content, Content::Nothing) else {
            return Poll::Ready(None);
        };
        if let Some((_, mut ended)) = self.sent.take() {
            ended.tell(status.code);
        }
        Poll::Ready(Some(Ok(Frame::trailers(status.headers()))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.content, Content::Nothing)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use mainstay_proto::pods::GetPodRequest;

    use super::*;

    #[test]
    fn text_in_headers() {
        assert_eq!(escaped("pod with UID x not found"), "pod with UID x not found");
        assert_eq!(escaped("100 %\nü"), "100 %25%0A%C3%BC");
    }

    #[tokio::test]
    async fn malformed_requests_are_refused() {
        let good = framed(&GetPodRequest { pod_uid: "u".to_owned() });
        let read = |bytes: Vec<u8>| read::<GetPodRequest, _>(Full::new(Bytes::from(bytes)));
        assert_eq!(read(good.to_vec()).await.unwrap().pod_uid, "u");
        let code = async |bytes: Vec<u8>| read(bytes).await.unwrap_err().code;
        assert_eq!(code(vec![]).await, Code::Internal);
        assert_eq!(code(vec![0, 0, 0]).await, Code::Internal);
        assert_eq!(code([&good[..], b"x"].concat()).await, Code::Internal);
        assert_eq!(code(vec![0, 0xff, 0xff, 0xff, 0xff]).await, Code::Internal);
        assert_eq!(code(vec![0, 0, 0, 0, 2, 0xff, 0xff]).await, Code::Internal);
        assert_eq!(code(vec![1, 0, 0, 0, 0]).await, Code::Unimplemented);
        assert_eq!(code(vec![0; MAX_REQUEST + 1]).await, Code::ResourceExhausted);
    }
}
