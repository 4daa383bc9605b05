//! What is shown: the newest reading, what changed since the one before, what is selected and what is open.

use std::collections::{HashMap, HashSet, VecDeque};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Node};
use mainstay_types::PodExt;
use serde_json::Value;

use super::{draw::Size, keys::Key};
use crate::{
    args::StatsOrder,
    error::ClientError,
    select::Item,
    stats::{IoTable, NodeShape, PodShape, Usage, read},
    status::summary,
};

/// How many readings a line of the past has.
pub(super) const PAST: usize = 12;

/// Everything that was read at one time.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) node: NodeLine,
    pub(super) pods: Vec<PodLine>,
}

/// The node.
#[derive(Debug, Default)]
pub(super) struct NodeLine {
    pub(super) name: String,
    pub(super) usage: Usage,
    pub(super) at: Option<Timestamp>,
    pub(super) cores: Option<u64>,
    pub(super) memory_free: Option<u64>,
    pub(super) disk_free: Option<u64>,
    /// Of memory, disks or process IDs it has too little; or what else is wrong.
    pub(super) troubles: Vec<String>,
}

/// A pod.
#[derive(Debug, Default)]
pub(super) struct PodLine {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) ready: String,
    pub(super) status: String,
    pub(super) restarts: i64,
    pub(super) usage: Usage,
    pub(super) at: Option<Timestamp>,
    pub(super) containers: Vec<ContainerLine>,
}

/// A container.
#[derive(Debug, Default)]
pub(super) struct ContainerLine {
    pub(super) name: String,
    /// What its probes have shown, as far as its status tells.
    pub(super) state: String,
    pub(super) restarts: i64,
    pub(super) usage: Usage,
}

impl PodLine {
    fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

impl Reading {
    /// Puts together what the summary, the list of pods and the Node object say.
    pub(super) fn of(
        summary: &Value,
        io: &IoTable,
        pods: &[Item],
        node: Option<&Node>,
    ) -> Result<Self, ClientError> {
        let shape: NodeShape = read(&summary["node"])?;
        let mut measured: HashMap<String, PodShape> = HashMap::new();
        for value in summary["pods"].as_array().into_iter().flatten() {
            let shape: PodShape = read(value)?;
            measured.insert(shape.full_name(), shape);
        }
        let pods = pods.iter().map(|item| pod_line(item, measured.get(&item.full_name()), io)).collect();
        let node = NodeLine {
            name: shape.node_name.clone(),
            usage: shape.usage(io),
            at: shape.cpu_time(),
            cores: node.and_then(cores),
            memory_free: shape.memory_free(),
            disk_free: shape.disk_free(),
            troubles: node.map(troubles).unwrap_or_default(),
        };
        Ok(Self { node, pods })
    }
}

fn cores(node: &Node) -> Option<u64> {
    node.status.as_ref()?.capacity.as_ref()?.get("cpu")?.0.parse().ok()
}

/// Conditions that are not as they should be: `Ready` is not true, or another one is not false.
fn troubles(node: &Node) -> Vec<String> {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions
        .filter(|condition| {
            let good = matches!(condition.type_.as_str(), "Ready" | "StateIntact");
            condition.status != if good { "True" } else { "False" }
        })
        .map(|condition| match condition.type_.as_str() {
            name @ ("Ready" | "StateIntact") => format!("not {name}"),
            other => other.to_owned(),
        })
        .collect()
}

fn pod_line(item: &Item, measured: Option<&PodShape>, io: &IoTable) -> PodLine {
    let sum = summary(&item.pod);
    let status = item.pod.status.as_ref();
    let of_containers = |name: &str| {
        let all = status.into_iter().flat_map(|status| {
            status.container_statuses.iter().chain(&status.init_container_statuses).flatten()
        });
        all.into_iter().find(|status| status.name == name)
    };
    let containers = measured.map(|shape| shape.sorted(StatsOrder::Name, io)).unwrap_or_default();
    let containers = containers.into_iter().map(|(name, usage)| {
        let status = of_containers(name);
        ContainerLine {
            name: name.to_owned(),
            state: status.map(state).unwrap_or_default(),
            restarts: status.map_or(0, |status| status.restart_count.into()),
            usage,
        }
    });
    PodLine {
        namespace: item.pod.namespace_ref().to_owned(),
        name: item.pod.name_ref().to_owned(),
        ready: sum.ready(),
        restarts: sum.restart_count(),
        status: sum.status,
        usage: measured.map(|shape| shape.usage(io)).unwrap_or_default(),
        at: measured.and_then(PodShape::cpu_time),
        containers: containers.collect(),
    }
}

fn state(status: &ContainerStatus) -> String {
    let state = status.state.as_ref();
    if let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) {
        return waiting.reason.clone().unwrap_or_else(|| "Waiting".to_owned());
    }
    if let Some(ended) = state.and_then(|state| state.terminated.as_ref()) {
        return ended.reason.clone().unwrap_or_else(|| "Ended".to_owned());
    }
    match (status.started, status.ready) {
        (Some(false), _) => "Starting".to_owned(),
        (_, true) => "Ready".to_owned(),
        (_, false) => "NotReady".to_owned(),
    }
}

/// What changes from reading to reading.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub(super) read: Option<u64>,
    pub(super) written: Option<u64>,
    pub(super) received: Option<u64>,
    pub(super) sent: Option<u64>,
}

/// The past of a pod, or of the node.
#[derive(Debug, Default)]
pub(super) struct Past {
    at: Option<Timestamp>,
    usage: Usage,
    pub(super) rates: Rates,
    /// Thousandths of a core, the newest last.
    pub(super) cpu: VecDeque<u64>,
}

impl Past {
    /// Another reading; one of the same time says nothing new.
    fn add(&mut self, at: Option<Timestamp>, usage: Usage) {
        if at.is_none() || at == self.at {
            return;
        }
        let seconds = match (self.at, at) {
            (Some(before), Some(now)) => now.duration_since(before).as_secs_f64(),
            _ => 0.0,
        };
        // A counter that went back began anew.
        let rate = |before: Option<u64>, now: Option<u64>| {
            let change = now?.checked_sub(before?)?;
            #[expect(
                clippy::cast_precision_loss,
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a figure for people; a float saturates"
            )]
            let rate = (change as f64 / seconds) as u64;
            (seconds > 0.0).then_some(rate)
        };
        let (was, is) = (&self.usage, &usage);
        self.rates = Rates {
            read: rate(was.io.map(|io| io.read), is.io.map(|io| io.read)),
            written: rate(was.io.map(|io| io.written), is.io.map(|io| io.written)),
            received: rate(was.network.map(|it| it.0), is.network.map(|it| it.0)),
            sent: rate(was.network.map(|it| it.1), is.network.map(|it| it.1)),
        };
        if let Some(nanos) = usage.nano_cores {
            self.cpu.push_back(nanos.div_ceil(1_000_000));
            if self.cpu.len() > PAST {
                self.cpu.pop_front();
            }
        }
        (self.at, self.usage) = (at, usage);
    }
}

/// What lies over the list.
#[derive(Debug)]
pub(super) enum Over {
    Help,
    Log { namespace: String, pod: String, container: String, text: Result<String, String>, up: usize },
}

/// Something that has to be fetched.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    Log { namespace: String, pod: String, container: String },
}

/// A line of the list: a pod, or one of its containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) pod: usize,
    pub(super) container: Option<usize>,
}

/// What is shown.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) reading: Reading,
    pub(super) node_past: Past,
    pasts: HashMap<String, Past>,
    pub(super) order: Order,
    namespace: Option<String>,
    open: HashSet<String>,
    /// The selected pod, and container, by name: places change.
    selected: Option<(String, Option<String>)>,
    pub(super) first: usize,
    pub(super) over: Option<Over>,
    pub(super) trouble: Option<String>,
}

/// What pods are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Stats(StatsOrder),
    Restarts,
}

impl Order {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Restarts => "restarts",
            Self::Stats(StatsOrder::Name) => "name",
            Self::Stats(StatsOrder::Cpu) => "cpu",
            Self::Stats(StatsOrder::Memory) => "memory",
            Self::Stats(StatsOrder::Io) => "io",
            Self::Stats(StatsOrder::Network) => "network",
            Self::Stats(StatsOrder::Disk) => "disk",
        }
    }
}

impl Model {
    pub(super) fn new(order: StatsOrder, namespace: Option<String>) -> Self {
        Self {
            reading: Reading::default(),
            node_past: Past::default(),
            pasts: HashMap::new(),
            order: Order::Stats(order),
            namespace,
            open: HashSet::new(),
            selected: None,
            first: 0,
            over: None,
            trouble: None,
        }
    }

    /// A new reading takes the place of the old one.
    pub(super) fn take(&mut self, mut reading: Reading) {
        self.trouble = None;
        if let Some(namespace) = &self.namespace {
            reading.pods.retain(|pod| pod.namespace == *namespace);
        }
        self.node_past.add(reading.node.at, reading.node.usage);
        let keys: HashSet<String> = reading.pods.iter().map(PodLine::key).collect();
        self.pasts.retain(|key, _| keys.contains(key));
        self.open.retain(|key| keys.contains(key));
        for pod in &reading.pods {
            self.pasts.entry(pod.key()).or_default().add(pod.at, pod.usage);
        }
        self.reading = reading;
        self.sort();
    }

    /// The node could not be asked; what is shown is old.
    pub(super) fn trouble(&mut self, text: String) {
        self.trouble = Some(text);
    }

    fn sort(&mut self) {
        let (order, pasts) = (self.order, &self.pasts);
        let moved = |pod: &PodLine, of: fn(&Rates) -> [Option<u64>; 2]| {
            let rates = pasts.get(&pod.key()).map(|past| past.rates).unwrap_or_default();
            of(&rates).into_iter().flatten().reduce(u64::saturating_add)
        };
        self.reading.pods.sort_by_cached_key(|pod| {
            // What is moved now comes first; before there is a second reading, what ever was.
            let largest = match order {
                Order::Restarts => u64::try_from(pod.restarts).ok(),
                Order::Stats(StatsOrder::Io) => moved(pod, |rates| [rates.read, rates.written]),
                Order::Stats(StatsOrder::Network) => moved(pod, |rates| [rates.received, rates.sent]),
                Order::Stats(_) => None,
            };
            let rank = match order {
                Order::Stats(order) if largest.is_none() => pod.usage.rank(order),
                _ => std::cmp::Reverse(largest),
            };
            (rank, pod.namespace.clone(), pod.name.clone())
        });
    }

    /// The lines of the list.
    pub(super) fn places(&self) -> Vec<Place> {
        let mut places = Vec::new();
        for (index, pod) in self.reading.pods.iter().enumerate() {
            places.push(Place { pod: index, container: None });
            if self.open.contains(&pod.key()) {
                let below = (0..pod.containers.len()).map(|at| Place { pod: index, container: Some(at) });
                places.extend(below);
            }
        }
        places
    }

    pub(super) fn past(&self, pod: &PodLine) -> Option<&Past> {
        self.pasts.get(&pod.key())
    }

    pub(super) fn is_open(&self, pod: &PodLine) -> bool {
        self.open.contains(&pod.key())
    }

    /// Which of the lines is selected: the first if what was selected is gone.
    pub(super) fn selection(&self, places: &[Place]) -> usize {
        let wanted = self.selected.as_ref();
        let is_it =
            |place: &Place| wanted.is_some_and(|wanted| self.name_of(*place).as_ref() == Some(wanted));
        let of_pod = |place: &Place| {
            let name = self.name_of(*place);
            wanted.zip(name).is_some_and(|(wanted, name)| wanted.0 == name.0)
        };
        places.iter().position(is_it).or_else(|| places.iter().position(of_pod)).unwrap_or(0)
    }

    fn name_of(&self, place: Place) -> Option<(String, Option<String>)> {
        let pod = self.reading.pods.get(place.pod)?;
        let container = place.container.and_then(|at| pod.containers.get(at)).map(|it| it.name.clone());
        Some((pod.key(), container))
    }

    /// Does what a key means; what has to be fetched for it is said.
    pub(super) fn press(&mut self, key: Key, size: Size) -> Option<Request> {
        let page = size.rows.saturating_sub(6).max(1);
        if let Some(over) = &mut self.over {
            match (key, over) {
                (Key::Back | Key::Help | Key::Log | Key::Open, _) => self.over = None,
                (Key::Up, Over::Log { up, .. }) => *up += 1,
                (Key::Down, Over::Log { up, .. }) => *up = up.saturating_sub(1),
                (Key::PageUp, Over::Log { up, .. }) => *up += page,
                (Key::PageDown, Over::Log { up, .. }) => *up = up.saturating_sub(page),
                (Key::First, Over::Log { up, .. }) => *up = usize::MAX / 2,
                (Key::Last, Over::Log { up, .. }) => *up = 0,
                _ => {}
            }
            return None;
        }
        let places = self.places();
        let at = self.selection(&places);
        let last = places.len().saturating_sub(1);
        let mut select = None;
        match key {
            Key::Up => select = Some(at.saturating_sub(1)),
            Key::Down => select = Some((at + 1).min(last)),
            Key::PageUp => select = Some(at.saturating_sub(page)),
            Key::PageDown => select = Some((at + page).min(last)),
            Key::First => select = Some(0),
            Key::Last => select = Some(last),
            Key::Open | Key::Back => {
                let place = places.get(at)?;
                let name = self.reading.pods.get(place.pod)?.key();
                if !self.open.remove(&name) && key == Key::Open {
                    self.open.insert(name.clone());
                }
                self.selected = Some((name, None));
            }
            Key::Log => {
                let place = places.get(at)?;
                let pod = self.reading.pods.get(place.pod)?;
                let container = pod.containers.get(place.container.unwrap_or(0))?;
                let (namespace, name) = (pod.namespace.clone(), pod.name.clone());
                let container = container.name.clone();
                let over = (namespace.clone(), name.clone(), container.clone());
                let (over_namespace, over_pod, over_container) = over;
                self.over = Some(Over::Log {
                    namespace: over_namespace,
                    pod: over_pod,
                    container: over_container,
                    text: Ok(String::new()),
                    up: 0,
                });
                return Some(Request::Log { namespace, pod: name, container });
            }
            Key::Help => self.over = Some(Over::Help),
            Key::Sort(letter) => {
                self.order = match letter {
                    'c' => Order::Stats(StatsOrder::Cpu),
                    'm' => Order::Stats(StatsOrder::Memory),
                    'i' => Order::Stats(StatsOrder::Io),
                    'n' => Order::Stats(StatsOrder::Network),
                    'd' => Order::Stats(StatsOrder::Disk),
                    'r' => Order::Restarts,
                    _ => Order::Stats(StatsOrder::Name),
                };
                self.sort();
            }
            Key::Quit => {}
        }
        if let Some(at) = select {
            self.selected = places.get(at).and_then(|place| self.name_of(*place));
        }
        self.scroll(size);
        None
    }

    /// Keeps what is selected on the screen.
    fn scroll(&mut self, size: Size) {
        let places = self.places();
        let at = self.selection(&places);
        let room = super::draw::list_rows(size);
        if at < self.first {
            self.first = at;
        } else if at >= self.first + room {
            self.first = at + 1 - room;
        }
    }

    /// The container whose log is open.
    pub(super) fn open_log(&self) -> Option<(String, String, String)> {
        match &self.over {
            Some(Over::Log { namespace, pod, container, .. }) => {
                Some((namespace.clone(), pod.clone(), container.clone()))
            }
            _ => None,
        }
    }

    /// What the log has, or why it cannot be read.
    pub(super) fn show_log(&mut self, read: Result<String, String>) {
        if let Some(Over::Log { text, .. }) = &mut self.over {
            *text = read;
        }
    }
}

#[cfg(test)]
mod tests;
