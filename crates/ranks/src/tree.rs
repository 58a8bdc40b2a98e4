//! Sums whose order does not depend on who adds what.
//!
//! The leaves 0, 1, 2, ... are added in pairs, the sums of pairs in pairs, and so on; what has no partner passes
//! through. Such a tree has one shape for a number of leaves, and whoever holds some of them in a row can add up its
//! whole subtrees. However leaves are dealt out in runs, the last sum has the same bits:
//!
//! ```text
//!         ((0 + 1) + (2 + 3)) + (4 + 5)
//! rank 0:  (0 + 1)   2                          rank 1:  3   (4 + 5)
//! ```

use std::ops::Range;

/// The sum of the leaves from `start` on, whose number is a power of two that divides `start`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node<T> {
    /// The first leaf.
    pub start: usize,
    /// How many there are.
    pub leaves: usize,
    /// Their sum.
    pub value: T,
}

/// A sum in the making: subtrees that have no partner yet.
#[derive(Debug)]
pub struct TreeSum<T> {
    nodes: Vec<Node<T>>,
}

impl<T> Default for TreeSum<T> {
    fn default() -> Self {
        Self { nodes: Vec::new() }
    }
}

impl<T> TreeSum<T> {
    /// Takes the next node, which begins where the one before ended, and adds what can be added: `add(left, right)`
    /// is their sum.
    ///
    /// # Panics
    ///
    /// If the node is no subtree, or does not follow.
    pub fn push(&mut self, node: Node<T>, mut add: impl FnMut(T, T) -> T) {
        let Node { start, leaves, .. } = node;
        assert!(
            leaves.is_power_of_two() && start.is_multiple_of(leaves),
            "{start}, {leaves}: no subtree"
        );
        if let Some(last) = self.nodes.last() {
            assert_eq!(last.start + last.leaves, start, "leaves come in their order");
        }
        self.nodes.push(node);
        while let [.., left, right] = &self.nodes[..]
            && left.leaves == right.leaves
            && left.start.is_multiple_of(2 * left.leaves)
        {
            let right = self.nodes.pop().expect("there are two");
            let left = self.nodes.pop().expect("there are two");
            let value = add(left.value, right.value);
            self.nodes.push(Node { start: left.start, leaves: 2 * left.leaves, value });
        }
    }

    /// The subtrees, in order.
    #[must_use]
    pub fn into_nodes(self) -> Vec<Node<T>> {
        self.nodes
    }

    /// The sum of all leaves; none without a leaf.
    pub fn finish(self, mut add: impl FnMut(T, T) -> T) -> Option<T> {
        let values = self.nodes.into_iter().map(|node| node.value);
        values.rev().reduce(|right, left| add(left, right))
    }
}

/// First leaf and number of leaves of each node that [`TreeSum::into_nodes`] has after the leaves of `part`.
#[must_use]
pub fn nodes_of(part: Range<usize>) -> Vec<[usize; 2]> {
    let mut sum = TreeSum::default();
    for start in part {
        sum.push(Node { start, leaves: 1, value: () }, |(), ()| ());
    }
    sum.into_nodes().into_iter().map(|node| [node.start, node.leaves]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::part_of;

    fn text_of(leaves: usize, world_size: usize) -> String {
        let add = |left: String, right: String| format!("({left}+{right})");
        let mut all = TreeSum::default();
        for rank in 0..world_size {
            let mut own = TreeSum::default();
            let part = part_of(leaves, rank, world_size);
            for leaf in part.clone() {
                own.push(Node { start: leaf, leaves: 1, value: leaf.to_string() }, add);
            }
            let nodes = own.into_nodes();
            let shape: Vec<[usize; 2]> =
                nodes.iter().map(|node| [node.start, node.leaves]).collect();
            assert_eq!(shape, nodes_of(part));
            for node in nodes {
                all.push(node, add);
            }
        }
        all.finish(add).unwrap_or_default()
    }

    #[test]
    fn the_tree_is_the_one_of_the_head() {
        assert_eq!(text_of(6, 1), "(((0+1)+(2+3))+(4+5))");
        assert_eq!(text_of(7, 1), "(((0+1)+(2+3))+((4+5)+6))");
        assert_eq!(text_of(1, 1), "0");
        assert_eq!(text_of(0, 1), "");
    }

    #[test]
    fn the_tree_does_not_depend_on_who_adds() {
        for leaves in 0..40 {
            for world_size in 1..10 {
                assert_eq!(
                    text_of(leaves, world_size),
                    text_of(leaves, 1),
                    "{leaves} {world_size}"
                );
            }
        }
    }
}
