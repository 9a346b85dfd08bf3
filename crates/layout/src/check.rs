//! The independent checker. Input: a graph and an order. Output: whether the order may be placed:
//! it has every block once, and glued blocks directly behind the block in front of them.
//!
//! The checker shares no code with the algorithms, and never changes an order.

use crate::graph::{BlockId, Graph, Order};

/// Why an order may not be placed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum OrderError {
    #[error("the order has {found} entries for {blocks} blocks")]
    Length { found: usize, blocks: usize },
    #[error("position {position} holds block {block:?}, but there are {blocks} blocks")]
    NoSuchBlock { position: usize, block: BlockId, blocks: usize },
    #[error("block {block:?} stands at positions {first} and {second}")]
    Twice { block: BlockId, first: usize, second: usize },
    #[error(
        "block {block:?} is glued to the one before it, but stands at position {position} behind \
         {before:?}"
    )]
    Unglued { block: BlockId, position: usize, before: Option<BlockId> },
}

/// Checks that `order` is a permutation of the blocks of `graph` in which every glued block follows
/// its predecessor.
///
/// # Errors
/// It is not. The error names the first broken rule.
pub fn check(graph: &Graph, order: &Order) -> Result<(), OrderError> {
    let blocks = graph.sizes.len();
    if order.0.len() != blocks {
        return Err(OrderError::Length { found: order.0.len(), blocks });
    }
    let mut seen: Vec<Option<usize>> = vec![None; blocks];
    for (position, &block) in order.0.iter().enumerate() {
        match seen.get_mut(block.0 as usize) {
            None => {
                return Err(OrderError::NoSuchBlock { position, block, blocks });
            }
            Some(Some(first)) => {
                return Err(OrderError::Twice { block, first: *first, second: position });
            }
            Some(place) => *place = Some(position),
        }
        let before = position.checked_sub(1).map(|p| order.0[p]);
        let glued = graph.glued.get(block.0 as usize).copied().unwrap_or(false);
        if glued && before.map(|b| b.0.wrapping_add(1)) != Some(block.0) {
            return Err(OrderError::Unglued { block, position, before });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three_blocks_the_last_glued() -> Graph {
        Graph { sizes: vec![1; 3], glued: vec![false, false, true], ..Graph::default() }
    }

    fn verdict(order: &[u32]) -> Result<(), OrderError> {
        check(&three_blocks_the_last_glued(), &Order(order.iter().map(|&b| BlockId(b)).collect()))
    }

    #[test]
    fn permutations_that_keep_the_glue_pass() {
        assert_eq!(verdict(&[0, 1, 2]), Ok(()));
        assert_eq!(verdict(&[1, 2, 0]), Ok(()));
    }

    #[test]
    fn every_other_order_is_refused_with_the_reason() {
        assert_eq!(verdict(&[0, 1]), Err(OrderError::Length { found: 2, blocks: 3 }));
        assert_eq!(
            verdict(&[0, 1, 3]),
            Err(OrderError::NoSuchBlock { position: 2, block: BlockId(3), blocks: 3 })
        );
        assert_eq!(
            verdict(&[0, 1, 1]),
            Err(OrderError::Twice { block: BlockId(1), first: 1, second: 2 })
        );
        assert_eq!(
            verdict(&[1, 0, 2]),
            Err(OrderError::Unglued { block: BlockId(2), position: 2, before: Some(BlockId(0)) })
        );
        assert_eq!(
            verdict(&[2, 0, 1]),
            Err(OrderError::Unglued { block: BlockId(2), position: 0, before: None })
        );
    }
}
