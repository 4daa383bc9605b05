//! Bytes from one connection to another and back, until either ends.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf},
    time::{Instant, MissedTickBehavior},
};

use super::client::ClientIo;

/// How much is on its way in each direction.
const BUFFER_BYTES: usize = 32 * 1024;
/// How long the two ends are given to take what was read before, and the farewells.
const FAREWELL: Duration = Duration::from_secs(5);
/// How often a client that nobody reads from is looked at.
const LOOK: Duration = Duration::from_secs(5);

/// How a session ended.
#[derive(Debug)]
enum End {
    /// One side has no more to say.
    Closed,
    /// One side is broken.
    Broken(#[expect(dead_code, reason = "it is printed")] io::Error),
    /// Nothing moved for too long.
    Idle,
    /// The client went away while the other side took nothing.
    Gone,
}

/// Carries bytes both ways until either side ends its own, breaks, or nothing moves for `idle`. Then both connections are closed, as upstream does:
/// the protocols on them say within them when a single stream ends.
pub(super) async fn relay<R>(mut client: ClientIo, mut runtime: R, idle: Option<Duration>)
where
    R: AsyncRead + AsyncWrite + Unpin,
{
    let end = carry(&mut client, &mut runtime, idle).await;
    tracing::debug!(?end, "a session ended");
    // What was read has been written, and is flushed here; a side that does not take it has had its time.
    let farewell = async { tokio::join!(client.shutdown(), runtime.shutdown()) };
    drop(tokio::time::timeout(FAREWELL, farewell).await);
}

async fn carry<R>(client: &mut ClientIo, runtime: &mut R, idle: Option<Duration>) -> End
where
    R: AsyncRead + AsyncWrite + Unpin,
{
    let (mut inwards, mut outwards) = (Pump::default(), Pump::default());
    let mut last_move = Instant::now();
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let far = Duration::from_secs(365 * 24 * 60 * 60);
    let limit = idle.unwrap_or(far);
    loop {
        let moved = poll_fn(|cx| {
            let first = outwards.poll(cx, Pin::new(&mut *runtime), Pin::new(&mut *client));
            let second = inwards.poll(cx, Pin::new(&mut *client), Pin::new(&mut *runtime));
            match (first, second) {
                // The last words of the runtime count for more than what a client says to nobody.
                (Poll::Ready(end), _) | (Poll::Pending, Poll::Ready(end)) => Poll::Ready(Some(end)),
                _ if inwards.has_moved() | outwards.has_moved() => Poll::Ready(None),
                _ => Poll::Pending,
            }
        });
        // Cancel safe: what a pump has read stays in it.
        tokio::select! {
            biased;
            moved = moved => match moved {
                Some(Ok(())) => return End::Closed,
                Some(Err(error)) => return End::Broken(error),
                None => last_move = Instant::now(),
            },
            _ = look.tick() => {
                if last_move.elapsed() >= limit {
                    return End::Idle;
                }
                if inwards.is_full() && client.is_gone() {
                    return End::Gone;
                }
            }
        }
    }
}

/// One direction. Its buffer exists only while bytes are on their way, for sessions are mostly idle.
#[derive(Default)]
struct Pump {
    buffer: Option<Box<[u8]>>,
    filled: usize,
    written: usize,
    unflushed: bool,
    moved: bool,
}

impl Pump {
    /// Moves what can be moved. Ready when the reader has ended and everything is written, or one of them is broken.
    fn poll<R: AsyncRead, W: AsyncWrite>(
        &mut self,
        cx: &mut Context<'_>,
        mut reader: Pin<&mut R>,
        mut writer: Pin<&mut W>,
    ) -> Poll<io::Result<()>> {
        // A pair that never has to wait would keep the thread for itself.
        for _ in 0..16 {
            while self.written < self.filled {
                let bytes = self.buffer.as_deref().unwrap_or_default();
                let length = match writer.as_mut().poll_write(cx, &bytes[self.written..self.filled]) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    Poll::Ready(Ok(length)) => length,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => return Poll::Pending,
                };
                self.written += length;
                self.unflushed = true;
                self.moved = true;
            }
            let buffer = self.buffer.get_or_insert_with(|| vec![0; BUFFER_BYTES].into_boxed_slice());
            let mut space = ReadBuf::new(buffer);
            match reader.as_mut().poll_read(cx, &mut space) {
                Poll::Ready(Ok(())) => {
                    self.filled = space.filled().len();
                    self.written = 0;
                    if self.filled == 0 {
                        return writer.as_mut().poll_flush(cx);
                    }
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.buffer = None;
                    (self.filled, self.written) = (0, 0);
                    if self.unflushed {
                        match writer.as_mut().poll_flush(cx) {
                            Poll::Ready(Ok(())) => self.unflushed = false,
                            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                            Poll::Pending => {}
                        }
                    }
                    return Poll::Pending;
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    fn is_full(&self) -> bool {
        self.written < self.filled
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, DuplexStream, duplex},
        net::UnixStream,
    };

    use super::*;

    /// A relay: the client's end, the runtime's end, and what runs it.
    fn begin(
        first: &'static [u8],
        idle: Option<Duration>,
    ) -> (UnixStream, DuplexStream, impl Future<Output = ()> + Send) {
        let (client, socket) = UnixStream::pair().unwrap();
        let (runtime, theirs) = duplex(4096);
        (client, theirs, relay(ClientIo::of_socket(socket, first), runtime, idle))
    }

    #[tokio::test]
    async fn bytes_go_both_ways_and_the_last_words_arrive() {
        let (mut client, mut runtime, relay) = begin(b"early ", None);
        let sides = async move {
            client.write_all(b"hello").await.unwrap();
            let mut got = [0; 11];
            runtime.read_exact(&mut got).await.unwrap();
            assert_eq!(&got, b"early hello");
            let long = vec![7; 1 << 20];
            let writing = async {
                runtime.write_all(&long).await.unwrap();
                drop(runtime);
            };
            let mut all = Vec::new();
            let (read, ()) = tokio::join!(client.read_to_end(&mut all), writing);
            read.unwrap();
            assert!(all == long);
        };
        tokio::time::timeout(Duration::from_secs(30), async { tokio::join!(relay, sides) }).await.unwrap();
    }

    #[tokio::test]
    async fn a_client_that_goes_ends_it() {
        let (client, mut runtime, relay) = begin(b"", None);
        drop(client);
        let mut rest = Vec::new();
        let sides = async { runtime.read_to_end(&mut rest).await.unwrap() };
        tokio::time::timeout(Duration::from_secs(30), async { tokio::join!(relay, sides) }).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_goes_behind_bytes_that_nobody_takes_ends_it() {
        let (client, _runtime, relay) = begin(b"", None);
        // As much as fits, then it is gone.
        client.writable().await.unwrap();
        while client.try_write(&[0; 4096]).is_ok() {}
        drop(client);
        let begun = Instant::now();
        relay.await;
        assert!(begun.elapsed() <= LOOK * 3, "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_it() {
        let (mut client, _runtime, relay) = begin(b"", Some(Duration::from_secs(60)));
        let begun = Instant::now();
        let speaking = async {
            tokio::time::sleep(Duration::from_secs(50)).await;
            client.write_all(b"x").await.unwrap();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = relay => {}
            () = speaking => {}
        }
        let took = begun.elapsed();
        assert!((Duration::from_secs(110)..Duration::from_secs(116)).contains(&took), "{took:?}");
    }
}
