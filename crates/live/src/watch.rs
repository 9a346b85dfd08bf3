//! Counts blocks of the running kernel: copies in the original order with a per-CPU counter in each
//! block, for a while.
//!
//! Input: functions. Output: a profile. From a root, counting goes breadth first through the
//! functions that were called (Tamches 2001, section 2.1.2). A function that was counted is not
//! counted again. A function that is called only from blocks that did not run is not counted.

use crate::counters;
use crate::device::{Device, Undone};
use crate::group::Group;
use crate::identity::GroupId;
use crate::install::{self, PreparedGroup, Purpose};
use crate::running::RunningKernel;
use crate::turn::{Taken, Turn};
use anyhow::{Context, Result, ensure};
use emit::module::counter::MOST_COUNTERS;
use image::BuildId;
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use image::object::flow;
use image::object::instructions::{InstructionKind, NOWHERE};
use image::sites::PatchKind;
use layout::graph::EdgeKind;
use profile::edges::{CountedBlock, derive};
use profile::{Profile, ProfileSource};
use std::time::{Duration, Instant};

/// Functions of one group: `KERNLANE_MAX_FUNCTIONS`, kmod/kernlane.h.
const MOST_FUNCTIONS: usize = 8192;

/// The result of counting.
pub struct Watched {
    /// The counts.
    pub profile: Profile,
    /// Edges between the counted blocks.
    pub edges: usize,
    /// The number of these edges whose counts are exact.
    pub exact_edges: usize,
    /// Blocks of the counted functions.
    pub blocks: usize,
    /// Counters that were used.
    pub counters: usize,
    /// Blocks whose counts follow from no counter. They are set to 0.
    pub unknown_blocks: usize,
    /// Functions counted, by level.
    pub levels: Vec<usize>,
}

impl Watched {
    /// Functions counted, on all levels.
    pub fn functions(&self) -> usize {
        self.levels.iter().sum()
    }

    /// The percentage of the edges whose counts are exact; 0 without edges.
    pub fn exact_percent(&self) -> f64 {
        100.0 * self.exact_edges as f64 / self.edges.max(1) as f64
    }

    /// The lasting address of each block, hex, and its count; ascending.
    pub fn block_counts(&self, kernel: &LinkedKernel<'_>) -> Vec<(String, u64)> {
        let place = |at: &LinkAddr| kernel.lasting_address(*at).to_string();
        self.profile.blocks.iter().map(|(at, &count)| (place(at), count)).collect()
    }
}

/// The kernel and the settings that counting needs.
pub struct Watch<'k, 'd, 't> {
    /// The vmlinux of the running kernel.
    pub kernel: &'k LinkedKernel<'d>,
    /// The running kernel.
    pub running: &'k RunningKernel,
    /// The kernel module's device.
    pub device: &'k Device,
    /// How long each batch of functions is counted.
    pub time: Duration,
    /// Receives a line of progress for each batch.
    pub told: &'t mut dyn FnMut(&str),
}

impl Watch<'_, '_, '_> {
    /// Counts the roots and, down to `depth` levels of calls, the functions that they called.
    ///
    /// # Errors
    /// A function has more blocks than a group has counters; a group cannot be installed or undone;
    /// or Ctrl-C came. Every group is undone.
    pub fn from_roots(&mut self, roots: &[usize], depth: usize) -> Result<Watched> {
        let mut watched = empty(self.kernel.build_id.clone());
        let mut seen: Vec<usize> = roots.to_vec();
        let mut level: Vec<usize> = roots.to_vec();
        for distance in 0..=depth {
            let called = self.level(&level, distance, &mut watched)?;
            level = called.into_iter().filter(|f| !seen.contains(f)).collect();
            if level.is_empty() {
                break;
            }
            seen.extend(&level);
        }
        Ok(watched)
    }

    /// Counts the functions of one level, as many at a time as a group may have counters; gives
    /// what they called.
    fn level(
        &mut self,
        functions: &[usize],
        distance: usize,
        watched: &mut Watched,
    ) -> Result<Vec<usize>> {
        let mut called = Vec::new();
        let mut counted = 0;
        let mut rest = functions;
        while !rest.is_empty() {
            let (batch, behind) = rest.split_at(self.batch(rest)?);
            rest = behind;
            let group = Group::new(self.kernel, self.running, batch)?;
            if group.members.is_empty() {
                continue;
            }
            (self.told)(&format!(
                "level {distance}: counting {} functions for {} s",
                group.members.len(),
                self.time.as_secs_f32()
            ));
            counted += group.members.len();
            self.count(&group, watched)?;
            called.extend(self.called(&group, &watched.profile));
        }
        watched.levels.push(counted);
        called.sort_unstable();
        called.dedup();
        Ok(called)
    }

    /// How many of the functions can be counted together; at least one.
    fn batch(&self, functions: &[usize]) -> Result<usize> {
        let mut counters = 0;
        for (n, &index) in functions.iter().enumerate() {
            counters += self.kernel.cut(&[index]).pieces.len();
            if counters > MOST_COUNTERS || n == MOST_FUNCTIONS {
                return Ok(n.max(1));
            }
        }
        Ok(functions.len())
    }

    fn count(&mut self, group: &Group<'_, '_>, watched: &mut Watched) -> Result<()> {
        let mut places = counters::places(group);
        leave_out_derivable(group, &mut places);
        let wanted = places.iter().flatten().count();
        ensure!(
            wanted <= MOST_COUNTERS,
            "{}: {wanted} blocks to count, and a group has at most {MOST_COUNTERS} counters",
            group.name(group.members[0].0)
        );
        let order: Vec<u32> = (0..places.len() as u32).collect();
        let turn = Turn::wait(self.told)?;
        let prepared = install::prepare(
            group,
            self.running,
            &order,
            Purpose::Count(&places),
            &install::free_name()?,
        )?;
        let mut counts = vec![None; places.len()];
        self.read(group, &prepared, turn, &mut counts)?;
        add(group, counts, watched);
        Ok(())
    }

    /// Installs copies with counters for a while, and adds the counts to `counts`, by block.
    pub(super) fn read(
        &mut self,
        group: &Group<'_, '_>,
        prepared: &PreparedGroup,
        turn: Turn,
        counts: &mut [Option<u64>],
    ) -> Result<()> {
        prepared.install(group, self.device, &turn)?;
        // Other programs may install meanwhile.
        drop(turn);
        let counted = self.wait(&prepared.id, prepared.module.counted.len());
        self.undo(&prepared.id)?;
        for (&piece, sum) in prepared.module.counted.iter().zip(counted?) {
            counts[piece as usize] = Some(sum);
        }
        Ok(())
    }

    fn wait(&self, id: &GroupId, count: usize) -> Result<Vec<u64>> {
        let begun = Instant::now();
        while begun.elapsed() < self.time {
            // Ctrl-C: the caller undoes the group.
            host::interrupt::check()?;
            std::thread::sleep(Duration::from_millis(50).min(self.time));
        }
        self.device.counters(id, count)
    }

    /// Undoes a counting group. The module may stay a little longer.
    fn undo(&mut self, id: &GroupId) -> Result<()> {
        if self.device.undo(id)? == Undone::Stays {
            return Ok(());
        }
        match Turn::wait_briefly()? {
            Ok(turn) => {
                install::unload(&id.module, &turn).with_context(|| format!("{id} was undone"))?;
            }
            Err(Taken(by)) => (self.told)(&format!(
                "{by} is installing a group: the module {id} stays, empty, until a later undo \
                 removes it"
            )),
        }
        Ok(())
    }

    /// The functions that executed blocks call or jump to, including the present targets of static
    /// calls.
    fn called(&self, group: &Group<'_, '_>, profile: &Profile) -> Vec<usize> {
        let calls = group.original.functions.iter().flat_map(|f| self.kernel.instructions(f));
        let branches = calls.filter(|i| {
            matches!(i.kind, InstructionKind::Call | InstructionKind::Jump) && i.target != NOWHERE
        });
        let ran = branches.filter(|i| {
            let pieces = &group.original.pieces;
            let piece =
                pieces.partition_point(|p| p.at <= i.at).checked_sub(1).map(|n| pieces[n].at);
            piece.is_some_and(|at| {
                profile.blocks.get(&self.kernel.link_address(at)).is_some_and(|&count| count > 0)
            })
        });
        ran.filter_map(|i| self.callee(i.at, i.target)).collect()
    }

    fn callee(&self, at: u32, target: u32) -> Option<usize> {
        let site = self.kernel.link_address(at);
        let is_static =
            self.kernel.sites.kinds_at(site.0).any(|kind| kind == PatchKind::StaticCall);
        let to = match is_static {
            false => self.kernel.link_address(target),
            true => {
                let bytes = self.running.read(site, 5).ok()?;
                let distance = i32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
                matches!(bytes[0], 0xe8 | 0xe9)
                    .then(|| LinkAddr((site.0 + 5).wrapping_add_signed(i64::from(distance))))?
            }
        };
        let index = self.kernel.function_at(to)?;
        (self.kernel.link_address(self.kernel.functions[index].at) == to).then_some(index)
    }
}

/// Removes the counter of a block that runs on only into the next block, if that block is entered
/// from nowhere else: one counter counts both.
pub(super) fn leave_out_derivable(group: &Group<'_, '_>, places: &mut [Option<LinkAddr>]) {
    let edges = group.edges();
    let mut outs = vec![0; places.len()];
    let mut ins = vec![0; places.len()];
    for &(from, to, _) in &edges {
        outs[from as usize] += 1;
        ins[to as usize] += 1;
    }
    for (from, to, _) in edges {
        let (from, to) = (from as usize, to as usize);
        let alone = outs[from] == 1 && ins[to] == 1 && from != to && is_closed_in(group, to);
        if alone && places[from].is_some() && places[to].is_some() {
            places[to] = None;
        }
    }
}

/// Whether a block is entered only by its edges: it is neither a function's entry nor an
/// exception's fixup.
fn is_closed_in(group: &Group<'_, '_>, block: usize) -> bool {
    let piece = &group.original.pieces[block];
    let kernel = group.original.kernel;
    let at = kernel.link_address(piece.at).0;
    !piece.entry && !kernel.tables.exceptions.iter().any(|e| e.fixup == at)
}

pub(super) fn add(group: &Group<'_, '_>, counts: Vec<Option<u64>>, watched: &mut Watched) {
    let kernel = group.original.kernel;
    let pieces = &group.original.pieces;
    let edges = group.edges();
    let plain: Vec<(u32, u32)> = edges.iter().map(|&(from, to, _)| (from, to)).collect();
    watched.counters += counts.iter().flatten().count();
    let leaves = flow::leaves_by_edges(pieces, &edges);
    let mut blocks: Vec<CountedBlock> = (counts.into_iter().enumerate())
        .map(|(n, count)| CountedBlock {
            count,
            closed_in: is_closed_in(group, n),
            closed_out: leaves[n],
        })
        .collect();
    let found = derive(&mut blocks, &plain);
    let at = |n: u32| kernel.link_address(pieces[n as usize].at);
    let profile = &mut watched.profile;
    for (&(from, to, kind), edge) in edges.iter().zip(&found) {
        let entry = profile.edges.entry((at(from), at(to))).or_insert((kind, 0));
        entry.1 += edge.count;
    }
    watched.edges += found.len();
    watched.exact_edges += found.iter().filter(|e| e.exact).count();
    watched.blocks += blocks.len();
    watched.unknown_blocks += blocks.iter().filter(|b| b.count.is_none()).count();
    for (n, block) in (0u32..).zip(&blocks) {
        profile.blocks.insert(at(n), block.count.unwrap_or(0));
    }
    add_calls(group, &blocks, profile);
}

/// A direct call runs as often as its block; a jump to another function is an edge.
fn add_calls(group: &Group<'_, '_>, blocks: &[CountedBlock], profile: &mut Profile) {
    let kernel = group.original.kernel;
    let pieces = &group.original.pieces;
    for function in &group.original.functions {
        for i in kernel.instructions(function).iter().filter(|i| {
            matches!(i.kind, InstructionKind::Call | InstructionKind::Jump) && i.target != NOWHERE
        }) {
            let to = kernel.link_address(i.target);
            let Some(callee) = kernel.function_at(to).map(|f| &kernel.functions[f]) else {
                continue;
            };
            let Some(n) = pieces.partition_point(|p| p.at <= i.at).checked_sub(1) else {
                continue;
            };
            if kernel.link_address(callee.at) != to || callee.at == function.at {
                continue;
            }
            let (from, count) = (kernel.link_address(pieces[n].at), blocks[n].count.unwrap_or(0));
            if i.kind == InstructionKind::Call {
                *profile.calls.entry((from, to)).or_default() += count;
            } else {
                profile.edges.entry((from, to)).or_insert((EdgeKind::Jump, 0)).1 += count;
            }
        }
    }
}

pub(super) fn empty(build_id: BuildId) -> Watched {
    let source = ProfileSource {
        workload: "live".into(),
        seed: 0,
        kernel_instructions: 0,
        user_instructions: 0,
        part: None,
        recorded_on: None,
    };
    Watched {
        profile: Profile { sources: vec![source], ..Profile::empty(build_id) },
        edges: 0,
        exact_edges: 0,
        blocks: 0,
        counters: 0,
        unknown_blocks: 0,
        levels: Vec::new(),
    }
}
