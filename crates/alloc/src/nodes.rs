//! Sets of NUMA nodes.

use std::fmt;

/// NUMA nodes by number; the kernel's numbers are below 64 on every machine that upstream runs on.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeMask(u64);

/// More sets than this are not looked at: a machine of 16 nodes has as many.
const MOST: usize = 1 << 16;

impl NodeMask {
    /// Whether the node can be in a set at all.
    #[must_use]
    pub const fn can_hold(node: u32) -> bool {
        node < u64::BITS
    }

    /// How many.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether it is in there.
    #[must_use]
    pub const fn contains(self, node: u32) -> bool {
        Self::can_hold(node) && self.0 & (1 << node) != 0
    }

    /// Those in both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether all of them are in the other.
    #[must_use]
    pub const fn is_within(self, other: Self) -> bool {
        self.0 & other.0 == self.0
    }

    /// Ascending.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..u64::BITS).filter(move |node| self.contains(*node))
    }

    /// All sets of these nodes but the empty one, small ones first; those of one size in the order of their numbers. On a machine of very
    /// many nodes only the smaller ones, and the whole.
    #[must_use]
    pub fn all_within(self) -> Vec<Self> {
        let nodes: Vec<u32> = self.iter().collect();
        let mut all = Vec::new();
        for size in 1..=nodes.len() {
            let before = all.len();
            choose(&nodes, size, Self::default(), &mut all);
            if all.len() >= MOST {
                all.truncate(before.max(nodes.len()));
                all.push(self);
                break;
            }
        }
        all
    }
}

/// Adds all sets with so many more of the nodes, until there are too many.
fn choose(nodes: &[u32], more: usize, so_far: NodeMask, all: &mut Vec<NodeMask>) {
    if more == 0 {
        all.push(so_far);
        return;
    }
    for (at, node) in nodes.iter().enumerate() {
        if all.len() >= MOST || nodes.len() - at < more {
            return;
        }
        choose(nodes.get(at + 1..).unwrap_or_default(), more - 1, NodeMask(so_far.0 | 1 << node), all);
    }
}

impl FromIterator<u32> for NodeMask {
    /// Numbers that cannot be held are left out.
    fn from_iter<I: IntoIterator<Item = u32>>(nodes: I) -> Self {
        Self(nodes.into_iter().filter(|node| Self::can_hold(*node)).fold(0, |mask, node| mask | 1 << node))
    }
}

impl fmt::Debug for NodeMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(nodes: &[u32]) -> NodeMask {
        nodes.iter().copied().collect()
    }

    #[test]
    fn all_sets_small_ones_first() {
        let all: Vec<Vec<u32>> =
            mask(&[0, 2, 5]).all_within().into_iter().map(|set| set.iter().collect()).collect();
        assert_eq!(all, [vec![0], vec![2], vec![5], vec![0, 2], vec![0, 5], vec![2, 5], vec![0, 2, 5]]);
        assert_eq!(mask(&[]).all_within(), []);
        assert_eq!((0..16).collect::<NodeMask>().all_within().len(), (1 << 16) - 1);
        let many: NodeMask = (0..64).collect();
        let all = many.all_within();
        assert!(all.len() <= MOST && all.contains(&mask(&[7, 63])), "{}", all.len());
        assert_eq!(all.last(), Some(&many));
    }

    #[test]
    fn sets() {
        assert_eq!(mask(&[1, 70]), mask(&[1]), "no such node");
        assert!(mask(&[1]).is_within(mask(&[0, 1])) && !mask(&[1, 2]).is_within(mask(&[0, 1])));
        assert_eq!(mask(&[1, 2]).and(mask(&[2, 3])), mask(&[2]));
    }
}
