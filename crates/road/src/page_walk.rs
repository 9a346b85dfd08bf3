//! What the second walk over a recording gathers for its page: misses by size and by data
//! structure, and services on several machines, of the whole recording and in slices.
//!
//! Input: an opened recording, and where its slices begin, which the first walk found. Output:
//! tables. This module draws nothing.

use anyhow::Result;
use execution::opened::OpenedRecording;
use execution::sampling::SamplePlan;
use execution::slices::SliceStarts;
use execution::walk::Observer;
use host::note;
use image::vmlinux;
use memory::misses::MissesWalk;
use memory::misses::table::MissTable;
use memory::sizes::{Sizes, SlicedSizes, SweptCaches};
use services::generations::Generations;
use services::{Attribution, ServicesWalk};
use sim::Hierarchy;
use std::path::Path;
use trace::{CpuCount, RecordingHeader};

/// Gathers what the page shows of a recording.
pub(crate) struct PageWalk<'a> {
    attribution: &'a Attribution,
    sizes: SweptCaches,
    misses: Option<MissesWalk<'a>>,
    /// By machine; none without an out-of-order core.
    generations: Vec<ServicesWalk<'a>>,
    /// The header, and the same with a name that says which part it is.
    recorded: RecordingHeader,
    header: RecordingHeader,
}

/// What the walk gathered for the page.
pub(crate) struct PageTables {
    /// Misses by cache size and associativity.
    pub sizes: Sizes,
    /// The same in slices.
    pub sliced_sizes: Vec<SlicedSizes>,
    /// Misses by data structure on the first machine with a data cache.
    pub misses: Option<MissTable>,
    /// Services on all machines; `None` when no machine has a core.
    pub generations: Option<Generations>,
}

impl<'a> PageWalk<'a> {
    /// For a recording. `kernel`: its build tree, vmlinux or System.map. `plan`: where cores are
    /// simulated in detail; `None`: everywhere. `starts`: where slices begin.
    ///
    /// # Errors
    /// As [`Attribution::table`] and [`memory::misses`].
    pub(crate) fn new(
        attribution: &'a Attribution,
        opened: &OpenedRecording,
        kernel: &Path,
        plan: Option<SamplePlan>,
        starts: &SliceStarts,
    ) -> Result<PageWalk<'a>> {
        let (symbols, machines) = (&attribution.symbols, &attribution.machines);
        let mut header = opened.header().clone();
        header.workload = attribution.part.named(&header.workload);
        let one_cpu = header.cpus == CpuCount::ONE;
        let data_machine = machines.iter().find(|machine| Hierarchy::new(machine).is_some());
        let misses = match data_machine.filter(|_| one_cpu && opened.has_data()) {
            None => None,
            Some(_) if symbols.build_id.is_none() => {
                note!(
                    "{}: no misses by data structure: the names of data need the kernel's vmlinux",
                    kernel.display()
                );
                None
            }
            Some(machine) => {
                let (vmlinux, machines) = (vmlinux::path(kernel), std::slice::from_ref(machine));
                Some(MissesWalk::new(&header, symbols, &vmlinux, machines, starts)?)
            }
        };
        let has_core = machines.iter().any(|machine| machine.core.is_some());
        Ok(PageWalk {
            attribution,
            sizes: SweptCaches::in_slices(starts),
            misses,
            generations: match has_core {
                true => attribution.generations_walks(plan, starts)?,
                false => Vec::new(),
            },
            recorded: opened.header().clone(),
            header,
        })
    }

    /// Those that gather.
    pub(crate) fn observers(&mut self) -> Vec<&mut (dyn Observer + Send)> {
        let PageWalk { sizes, misses, generations, .. } = self;
        let mut observers: Vec<&mut (dyn Observer + Send)> = vec![sizes];
        observers.extend(misses.iter_mut().map(|it| it as &mut (dyn Observer + Send)));
        observers.extend(generations.iter_mut().map(|it| it as &mut (dyn Observer + Send)));
        observers
    }

    /// What they gathered.
    ///
    /// # Errors
    /// The walk did not come to the recording's end.
    pub(crate) fn finish(self) -> Result<PageTables> {
        let PageWalk { attribution, sizes, misses, generations, recorded, header } = self;
        let (sizes, sliced_sizes) = sizes.finish_in_slices(&header)?;
        Ok(PageTables {
            sizes,
            sliced_sizes,
            misses: misses.and_then(|misses| misses.tables().pop()),
            generations: match generations.is_empty() {
                true => None,
                false => Some(attribution.generations_of(&recorded, generations)?),
            },
        })
    }
}
