//! Spans, and who makes them.

use std::{borrow::Cow, sync::Arc, time::SystemTime};

use crate::{
    context::{Context, SpanId, TraceId, cut},
    export::Queue,
};

/// What a span may be told about itself, at most. More is dropped.
const MAX_ATTRIBUTES: usize = 64;
/// How long an attribute or a name may be.
const MAX_TEXT: usize = 4 << 10;

tokio::task_local! {
    /// What the running future is part of.
    static CURRENT: Current;
}

#[derive(Clone, Debug)]
struct Current {
    tracer: Arc<Active>,
    context: Context,
}

/// Begins spans; cheap to clone. The default is off.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<Active>>);

/// A tracer that is on.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) queue: Queue,
    pub(crate) per_million: u32,
}

/// What role a span has in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// None.
    Internal,
    /// It answers somebody.
    Server,
    /// It asks somebody.
    Client,
}

/// What an attribute says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Text.
    Text(Cow<'static, str>),
    /// A number.
    Number(i64),
    /// Yes or no.
    Flag(bool),
}

/// Something that takes time; ends when it is dropped. One of a tracer that is off is nothing.
#[derive(Debug, Default)]
#[must_use = "a span that is dropped at once has taken no time"]
pub struct Span(Option<Box<Live>>);

#[derive(Debug)]
struct Live {
    tracer: Arc<Active>,
    context: Context,
    /// `None` where nobody wants it: then only the decision is handed on.
    recording: Option<Ended>,
}

/// A span as it is sent.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) context: Context,
    pub(crate) parent: Option<SpanId>,
    pub(crate) name: Cow<'static, str>,
    pub(crate) kind: Kind,
    pub(crate) begun: SystemTime,
    pub(crate) ended: SystemTime,
    pub(crate) attributes: Vec<(&'static str, Value)>,
    pub(crate) link: Option<Context>,
    /// Why it failed.
    pub(crate) failure: Option<String>,
}

impl Tracer {
    pub(crate) fn new(active: Arc<Active>) -> Self {
        Self(Some(active))
    }

    /// Whether anything may come of its spans.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// What became of spans; `None` when off.
    #[must_use]
    pub fn counts(&self) -> Option<crate::Counts> {
        self.0.as_ref().map(|active| active.queue.counts())
    }

    /// A span below the current one, or the root of a trace.
    pub fn span(&self, name: impl Into<Cow<'static, str>>, kind: Kind) -> Span {
        let Some(active) = &self.0 else { return Span(None) };
        let parent = current();
        Span::begin(active, parent.as_ref(), None, name.into(), kind)
    }

    /// A span below another, which may be somebody else's; without one, the root of a trace.
    pub fn below(&self, parent: Option<&Context>, name: impl Into<Cow<'static, str>>, kind: Kind) -> Span {
        let Some(active) = &self.0 else { return Span(None) };
        Span::begin(active, parent, None, name.into(), kind)
    }

    /// The root of a trace, with a word on what it has to do with another.
    pub fn linked(&self, link: Option<Context>, name: impl Into<Cow<'static, str>>, kind: Kind) -> Span {
        let Some(active) = &self.0 else { return Span(None) };
        Span::begin(active, None, link, name.into(), kind)
    }
}

/// A span below the current one; nothing where there is none.
pub fn child(name: impl Into<Cow<'static, str>>) -> Span {
    match CURRENT.try_with(Clone::clone) {
        Ok(Current { tracer, context }) => {
            Span::begin(&tracer, Some(&context), None, name.into(), Kind::Internal)
        }
        Err(_) => Span(None),
    }
}

/// What the running future is part of.
#[must_use]
pub fn current() -> Option<Context> {
    CURRENT.try_with(|current| current.context.clone()).ok()
}

impl Span {
    fn begin(
        tracer: &Arc<Active>,
        parent: Option<&Context>,
        link: Option<Context>,
        name: Cow<'static, str>,
        kind: Kind,
    ) -> Self {
        let span = SpanId::random();
        // Who called decides; a root is decided by its number, as everybody would decide it.
        let context = match parent {
            Some(parent) => Context { span, ..parent.clone() },
            None => {
                let trace = TraceId::random();
                Context { trace, span, sampled: trace.is_within(tracer.per_million), state: None }
            }
        };
        let recording = context.sampled.then(|| {
            let begun = SystemTime::now();
            Ended {
                context: context.clone(),
                parent: parent.map(|parent| parent.span),
                name: match name {
                    Cow::Owned(name) => Cow::Owned(cut(name, MAX_TEXT)),
                    known => known,
                },
                kind,
                begun,
                ended: begun,
                attributes: Vec::new(),
                link,
                failure: None,
            }
        });
        Self(Some(Box::new(Live { tracer: Arc::clone(tracer), context, recording })))
    }

    /// How others refer to it; `None` when the tracer is off.
    #[must_use]
    pub fn context(&self) -> Option<&Context> {
        self.0.as_ref().map(|live| &live.context)
    }

    /// Whether it is sent to somebody. What is dear to find out for it alone need not be otherwise.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.0.as_ref().is_some_and(|live| live.recording.is_some())
    }

    fn recording(&mut self) -> Option<&mut Ended> {
        self.0.as_mut()?.recording.as_mut()
    }

    /// Says something about it.
    pub fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        let Some(recording) = self.recording() else { return };
        if recording.attributes.len() < MAX_ATTRIBUTES {
            recording.attributes.push((key, value.into()));
        }
    }

    /// It began earlier than it was made.
    pub fn since(&mut self, begun: SystemTime) {
        if let Some(recording) = self.recording() {
            recording.begun = begun;
        }
    }

    /// It failed.
    pub fn fail(&mut self, why: impl ToString) {
        if let Some(recording) = self.recording() {
            recording.failure = Some(cut(why.to_string(), MAX_TEXT));
        }
    }

    /// Runs what is part of it: what begins below finds it as its parent. Costs nothing when the tracer is off.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> T {
        match &self.0 {
            None => work.await,
            Some(live) => {
                let current = Current { tracer: Arc::clone(&live.tracer), context: live.context.clone() };
                CURRENT.scope(current, work).await
            }
        }
    }

    /// The same for what does not wait.
    pub fn run_now<T>(&self, work: impl FnOnce() -> T) -> T {
        match &self.0 {
            None => work(),
            Some(live) => {
                let current = Current { tracer: Arc::clone(&live.tracer), context: live.context.clone() };
                CURRENT.sync_scope(current, work)
            }
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some(live) = self.0.take() else { return };
        let Live { tracer, recording, .. } = *live;
        if let Some(mut ended) = recording {
            // The clock may have been set back.
            ended.ended = SystemTime::now().max(ended.begun);
            tracer.queue.put(ended);
        }
    }
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(cut(text, MAX_TEXT)))
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracer(per_million: u32) -> (Tracer, tokio::sync::mpsc::Receiver<Ended>) {
        let (queue, receiver) = Queue::new(4);
        (Tracer::new(Arc::new(Active { queue, per_million })), receiver)
    }

    #[tokio::test]
    async fn what_runs_in_a_span_is_below_it() {
        let (tracer, mut sent) = tracer(1_000_000);
        let mut root = tracer.span("root", Kind::Server);
        root.set("number", 3_i64);
        root.run(async {
            let inner = child("inner");
            inner.run(async { drop(tracer.span("call", Kind::Client)) }).await;
            root.run_now(|| drop(child("beside")));
        })
        .await;
        assert_eq!(current(), None, "outside there is nothing");
        root.fail("it broke");
        drop(root);
        let [call, beside, inner, root] =
            [sent.recv().await, sent.recv().await, sent.recv().await, sent.recv().await].map(Option::unwrap);
        assert_eq!([&call.name, &beside.name, &inner.name, &root.name], ["call", "beside", "inner", "root"]);
        assert_eq!((call.parent, call.kind), (Some(inner.context.span), Kind::Client));
        assert_eq!((inner.parent, beside.parent), (Some(root.context.span), Some(root.context.span)));
        assert_eq!((root.parent, root.failure.as_deref()), (None, Some("it broke")));
        assert_eq!(root.attributes, [("number", Value::Number(3))]);
        assert!([&call, &beside, &inner].iter().all(|span| span.context.trace == root.context.trace));
        assert!(root.begun <= call.begun && call.ended <= root.ended);
    }

    #[tokio::test]
    async fn the_caller_decides_whether_it_is_recorded() {
        let (tracer, mut sent) = tracer(0);
        let asked = Context::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").unwrap();
        let unasked = Context { sampled: false, ..asked.clone() };
        drop(tracer.span("own", Kind::Internal));
        drop(tracer.below(Some(&unasked), "unasked", Kind::Server));
        drop(tracer.linked(Some(asked.clone()), "public", Kind::Server));
        // The decision is handed on all the same.
        let below = tracer.below(Some(&unasked), "unasked", Kind::Server);
        assert_eq!(
            below.context().map(|context| (context.trace, context.sampled)),
            Some((unasked.trace, false))
        );
        assert!(!below.is_recorded());
        drop(tracer.below(Some(&asked), "asked", Kind::Server));
        let span = sent.recv().await.unwrap();
        assert_eq!((&*span.name, span.parent, span.context.trace), ("asked", Some(asked.span), asked.trace));
        assert!(sent.try_recv().is_err());
    }

    #[tokio::test]
    async fn off_is_nothing_and_a_full_queue_drops() {
        let off = Tracer::default();
        let mut span = off.span("x", Kind::Internal);
        span.set("a", true);
        assert_eq!(
            (span.context(), off.counts().is_none(), size_of::<Span>()),
            (None, true, size_of::<usize>())
        );
        span.run(async { assert_eq!(current(), None) }).await;

        let (tracer, _sent) = tracer(1_000_000);
        (0..7).for_each(|_| drop(tracer.span("x", Kind::Internal)));
        assert_eq!(tracer.counts().unwrap().dropped, 3);
    }
}
