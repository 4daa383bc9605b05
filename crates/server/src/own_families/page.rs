//! `docs/metrics.md`: its lists of families come from the tables that serve.

use std::fmt::Write as _;

use crate::{cadvisor, exposition::Kind, own_families};

const BEGIN: &str = "<!-- from the tables that serve: UPDATE_DOCS=1 cargo test -p mainstay-server -->\n";
const END: &str = "<!-- end -->\n";

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    }
}

#[test]
fn the_page_about_metrics_names_every_family() {
    let mut list = String::new();
    let row = |list: &mut String, name: &str, kind: Kind, help: &str| {
        writeln!(list, "| `{name}` | {} | {help} |", word(kind)).unwrap();
    };
    list.push_str("### `/metrics/cadvisor`\n\n| family | type | what it is |\n| --- | --- | --- |\n");
    for family in cadvisor::FAMILIES {
        row(&mut list, family.name, family.kind, family.help);
    }
    list.push_str(
        "\nand `cadvisor_version_info`, `container_scrape_error` and the `machine_*` families.\n\n",
    );
    list.push_str("### `/metrics`\n\n| family | type | what it is |\n| --- | --- | --- |\n");
    for family in own_families::FAMILIES {
        row(&mut list, family.name, family.kind, family.help);
    }
    list.push_str("\nand `kubelet_http_*`, `kubelet_runtime_operations_*`, `kubelet_websocket_streaming_requests_total`, `process_start_time_seconds`.\n");
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = std::fs::read_to_string(&file).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page has a place for the lists");
    let (_, after) = rest.split_once(END).expect("the place has an end");
    let wanted = format!("{before}{BEGIN}{list}{END}{after}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&file, &wanted).unwrap();
    } else {
        assert!(page == wanted, "docs/metrics.md is old: UPDATE_DOCS=1 cargo test -p mainstay-server");
    }
}
