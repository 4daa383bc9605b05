//! Equal shares of as few NUMA nodes as can be, chosen so that what is left is balanced.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::{Level, Packing, Picking, packed};
use crate::{CpuSet, Machine};

/// More choices than these are not looked at: a machine of eight nodes has one less than three to the eighth, of nodes and, among those, of the ones
/// that give more than the rest.
const MOST: usize = 1 << 13;

/// What is free on each node.
type Left = BTreeMap<u32, usize>;

/// A way to do it, and how unbalanced what is left would be, in thousandths.
struct Plan {
    /// Over more than one socket, where that counts.
    crosses: bool,
    score: u64,
    share: usize,
    nodes: Vec<u32>,
    /// Who gives another group, in this order.
    more: Vec<u32>,
}

/// The shares; `None` if there are none that work out. `count` is a multiple of `group`.
/// With `by_socket` nodes of one socket are better than others.
pub(super) fn over_nodes(
    machine: &Machine,
    free: &CpuSet,
    count: usize,
    (group, by_socket): (usize, bool),
) -> Option<CpuSet> {
    if count == 0 {
        return Some(CpuSet::default());
    }
    let picking = Picking { machine, free: free.clone(), taken: CpuSet::default(), needed: count };
    let ordered = picking.ordered(Level::Node);
    let nodes: Vec<u32> = ordered.iter().map(|(node, _)| *node).collect();
    let by_node: BTreeMap<u32, CpuSet> = ordered.into_iter().collect();
    let left: Left = by_node.iter().map(|(node, cpus)| (*node, cpus.len())).collect();
    // Whole groups: what is free of a core whose sibling is not does not count.
    let whole = |node: u32| {
        let cpus = by_node.get(&node)?;
        let cores = picking.split(cpus, Level::Core).into_iter().map(|(_, cpus)| cpus.len() / group);
        Some(if group == 1 { cpus.len() } else { cores.sum::<usize>() * group })
    };
    let groups = count / group;
    let per_node = (machine.all().len() / group).div_ceil(machine.nodes().max(1)).max(1);
    let mut fullest = nodes.clone();
    fullest.sort_by_key(|node| Reverse(left[node]));
    let mut looks = MOST;
    for size in groups.div_ceil(per_node)..=groups.min(nodes.len()) {
        let fullest = fullest.get(..size).unwrap_or_default();
        if fullest.iter().map(|node| left[node]).sum::<usize>() < count {
            continue;
        }
        let weigh = |chosen: Vec<u32>, looks: &mut usize| -> Option<Plan> {
            let mut share = count / size / group * group;
            if by_socket {
                // A node that has less gives what it has: the others of its socket give the rest.
                let least = chosen.iter().map(|node| left[node] / group * group).min();
                share = share.min(least.unwrap_or(share));
            }
            let enough =
                |of: &dyn Fn(u32) -> usize| chosen.iter().map(|node| of(*node)).sum::<usize>() >= count;
            let fits = enough(&|node| left[&node])
                && enough(&|node| whole(node).unwrap_or(0))
                && chosen.iter().all(|node| left[node] >= share);
            let crosses = by_socket && crosses_sockets(machine, &chosen);
            let plan = fits.then(|| plan(&left, chosen, share, (count - share * size, group), looks));
            plan.flatten().map(|plan| Plan { crosses, ..plan })
        };
        let mut best: Option<Plan> = None;
        for chosen in Choices::new(&nodes, size) {
            if looks == 0 || best.as_ref().is_some_and(|best| best.score == 0 && !best.crosses) {
                break;
            }
            looks -= 1;
            if let Some(plan) = weigh(chosen, &mut looks)
                && best.as_ref().is_none_or(|best| (plan.crosses, plan.score) < (best.crosses, best.score))
            {
                best = Some(plan);
            }
        }
        if best.is_none() && looks == 0 {
            // None of those that were looked at can; if any of so many nodes can, those that have the most can.
            best = weigh(fullest.to_vec(), &mut looks);
        }
        if let Some(plan) = best {
            return Some(carry_out(machine, &by_node, &plan, group));
        }
    }
    None
}

/// Who gives what is left over after equal shares: the balance decides, and of equal ones the most givers.
fn plan(
    left: &Left,
    nodes: Vec<u32>,
    share: usize,
    (rest, group): (usize, usize),
    looks: &mut usize,
) -> Option<Plan> {
    let mut after = left.clone();
    for node in &nodes {
        *after.get_mut(node)? -= share;
    }
    if rest == 0 {
        return Some(Plan { crosses: false, score: unbalance(&after), share, nodes, more: Vec::new() });
    }
    let givers: Vec<u32> = nodes.iter().copied().filter(|node| after[node] >= group).collect();
    let mut best: Option<(u64, Vec<u32>)> = None;
    let sizes = (1..=givers.len()).rev();
    // The first of them is all, who can if any can.
    for (at, givers) in sizes.flat_map(|size| Choices::new(&givers, size)).enumerate() {
        if at > 0 && *looks == 0 {
            break;
        }
        *looks = looks.saturating_sub(1);
        let (mut after, mut rest, mut more) = (after.clone(), rest, Vec::new());
        while rest > 0 {
            let before = rest;
            for node in &givers {
                let Some(free) = after.get_mut(node).filter(|free| rest > 0 && **free >= group) else {
                    continue;
                };
                *free -= group;
                rest -= group.min(rest);
                more.push(*node);
            }
            if rest == before {
                break;
            }
        }
        let score = unbalance(&after);
        if rest == 0 && best.as_ref().is_none_or(|(best, _)| score < *best) {
            best = Some((score, more));
        }
    }
    best.map(|(score, more)| Plan { crosses: false, score, share, nodes, more })
}

fn crosses_sockets(machine: &Machine, nodes: &[u32]) -> bool {
    let there = machine.places().filter(|(_, cpu)| nodes.contains(&cpu.node));
    there.map(|(_, cpu)| cpu.socket).collect::<BTreeSet<u32>>().len() > 1
}

fn carry_out(machine: &Machine, by_node: &BTreeMap<u32, CpuSet>, plan: &Plan, group: usize) -> CpuSet {
    let mut taken = CpuSet::default();
    let shares = plan.nodes.iter().map(|node| (node, plan.share));
    for (node, count) in shares.chain(plan.more.iter().map(|node| (node, group))) {
        let free = by_node.get(node).map(|cpus| cpus - &taken).unwrap_or_default();
        taken = &taken | &packed(machine, &free, count, Packing::default());
    }
    taken
}

/// The standard deviation, with mean and result rounded to thousandths.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers of CPUs, and a deviation that is never negative"
)]
fn unbalance(left: &Left) -> u64 {
    let count = left.len().max(1) as f64;
    let rounded = |value: f64| (value * 1000.0).round() / 1000.0;
    let mean = rounded(left.values().sum::<usize>() as f64 / count);
    let variance = left.values().map(|free| (*free as f64 - mean).powi(2)).sum::<f64>() / count;
    (variance.sqrt() * 1000.0).round() as u64
}

/// All choices of so many, in the order of the list, each made when it is asked for: there may be more than fit into memory.
pub(super) struct Choices<'a> {
    of: &'a [u32],
    /// The next one, as places in the list, ascending; nothing after the last.
    next: Option<Vec<usize>>,
}

impl<'a> Choices<'a> {
    pub(super) fn new(of: &'a [u32], size: usize) -> Self {
        Self { of, next: (size <= of.len()).then(|| (0..size).collect()) }
    }
}

impl Iterator for Choices<'_> {
    type Item = Vec<u32>;

    fn next(&mut self) -> Option<Vec<u32>> {
        let mut places = self.next.take()?;
        let chosen = places.iter().filter_map(|place| self.of.get(*place)).copied().collect();
        // The last one that can move does, and those behind it follow it closely.
        let (size, end) = (places.len(), self.of.len());
        if let Some(moves) = (0..size).rev().find(|at| places[*at] < end - (size - at)) {
            let first = places[moves] + 1;
            for (place, value) in places[moves..].iter_mut().zip(first..) {
                *place = value;
            }
            self.next = Some(places);
        }
        Some(chosen)
    }
}
