//! Turns a profile and its image into the arrays that the layout algorithms take, and turns their
//! order into a layout.
//!
//! Input: an image and counts. Output: a graph; later, for its order, a layout by old link
//! addresses. This module orders nothing.

use crate::Profile;
use anyhow::{Context, Result, bail};
use image::address::LinkAddr;
use image::module::{self, ImageModule};
use image::order::{Layout, Run};
use image::runs::LayoutRuns;
use image::{BlockIndex, Image, ImageFunction};
use layout::graph::{
    BlockEpochs, BlockId, Call, Edge, Graph, JointMiss, Order, Seed, TemporalEdge,
};

/// The input of the layout algorithms: the movable code of an image, or all of it, with its counts.
/// Graph block n is image block `to_image[n]`.
pub struct LayoutInput {
    /// The arrays.
    pub graph: Graph,
    to_image: Vec<BlockIndex>,
}

/// Makes the arrays of the movable code. Counts of other code are left out.
///
/// # Errors
/// The profile is of another kernel, or names an address at which the image has no block.
pub fn movable(image: &Image, profile: &Profile) -> Result<LayoutInput> {
    arrays(image, profile, |function| function.movable())
}

/// Makes the arrays of the movable code of one module of the image.
///
/// # Errors
/// As [`movable`].
pub fn movable_of_module(
    image: &Image,
    profile: &Profile,
    module: &ImageModule,
) -> Result<LayoutInput> {
    let space = module::base_of(&module.identity.name).0 >> 32;
    arrays(image, profile, |function| function.movable() && function.addr.0 >> 32 == space)
}

/// Makes the arrays of all code, including code that does not move.
///
/// # Errors
/// As [`movable`].
pub fn whole(image: &Image, profile: &Profile) -> Result<LayoutInput> {
    arrays(image, profile, |_| true)
}

fn arrays(
    image: &Image,
    profile: &Profile,
    wanted: impl Fn(&ImageFunction) -> bool,
) -> Result<LayoutInput> {
    if image.build_id != profile.build_id {
        let (profile, image) = (&profile.build_id.0, &image.build_id.0);
        bail!(
            "the profile is of the kernel with build id {profile}, the image has build id {image}"
        );
    }
    let mut movable = without_counts(image, wanted);
    let mut from_image = vec![None; image.blocks.len()];
    for (n, block) in movable.to_image.iter().enumerate() {
        from_image[block.0 as usize] = Some(BlockId(n as u32));
    }
    let find = |addr: &LinkAddr| -> Result<Option<BlockId>> {
        let block = image.block_at(*addr).filter(|&block| image.block(block).addr == *addr);
        if block.is_none() && module::is_of_module(*addr) {
            // The image lacks the module.
            return Ok(None);
        }
        let block = block.with_context(|| {
            format!("the profile names a block at {addr}, where the image has none")
        })?;
        Ok(from_image[block.0 as usize])
    };
    let graph = &mut movable.graph;
    for (addr, &count) in &profile.blocks {
        if let Some(block) = find(addr)? {
            graph.counts[block.0 as usize] = count;
        }
    }
    for ((from, to), &(kind, count)) in &profile.edges {
        if let (Some(from), Some(to)) = (find(from)?, find(to)?) {
            graph.edges.push(Edge { from, to, count, kind });
        }
    }
    for ((from, to), &count) in &profile.calls {
        if let (Some(from), Some(to)) = (find(from)?, find(to)?) {
            graph.calls.push(Call { from, to, count });
        }
    }
    for ((a, b), &count) in &profile.joint_misses {
        if let (Some(a), Some(b)) = (find(a)?, find(b)?) {
            graph.joint_misses.push(JointMiss { a, b, count });
        }
    }
    for ((a, b), &count) in &profile.temporal_edges {
        if let (Some(a), Some(b)) = (find(a)?, find(b)?) {
            graph.temporal_edges.push(TemporalEdge { a, b, count });
        }
    }
    for (block, epochs) in &profile.block_epochs.blocks {
        if let Some(block) = find(block)? {
            let epochs = epochs.clone();
            graph.block_epochs.push(BlockEpochs { block, epochs });
        }
    }
    for ((block, class), &count) in &profile.seeds {
        if let Some(block) = find(block)? {
            graph.seeds.push(Seed { block, class: *class, count });
        }
    }
    Ok(movable)
}

fn without_counts(image: &Image, wanted: impl Fn(&ImageFunction) -> bool) -> LayoutInput {
    let mut graph = Graph::default();
    let mut to_image = Vec::new();
    for function in image.functions.iter().filter(|function| wanted(function)) {
        let first = to_image.len() as u32;
        for index in function.blocks.clone() {
            let block = image.blocks[index as usize];
            let is_entry = index == function.blocks.start;
            // The padding in front of an entry moves with the entry.
            graph.sizes.push(block.size + if is_entry { image.entry_padding } else { 0 });
            graph.alignments.push(if is_entry { image.entry_alignment } else { 1 });
            graph.glued.push(block.glued && !is_entry);
            to_image.push(BlockIndex(index));
        }
        graph.functions.push(first..to_image.len() as u32);
    }
    graph.counts = vec![0; to_image.len()];
    LayoutInput { graph, to_image }
}

impl LayoutInput {
    /// The address of a graph block in the image.
    pub fn address(&self, image: &Image, block: BlockId) -> LinkAddr {
        image.block(self.to_image[block.index()]).addr
    }

    /// The order of the graph's blocks that a layout gives.
    pub fn order(&self, image: &Image, layout: &Layout) -> Order {
        let runs = LayoutRuns::of(layout);
        let run_of_each = self.to_image.iter().map(|&block| runs.run_of(image.block(block).addr));
        let (order, _) = runs.order(run_of_each);
        Order(order.into_iter().map(BlockId).collect())
    }

    /// The layout of an order, of which the first `hot` blocks are hot.
    pub fn layout(
        &self,
        image: &Image,
        order: &Order,
        hot: usize,
        algorithm: &str,
        seed: u64,
        profile: &str,
    ) -> Layout {
        let mut layout = Layout {
            build_id: image.build_id.clone(),
            modules: image.modules.iter().map(|module| module.identity.clone()).collect(),
            algorithm: algorithm.to_owned(),
            seed,
            profile: profile.to_owned(),
            hot: 0,
            call_padding: image.call_padding,
            runs: Vec::new(),
        };
        let (hot_blocks, cold_blocks) = order.0.split_at(hot.min(order.0.len()));
        self.append(image, hot_blocks, &mut layout.runs);
        layout.hot = layout.runs.len();
        self.append(image, cold_blocks, &mut layout.runs);
        layout
    }

    /// Appends the blocks as runs. Blocks that follow one another in the same function become one
    /// run.
    fn append(&self, image: &Image, blocks: &[BlockId], runs: &mut Vec<Run>) {
        let mut before = None;
        for &BlockId(block) in blocks {
            let index = self.to_image[block as usize];
            let block = image.block(index);
            let function = image.function_of(index);
            let follows = before.is_some_and(|before: BlockIndex| {
                before.0 + 1 == index.0 && index.0 != function.blocks.start
            });
            match runs.last_mut() {
                Some(run) if follows => run.size += u64::from(block.size),
                _ => runs.push(Run {
                    start: block.addr,
                    size: u64::from(block.size),
                    name: function.name.clone(),
                }),
            }
            before = Some(index);
        }
    }
}
