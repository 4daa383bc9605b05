//! Sending what has ended.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use mainstay_proto::otlp::{
    AnyValue, ExportTraceServiceRequest, ExportTraceServiceResponse, InstrumentationScope, KeyValue,
    Resource, ResourceSpans, ScopeSpans, Span as Sent, Status, any_value,
    span::{Link, SpanKind},
    status::StatusCode,
    trace_service_client::TraceServiceClient,
};
use mainstay_task::{Backoff, Shutdown, TaskGroup};
use tokio::{
    sync::mpsc,
    time::{Instant, timeout, timeout_at},
};
use tonic::{Code, transport::Channel};
use tracing::{debug, info, warn};

use crate::{
    Target, TargetError,
    context::Context,
    span::{Active, Ended, Kind, Tracer, Value},
};

// The first three as the SDKs have them.
/// How many spans may wait to be sent. With so many waiting, further ones are dropped.
const WAITING: usize = 2048;
/// How many are sent together.
const BATCH: usize = 512;
/// How long the first of them waits for company.
const GATHER: Duration = Duration::from_secs(5);
/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(10);
/// Before a batch is sent again, and how long it is tried in all.
const RETRY: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(10));
const TRIED: Duration = Duration::from_secs(60);
/// No honest answer is longer.
const MAX_ANSWER: usize = 64 << 10;
/// The name of the part that all spans come from, as upstream names its own.
const SCOPE: &str = "k8s.io/kubernetes/pkg/kubelet";

/// Where spans go, and which.
#[derive(Clone, Debug)]
pub struct Options {
    /// The collector.
    pub target: Target,
    /// How many of a million traces that begin here are recorded.
    pub per_million: u32,
    /// What is said of this program: `service.name` and the like.
    pub resource: Vec<(&'static str, String)>,
    /// The program's version.
    pub version: &'static str,
}

/// What became of spans so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Taken by the collector.
    pub sent: u64,
    /// Dropped because too many waited.
    pub dropped: u64,
    /// Given up after the collector did not take them in time.
    pub failed: u64,
    /// Refused by the collector.
    pub refused: u64,
}

#[derive(Debug, Default)]
struct Cells {
    sent: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
}

/// Where spans wait.
#[derive(Debug)]
pub(crate) struct Queue {
    sender: mpsc::Sender<Ended>,
    cells: Arc<Cells>,
}

impl Queue {
    pub(crate) fn new(bound: usize) -> (Self, mpsc::Receiver<Ended>) {
        let (sender, receiver) = mpsc::channel(bound);
        (Self { sender, cells: Arc::default() }, receiver)
    }

    pub(crate) fn put(&self, ended: Ended) {
        if self.sender.try_send(ended).is_err() {
            self.cells.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let cells = &self.cells;
        Counts {
            sent: read(&cells.sent),
            dropped: read(&cells.dropped),
            failed: read(&cells.failed),
            refused: read(&cells.refused),
        }
    }
}

/// A tracer that is on. What has ended is sent by a task of `tasks`; when that group is drained, the task sends what is left once,
/// and the group's deadline is all the time it has.
///
/// # Errors
/// [`TargetError`] where the collector's address cannot be used. That nobody is there is no error.
///
/// # Panics
/// Outside a tokio runtime.
pub fn start(options: Options, tasks: &TaskGroup) -> Result<Tracer, TargetError> {
    let Options { target, per_million, resource, version } = options;
    let client = TraceServiceClient::new(target.channel()?).max_decoding_message_size(MAX_ANSWER);
    let (queue, receiver) = Queue::new(WAITING);
    let exporter = Exporter {
        client,
        resource: Resource {
            attributes: resource.into_iter().map(|(key, value)| pair(key, value.into())).collect(),
        },
        scope: InstrumentationScope { name: SCOPE.into(), version: version.into() },
        cells: Arc::clone(&queue.cells),
        away: false,
    };
    let shutdown = tasks.shutdown();
    tasks.spawn("traces", exporter.run(receiver, shutdown));
    Ok(Tracer::new(Arc::new(Active { queue, per_million })))
}

struct Exporter {
    client: TraceServiceClient<Channel>,
    resource: Resource,
    scope: InstrumentationScope,
    cells: Arc<Cells>,
    /// That the collector takes nothing has been told.
    away: bool,
}

impl Exporter {
    async fn run(mut self, mut receiver: mpsc::Receiver<Ended>, shutdown: Shutdown) {
        let mut batch = Vec::new();
        loop {
            // Cancel safe: what was received is in the batch.
            let gathered = shutdown.run_until_signalled(gather(&mut receiver, &mut batch)).await;
            if gathered.is_none() {
                break;
            }
            let sent = std::mem::take(&mut batch);
            let count = sent.len();
            let request = self.request(sent);
            // A batch that is being sent when mainstay ends is tried once more, below its own deadline.
            if shutdown.run_until_signalled(self.insist(&request, count)).await.is_none() {
                self.attempt(&request, count).await.ok();
                break;
            }
        }
        loop {
            while batch.len() < BATCH
                && let Ok(ended) = receiver.try_recv()
            {
                batch.push(ended);
            }
            if batch.is_empty() {
                return;
            }
            let sent = std::mem::take(&mut batch);
            let count = sent.len();
            let request = self.request(sent);
            if self.attempt(&request, count).await.is_err() {
                return;
            }
        }
    }

    /// Sends until it is taken, refused, or too late.
    async fn insist(&mut self, request: &ExportTraceServiceRequest, count: usize) {
        let begun = Instant::now();
        let mut attempts = RETRY.attempts();
        while let Err(again) = self.attempt(request, count).await {
            let wait = attempts.failed();
            if !again || begun.elapsed() + wait > TRIED {
                self.cells.failed.fetch_add(count as u64, Ordering::Relaxed);
                return;
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// Sends once. The error says whether to try again.
    async fn attempt(&mut self, request: &ExportTraceServiceRequest, count: usize) -> Result<(), bool> {
        let call = timeout(ATTEMPT, self.client.export(request.clone()));
        let problem = match call.await {
            Ok(Ok(answer)) => {
                self.taken(answer.into_inner(), count as u64);
                return Ok(());
            }
            Ok(Err(status)) => (is_transient(status.code()), status.message().to_owned()),
            Err(_) => (true, format!("no answer within {} s", ATTEMPT.as_secs())),
        };
        let (again, error) = problem;
        if self.away {
            debug!(error, "the collector of traces still takes nothing");
        } else {
            warn!(
                error,
                "the collector of traces takes nothing; is it running, and is tracing.endpoint right?"
            );
        }
        self.away = true;
        Err(again)
    }

    fn taken(&mut self, answer: ExportTraceServiceResponse, count: u64) {
        if std::mem::take(&mut self.away) {
            info!("the collector of traces takes them again");
        }
        let partial = answer.partial_success.unwrap_or_default();
        // Whatever it says: no more than it was given, and no less than none.
        let refused = u64::try_from(partial.rejected_spans).unwrap_or(0).min(count);
        if refused > 0 {
            debug!(refused, message = partial.error_message, "the collector of traces refused some");
        }
        self.cells.refused.fetch_add(refused, Ordering::Relaxed);
        self.cells.sent.fetch_add(count - refused, Ordering::Relaxed);
    }

    fn request(&self, spans: Vec<Ended>) -> ExportTraceServiceRequest {
        let spans = spans.into_iter().map(encode).collect();
        let scope_spans = vec![ScopeSpans { scope: Some(self.scope.clone()), spans }];
        let resource_spans = vec![ResourceSpans { resource: Some(self.resource.clone()), scope_spans }];
        ExportTraceServiceRequest { resource_spans }
    }
}

/// Waits for spans until there are enough, or the first has waited long enough. Cancel safe.
async fn gather(receiver: &mut mpsc::Receiver<Ended>, batch: &mut Vec<Ended>) {
    if batch.is_empty() && receiver.recv_many(batch, BATCH).await == 0 {
        // Nobody can make spans any more; the end comes by the signal.
        std::future::pending::<()>().await;
    }
    let due = Instant::now() + GATHER;
    while batch.len() < BATCH {
        let room = BATCH - batch.len();
        match timeout_at(due, receiver.recv_many(batch, room)).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

/// As OTLP's specification has it.
fn is_transient(code: Code) -> bool {
    matches!(
        code,
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
            | Code::ResourceExhausted
            // What a connection that broke halfway comes as.
            | Code::Unknown
    )
}

fn encode(ended: Ended) -> Sent {
    let Ended { context, parent, name, kind, begun, ended, attributes, link, failure } = ended;
    Sent {
        trace_id: context.trace.0.to_vec().into(),
        span_id: context.span.0.to_vec().into(),
        flags: context.flags().into(),
        trace_state: state(&context),
        parent_span_id: parent.map(|parent| parent.0.to_vec()).unwrap_or_default().into(),
        name: name.into_owned(),
        kind: match kind {
            Kind::Internal => SpanKind::Internal,
            Kind::Server => SpanKind::Server,
            Kind::Client => SpanKind::Client,
        }
        .into(),
        start_time_unix_nano: nanos(begun),
        end_time_unix_nano: nanos(ended),
        attributes: attributes.into_iter().map(|(key, value)| pair(key, value)).collect(),
        links: link
            .into_iter()
            .map(|link| Link {
                trace_id: link.trace.0.to_vec().into(),
                span_id: link.span.0.to_vec().into(),
                trace_state: state(&link),
                flags: link.flags().into(),
            })
            .collect(),
        status: failure.map(|message| Status { message, code: StatusCode::Error.into() }),
    }
}

fn state(context: &Context) -> String {
    context.state.as_deref().unwrap_or_default().to_owned()
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn pair(key: &str, value: Value) -> KeyValue {
    let value = match value {
        Value::Text(text) => any_value::Value::StringValue(text.into_owned()),
        Value::Number(number) => any_value::Value::IntValue(number),
        Value::Flag(flag) => any_value::Value::BoolValue(flag),
    };
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}
