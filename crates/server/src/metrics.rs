//! `/metrics/…`: counters as text for Prometheus. Reading them makes nobody do anything.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use jiff::Timestamp;
use mainstay_cri::{CallCount, call_bucket_bounds};
use mainstay_types::{PROBE_BUCKETS_SECONDS, ProbeMetrics};

use crate::{
    answer::{self, Answer},
    call::Call,
    exposition::{Exposition, Kind},
    own_families,
    representation::{Panicked, compressing, gzip},
    request::takes_gzip,
    resource_metrics::Version,
    route::App,
};

const TEXT: HeaderValue =
    HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8; escaping=underscores");
const PROCESS_START: HeaderName = HeaderName::from_static("process-start-time-unix");

/// `/metrics/probes`. The method is not looked at, as upstream does not.
pub(crate) async fn probes(app: &App, call: &Call<'_>) -> Answer {
    let out = Exposition::of(&app.families);
    text(probes_text(out, &app.state.probes, app.state.process_start), app, call).await
}

/// `/metrics`.
pub(crate) async fn own(app: &App, call: &Call<'_>) -> Answer {
    let mut out = Exposition::of(&app.families);
    app.metrics.write(&mut out);
    runtime_calls(&mut out, &app.state.calls.read());
    let state = &app.state;
    let snapshot = app.snapshot();
    let samples = state.samples.borrow().clone();
    let disks = state.disks.found.borrow().clone();
    own_families::write(
        &mut out,
        &own_families::Source {
            snapshot: snapshot.as_deref(),
            samples: &samples,
            disks: &disks,
            counters: &state.work,
            facts: &state.facts,
            events_dropped: state.event_counts.dropped(),
            traces: state.tracer.counts(),
            assignments: &state.assignments.borrow().clone(),
            own: own_families::Own::default(),
        },
    );
    for (counter, series) in state.counters.read() {
        if !out.takes(counter.name) {
            continue;
        }
        out.family(counter.name, counter.help, Kind::Counter);
        for (labels, count) in series {
            out.sample(counter.name, &labels, count);
        }
    }
    process_start_time(&mut out, "", state.process_start);
    text(own_families::in_order(&out.finish()), app, call).await
}

/// `/metrics/slis`. Unlike upstream's, a reset leaves the process's start alone.
pub(crate) async fn slis(app: &App, call: &Call<'_>) -> Answer {
    if *call.method == Method::DELETE {
        app.health_counts.reset();
        return answer::plain(StatusCode::OK, "metrics reset\n");
    }
    let counts = app.health_counts.read();
    let mut out = Exposition::of(&app.families);
    let name = "kubernetes_healthcheck";
    if !counts.is_empty() && out.takes(name) {
        out.family(name, "[STABLE] This metric records the result of a single healthcheck.", Kind::Gauge);
        for (check, count) in &counts {
            out.sample(name, &[("name", check), ("type", "healthz")], u8::from(count.is_well));
        }
    }
    let name = "kubernetes_healthchecks_total";
    if !counts.is_empty() && out.takes(name) {
        out.family(name, "[STABLE] This metric records the results of all healthcheck.", Kind::Counter);
        for (check, count) in &counts {
            for (status, times) in [("error", count.failed), ("success", count.passed)] {
                if times > 0 {
                    out.sample(name, &[("name", check), ("status", status), ("type", "healthz")], times);
                }
            }
        }
    }
    process_start_time(&mut out, "[ALPHA] ", app.state.process_start);
    text(out.finish(), app, call).await
}

/// `/metrics/resource`, in either version.
pub(crate) async fn resource(app: &App, call: &Call<'_>, version: Version) -> Answer {
    let samples = app.state.samples.borrow().clone();
    let kept = app.resource_texts.of(&samples, version, &app.families);
    if call.query.all("name[]").next().is_some() || !takes_gzip(call.headers) {
        return text(kept.plain().clone(), app, call).await;
    }
    answered(kept.compressed().await, app)
}

/// The families that are asked for by `name[]`, or all, compressed for those who can undo it.
async fn text(text: impl Into<Bytes>, app: &App, call: &Call<'_>) -> Answer {
    let names: Vec<&str> = call.query.all("name[]").collect();
    let text = text.into();
    let text = if names.is_empty() { text } else { only(&text, &names) };
    if takes_gzip(call.headers) {
        return answered(compressing(move || gzip(&text)).await, app);
    }
    let mut answer = answer::plain(StatusCode::OK, text);
    head(app, &mut answer);
    answer
}

fn answered(compressed: Result<Bytes, Panicked>, app: &App) -> Answer {
    let Ok(bytes) = compressed else { return answer::not_compressed() };
    let mut answer = answer::compressed(answer::plain(StatusCode::OK, bytes));
    head(app, &mut answer);
    answer
}

/// The headers that every text for Prometheus has.
pub(crate) fn head(app: &App, answer: &mut Answer) {
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, TEXT);
    headers.insert(PROCESS_START, HeaderValue::from(app.state.process_start.as_second()));
}

/// The families of these names: each goes from its `# HELP` to the next one's.
fn only(text: &[u8], names: &[&str]) -> Bytes {
    let mut kept = Vec::new();
    let mut keeps = false;
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        if let Some(rest) = line.strip_prefix(b"# HELP ") {
            let name = rest.split(|byte| *byte == b' ').next().unwrap_or_default();
            keeps = names.iter().any(|wanted| wanted.as_bytes() == name);
        }
        if keeps {
            kept.extend_from_slice(line);
        }
    }
    kept.into()
}

pub(crate) fn probes_text(mut out: Exposition, metrics: &ProbeMetrics, process_start: Timestamp) -> String {
    let series = metrics.read();
    // A family without samples is not told of.
    let name = "prober_probe_duration_seconds";
    if out.takes(name) && series.iter().any(|(_, numbers)| numbers.successful > 0) {
        out.family(name, "[ALPHA] Duration in seconds for a probe response.", Kind::Histogram);
        for (labels, numbers) in series.iter().filter(|(_, numbers)| numbers.successful > 0) {
            let labels = [
                ("container", &*labels.container),
                ("namespace", &*labels.namespace),
                ("pod", &*labels.pod),
                ("probe_type", labels.kind.as_str()),
            ];
            let buckets = PROBE_BUCKETS_SECONDS.into_iter().zip(numbers.buckets);
            out.histogram(name, &labels, buckets, (numbers.total.as_secs_f64(), numbers.successful));
        }
    }
    let name = "prober_probe_result";
    if out.old_names() && out.takes(name) && !series.is_empty() {
        out.family(name, "The result of a liveness or readiness probe for a container.", Kind::Gauge);
        for (labels, numbers) in &series {
            let labels = [
                ("container", &*labels.container),
                ("container_name", &*labels.container),
                ("namespace", &*labels.namespace),
                ("pod", &*labels.pod),
                ("pod_name", &*labels.pod),
                ("pod_uid", labels.pod_uid.as_str()),
                ("probe_type", labels.kind.as_str()),
            ];
            // A success was 0.
            out.sample(name, &labels, u8::from(numbers.is_failing));
        }
    }
    let name = "prober_probe_total";
    if out.takes(name) && !series.is_empty() {
        let help =
            "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.";
        out.family(name, help, Kind::Counter);
        for (labels, numbers) in &series {
            for (result, count) in [("failed", numbers.failed), ("successful", numbers.successful)] {
                if count > 0 {
                    let labels = [
                        ("container", &*labels.container),
                        ("namespace", &*labels.namespace),
                        ("pod", &*labels.pod),
                        ("pod_uid", labels.pod_uid.as_str()),
                        ("probe_type", labels.kind.as_str()),
                        ("result", result),
                    ];
                    out.sample(name, &labels, count);
                }
            }
        }
    }
    process_start_time(&mut out, "[ALPHA] ", process_start);
    out.finish()
}

/// What was asked of the container runtime.
fn runtime_calls(out: &mut Exposition, calls: &[CallCount]) {
    if calls.is_empty() {
        return;
    }
    let help = "[ALPHA] Duration in seconds of runtime operations. Broken down by operation type.";
    let old = out.old_names().then_some("kubelet_docker_operations_duration_seconds");
    for name in old.into_iter().chain(["kubelet_runtime_operations_duration_seconds"]) {
        if !out.takes(name) {
            continue;
        }
        out.family(name, help, Kind::Histogram);
        for count in calls {
            let buckets = call_bucket_bounds().into_iter().zip(count.buckets);
            let labels = [("operation_type", count.call)];
            out.histogram(name, &labels, buckets, (count.total.as_secs_f64(), count.calls));
        }
    }
    let name = "kubelet_runtime_operations_errors_total";
    if out.takes(name) && calls.iter().any(|count| count.errors > 0) {
        let help = "[ALPHA] Cumulative number of runtime operation errors by operation type.";
        out.family(name, help, Kind::Counter);
        for count in calls.iter().filter(|count| count.errors > 0) {
            out.sample(name, &[("operation_type", count.call)], count.errors);
        }
    }
    let name = "kubelet_runtime_operations_total";
    let help = "[ALPHA] Cumulative number of runtime operations by operation type.";
    if out.takes(name) {
        out.family(name, help, Kind::Counter);
        for count in calls {
            out.sample(name, &[("operation_type", count.call)], count.calls);
        }
    }
}

/// By which scrapers see that counters began anew. Upstream says how stable it is everywhere but on `/metrics`.
fn process_start_time(out: &mut Exposition, stability: &str, process_start: Timestamp) {
    let name = "process_start_time_seconds";
    if !out.takes(name) {
        return;
    }
    let help = format!("{stability}Start time of the process since unix epoch in seconds.");
    out.family(name, &help, Kind::Gauge);
    let millis = process_start.as_millisecond();
    out.sample(name, &[], format_args!("{}.{:03}", millis / 1000, millis % 1000));
}

#[cfg(test)]
pub(crate) fn runtime_calls_text(calls: &mainstay_cri::CallStats) -> String {
    let mut out = Exposition::default();
    runtime_calls(&mut out, &calls.read());
    out.finish()
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use mainstay_types::{ProbeKind, ProbeLabels};

    use super::*;

    #[test]
    fn families_by_name() {
        let text = b"# HELP a x\n# TYPE a gauge\na 1\n# HELP ab x\n# TYPE ab counter\nab{a=\"# HELP\"} 2\nab 3\n# HELP b y\nb 4\n";
        assert_eq!(only(text, &["a"]), "# HELP a x\n# TYPE a gauge\na 1\n");
        let two = only(text, &["ab", "b", "none"]);
        assert!(two.starts_with(b"# HELP ab x\n") && two.ends_with(b"ab 3\n# HELP b y\nb 4\n"), "{two:?}");
        assert_eq!(only(text, &[""]), "");
    }

    #[test]
    fn old_names_are_served_to_those_who_want_them() {
        let choice = |old_names| Arc::new(crate::FamilyChoice { old_names, ..Default::default() });
        let metrics = ProbeMetrics::default();
        let labels = ProbeLabels {
            container: "c".into(),
            namespace: "ns".into(),
            pod: "p".into(),
            pod_uid: "u".into(),
            kind: ProbeKind::Liveness,
        };
        metrics.series(&labels).succeeded(Duration::from_millis(3));
        let stats = mainstay_cri::CallStats::default();
        stats.pretend("status", Duration::from_millis(3), false);
        let texts = |old_names| {
            let mut calls = Exposition::of(&choice(old_names));
            runtime_calls(&mut calls, &stats.read());
            probes_text(Exposition::of(&choice(old_names)), &metrics, Timestamp::UNIX_EPOCH) + &calls.finish()
        };
        let line = r#"prober_probe_result{container="c",container_name="c",namespace="ns",pod="p",pod_name="p",pod_uid="u",probe_type="Liveness"}"#;
        assert!(texts(true).contains(&format!("{line} 0\n")), "{}", texts(true));
        metrics.series(&labels).failed();
        let text = texts(true);
        assert!(text.contains(&format!("{line} 1\n")), "{text}");
        assert!(
            text.contains("kubelet_docker_operations_duration_seconds_count{operation_type=\"status\"} 1\n")
        );
        assert!(!texts(false).contains("probe_result") && !texts(false).contains("docker"));
    }

    #[test]
    fn the_text_of_runtime_calls() {
        let stats = mainstay_cri::CallStats::default();
        let text = runtime_calls_text;
        assert_eq!(text(&stats), "", "nothing called");
        stats.pretend("run_podsandbox", Duration::from_millis(250), false);
        stats.pretend("run_podsandbox", Duration::from_millis(3), true);
        stats.pretend("status", Duration::from_millis(3), false);
        let text = text(&stats);
        for line in [
            "# TYPE kubelet_runtime_operations_duration_seconds histogram",
            r#"kubelet_runtime_operations_duration_seconds_bucket{operation_type="run_podsandbox",le="0.005"} 1"#,
            r#"kubelet_runtime_operations_duration_seconds_bucket{operation_type="run_podsandbox",le="0.48828125"} 2"#,
            r#"kubelet_runtime_operations_duration_seconds_bucket{operation_type="run_podsandbox",le="+Inf"} 2"#,
            r#"kubelet_runtime_operations_duration_seconds_sum{operation_type="run_podsandbox"} 0.253"#,
            r#"kubelet_runtime_operations_duration_seconds_count{operation_type="run_podsandbox"} 2"#,
            r#"kubelet_runtime_operations_errors_total{operation_type="run_podsandbox"} 1"#,
            r#"kubelet_runtime_operations_total{operation_type="run_podsandbox"} 2"#,
            r#"kubelet_runtime_operations_total{operation_type="status"} 1"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains(r#"errors_total{operation_type="status"}"#), "{text}");
    }

    #[test]
    fn the_text_of_probes() {
        let metrics = ProbeMetrics::default();
        let start = Timestamp::from_millisecond(1_700_000_000_250).unwrap();
        let label = |container: &str, kind| ProbeLabels {
            container: container.into(),
            namespace: "default".into(),
            pod: "web".into(),
            pod_uid: "u".into(),
            kind,
        };
        let tail = "# HELP process_start_time_seconds [ALPHA] Start time of the process since unix epoch in seconds.\n\
            # TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1700000000.250\n";
        assert_eq!(probes_text(Exposition::default(), &metrics, start), tail, "nothing probed");
        let ready = metrics.series(&label("a", ProbeKind::Readiness));
        ready.succeeded(Duration::from_millis(20));
        ready.failed();
        metrics.series(&label("a", ProbeKind::Liveness)).failed();
        let unused = label("b", ProbeKind::Startup);
        drop(metrics.series(&unused));
        let base = "container=\"a\",namespace=\"default\",pod=\"web\"";
        let text = probes_text(Exposition::default(), &metrics, start);
        for line in [
            format!("prober_probe_duration_seconds_bucket{{{base},probe_type=\"Readiness\",le=\"0.01\"}} 0"),
            format!("prober_probe_duration_seconds_bucket{{{base},probe_type=\"Readiness\",le=\"0.025\"}} 1"),
            format!("prober_probe_duration_seconds_sum{{{base},probe_type=\"Readiness\"}} 0.02"),
            format!("prober_probe_total{{{base},pod_uid=\"u\",probe_type=\"Liveness\",result=\"failed\"}} 1"),
            format!(
                "prober_probe_total{{{base},pod_uid=\"u\",probe_type=\"Readiness\",result=\"failed\"}} 1"
            ),
            format!(
                "prober_probe_total{{{base},pod_uid=\"u\",probe_type=\"Readiness\",result=\"successful\"}} 1"
            ),
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
        assert!(text.ends_with(tail));
        assert!(!text.contains("Startup") && !text.contains("duration_seconds_count{container=\"a\",namespace=\"default\",pod=\"web\",probe_type=\"Liveness\""));
        metrics.remove(&label("a", ProbeKind::Readiness));
        assert!(
            !probes_text(Exposition::default(), &metrics, start).contains("Readiness"),
            "gone with its probe"
        );
    }
}
