//! Functions as wholes, with the calls between them: what the algorithms that order functions take.
//!
//! Takes the part of a graph that ran; gives sizes, weights and arcs of its functions. Orders
//! nothing, and knows no blocks.

use crate::graph::FunctionId;
use crate::hot::Hot;
use std::collections::BTreeMap;

/// How often one function entered another from one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallArc {
    /// Index of the caller in the arrays of the [`CallGraph`].
    pub from: u32,
    pub to: u32,
    pub count: u64,
    /// Bytes from the start of the caller to where the call leaves it.
    pub offset: u64,
}

/// Functions and calls, as arrays. An arc names functions that exist; a function may call itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallGraph {
    /// Bytes of each function.
    pub sizes: Vec<u64>,
    /// How often each function was entered.
    pub counts: Vec<u64>,
    pub arcs: Vec<CallArc>,
}

impl CallGraph {
    pub fn len(&self) -> usize {
        self.sizes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }

    /// The functions that ran, the lowest first, and their calls; only bytes that ran count, in
    /// their original order.
    pub(crate) fn of(hot: &Hot) -> (CallGraph, Vec<FunctionId>) {
        let functions: Vec<FunctionId> = (0..hot.functions.len())
            .filter(|&f| !hot.functions[f].is_empty())
            .map(|f| FunctionId(f as u32))
            .collect();
        let number = |function: FunctionId| functions.partition_point(|&f| f < function) as u32;
        let mut offsets = vec![0u64; hot.sizes.len()];
        for function in &functions {
            let mut offset = 0;
            for piece in &hot.functions[function.index()] {
                offsets[piece.index()] = offset;
                offset += hot.sizes[piece.index()];
            }
        }
        let mut sums: BTreeMap<(u32, u32, u64), u128> = BTreeMap::new();
        for transfer in hot.transfers() {
            let (caller, callee) = (hot.function_of(transfer.from), hot.function_of(transfer.to));
            if caller != callee {
                let offset = offsets[transfer.from.index()] + transfer.from_end;
                *sums.entry((number(caller), number(callee), offset)).or_insert(0) +=
                    u128::from(transfer.count);
            }
        }
        let arc = |((from, to, offset), count): ((u32, u32, u64), u128)| CallArc {
            from,
            to,
            count: u64::try_from(count).unwrap_or(u64::MAX),
            offset,
        };
        let graph = CallGraph {
            sizes: functions.iter().map(|&f| hot.bytes(&[f])).collect(),
            counts: functions.iter().map(|&f| hot.entries(f)).collect(),
            arcs: sums.into_iter().map(arc).collect(),
        };
        (graph, functions)
    }
}
