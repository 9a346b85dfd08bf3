//! The call graph: whole functions and the calls between them. Algorithms that order functions use
//! it.
//!
//! Input: the hot part of a graph. Output: sizes, weights and arcs of its functions. This module
//! orders nothing and knows no blocks.

use crate::graph::FunctionId;
use crate::hot::HotCode;
use std::collections::BTreeMap;

/// How often one function entered another from one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallArc {
    /// The index of the caller in the arrays of the [`CallGraph`].
    pub from: u32,
    /// The index of the callee.
    pub to: u32,
    /// The number of calls.
    pub count: u64,
    /// The bytes from the start of the caller to the place of the call.
    pub offset: u64,
}

/// Functions and calls, as arrays. Every arc names existing functions. A function may call itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallGraph {
    /// The size of each function in bytes.
    pub sizes: Vec<u64>,
    /// How often each function was entered.
    pub counts: Vec<u64>,
    /// The calls.
    pub arcs: Vec<CallArc>,
}

impl CallGraph {
    /// The number of functions.
    pub fn len(&self) -> usize {
        self.sizes.len()
    }

    /// Whether there are no functions.
    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }

    /// The functions that ran, in ascending order, and their calls. Only the bytes that ran count,
    /// in their original order.
    pub(crate) fn of(hot: &HotCode) -> (CallGraph, Vec<FunctionId>) {
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
