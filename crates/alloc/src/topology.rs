//! The topology manager: from what would suit each resource to one set of NUMA nodes for all.
//!
//! Who gives something out says with which sets of nodes it could, and which of them are as small as can be ([`Hints`]). [`Topology::merge`]
//! puts one of each together; the rules for which combination is the best are upstream's (`pkg/kubelet/cm/topologymanager` of 1.37). They are
//! a total order, so that combinations which come to the same are looked at once: upstream walks through all of them.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BTreeMap, BTreeSet},
};

use crate::NodeMask;

/// `topologyManagerPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopologyPolicy {
    /// Nobody is asked.
    #[default]
    None,
    /// The best that can be had.
    BestEffort,
    /// What suits everybody, or nothing.
    Restricted,
    /// One node for all, or nothing.
    SingleNumaNode,
}

impl TopologyPolicy {
    /// By the configuration's word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Some(match word {
            "none" => Self::None,
            "best-effort" => Self::BestEffort,
            "restricted" => Self::Restricted,
            "single-numa-node" => Self::SingleNumaNode,
            _ => return None,
        })
    }

    const fn is_strict(self) -> bool {
        matches!(self, Self::Restricted | Self::SingleNumaNode)
    }
}

/// Nodes from which something could be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// `None`: any.
    pub nodes: Option<NodeMask>,
    /// It cannot be had from fewer.
    pub preferred: bool,
}

impl Hint {
    /// Whatever the others want.
    pub const ANY: Self = Self { nodes: None, preferred: true };
    /// Nobody was asked.
    pub const UNASKED: Self = Self { nodes: None, preferred: false };
}

/// What would suit one resource: `None` whatever the others want, an empty list nothing.
pub type Hints = Option<Vec<Hint>>;

/// What a machine's nodes are, and by which rules they are chosen.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    /// `topologyManagerPolicy`.
    pub policy: TopologyPolicy,
    /// All nodes.
    pub nodes: NodeMask,
    /// `prefer-closest-numa-nodes`: the distances from each node to each.
    pub distances: Option<BTreeMap<(u32, u32), u32>>,
}

/// One of each list so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Combined {
    nodes: NodeMask,
    /// The set that all named, as long as they named the same one.
    named: Named,
    preferred: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Named {
    Nothing,
    One(NodeMask),
    Different,
}

impl Topology {
    /// The nodes to take everything from, and whether the pod may come in.
    #[must_use]
    pub fn merge(&self, lists: &[Hints]) -> (Hint, bool) {
        if self.policy == TopologyPolicy::None {
            return (Hint::UNASKED, true);
        }
        let single = self.policy == TopologyPolicy::SingleNumaNode;
        let lists: Vec<Vec<Hint>> = lists
            .iter()
            .map(|list| match list.as_deref() {
                None => vec![Hint::ANY],
                Some([]) => vec![Hint { nodes: None, preferred: false }],
                Some(hints) => hints.to_vec(),
            })
            .map(|mut hints| {
                if single {
                    hints.retain(|hint| hint.preferred && hint.nodes.is_none_or(|nodes| nodes.len() == 1));
                }
                hints
            })
            .collect();
        let best = self.best(&lists).unwrap_or(Hint { nodes: Some(self.nodes), preferred: false });
        let nodes = best.nodes.filter(|nodes| !(single && *nodes == self.nodes));
        (Hint { nodes, ..best }, !self.policy.is_strict() || best.preferred)
    }

    fn best(&self, lists: &[Vec<Hint>]) -> Option<Hint> {
        let start = Combined { nodes: self.nodes, named: Named::Nothing, preferred: true };
        let mut combined = BTreeSet::from([start]);
        for list in lists {
            combined = combined
                .iter()
                .flat_map(|so_far| list.iter().map(|hint| so_far.with(*hint)))
                .filter(|so_far| !so_far.nodes.is_empty())
                .collect();
        }
        // Nobody can do with fewer than this.
        let least = |list: &Vec<Hint>| list.iter().map(|hint| hint.nodes.map_or(0, NodeMask::len)).min();
        let least = lists.iter().filter_map(least).max().unwrap_or(0);
        let hints = combined.into_iter().map(|it| Hint {
            nodes: Some(it.nodes),
            preferred: it.preferred && it.named != Named::Different,
        });
        hints.min_by(|one, other| self.order(*one, *other, least))
    }

    /// Which is the better one: what is preferred, and the narrower of those; else one of just the least size that all need, then the larger
    /// of smaller ones, then the narrower of larger ones.
    fn order(&self, one: Hint, other: Hint, least: usize) -> Ordering {
        let rank = |hint: Hint| {
            let nodes = hint.nodes.unwrap_or(self.nodes);
            let size = nodes.len();
            let (class, by_size) = match (hint.preferred, size.cmp(&least)) {
                (true, _) => (0, size),
                (false, Ordering::Equal) => (1, size),
                (false, Ordering::Less) => (2, usize::MAX - size),
                (false, Ordering::Greater) => (3, size),
            };
            (class, by_size, self.distance(nodes), nodes)
        };
        rank(one).cmp(&rank(other))
    }

    /// The mean distance of nodes, each to itself among it, in millionths; 0 where it does not count.
    fn distance(&self, nodes: NodeMask) -> u64 {
        // Of single nodes the first one is as good as any.
        let Some(distances) =
            self.distances.as_ref().filter(|_| self.policy != TopologyPolicy::SingleNumaNode)
        else {
            return 0;
        };
        let pairs = nodes.iter().flat_map(|from| nodes.iter().map(move |to| (from, to)));
        let (sum, count) = pairs.fold((0_u64, 0_u64), |(sum, count), pair| {
            (sum + u64::from(distances.get(&pair).copied().unwrap_or(0)), count + 1)
        });
        (sum * 1_000_000).checked_div(count).unwrap_or(0)
    }
}

impl Combined {
    fn with(self, hint: Hint) -> Self {
        let Some(nodes) = hint.nodes else {
            return Self { preferred: self.preferred && hint.preferred, ..self };
        };
        let named = match self.named {
            Named::Nothing => Named::One(nodes),
            Named::One(same) if same == nodes => self.named,
            _ => Named::Different,
        };
        Self { nodes: self.nodes.and(nodes), named, preferred: self.preferred && hint.preferred }
    }
}

/// Marks the smallest ones as preferred.
pub(crate) fn prefer(masks: Vec<NodeMask>, is_best: impl Fn(NodeMask) -> bool) -> Vec<Hint> {
    masks.into_iter().map(|nodes| Hint { nodes: Some(nodes), preferred: is_best(nodes) }).collect()
}

/// Orders sets so that the one which serves best comes first, as [`Reverse`] orders numbers.
#[must_use]
pub(crate) fn best_of(hints: &[Hint]) -> Option<Hint> {
    hints
        .iter()
        .copied()
        .min_by_key(|hint| (Reverse(hint.preferred), hint.nodes.map(|nodes| (nodes.len(), nodes))))
}

#[cfg(test)]
mod tests;
