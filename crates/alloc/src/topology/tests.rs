use super::*;

fn mask(nodes: &[u32]) -> NodeMask {
    nodes.iter().copied().collect()
}

/// `+` is preferred; `*` any node.
fn hints(text: &str) -> Hints {
    let one = |text: &str| {
        let nodes = text.trim_start_matches(['+', '-']);
        let nodes = (nodes != "*").then(|| nodes.chars().filter_map(|digit| digit.to_digit(10)).collect());
        Hint { nodes, preferred: text.starts_with('+') }
    };
    Some(text.split_whitespace().map(one).collect())
}

fn merged(policy: TopologyPolicy, nodes: u32, lists: &[Hints]) -> (String, bool) {
    let topology = Topology { policy, nodes: (0..nodes).collect(), distances: None };
    let (hint, admitted) = topology.merge(lists);
    let sign = if hint.preferred { "+" } else { "-" };
    let nodes =
        hint.nodes.map_or("*".to_owned(), |nodes| nodes.iter().map(|node| node.to_string()).collect());
    (format!("{sign}{nodes}"), admitted)
}

use TopologyPolicy::{BestEffort, Restricted, SingleNumaNode};

/// A row: its name, the policy, the number of nodes, the lists, what comes out, and whether the pod comes in.
type Row<'a> = (&'a str, TopologyPolicy, u32, &'a [Hints], &'a str, bool);

/// Named rows: the behaviours T1 to T5 and their like.
#[test]
fn one_of_each_list() {
    let rows: &[Row<'_>] = &[
        ("T1 restricted without a preferred one", Restricted, 2, &[hints("-01")], "-01", false),
        ("T1 the same, best effort", BestEffort, 2, &[hints("-01")], "-01", true),
        ("T2 nobody has a wish", BestEffort, 2, &[], "+01", true),
        ("T2 the same, restricted", Restricted, 2, &[None, None], "+01", true),
        ("T2 the same, one node", SingleNumaNode, 2, &[None], "+*", true),
        ("T3 two wishes that differ", Restricted, 2, &[hints("+0 -01"), hints("+1 -01")], "-0", false),
        ("T3 two wishes that agree", Restricted, 2, &[hints("+0 +1 -01"), hints("+1 -01")], "+1", true),
        ("T4 of the size that all need", BestEffort, 4, &[hints("-0123 -01"), hints("-03")], "-03", true),
        ("T4 another", BestEffort, 4, &[hints("-0123 -01"), hints("-23")], "-23", true),
        ("T4 the narrower of two", BestEffort, 4, &[hints("-0123 -01"), hints("-12 -23")], "-12", true),
        ("T5 nothing would do", Restricted, 2, &[hints(""), hints("+0")], "-0", false),
        ("T5 the same, one node", SingleNumaNode, 2, &[hints(""), hints("+0")], "-*", false),
        ("one node that all want", SingleNumaNode, 2, &[hints("+0 +1 -01"), hints("+1")], "+1", true),
        ("one node is not enough", SingleNumaNode, 2, &[hints("+01")], "-*", false),
        ("the narrower of preferred ones", BestEffort, 4, &[hints("+23 +1")], "+1", true),
        ("and the first of the same size", BestEffort, 4, &[hints("+3 +2")], "+2", true),
        ("what is preferred before what is small", BestEffort, 4, &[hints("-0 +12")], "+12", true),
        ("sets that have nothing in common", BestEffort, 4, &[hints("-0"), hints("-1")], "-0123", true),
    ];
    for (name, policy, nodes, lists, expected, admitted) in rows {
        assert_eq!(merged(*policy, *nodes, lists), ((*expected).to_owned(), *admitted), "{name}");
    }
}

#[test]
fn close_nodes_before_far_ones() {
    let near =
        [((0, 0), 10), ((1, 1), 10), ((2, 2), 10), ((0, 1), 40), ((1, 0), 40), ((0, 2), 20), ((2, 0), 20)];
    let mut topology = Topology { policy: BestEffort, nodes: mask(&[0, 1, 2]), distances: None };
    let lists = [hints("+01 +02")];
    assert_eq!(topology.merge(&lists).0.nodes, Some(mask(&[0, 1])));
    topology.distances = Some(near.into());
    assert_eq!(topology.merge(&lists).0.nodes, Some(mask(&[0, 2])));
    topology.policy = SingleNumaNode;
    assert_eq!(topology.merge(&[hints("+0 +2")]).0.nodes, Some(mask(&[0])));
}

/// Eight nodes, and three resources that could come from any set of them: upstream walks through 16 million combinations.
#[test]
fn many_nodes_take_no_time() {
    let all: NodeMask = (0..8).collect();
    let list = Some(prefer(all.all_within(), |nodes| nodes.len() == 2));
    let topology = Topology { policy: Restricted, nodes: all, distances: None };
    let (hint, admitted) = topology.merge(&[list.clone(), list.clone(), list]);
    assert_eq!((hint.nodes, admitted), (Some(mask(&[0, 1])), true));
}
