//! Response bodies: bytes that are there, or bytes that are made as the client takes them.

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
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

/// A producer and what it fills. It runs only while the connection asks for more, and is dropped with it.
pub(crate) struct Produced {
    producer: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    pieces: Pieces,
    // A piece that was looked at before the response began.
    first: Option<Bytes>,
    // Counts the request as being answered until the body is gone.
    counted: Option<InFlight>,
    // Keeps its connection from being taken for an idle one.
    busy: Option<Busy>,
}

enum Pieces {
    Channel(mpsc::Receiver<Bytes>),
    Slot(Arc<Slot>),
}

/// Room for one piece, between a body and a producer that nobody else runs: a thousand watches have no need of a channel
/// each, which can wake others and has room for many.
#[derive(Debug, Default)]
pub(crate) struct Slot(Mutex<Option<Bytes>>);

impl Slot {
    /// Puts a piece in, once there is room. Nobody is woken when there is: the body takes the piece out before it runs the
    /// producer again.
    pub(crate) async fn put(&self, piece: Bytes) {
        let mut piece = Some(piece);
        std::future::poll_fn(|_| {
            let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if held.is_some() {
                return Poll::Pending;
            }
            *held = piece.take();
            Poll::Ready(())
        })
        .await;
    }

    fn take(&self) -> Option<Bytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Body {
    /// A body of what `tell` puts into the slot, for as long as it tells. It must do so itself, not from another task.
    pub(crate) fn told<F>(tell: impl FnOnce(Arc<Slot>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let slot = Arc::<Slot>::default();
        Self::Produced(Produced::of(Box::pin(tell(Arc::clone(&slot))), Pieces::Slot(slot)))
    }

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
        Self::of(Box::pin(produce(sink)), Pieces::Channel(pieces))
    }

    fn of(producer: Pin<Box<dyn Future<Output = ()> + Send>>, pieces: Pieces) -> Self {
        Self { producer: Some(producer), pieces, first: None, counted: None, busy: None }
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
        if let Poll::Ready(piece) = self.poll_made(cx) {
            return Poll::Ready(piece);
        }
        if let Some(producer) = &mut self.producer
            && producer.as_mut().poll(cx).is_ready()
        {
            // A channel's sending end goes with it, so that it ends after what is still in it.
            self.producer = None;
        }
        self.poll_made(cx)
    }

    /// A piece that is there, or the end.
    fn poll_made(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match &mut self.pieces {
            Pieces::Channel(pieces) => pieces.poll_recv(cx),
            Pieces::Slot(slot) => match slot.take() {
                None if self.producer.is_some() => Poll::Pending,
                piece => Poll::Ready(piece),
            },
        }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// What a client gets, piece by piece.
    async fn next(body: &mut Body) -> Option<Bytes> {
        let frame = std::future::poll_fn(|cx| http_body::Body::poll_frame(Pin::new(&mut *body), cx)).await;
        frame.and_then(|Ok(frame)| frame.into_data().ok())
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_told_comes_in_order_and_ends() {
        let mut body = Body::told(|slot| async move {
            slot.put("a".into()).await;
            slot.put("b".into()).await;
            tokio::time::sleep(Duration::from_secs(60)).await;
            slot.put("c".into()).await;
        });
        for expected in ["a", "b", "c"] {
            assert_eq!(next(&mut body).await.as_deref(), Some(expected.as_bytes()));
        }
        assert_eq!(next(&mut body).await, None);
        assert_eq!(next(&mut body).await, None, "and stays so");
    }

    #[tokio::test]
    async fn nothing_is_told_ahead_of_the_client() {
        let told = Arc::new(Mutex::new(0));
        let count = Arc::clone(&told);
        let mut body = Body::told(|slot| async move {
            loop {
                slot.put(Bytes::new()).await;
                *count.lock().unwrap() += 1;
            }
        });
        for taken in 1..=3 {
            assert!(next(&mut body).await.is_some());
            assert!(*told.lock().unwrap() <= taken, "one piece waits in the slot");
        }
    }
}
