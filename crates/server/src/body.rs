//! Response bodies: bytes that are there, or bytes that are made as the client takes them.

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::mpsc;

use crate::{connection::Busy, own_metrics::InFlight};

/// How many pieces a producer may be ahead of its client.
const AHEAD: usize = 1;

/// A response body.
pub(crate) enum Body {
    /// Known bytes, sent with a `Content-Length` and without a copy.
    Whole(Bytes),
    /// Sent in chunks.
    Produced(Produced),
}

/// A producer and the short channel it fills. It runs only while the connection asks for more, and is dropped with it.
pub(crate) struct Produced {
    producer: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    pieces: mpsc::Receiver<Bytes>,
    // A piece that was looked at before the response began.
    first: Option<Bytes>,
    // Counts the request as being answered until the body is gone.
    counted: Option<InFlight>,
    // Keeps its connection from being taken for an idle one.
    busy: Option<Busy>,
}

impl Body {
    /// A body that `produce` makes, piece by piece; it ends when the future does.
    pub(crate) fn produced<F>(produce: impl FnOnce(mpsc::Sender<Bytes>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::Produced(Produced::new(produce))
    }

    /// Keeps the count of a request for as long as its body lives; known bytes are as good as sent.
    pub(crate) fn keep(&mut self, counted: Option<InFlight>) {
        if let Self::Produced(produced) = self {
            produced.counted = counted;
        }
    }

    /// Keeps the connection busy for as long as the body lives; known bytes are as good as sent.
    pub(crate) fn keep_busy(&mut self, busy: Busy) {
        if let Self::Produced(produced) = self {
            produced.busy = Some(busy);
        }
    }
}

impl Produced {
    /// A body that `produce` makes, piece by piece; it ends when the future does.
    pub(crate) fn new<F>(produce: impl FnOnce(mpsc::Sender<Bytes>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sink, pieces) = mpsc::channel(AHEAD);
        Self { producer: Some(Box::pin(produce(sink))), pieces, first: None, counted: None, busy: None }
    }

    /// Waits for the first piece (or the end) without taking it out of the body. Cancel safe.
    pub(crate) async fn peek(&mut self) -> Option<&Bytes> {
        if self.first.is_none() {
            self.first = std::future::poll_fn(|cx| self.poll_piece(cx)).await;
        }
        self.first.as_ref()
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        if let Poll::Ready(piece) = self.pieces.poll_recv(cx) {
            return Poll::Ready(piece);
        }
        if let Some(producer) = &mut self.producer
            && producer.as_mut().poll(cx).is_ready()
        {
            // Drops the sending end as well, so that the channel ends after what is still in it.
            self.producer = None;
        }
        self.pieces.poll_recv(cx)
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Produced(produced) => {
                produced.poll_piece(cx).map(|piece| piece.map(|it| Ok(Frame::data(it))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Produced(_) => SizeHint::default(),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(bytes) => write!(f, "Whole({} bytes)", bytes.len()),
            Self::Produced(_) => f.write_str("Produced"),
        }
    }
}
