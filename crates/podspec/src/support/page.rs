//! `docs/pod-spec.md`.

use std::fmt::Write as _;

use super::{AREAS, Row, State, deciding, fields::pod_fields};

/// The page.
pub(super) fn markdown() -> String {
    let fields = pod_fields();
    let mut text = String::from(
        "# What mainstay does with each field of a pod\n\n\
         <!-- Generated from crates/podspec/src/support and the type v1.Pod; UPDATE_DOCS=1 cargo test -p mainstay-podspec support writes it. -->\n\n\
         - **works**: acted upon; the named test in `crates/e2e/tests` shows it on a real runtime.\n\
         - **passed through**: kept, shown in `/pods` and handed to whom it concerns; mainstay itself has nothing to do with it.\n\
         - **not yet**: what stands in the way, and what happens instead. `mainstay check -f FILE` warns about each that a manifest uses.\n\n\
         The list is that of the Kubernetes 1.37 type, field by field. What is said of `spec.containers[]` holds for init and ephemeral\n\
         containers as well, and what is said of `status.containerStatuses[]` for theirs, unless they have a line of their own. A line\n\
         without fields below it is about that one field.\n\n\
         A pod from a file may not name what only an API server has, also where the table says that it works: claims and ephemeral volumes,\n\
         resource claims, service account tokens, trust bundles and pod certificates. Its `serviceAccountName` does nothing without an API server, and is\n\
         refused with one, as are ConfigMaps and Secrets. RuntimeClasses stand beside the pods in the same directory; an API server's come before them.\n\n\
         A file that is refused, for a quantity that is none or that is too large to be one say, makes no pod that could tell why: its verdict\n\
         does (`mainstay manifests`), and an event of the node.\n\n\
         A path of `items` has at most 64 parts of at most 255 bytes each, and 4096 bytes in all.\n",
    );
    let mut total = [0; 3];
    for area in AREAS {
        // Writing to a String cannot fail; so below.
        write!(
            text,
            "\n## {}\n\n| field | below it | state | shown by, or why |\n| --- | --- | --- | --- |\n",
            area.title
        )
        .ok();
        let place = |row: &&Row| fields.iter().position(|field| row.covers(field));
        let mut rows: Vec<&Row> = area.rows.iter().collect();
        rows.sort_by_key(place);
        for row in rows {
            let decided = fields.iter().filter(|field| deciding(field).is_some_and(|by| by.path == row.path));
            let mine = decided.clone().filter_map(|field| field.strip_prefix(row.path));
            let below = braced(&mine.map(|rest| rest.strip_prefix("[]").unwrap_or(rest)).collect::<Vec<_>>());
            let (state, about) = match row.state {
                State::Works(tests, but) => {
                    let links = tests.iter().map(|test| test_link(test)).collect::<Vec<_>>().join(", ");
                    ("works", if but.is_empty() { links } else { format!("{but}: {links}") })
                }
                State::PassedThrough(whose) => ("passed through", whose.to_owned()),
                State::NotYet(why) => ("**not yet**", why.to_owned()),
            };
            total[match row.state {
                State::Works(..) => 0,
                State::PassedThrough(_) => 1,
                State::NotYet(_) => 2,
            }] += decided.count();
            let below = if below.is_empty() { below } else { format!("`{below}`") };
            writeln!(text, "| `{}` | {below} | {state} | {about} |", row.path).ok();
        }
    }
    let [works, passed, not_yet] = total;
    write!(
        text,
        "\nOf {} fields (those of init and ephemeral containers counted for themselves) {works} work, {passed} are passed through, {not_yet} are not yet acted upon.\n",
        fields.len()
    )
    .ok();
    text
}

/// Fields with what they have in common written once: `.exec.command[]`, `.httpGet.{path port}`. Those of one parent
/// stand together.
fn braced(fields: &[&str]) -> String {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for field in fields.iter().filter_map(|field| field.strip_prefix('.')) {
        let (name, rest) = field.split_at(field.find('.').unwrap_or(field.len()));
        match groups.last_mut() {
            Some((last, below)) if *last == name => below.push(rest),
            _ => groups.push((name, vec![rest])),
        }
    }
    let written = |(name, below): &(&str, Vec<&str>)| match braced(below) {
        below if below.is_empty() => (*name).to_owned(),
        below => format!("{name}.{below}"),
    };
    let all = groups.iter().map(written).collect::<Vec<_>>().join(" ");
    if groups.len() > 1 { format!("{{{all}}}") } else { all }
}

fn test_link(test: &str) -> String {
    let (file, function) = test.split_once("::").unwrap_or((test, ""));
    format!("[{function}](../crates/e2e/tests/{file}.rs)")
}
