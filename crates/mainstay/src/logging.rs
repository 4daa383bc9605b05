//! Log lines: text or JSON on standard error, levels as klog counts them.

use mainstay_config::KubeletConfiguration;
use mainstay_server::Verbosity;
use tracing_subscriber::{filter::Targets, fmt, layer::SubscriberExt, reload, util::SubscriberInitExt};

/// klog's verbosity as a filter: 0 to 3 are for operators, 4 and 5 for debugging, 6 and above show every step.
///
/// Libraries stay at `warn` until somebody asks for everything.
fn filter_for(verbosity: u32) -> &'static str {
    match verbosity {
        0..=3 => "info,h2=warn,hyper=warn,tonic=warn",
        4..=5 => "debug,h2=warn,hyper=warn,hyper_util=warn,tonic=warn,tower=warn",
        6..=9 => "trace,h2=warn,hyper=warn,hyper_util=warn,tonic=warn,tower=warn",
        _ => "trace",
    }
}

/// Starts logging. `RUST_LOG` (targets and levels, without span filters) goes before the verbosity, until that is changed
/// through what is returned.
pub(crate) fn start(config: &KubeletConfiguration) -> Verbosity {
    let asked = std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
    let parsed = asked.as_deref().map(str::parse::<Targets>);
    // The words in `filter_for` are our own and parse; what a person wrote may not.
    let by_verbosity = || filter_for(config.logging.verbosity).parse::<Targets>().unwrap_or_default();
    let filter = match &parsed {
        Some(Ok(filter)) => filter.clone(),
        Some(Err(_)) | None => by_verbosity(),
    };
    let (filter, handle) = reload::Layer::new(filter);
    let registry = tracing_subscriber::registry().with(filter);
    // A second start (in tests) keeps the first one's settings.
    if config.logging.format == "json" {
        registry.with(fmt::layer().json().with_writer(std::io::stderr)).try_init().ok();
    } else {
        registry.with(fmt::layer().with_writer(std::io::stderr).with_ansi(false)).try_init().ok();
    }
    if let Some(Err(error)) = parsed {
        tracing::warn!(%error, "RUST_LOG is not understood; write it as `debug` or `mainstay_reconcile=debug,info`");
    }
    Verbosity::new(move |level| {
        let filter = filter_for(level).parse::<Targets>().unwrap_or_default();
        // Fails only when logging has ended.
        handle.reload(filter).ok();
    })
}
