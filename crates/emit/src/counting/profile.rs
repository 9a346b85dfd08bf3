//! From counts to a profile.
//!
//! Input: an object, its kernel's image, and the counts of the pieces that have counters. Output: a
//! profile with the counts of all blocks, edges and calls, by link addresses of the kernel without
//! counters.

use crate::counting::callees::{self, ThroughRegister};
use crate::counting::plan::ObjectFlow;
use crate::counting::{Counters, NoCounts};
use anyhow::{Result, ensure};
use iced_x86::{Decoder, DecoderOptions};
use image::address::LinkAddr;
use image::object::KernelObject;
use image::object::pieces::Piece;
use image::{BlockEnd, BlockIndex, BuildId, Image};
use layout::graph::EdgeKind;
use profile::edges::{CountedBlock, derive};
use profile::{Profile, ProfileSource};
use serde::Serialize;

/// How well the counts determine the profile.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CountQuality {
    /// Counters of the kernel.
    pub counters: usize,
    /// Blocks, as the emitter cuts them.
    pub blocks: usize,
    /// Blocks whose counts follow from no counter. They are set to 0.
    pub unknown_blocks: usize,
    /// Blocks whose counts came out negative: control went a way that the code does not show. They
    /// are set to 0.
    pub negative_blocks: usize,
    /// Edges between blocks.
    pub edges: usize,
    /// Edges whose count is known only as an upper bound, from the blocks at both ends. The profile
    /// holds the bound.
    pub bounded_edges: usize,
    /// The share, 0 to 1, of bounded edges in the counts of all edges.
    pub bounded_share: f64,
    /// How often calls ran whose callee the image does not name.
    pub through_registers: u64,
    /// The part of these calls whose callee the object's code names.
    pub through_registers_known: u64,
}

/// The kernel whose counts are read.
pub struct CountedKernel<'a, 'd> {
    /// The object without counters.
    pub object: &'a KernelObject<'d>,
    /// The link address of the object's `.text` in the kernel without counters.
    pub base: LinkAddr,
    /// The linked kernel without counters.
    pub image: &'a Image,
}

/// The profile that follows from `counts`, which has one element per counter.
///
/// # Errors
/// The counters belong to another kernel, or there is another number of counts.
pub fn profile(
    subject: &CountedKernel<'_, '_>,
    counters: &Counters,
    counts: &[u64],
    workload: &str,
) -> Result<(Profile, CountQuality)> {
    let flow = ObjectFlow::of(subject.object);
    let mut known = by_piece(subject, counters, counts)?;
    let negative_blocks = flow.flow.fill(&mut known);
    let mut blocks: Vec<CountedBlock> =
        (known.iter().zip(flow.flow.open_in.iter().zip(&flow.flow.open_out)))
            .map(|(&count, (open_in, open_out))| CountedBlock {
                count,
                closed_in: !open_in,
                closed_out: !open_out,
            })
            .collect();
    let edges = derive(&mut blocks, &flow.flow.edges);
    let counts: Vec<u64> = blocks.iter().map(|b| b.count.unwrap_or(0)).collect();
    let mut builder = ProfileBuilder {
        subject,
        counts: &counts,
        profile: Profile::empty(subject.image.build_id.clone()),
    };
    let through = callees::through_registers(subject.object, &flow);
    builder.add_blocks();
    for (&(from, to, kind), edge) in
        flow.edges.iter().zip(&edges).filter(|(_, edge)| edge.count > 0)
    {
        builder.add_edge(from, to, kind, edge.count);
    }
    builder.add_through(&through);
    let all: u64 = edges.iter().map(|e| e.count).sum();
    let bounded = edges.iter().filter(|e| !e.exact);
    let (through_registers, through_registers_known) = builder.through_registers(&through);
    let quality = CountQuality {
        counters: counters.blocks.len(),
        blocks: blocks.len(),
        unknown_blocks: blocks.iter().filter(|b| b.count.is_none()).count(),
        negative_blocks,
        edges: edges.len(),
        bounded_edges: bounded.clone().filter(|e| e.count > 0).count(),
        bounded_share: bounded.map(|e| e.count).sum::<u64>() as f64 / all.max(1) as f64,
        through_registers,
        through_registers_known,
    };
    let mut profile = builder.profile;
    profile.sources.push(ProfileSource {
        workload: workload.to_owned(),
        seed: 0,
        kernel_instructions: instructions(subject.object, &counts),
        user_instructions: 0,
        part: None,
        recorded_on: None,
    });
    profile.describe(subject.image);
    Ok((profile, quality))
}

/// Checks that the counters are those of this kernel, and that each has a count.
fn check_counts(kernel: &BuildId, counters: &Counters, counts: &[u64]) -> Result<()> {
    let (mine, theirs) = (kernel, &counters.build_id);
    ensure!(mine == theirs, NoCounts::Rebuilt { counted: theirs.clone(), tree: mine.clone() });
    ensure!(
        counters.blocks.len() == counts.len(),
        "{} counts were read for {} counters: read the counts of the kernel that was relinked with \
         these counters",
        counts.len(),
        counters.blocks.len()
    );
    Ok(())
}

/// The count of each piece that has a counter.
fn by_piece(
    subject: &CountedKernel<'_, '_>,
    counters: &Counters,
    counts: &[u64],
) -> Result<Vec<Option<u64>>> {
    check_counts(&subject.image.build_id, counters, counts)?;
    let pieces = &subject.object.pieces;
    let mut known = vec![None; pieces.len()];
    for (&block, &count) in counters.blocks.iter().zip(counts) {
        let at = u32::try_from(block.0.wrapping_sub(subject.base.0)).ok();
        let piece = at.and_then(|at| pieces.binary_search_by_key(&at, |p| p.at).ok());
        let piece = piece.ok_or_else(|| {
            anyhow::anyhow!("no block begins at {block}, which a counter is said to count")
        })?;
        known[piece] = Some(count);
    }
    Ok(known)
}

struct ProfileBuilder<'a, 'd> {
    subject: &'a CountedKernel<'a, 'd>,
    /// By piece.
    counts: &'a [u64],
    profile: Profile,
}

impl ProfileBuilder<'_, '_> {
    fn address(&self, at: u32) -> LinkAddr {
        LinkAddr(self.subject.base.0 + u64::from(at))
    }

    /// The image's block that holds an offset.
    fn block_at(&self, at: u32) -> Option<BlockIndex> {
        self.subject.image.block_at(self.address(at))
    }

    /// Adds the counts of the image's blocks, and of the calls and fall-throughs at their ends. The
    /// image also cuts blocks behind calls, so a piece holds one or more of its blocks. Each of
    /// them runs as often as the piece in which it begins.
    fn add_blocks(&mut self) {
        let image = self.subject.image;
        for (piece, &count) in
            self.subject.object.pieces.iter().zip(self.counts).filter(|&(_, &count)| count > 0)
        {
            let (from, to) = (self.address(piece.at), self.address(piece.end()));
            let first = image.blocks.partition_point(|b| b.addr < from);
            let behind = image.blocks.partition_point(|b| b.addr < to);
            for (n, block) in (first..).zip(&image.blocks[first..behind]) {
                self.profile.blocks.insert(block.addr, count);
                // Behind a function's last call there may be only no-ops, which form no block.
                let runs_on = image.blocks[..behind]
                    .get(n + 1)
                    .is_some_and(|next| next.addr == block.end_addr());
                if runs_on && matches!(block.end, BlockEnd::FallThrough | BlockEnd::Call(_)) {
                    let edge = (block.addr, block.end_addr());
                    self.profile.edges.insert(edge, (EdgeKind::FallThrough, count));
                }
                if let BlockEnd::Call(Some(callee)) = block.end
                    && starts_function(image, callee)
                {
                    *self.profile.calls.entry((block.addr, callee)).or_default() += count;
                }
            }
        }
    }

    /// Adds an edge between pieces: from the block that holds the last byte of one piece to the
    /// block at the start of the other. Where that piece begins inside a block, no edge is added:
    /// it is the target of a jump table that the image does not know.
    fn add_edge(&mut self, from: u32, to: u32, kind: EdgeKind, count: u64) {
        let pieces = &self.subject.object.pieces;
        let (Some(from), Some(block)) =
            (self.block_at(pieces[from as usize].end() - 1), self.block_at(pieces[to as usize].at))
        else {
            return;
        };
        let (from, to) =
            (self.subject.image.block(from).addr, self.address(pieces[to as usize].at));
        if self.subject.image.block(block).addr == to {
            self.profile.edges.entry((from, to)).or_insert((kind, 0)).1 += count;
        }
    }

    fn count_at(&self, at: u32) -> u64 {
        let piece = self.subject.object.pieces.partition_point(|p| p.at <= at).checked_sub(1);
        piece.map_or(0, |piece| self.counts[piece])
    }

    /// Adds the calls and jumps through registers to functions that the code names.
    fn add_through(&mut self, through: &[ThroughRegister]) {
        for known in through {
            let (count, callee) = (self.count_at(known.at), self.address(known.callee));
            let Some(from) = self.block_at(known.at).filter(|_| count > 0) else {
                continue;
            };
            if !starts_function(self.subject.image, callee) {
                continue;
            }
            let from = self.subject.image.block(from).addr;
            match known.is_call {
                true => *self.profile.calls.entry((from, callee)).or_default() += count,
                false => {
                    self.profile.edges.entry((from, callee)).or_insert((EdgeKind::Indirect, 0)).1 +=
                        count
                }
            }
        }
    }

    /// How often calls ran whose callee the image does not name, and the part of them whose callee
    /// is known now.
    fn through_registers(&self, through: &[ThroughRegister]) -> (u64, u64) {
        let image = self.subject.image;
        let indirect = image.blocks.iter().filter(|b| b.end == BlockEnd::Call(None));
        let all = indirect.filter_map(|b| self.profile.blocks.get(&b.addr)).sum();
        let known = through.iter().filter(|t| t.is_call).map(|t| self.count_at(t.at)).sum();
        (all, known)
    }
}

/// The number of instructions that ran in `.text`.
fn instructions(object: &KernelObject<'_>, counts: &[u64]) -> u64 {
    let text = object.elf.bytes(object.text);
    let ran = object.pieces.iter().zip(counts).filter(|&(_, &count)| count > 0);
    let of = |(piece, &count): (&Piece, &u64)| {
        let code = &text[piece.at as usize..piece.end() as usize];
        Decoder::new(64, code, DecoderOptions::NONE).iter().count() as u64 * count
    };
    ran.map(of).sum()
}

fn starts_function(image: &Image, at: LinkAddr) -> bool {
    image.functions.binary_search_by_key(&at, |f| f.addr).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_other_counters_are_refused() {
        let kernel = BuildId("5f3c".into());
        let blocks = vec![LinkAddr(0x10), LinkAddr(0x20)];
        let counters = Counters { build_id: kernel.clone(), blocks };
        check_counts(&kernel, &counters, &[3, 4]).unwrap();
        for counts in [&[3][..], &[3, 4, 5]] {
            let error = check_counts(&kernel, &counters, counts).unwrap_err().to_string();
            let message = format!("{} counts were read for 2 counters", counts.len());
            assert!(error.contains(&message), "{error}");
        }
        let error = check_counts(&BuildId("77ab".into()), &counters, &[3, 4]).unwrap_err();
        assert!(error.to_string().contains("make the counting kernel again"), "{error}");
    }
}
