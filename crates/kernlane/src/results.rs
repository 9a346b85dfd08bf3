//! Result rows: what one layout did on one machine, with everything that the numbers depend on. `replay` and `optimize` write them,
//! `report` reads them.

use crate::image::BuildId;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The layout's name of a kernel as its own build laid it out.
pub const ORIGINAL: &str = "original";

const FORMAT: u32 = 1;

/// A file of rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    pub format: u32,
    pub rows: Vec<Row>,
}

impl Results {
    pub fn new(rows: Vec<Row>) -> Results {
        Results { format: FORMAT, rows }
    }

    /// The rows in a file, or in `results.json` of a directory.
    pub fn read(path: &Path) -> Result<Results> {
        let file = if path.is_dir() {
            path.join("results.json")
        } else {
            path.to_owned()
        };
        let text = std::fs::read(&file).with_context(|| format!("{}: cannot read these results", file.display()))?;
        let results: Results = serde_json::from_slice(&text).with_context(|| format!("{}: not a file of results", file.display()))?;
        if results.format != FORMAT {
            bail!("{}: results of format {}, only {FORMAT} is known", file.display(), results.format);
        }
        Ok(results)
    }

    pub fn to_json(&self) -> Result<String> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(text)
    }
}

/// Which execution was simulated. The two never share a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A recording of the very kernel whose layout this is, at its own addresses.
    Recorded,
    /// A recording of the original kernel, carried over to the layout's addresses.
    Predicted,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub workload: String,
    /// The kernel that was recorded.
    pub kernel: BuildId,
    pub layout: String,
    pub machine: String,
    /// The seed of the recording.
    pub seed: u64,
    pub kind: Kind,
    /// What else the recording depends on: QEMU, its arguments, and so on.
    pub conditions: BTreeMap<String, String>,
    pub counters: Counters,
    /// The kernel functions with the most L1I misses, most first; empty when no kernel image was at hand to name them.
    pub functions: Vec<FunctionMisses>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sides<T> {
    pub kernel: T,
    pub user: T,
}

impl Sides<u64> {
    pub fn total(&self) -> u64 {
        self.kernel + self.user
    }
}

impl<T, U: From<T>> From<sim::PerSide<T>> for Sides<U> {
    fn from(sides: sim::PerSide<T>) -> Sides<U> {
        Sides {
            kernel: sides.kernel.into(),
            user: sides.user.into(),
        }
    }
}

/// Misses of the L1 instruction cache by cause (Torrellas 1998, sections 2.2 and 5.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct L1iMisses {
    pub cold: u64,
    /// The line had been evicted by code of its own side.
    #[serde(rename = "self")]
    pub own: u64,
    pub other: u64,
}

impl L1iMisses {
    pub fn total(&self) -> u64 {
        self.cold + self.own + self.other
    }
}

impl From<sim::Misses> for L1iMisses {
    fn from(misses: sim::Misses) -> L1iMisses {
        L1iMisses {
            cold: misses.cold,
            own: misses.own,
            other: misses.other,
        }
    }
}

/// Branches that were taken, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    pub conditional: u64,
    /// Unconditional direct jumps.
    pub jump: u64,
    pub call: u64,
    #[serde(rename = "return")]
    pub ret: u64,
    /// Indirect jumps and calls.
    pub indirect: u64,
}

impl Taken {
    /// Those that a layout decides about.
    pub fn of_layout(&self) -> u64 {
        self.conditional + self.jump
    }
}

impl From<sim::TakenBranches> for Taken {
    fn from(taken: sim::TakenBranches) -> Taken {
        Taken {
            conditional: taken.conditional,
            jump: taken.jump,
            call: taken.call,
            ret: taken.ret,
            indirect: taken.indirect,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    pub instructions: Sides<u64>,
    pub fetched_bytes: Sides<u64>,
    pub l1i: Sides<L1iMisses>,
    /// `None` where the machine describes no instruction TLB.
    pub itlb: Option<Sides<u64>>,
    pub taken: Sides<Taken>,
    /// Lines of the machine's L1I from which something was fetched.
    pub touched_lines: Sides<u64>,
    /// Pages of 4 KB from which something was fetched.
    pub touched_pages: Sides<u64>,
    /// Torrellas' simple model (1998, section 5.2).
    pub cycles: f64,
    /// Exceptions, interrupts and system calls.
    pub interruptions: u64,
    /// Conditional branches of which the recording does not show which way they went.
    pub unresolved_branches: u64,
    /// Steps that no processor could do under the placement; 0 when it is right.
    pub breaks: u64,
}

/// The misses of one kernel function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionMisses {
    pub name: String,
    pub misses: u64,
    /// Bytes of its blocks that ran, and of the others; `None` when not known.
    pub hot_bytes: Option<u64>,
    pub cold_bytes: Option<u64>,
}

/// One workload on one machine: the original against every layout.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    pub workload: String,
    pub machine: String,
    pub seed: u64,
    pub original: Row,
    pub layouts: Vec<ComparedLayout>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedLayout {
    pub layout: String,
    pub metrics: Vec<Metric>,
    pub predicted: Option<Row>,
    pub recorded: Option<Row>,
}

/// One number of a layout beside the original's. Changes and differences are shares: −0.4 is 40 % fewer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Metric {
    pub name: &'static str,
    pub original: f64,
    pub predicted: Option<f64>,
    pub recorded: Option<f64>,
    pub predicted_change: Option<f64>,
    pub recorded_change: Option<f64>,
    /// Predicted against recorded.
    pub difference: Option<f64>,
}

/// What is compared, in the order in which it is shown.
const METRICS: &[(&str, fn(&Counters) -> Option<f64>)] = &[
    ("kernel L1I misses", |c| Some(c.l1i.kernel.total() as f64)),
    ("kernel taken jumps (conditional and direct)", |c| {
        Some(c.taken.kernel.of_layout() as f64)
    }),
    ("user L1I misses", |c| Some(c.l1i.user.total() as f64)),
    ("kernel iTLB misses", |c| c.itlb.map(|itlb| itlb.kernel as f64)),
    ("kernel bytes fetched", |c| Some(c.fetched_bytes.kernel as f64)),
    ("kernel lines touched", |c| Some(c.touched_lines.kernel as f64)),
    ("kernel pages touched", |c| Some(c.touched_pages.kernel as f64)),
    ("cycles, simple model", |c| Some(c.cycles)),
];

/// Puts rows of the same workload, machine and seed together, in the order in which they first stand in `rows`. Rows that have no
/// original beside them are an error, as are two rows for the same thing that differ.
pub fn compare(rows: &[Row]) -> Result<Vec<Comparison>> {
    let mut comparisons: Vec<Comparison> = Vec::new();
    for row in rows.iter().filter(|row| row.layout == ORIGINAL) {
        match comparisons.iter().find(|known| same_conditions(&known.original, row)) {
            Some(known) if known.original == *row => {}
            Some(_) => bail!("{}: there are two different originals", title(row)),
            None => comparisons.push(Comparison {
                workload: row.workload.clone(),
                machine: row.machine.clone(),
                seed: row.seed,
                original: row.clone(),
                layouts: Vec::new(),
            }),
        }
    }
    for row in rows.iter().filter(|row| row.layout != ORIGINAL) {
        let comparison = comparisons
            .iter_mut()
            .find(|known| same_conditions(&known.original, row))
            .with_context(|| format!("{}: there is no row of the original to compare with", title(row)))?;
        let at = comparison.layouts.iter().position(|known| known.layout == row.layout);
        let at = at.unwrap_or_else(|| {
            let layout = row.layout.clone();
            comparison.layouts.push(ComparedLayout {
                layout,
                metrics: Vec::new(),
                predicted: None,
                recorded: None,
            });
            comparison.layouts.len() - 1
        });
        let layout = &mut comparison.layouts[at];
        let place = match row.kind {
            Kind::Predicted => &mut layout.predicted,
            Kind::Recorded => &mut layout.recorded,
        };
        if place.as_ref().is_some_and(|known| known != row) {
            bail!("{}: there are two different rows", title(row));
        }
        *place = Some(row.clone());
    }
    for comparison in &mut comparisons {
        for layout in &mut comparison.layouts {
            layout.metrics = metrics(&comparison.original, layout);
        }
    }
    Ok(comparisons)
}

fn same_conditions(a: &Row, b: &Row) -> bool {
    (&a.workload, &a.machine, a.seed) == (&b.workload, &b.machine, b.seed)
}

fn title(row: &Row) -> String {
    format!("{} on {}, layout {}, seed {}", row.workload, row.machine, row.layout, row.seed)
}

fn metrics(original: &Row, layout: &ComparedLayout) -> Vec<Metric> {
    METRICS
        .iter()
        .filter_map(|&(name, value)| {
            let of = |row: &Option<Row>| row.as_ref().and_then(|row| value(&row.counters));
            let (original, predicted, recorded) = (value(&original.counters)?, of(&layout.predicted), of(&layout.recorded));
            Some(Metric {
                name,
                original,
                predicted,
                recorded,
                predicted_change: predicted.and_then(|value| change(value, original)),
                recorded_change: recorded.and_then(|value| change(value, original)),
                difference: predicted
                    .zip(recorded)
                    .and_then(|(predicted, recorded)| change(predicted, recorded)),
            })
        })
        .collect()
}

/// By what share `value` differs from `base`; nothing is no share of nothing, but equal to it.
fn change(value: f64, base: f64) -> Option<f64> {
    if value == base {
        return Some(0.0);
    }
    (base != 0.0).then(|| value / base - 1.0)
}
