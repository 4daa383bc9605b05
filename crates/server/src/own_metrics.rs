//! What the server counts of itself: `kubelet_http_*`, with upstream's labels and buckets.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use http::Method;
use mainstay_trace::Span;

use crate::{
    exposition::{Exposition, Kind},
    table::{self, Face},
};

/// Go's `prometheus.DefBuckets`, in microseconds.
const BUCKETS_MICROS: [u64; 11] =
    [5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000, 10_000_000];

/// All series.
#[derive(Debug, Default)]
pub(crate) struct OwnMetrics {
    series: RwLock<BTreeMap<Labels, Arc<Series>>>,
    /// WebSockets that ended here: of attach, exec, portforward.
    websockets: [AtomicU64; 3],
}

/// What a WebSocket that ends here is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Streaming {
    Attach,
    Exec,
    PortForward,
}

impl Streaming {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Attach, "attach"), (Self::Exec, "exec"), (Self::PortForward, "portforward")];
}

/// In the order in which they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Labels {
    long_running: bool,
    method: &'static str,
    path: &'static str,
    server_type: &'static str,
}

#[derive(Debug, Default)]
struct Series {
    received: AtomicU64,
    in_flight: AtomicI64,
    finished: AtomicU64,
    buckets: [AtomicU64; BUCKETS_MICROS.len()],
    sum_micros: AtomicU64,
}

/// A request that is being answered; counted as finished when dropped.
#[derive(Debug)]
pub(crate) struct InFlight {
    series: Arc<Series>,
    begun: Instant,
    /// Ends with it.
    span: Span,
}

impl InFlight {
    /// A span that ends when the request has been answered.
    pub(crate) fn keep(&mut self, span: Span) {
        self.span = span;
    }

    /// How long it has been here.
    pub(crate) fn age(&self) -> Duration {
        self.begun.elapsed()
    }
}

impl OwnMetrics {
    /// Counts a request. The healthz port is another server upstream and is not counted.
    pub(crate) fn begin(&self, face: Face, method: &Method, path: &str) -> Option<InFlight> {
        let server_type = match face {
            Face::Secure => "readwrite",
            Face::ReadOnly => "readonly",
            Face::Local => "socket",
            Face::Healthz => return None,
        };
        let path = bucket(path);
        // Upstream's spelling of portForward never matches, so that one is not among them.
        let long_running = matches!(path, "exec" | "attach" | "debug");
        let labels = Labels { long_running, method: method_label(method), path, server_type };
        let known = self.series.read().unwrap_or_else(PoisonError::into_inner).get(&labels).cloned();
        let series = known.unwrap_or_else(|| {
            let mut all = self.series.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(labels).or_default())
        });
        series.received.fetch_add(1, Ordering::Relaxed);
        series.in_flight.fetch_add(1, Ordering::Relaxed);
        Some(InFlight { series, begun: Instant::now(), span: Span::default() })
    }

    /// Counts a WebSocket that ends here, whether its handshake is good or not, as upstream.
    pub(crate) fn websocket(&self, streaming: Streaming) {
        let counters = Streaming::ALL.iter().zip(&self.websockets);
        if let Some((_, counter)) = counters.into_iter().find(|((it, _), _)| *it == streaming) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes the families.
    pub(crate) fn write(&self, out: &mut Exposition) {
        let all = self.series.read().unwrap_or_else(PoisonError::into_inner);
        if all.is_empty() {
            return;
        }
        let name = "kubelet_http_inflight_requests";
        if out.takes(name) {
            out.family(name, "[ALPHA] Number of the inflight http requests", Kind::Gauge);
            for (labels, series) in all.iter() {
                out.sample(name, &labels.pairs(), series.in_flight.load(Ordering::Relaxed));
            }
        }
        let name = "kubelet_http_requests_duration_seconds";
        if out.takes(name) {
            out.family(name, "[ALPHA] Duration in seconds to serve http requests", Kind::Histogram);
            write_durations(out, name, &all);
        }
        let name = "kubelet_http_requests_total";
        if out.takes(name) {
            let help = "[ALPHA] Number of the http requests received since the server started";
            out.family(name, help, Kind::Counter);
            for (labels, series) in all.iter() {
                out.sample(name, &labels.pairs(), series.received.load(Ordering::Relaxed));
            }
        }
        self.write_websockets(out);
    }

    /// A series appears with its first request.
    fn write_websockets(&self, out: &mut Exposition) {
        let name = "kubelet_websocket_streaming_requests_total";
        if !out.takes(name) {
            return;
        }
        let mut begun = false;
        for ((_, subresource), counter) in Streaming::ALL.iter().zip(&self.websockets) {
            let count = counter.load(Ordering::Relaxed);
            if count == 0 {
                continue;
            }
            if !begun {
                let help = "[ALPHA] Total number of streaming requests for exec/attach/portforward that the kubelet itself ended as WebSocket";
                out.family(name, help, Kind::Counter);
                begun = true;
            }
            out.sample(name, &[("subresource", subresource)], count);
        }
    }
}

fn write_durations(out: &mut Exposition, name: &str, all: &BTreeMap<Labels, Arc<Series>>) {
    for (labels, series) in all {
        let count = series.finished.load(Ordering::Relaxed);
        if count == 0 {
            continue;
        }
        let mut below = 0;
        let buckets = BUCKETS_MICROS.iter().zip(&series.buckets).map(|(bound, bucket)| {
            below += bucket.load(Ordering::Relaxed);
            (seconds(*bound), below)
        });
        let sum = seconds(series.sum_micros.load(Ordering::Relaxed));
        out.histogram(name, &labels.pairs(), buckets, (sum, count));
    }
}

impl Labels {
    fn pairs(&self) -> [(&'static str, &'static str); 4] {
        let long_running = if self.long_running { "true" } else { "false" };
        [
            ("long_running", long_running),
            ("method", self.method),
            ("path", self.path),
            ("server_type", self.server_type),
        ]
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let took = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.series.in_flight.fetch_sub(1, Ordering::Relaxed);
        if let Some(at) = BUCKETS_MICROS.iter().position(|bound| took <= *bound) {
            self.series.buckets[at].fetch_add(1, Ordering::Relaxed);
        }
        self.series.sum_micros.fetch_add(took, Ordering::Relaxed);
        // Last: a count never stands beside fewer in the buckets.
        self.series.finished.fetch_add(1, Ordering::Relaxed);
    }
}

#[expect(clippy::cast_precision_loss, reason = "hundreds of years of microseconds fit")]
fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

fn method_label(method: &Method) -> &'static str {
    match method.as_str() {
        "OPTIONS" => "OPTIONS",
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        "TRACE" => "TRACE",
        "CONNECT" => "CONNECT",
        _ => "other",
    }
}

/// The first segment if it is a known one, `metrics/x` for the metrics, else `other`.
fn bucket(path: &str) -> &'static str {
    let path = path.strip_prefix('/').unwrap_or(path);
    let (first, rest) = path.split_once('/').unwrap_or((path, ""));
    if first == "metrics" && !rest.is_empty() {
        // Upstream never registered the name of /metrics/slis.
        return ["metrics/cadvisor", "metrics/probes", "metrics/resource"]
            .into_iter()
            .find(|known| *known == path)
            .unwrap_or("other");
    }
    table::first_segment(first).unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_gathered_as_upstream_gathers_them() {
        for (path, expected) in [
            ("/healthz", "healthz"),
            ("/healthz/", "healthz"),
            ("/healthz/ping", "healthz"),
            ("/metrics", "metrics"),
            ("/metrics/probes", "metrics/probes"),
            ("/metrics/slis", "other"),
            ("/debug", "debug"),
            ("/debug/flags/v", "debug"),
            ("/pods?x", "other"),
            ("/containerLogs/a/b/c", "containerLogs"),
            ("/healthzjunk", "other"),
            ("/junk", "other"),
            ("/", "other"),
            ("*", "other"),
        ] {
            assert_eq!(bucket(path), expected, "{path}");
        }
        assert_eq!(method_label(&Method::PATCH), "other");
        assert_eq!(method_label(&"WEIRD".parse().unwrap()), "other");
    }

    #[test]
    fn a_request_is_in_flight_until_it_is_dropped() {
        let metrics = OwnMetrics::default();
        let text = text_of;
        assert_eq!(text(&metrics), "");
        assert!(metrics.begin(Face::Healthz, &Method::GET, "/healthz").is_none());
        let request = metrics.begin(Face::ReadOnly, &Method::GET, "/pods");
        let labels = r#"{long_running="false",method="GET",path="pods",server_type="readonly"}"#;
        assert!(text(&metrics).contains(&format!("kubelet_http_inflight_requests{labels} 1\n")));
        assert!(!text(&metrics).contains("duration_seconds_count"));
        drop(request);
        let text = text(&metrics);
        for line in [
            format!("kubelet_http_inflight_requests{labels} 0"),
            format!("kubelet_http_requests_total{labels} 1"),
            format!("kubelet_http_requests_duration_seconds_count{labels} 1"),
            r#"kubelet_http_requests_duration_seconds_bucket{long_running="false",method="GET",path="pods",server_type="readonly",le="10"} 1"#.into(),
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
        drop(metrics.begin(Face::Secure, &Method::GET, "/exec/a/b/c"));
        drop(metrics.begin(Face::Secure, &Method::GET, "/portForward/a/b"));
        let text = text_of(&metrics);
        assert!(
            text.contains(r#"total{long_running="true",method="GET",path="exec",server_type="readwrite"} 1"#),
            "{text}"
        );
        assert!(text.contains(
            r#"total{long_running="false",method="GET",path="portForward",server_type="readwrite"} 1"#
        ));
    }

    #[test]
    fn websockets_that_end_here_are_counted() {
        let metrics = OwnMetrics::default();
        drop(metrics.begin(Face::Secure, &Method::GET, "/exec/a/b/c"));
        assert!(!text_of(&metrics).contains("websocket"));
        metrics.websocket(Streaming::Exec);
        metrics.websocket(Streaming::Exec);
        metrics.websocket(Streaming::PortForward);
        let text = text_of(&metrics);
        let found: Vec<_> =
            text.lines().filter(|line| line.starts_with("kubelet_websocket_streaming")).collect();
        let name = "kubelet_websocket_streaming_requests_total";
        let expected =
            [format!("{name}{{subresource=\"exec\"}} 2"), format!("{name}{{subresource=\"portforward\"}} 1")];
        assert_eq!(found, expected);
    }

    fn text_of(metrics: &OwnMetrics) -> String {
        let mut out = Exposition::default();
        metrics.write(&mut out);
        out.finish()
    }
}
