//! Bytes that are kept with their `ETag` and, once somebody asked for it, compressed.

use std::{
    hash::{DefaultHasher, Hasher},
    io::Write as _,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, HeaderValue, StatusCode, header};

use crate::{
    answer::{self, Answer},
    request::takes_gzip,
};

/// Shorter ones travel in one packet anyway.
const WORTH_COMPRESSING: usize = 1024;

/// One text as it is sent.
#[derive(Debug)]
pub(crate) struct Representation {
    plain: Bytes,
    etag: HeaderValue,
    gzip: OnceLock<(Bytes, HeaderValue)>,
}

/// The newest representation of something that has versions.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    newest: Mutex<Option<(u64, Arc<Representation>)>>,
}

impl Kept {
    /// The representation of this version, made at most once unless versions come back.
    pub(crate) fn get(&self, version: u64, make: impl FnOnce() -> Bytes) -> Arc<Representation> {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, kept)) = newest.as_ref().filter(|(kept, _)| *kept == version) {
            return Arc::clone(kept);
        }
        let made = make();
        // Most new versions change something else: what was compressed stays.
        let kept = match newest.as_ref().filter(|(_, kept)| kept.plain == made) {
            Some((_, same)) => Arc::clone(same),
            None => Arc::new(Representation::new(made)),
        };
        *newest = Some((version, Arc::clone(&kept)));
        kept
    }
}

impl Representation {
    pub(crate) fn new(plain: Bytes) -> Self {
        let etag = HeaderValue::from_str(&format!("\"{}\"", digest(&plain)));
        Self { plain, etag: etag.unwrap_or(HeaderValue::from_static("\"\"")), gzip: OnceLock::new() }
    }

    /// The same without compression, for what is made for one request only.
    pub(crate) fn plain_answer(&self, headers: &HeaderMap) -> Answer {
        let is_known = headers.get_all(header::IF_NONE_MATCH).iter().any(|value| self.is_named_by(value));
        let mut answer =
            if is_known { answer::empty(StatusCode::NOT_MODIFIED) } else { answer::json(self.plain.clone()) };
        answer.headers_mut().insert(header::ETAG, self.etag.clone());
        answer
    }

    /// 304 to those who have it, compressed to those who asked for that, as it is to the rest.
    pub(crate) fn answer(&self, headers: &HeaderMap) -> Answer {
        let compressed = takes_gzip(headers) && self.plain.len() >= WORTH_COMPRESSING;
        let is_known = headers.get_all(header::IF_NONE_MATCH).iter().any(|value| self.is_named_by(value));
        let mut answer = match (is_known, compressed) {
            (true, _) => answer::empty(StatusCode::NOT_MODIFIED),
            (false, false) => answer::json(self.plain.clone()),
            (false, true) => {
                let (bytes, etag) = self.gzip();
                let mut answer = answer::json(bytes.clone());
                answer.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                answer.headers_mut().insert(header::ETAG, etag.clone());
                answer
            }
        };
        let headers = answer.headers_mut();
        headers.entry(header::ETAG).or_insert_with(|| self.etag.clone());
        headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
        answer
    }

    fn gzip(&self) -> &(Bytes, HeaderValue) {
        self.gzip.get_or_init(|| {
            // Other bytes need another tag.
            let tag = self.etag.to_str().unwrap_or_default().trim_matches('"');
            let etag =
                HeaderValue::from_str(&format!("\"{tag}-gzip\"")).unwrap_or_else(|_| self.etag.clone());
            (gzip(&self.plain), etag)
        })
    }

    /// Whichever of the two forms the client has, it is the same text.
    fn is_named_by(&self, value: &HeaderValue) -> bool {
        let own = self.etag.to_str().unwrap_or_default().trim_matches('"');
        value.to_str().unwrap_or_default().split(',').any(|tag| {
            let tag = tag.trim();
            let tag = tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"');
            tag == "*" || tag == own || tag.strip_suffix("-gzip") == Some(own)
        })
    }
}

/// A text that is kept until there are other readings, and its compressed form once somebody asked for that. It goes with the text.
#[derive(Debug)]
pub(crate) struct KeptText {
    plain: Bytes,
    gzip: tokio::sync::OnceCell<Bytes>,
}

impl KeptText {
    pub(crate) fn new(plain: Bytes) -> Arc<Self> {
        Arc::new(Self { plain, gzip: tokio::sync::OnceCell::new() })
    }

    pub(crate) const fn plain(&self) -> &Bytes {
        &self.plain
    }

    /// Made once, however many ask for it meanwhile, and by no thread that others wait for.
    ///
    /// # Errors
    /// When that panicked; who asks next tries again.
    pub(crate) async fn compressed(&self) -> Result<Bytes, Panicked> {
        let plain = &self.plain;
        let made = self.gzip.get_or_try_init(|| {
            let plain = plain.clone();
            compressing(move || gzip(&plain))
        });
        made.await.cloned()
    }
}

/// Compressing did not come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Panicked;

/// Compresses where it holds up nobody. What takes milliseconds is no work for a thread that answers others meanwhile.
pub(crate) async fn compressing(work: impl FnOnce() -> Bytes + Send + 'static) -> Result<Bytes, Panicked> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        tracing::error!(%error, "an answer could not be compressed");
        Panicked
    })
}

/// Compresses, fast rather than well.
pub(crate) fn gzip(plain: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / 8), Compression::fast());
    // Writing to memory cannot fail.
    encoder.write_all(plain).and_then(|()| encoder.finish()).unwrap_or_default().into()
}

/// Two hashes that are as good as never both the same for two lists of one node.
fn digest(bytes: &[u8]) -> String {
    let mut first = DefaultHasher::new();
    first.write(bytes);
    let mut second = DefaultHasher::new();
    second.write_usize(bytes.len());
    second.write(bytes);
    format!("{:016x}{:016x}", first.finish(), second.finish())
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read as _,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    #[tokio::test]
    async fn a_kept_text_is_compressed_once_and_only_for_who_asks() {
        let text = KeptText::new(Bytes::from_static(b"text of some length"));
        assert!(text.gzip.get().is_none(), "nobody asked");
        let (first, second) = tokio::join!(text.compressed(), text.compressed());
        let (first, second) = (first.unwrap(), second.unwrap());
        assert_eq!(first.as_ptr(), second.as_ptr(), "the same bytes");
        let mut plain = String::new();
        flate2::read::GzDecoder::new(&*first).read_to_string(&mut plain).unwrap();
        assert_eq!(plain.as_bytes(), text.plain());
    }

    #[tokio::test]
    async fn what_panics_while_it_compresses_is_an_error_and_tried_again() {
        let cell = tokio::sync::OnceCell::new();
        let tries = AtomicUsize::new(0);
        let make = || {
            let first = tries.fetch_add(1, Ordering::Relaxed) == 0;
            compressing(move || if first { panic!("for the test") } else { Bytes::from_static(b"x") })
        };
        assert_eq!(cell.get_or_try_init(make).await, Err(Panicked));
        assert_eq!(cell.get_or_try_init(make).await, Ok(&Bytes::from_static(b"x")));
        assert_eq!(answer::not_compressed().status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
