//! Equal shares of as few NUMA nodes as can be, chosen so that what is left is balanced.

use std::collections::{BTreeMap, BTreeSet};

use super::{Level, Packing, Picking, packed};
use crate::{CpuSet, Machine};

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
    for size in groups.div_ceil(per_node)..=groups.min(nodes.len()) {
        let mut best: Option<Plan> = None;
        for chosen in combinations(&nodes, size) {
            if best.as_ref().is_some_and(|best| best.score == 0 && !best.crosses) {
                break;
            }
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
            let plan = fits.then(|| plan(&left, chosen, share, count - share * size, group)).flatten();
            let plan = plan.map(|plan| Plan { crosses, ..plan });
            if let Some(plan) = plan
                && best.as_ref().is_none_or(|best| (plan.crosses, plan.score) < (best.crosses, best.score))
            {
                best = Some(plan);
            }
        }
        if let Some(plan) = best {
            return Some(carry_out(machine, &by_node, &plan, group));
        }
    }
    None
}

/// Who gives what is left over after equal shares: the balance decides, and of equal ones the most givers.
fn plan(left: &Left, nodes: Vec<u32>, share: usize, rest: usize, group: usize) -> Option<Plan> {
    let mut after = left.clone();
    for node in &nodes {
        *after.get_mut(node)? -= share;
    }
    if rest == 0 {
        return Some(Plan { crosses: false, score: unbalance(&after), share, nodes, more: Vec::new() });
    }
    let givers: Vec<u32> = nodes.iter().copied().filter(|node| after[node] >= group).collect();
    let mut best: Option<(u64, Vec<u32>)> = None;
    for size in (1..=givers.len()).rev() {
        for givers in combinations(&givers, size) {
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

/// All choices of so many, in the order of the list.
fn combinations(of: &[u32], size: usize) -> Vec<Vec<u32>> {
    if size == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (at, first) in of.iter().enumerate() {
        for mut rest in combinations(of.get(at + 1..).unwrap_or_default(), size - 1) {
            rest.insert(0, *first);
            all.push(rest);
        }
    }
    all
}
