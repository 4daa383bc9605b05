//! The screen as lines of text, and lines as what a terminal wants.

use super::model::{Model, Order, Over, PAST, PodLine, Rates};
use crate::{
    args::StatsOrder,
    stats::{Usage, cores, size as bytes},
};

/// Columns and rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Plain,
    Bold,
    Selected,
    Dim,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) look: Look,
    pub(super) text: String,
}

/// Lines above the list, and the one below it.
const ABOVE: usize = 4;
const BELOW: usize = 1;
const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const HELP: &str = "\
 up, down, k, j   move                 enter, right  show a pod's containers
 page up, down    a page               left, escape  hide them
 g, G             first, last          l             the log of a container
 c cpu   m memory   i io   n network   d disk   r restarts   a name
 ?                this                 q, Ctrl-C     leave

 CPU is in thousandths of a core, MEMORY is the working set; READ, WRITE, RX and TX are bytes a second, DISK
 is what a pod wrote to its layers, logs and volumes. - is what is not known (yet). A narrow terminal shows
 fewer columns, and always the one that is sorted by.";

/// How many lines of the list fit.
pub(super) fn list_rows(size: Size) -> usize {
    size.rows.saturating_sub(ABOVE + BELOW).max(1)
}

/// Everything, fitted to the screen.
pub(super) fn screen(model: &Model, size: Size) -> Vec<Line> {
    let mut lines = head(model);
    match &model.over {
        Some(Over::Help) => {
            lines.push(line(Look::Bold, "KEYS"));
            lines.extend(HELP.lines().map(|text| line(Look::Plain, text)));
        }
        Some(Over::Log { namespace, pod, container, text, up }) => {
            lines.push(line(Look::Bold, &format!("LOG of {container} in {namespace}/{pod}")));
            let room = list_rows(size);
            match text {
                Ok(text) => {
                    let all: Vec<&str> = text.lines().collect();
                    let up = (*up).min(all.len().saturating_sub(room));
                    let end = all.len() - up;
                    let shown = all.get(end.saturating_sub(room)..end).unwrap_or_default();
                    lines.extend(shown.iter().map(|text| line(Look::Plain, &harmless(text))));
                }
                Err(problem) => lines.push(line(Look::Plain, &harmless(problem))),
            }
        }
        None => list(model, size, &mut lines),
    }
    lines.truncate(size.rows.saturating_sub(BELOW));
    while lines.len() + BELOW < size.rows {
        lines.push(line(Look::Plain, ""));
    }
    let foot = match (&model.trouble, &model.over) {
        (Some(problem), _) => format!("old: {}", harmless(problem)),
        (None, Some(_)) => " escape: back   q: leave".to_owned(),
        (None, None) => {
            format!(" sorted by {}   ?: help   enter: containers   l: log   q: leave", model.order.word())
        }
    };
    lines.push(line(Look::Dim, &foot));
    for line in &mut lines {
        line.text = line.text.chars().take(size.columns).collect();
    }
    lines
}

/// The node and all pods, for a pipe.
pub(super) fn plain(model: &Model, with_containers: bool) -> String {
    let mut lines = head(model);
    let columns = Columns::all(name_width(model, with_containers));
    lines.push(line(Look::Bold, &header(columns)));
    for pod in &model.reading.pods {
        lines.push(line(Look::Plain, &pod_line(model, pod, columns, " ")));
        if with_containers {
            lines.extend(container_lines(pod, columns).map(|text| line(Look::Plain, &text)));
        }
    }
    lines.iter().map(|line| format!("{}\n", line.text.trim_end())).collect()
}

/// What a terminal wants: from the top, each line to its end, nothing below.
pub(super) fn ansi(lines: &[Line]) -> String {
    let mut out = String::from("\x1b[H");
    for (at, Line { look, text }) in lines.iter().enumerate() {
        let code = match look {
            Look::Plain => "",
            Look::Bold => "\x1b[1m",
            Look::Selected => "\x1b[7m",
            Look::Dim => "\x1b[2m",
        };
        out.push_str(code);
        out.push_str(text);
        out.push_str("\x1b[0m\x1b[K");
        if at + 1 < lines.len() {
            out.push_str("\r\n");
        }
    }
    out.push_str("\x1b[J");
    out
}

fn line(look: Look, text: &str) -> Line {
    Line { look, text: text.to_owned() }
}

/// What others wrote does nothing to the terminal.
fn harmless(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c == '\t' {
                ' '
            } else if c.is_control() {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}

fn head(model: &Model) -> Vec<Line> {
    let node = &model.reading.node;
    let pods = model.reading.pods.len();
    let of = node.cores.map_or(String::new(), |cores| format!(" of {}m", cores * 1000));
    let room = |used: Option<u64>, free: Option<u64>| format!("{}, {} free", bytes(used), bytes(free));
    let Rates { read, written, received, sent } = model.node_past.rates;
    let troubles = if node.troubles.is_empty() {
        "no pressure".to_owned()
    } else {
        node.troubles.join(", ").to_uppercase()
    };
    vec![
        line(Look::Bold, &format!("{}   {pods} pods   {}", node.name, harmless(&troubles))),
        line(
            Look::Plain,
            &format!(
                "cpu {}{of} {}   memory {}",
                cores(node.usage.nano_cores),
                spark(
                    &model.node_past.cpu.iter().copied().collect::<Vec<_>>(),
                    node.cores.map(|it| it * 1000)
                ),
                room(node.usage.memory, node.memory_free)
            ),
        ),
        line(
            Look::Plain,
            &format!(
                "disk {}   read {}/s written {}/s   received {}/s sent {}/s",
                room(node.usage.disk, node.disk_free),
                bytes(read),
                bytes(written),
                bytes(received),
                bytes(sent)
            ),
        ),
    ]
}

fn list(model: &Model, size: Size, lines: &mut Vec<Line>) {
    let columns = Columns::fitting(size.columns, name_width(model, true), model.order);
    lines.push(line(Look::Bold, &header(columns)));
    let places = model.places();
    let selected = model.selection(&places);
    // A list that has become shorter is shown to its end.
    let first = model.first.min(places.len().saturating_sub(1));
    let mut container_texts: Vec<String> = Vec::new();
    for (at, place) in places.iter().enumerate().skip(first).take(list_rows(size)) {
        let Some(pod) = model.reading.pods.get(place.pod) else { continue };
        let text = match place.container {
            None => {
                let mark = if model.is_open(pod) { "-" } else { "+" };
                pod_line(model, pod, columns, mark)
            }
            Some(index) => {
                container_texts.clear();
                container_texts.extend(container_lines(pod, columns));
                container_texts.get(index).cloned().unwrap_or_default()
            }
        };
        let look = if at == selected { Look::Selected } else { Look::Plain };
        lines.push(line(look, &format!("{text:<columns$}", columns = size.columns)));
    }
    if places.is_empty() {
        lines.push(line(Look::Dim, " no pods"));
    }
}

/// What is always shown beside the name: the mark, READY, STATUS, RST, CPU and MEMORY.
const ALWAYS: usize = 1 + 6 + 17 + 5 + 8 + SIZE;
/// A column of a size.
const SIZE: usize = 8;
/// Names are not cut below that while there are columns to leave out for them.
const NAME: usize = 32;

/// Which columns there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Columns {
    name: usize,
    /// The line of the past.
    past: bool,
    /// MEMORY, READ, WRITE, RX, TX and DISK.
    sizes: [bool; 6],
}

impl Columns {
    fn all(name: usize) -> Self {
        Self { name, past: true, sizes: [true; 6] }
    }

    /// Leaves out what is looked at least until the names fit, but not what the list is sorted by.
    fn fitting(width: usize, name: usize, order: Order) -> Self {
        let mut columns = Self::all(name);
        let groups = [
            (None, [].as_slice()),
            (Some(StatsOrder::Network), &[3, 4]),
            (Some(StatsOrder::Io), &[1, 2]),
            (Some(StatsOrder::Disk), &[5]),
        ];
        for (sorted_by, group) in groups {
            if columns.beside() + name.min(NAME) <= width {
                break;
            }
            match sorted_by {
                None => columns.past = false,
                Some(sorted_by) if order == Order::Stats(sorted_by) => {}
                Some(_) => {
                    for (at, shown) in columns.sizes.iter_mut().enumerate() {
                        *shown &= !group.contains(&at);
                    }
                }
            }
        }
        columns.name = name.min(width.saturating_sub(columns.beside())).max(12);
        columns
    }

    /// What all of them but the name take.
    fn beside(&self) -> usize {
        let sizes = self.sizes.iter().skip(1).filter(|shown| **shown).count();
        ALWAYS + sizes * SIZE + if self.past { 1 + PAST } else { 0 }
    }
}

fn name_width(model: &Model, with_containers: bool) -> usize {
    let pods = model.reading.pods.iter();
    let names = pods.flat_map(|pod| {
        let own = pod.namespace.chars().count() + 1 + pod.name.chars().count();
        let below =
            pod.containers.iter().filter(move |_| with_containers).map(|it| it.name.chars().count() + 2);
        std::iter::once(own).chain(below)
    });
    names.max().unwrap_or(0).clamp(12, 60)
}

fn header(columns: Columns) -> String {
    row(
        columns,
        " ",
        "POD",
        ["READY", "STATUS", "RST", "CPU"],
        "",
        ["MEMORY", "READ", "WRITE", "RX", "TX", "DISK"].map(str::to_owned),
    )
}

fn row(columns: Columns, mark: &str, name: &str, own: [&str; 4], past: &str, sizes: [String; 6]) -> String {
    let width = columns.name;
    let name: String = name.chars().take(width).collect();
    let [ready, status, restarts, cpu] = own;
    let status: String = status.chars().take(16).collect();
    let mut text = format!("{mark}{name:<width$} {ready:>5} {status:<16} {restarts:>4} {cpu:>7}");
    if columns.past {
        text.push_str(&format!(" {past:<PAST$}"));
    }
    for (size, _) in sizes.iter().zip(columns.sizes).filter(|(_, shown)| *shown) {
        text.push_str(&format!(" {size:>7}"));
    }
    text
}

fn pod_line(model: &Model, pod: &PodLine, columns: Columns, mark: &str) -> String {
    let past = model.past(pod);
    let rates = past.map(|past| past.rates).unwrap_or_default();
    let cpu: Vec<u64> = past.map(|past| past.cpu.iter().copied().collect()).unwrap_or_default();
    row(
        columns,
        mark,
        &format!("{}/{}", pod.namespace, pod.name),
        [&pod.ready, &pod.status, &pod.restarts.to_string(), &cores(pod.usage.nano_cores)],
        &spark(&cpu, None),
        sizes(&pod.usage, rates),
    )
}

fn container_lines(pod: &PodLine, columns: Columns) -> impl Iterator<Item = String> {
    pod.containers.iter().map(move |container| {
        let sizes = sizes(&container.usage, Rates::default());
        let own = ["", &container.state, &container.restarts.to_string(), &cores(container.usage.nano_cores)];
        row(columns, " ", &format!("  {}", container.name), own, "", sizes)
    })
}

fn sizes(usage: &Usage, rates: Rates) -> [String; 6] {
    [usage.memory, rates.read, rates.written, rates.received, rates.sent, usage.disk].map(bytes)
}

/// A line of the past, as high as its largest value, or as `most`.
pub(super) fn spark(values: &[u64], most: Option<u64>) -> String {
    let most = most.unwrap_or_else(|| values.iter().copied().max().unwrap_or(0)).max(1);
    let step = |value: u64| {
        let at = (u128::from(value.min(most)) * 7).div_ceil(u128::from(most));
        usize::try_from(at).ok().and_then(|at| STEPS.get(at)).copied().unwrap_or('█')
    };
    values.iter().map(|value| step(*value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_states_have_room_on_narrow_terminals() {
        let shown = |width, order| {
            let columns = Columns::fitting(width, 40, order);
            let words = header(columns);
            (columns.name, words.split_whitespace().skip(1).collect::<Vec<_>>().join(" "))
        };
        let cpu = Order::Stats(StatsOrder::Cpu);
        assert_eq!(shown(80, cpu), (35, "READY STATUS RST CPU MEMORY".to_owned()));
        assert_eq!(shown(86, cpu), (33, "READY STATUS RST CPU MEMORY DISK".to_owned()));
        assert_eq!(shown(102, cpu), (33, "READY STATUS RST CPU MEMORY READ WRITE DISK".to_owned()));
        assert_eq!(shown(200, cpu), (40, "READY STATUS RST CPU MEMORY READ WRITE RX TX DISK".to_owned()));
        let network = Order::Stats(StatsOrder::Network);
        assert_eq!(shown(80, network), (19, "READY STATUS RST CPU MEMORY RX TX".to_owned()));
        assert_eq!(shown(40, cpu).0, 12, "less is no name");
    }
}
