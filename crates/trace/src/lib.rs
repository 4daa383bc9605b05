//! Traces: what took how long, told to an OpenTelemetry collector.
//!
//! A [`Tracer`] begins [`Span`]s; a span ends when it is dropped. [`Span::run`] makes a span the current one of a future, so that
//! [`child`] and outgoing calls below it find their parent. [`start`] makes a tracer that is on, with the task that sends what has
//! ended; [`Tracer::default`] is off: its spans are nothing, and cost nothing.
//!
//! Channel: ended spans to the task that sends them, bounded; with the channel full a span is dropped and counted ([`Counts`]). Nobody waits
//! for a collector. The task (`traces`) belongs to the group that [`start`] was given; draining that group sends what is left.
//!
//! What it does not do: no metrics, no logs over OTLP, no baggage; and it knows nothing of pods.

#![forbid(unsafe_code)]

mod context;
mod endpoint;
mod export;
mod span;

pub use context::{Context, SpanId, TraceId};
pub use endpoint::{Target, TargetError};
pub use export::{Counts, Options, start};
pub use span::{Kind, Span, Tracer, Value, child, current};
