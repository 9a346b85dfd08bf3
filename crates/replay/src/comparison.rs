//! Compares result rows: for each workload and machine the original with every layout, predicted
//! and recorded.
//!
//! Input: rows. Output: comparisons for reports. All shares, changes and differences in reports are
//! computed here.

use crate::results::{
    Estimate, ORIGINAL, ResultCounters, ResultKind, ResultRow, SampledResult, modules_by_misses,
};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// One workload on one machine: the original and every layout.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The recorded workload.
    pub workload: String,
    /// The simulated machine.
    pub machine: String,
    /// The seed of the recording.
    pub seed: u64,
    /// The original's row.
    pub original: ResultRow,
    /// Every layout, in the order of the rows.
    pub layouts: Vec<ComparedLayout>,
}

impl Comparison {
    /// The original's own numbers, without another layout beside them.
    pub fn original_metrics(&self) -> Vec<Metric> {
        let alone = ComparedLayout {
            layout: ORIGINAL.to_owned(),
            metrics: Vec::new(),
            functions: Vec::new(),
            predicted: None,
            recorded: None,
        };
        metrics(&self.original, &alone)
    }
}

/// One layout beside the original.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedLayout {
    /// The layout's name.
    pub layout: String,
    /// The compared metrics.
    pub metrics: Vec<Metric>,
    /// The functions that miss most in the original, the most first; then functions that are only
    /// in the layout's list.
    pub functions: Vec<ComparedFunction>,
    /// The layout's predicted row.
    pub predicted: Option<ResultRow>,
    /// The layout's recorded row.
    pub recorded: Option<ResultRow>,
}

/// One number of a layout beside the original's. Changes and differences are shares: −0.4 means 40
/// % fewer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Metric {
    /// The metric's name.
    pub name: Cow<'static, str>,
    /// The original's value.
    pub original: f64,
    /// The layout's predicted value.
    pub predicted: Option<f64>,
    /// The layout's recorded value.
    pub recorded: Option<f64>,
    /// The change from original to predicted.
    pub predicted_change: Option<f64>,
    /// The change from original to recorded.
    pub recorded_change: Option<f64>,
    /// Half of the 95 % interval of the change from original to predicted; `None`: the numbers are
    /// exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_within: Option<f64>,
    /// The same of the change from original to recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded_within: Option<f64>,
    /// The relative difference of the recorded to the predicted value.
    pub difference: Option<f64>,
}

/// L1I misses of one kernel function. A value is `None` where the row's list of functions does not
/// include this one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ComparedFunction {
    /// The function's name.
    pub name: String,
    /// Bytes of its blocks that ran.
    pub hot_bytes: Option<u64>,
    /// Bytes of its other blocks.
    pub cold_bytes: Option<u64>,
    /// Misses in the original.
    pub original: Option<u64>,
    /// Predicted misses under the layout.
    pub predicted: Option<u64>,
    /// Recorded misses under the layout.
    pub recorded: Option<u64>,
}

/// A number of a row.
type Value = fn(&ResultCounters) -> Option<f64>;

/// A number of a core's time, and half of its 95 % interval in per cent.
type SampledTime = (fn(&SampledResult) -> f64, fn(&SampledResult) -> Option<Estimate>);

/// The time of an out-of-order core, by kernel and both modes. It may be estimated.
const TIMES: &[(&str, Value, SampledTime)] = &[
    (
        "kernel cycles, out-of-order core",
        |c| c.core.as_ref().map(|core| core.mode_cycles(&core.counters.kernel)),
        (|s| s.within.kernel, |s| s.change.map(|change| change[0])),
    ),
    (
        "kernel cycles per 1000 instructions, out-of-order core",
        |c| {
            let core = c.core.as_ref()?;
            let cycles = core.mode_cycles(&core.counters.kernel);
            (c.instructions.kernel > 0).then(|| 1000.0 * cycles / c.instructions.kernel as f64)
        },
        (|s| s.within.kernel, |s| s.change.map(|change| change[0])),
    ),
    (
        "cycles, out-of-order core",
        |c| c.core.as_ref().map(|core| core.cycles as f64),
        (|s| s.within_all, |s| s.change.map(|change| change[2])),
    ),
];

/// The other compared metrics, in the order of reports. They stand behind the time.
const METRICS: &[(&str, Value)] = &[
    ("kernel L1I misses", |c| Some(c.l1i.kernel.total() as f64)),
    ("kernel L1I misses per 1000 instructions", |c| {
        per_thousand(c.l1i.kernel.total(), c.instructions.kernel)
    }),
    ("kernel taken jumps (conditional and direct)", |c| Some(c.taken.kernel.of_layout() as f64)),
    ("user L1I misses", |c| Some(c.l1i.user.total() as f64)),
    ("kernel iTLB misses", |c| c.itlb.map(|itlb| itlb.kernel as f64)),
    ("kernel returns", |c| Some(c.taken.kernel.ret as f64)),
    ("kernel instructions", |c| Some(c.instructions.kernel as f64)),
    ("kernel bytes fetched", |c| Some(c.fetched_bytes.kernel as f64)),
    ("kernel lines touched", |c| Some(c.touched_lines.kernel as f64)),
    ("kernel pages touched", |c| Some(c.touched_pages.kernel as f64)),
    ("cycles, simple model", |c| Some(c.cycles)),
    ("kernel branches predicted wrongly", |c| {
        c.branches.map(|branches| branches.kernel.mispredictions() as f64)
    }),
    ("kernel branches predicted wrongly per 1000 instructions", |c| {
        c.branches.map(|branches| branches.kernel.per_thousand)
    }),
    ("kernel misfetches", |c| c.branches.map(|branches| branches.kernel.misfetches as f64)),
    ("kernel cycles lost to the front end", |c| {
        c.core.as_ref().map(|core| core.front_end_cycles(&core.counters.kernel))
    }),
    ("kernel resteers (no target buffer had the branch)", |c| {
        c.core.as_ref().map(|core| core.counters.kernel.branches.misfetches as f64)
    }),
];

/// Groups rows of the same workload, machine and seed, in the order of their first row in `rows`.
///
/// # Errors
/// A row has no original beside it, or two rows of the same conditions differ.
pub fn compare(rows: &[ResultRow]) -> Result<Vec<Comparison>> {
    let mut comparisons: Vec<Comparison> = Vec::new();
    for row in rows.iter().filter(|row| row.layout == ORIGINAL) {
        match comparisons.iter().find(|known| known.original.same_conditions(row)) {
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
        let comparison =
            comparisons.iter_mut().find(|known| known.original.same_conditions(row)).with_context(
                || format!("{}: there is no row of the original to compare with", title(row)),
            )?;
        let at = comparison.layouts.iter().position(|known| known.layout == row.layout);
        let at = at.unwrap_or_else(|| {
            let layout = row.layout.clone();
            comparison.layouts.push(ComparedLayout {
                layout,
                metrics: Vec::new(),
                functions: Vec::new(),
                predicted: None,
                recorded: None,
            });
            comparison.layouts.len() - 1
        });
        let layout = &mut comparison.layouts[at];
        let place = match row.kind {
            ResultKind::Predicted => &mut layout.predicted,
            ResultKind::Recorded => &mut layout.recorded,
        };
        if place.as_ref().is_some_and(|known| known != row) {
            bail!("{}: there are two different rows", title(row));
        }
        *place = Some(row.clone());
    }
    for comparison in &mut comparisons {
        for layout in &mut comparison.layouts {
            layout.metrics = metrics(&comparison.original, layout);
            layout.functions = functions(&comparison.original, layout);
        }
    }
    Ok(comparisons)
}

fn title(row: &ResultRow) -> String {
    format!("{} on {}, layout {}, seed {}", row.workload, row.machine, row.layout, row.seed)
}

fn metrics(original: &ResultRow, layout: &ComparedLayout) -> Vec<Metric> {
    let times = TIMES.iter().filter_map(|&(name, value, sampled)| {
        let within = |row: &Option<ResultRow>| change_within(original, row.as_ref()?, sampled);
        Some(Metric {
            predicted_within: within(&layout.predicted),
            recorded_within: within(&layout.recorded),
            ..metric(name, value, original, layout)?
        })
    });
    let others = METRICS.iter().filter_map(|&(name, value)| metric(name, value, original, layout));
    times.chain(others).chain(of_modules(original, layout)).collect()
}

/// The misses of vmlinux and of each module, those that miss most first; nothing if no module ran.
fn of_modules(original: &ResultRow, layout: &ComparedLayout) -> Vec<Metric> {
    let rows = [Some(original), layout.predicted.as_ref(), layout.recorded.as_ref()];
    let rows: Vec<&ResultRow> = rows.into_iter().flatten().collect();
    let names = modules_by_misses(&rows);
    let vmlinux = (!names.is_empty()).then(|| {
        let misses = |row: &ResultRow| Some(row.misses_in_vmlinux() as f64);
        compared("kernel L1I misses, vmlinux".into(), misses, original, layout)
    });
    let modules = names.into_iter().filter_map(|name| {
        let misses = |row: &ResultRow| Some(row.misses_in_module(name) as f64);
        let title = format!("kernel L1I misses, module {name}");
        compared(title.into(), misses, original, layout)
    });
    vmlinux.flatten().into_iter().chain(modules).collect()
}

fn metric(
    name: &'static str,
    value: Value,
    original: &ResultRow,
    layout: &ComparedLayout,
) -> Option<Metric> {
    compared(name.into(), |row| value(&row.counters), original, layout)
}

fn compared(
    name: Cow<'static, str>,
    value: impl Fn(&ResultRow) -> Option<f64>,
    original: &ResultRow,
    layout: &ComparedLayout,
) -> Option<Metric> {
    let of = |row: &Option<ResultRow>| row.as_ref().and_then(&value);
    let (original, predicted, recorded) =
        (value(original)?, of(&layout.predicted), of(&layout.recorded));
    Some(Metric {
        name,
        original,
        predicted,
        recorded,
        predicted_change: predicted.and_then(|value| change(value, original)),
        recorded_change: recorded.and_then(|value| change(value, original)),
        predicted_within: None,
        recorded_within: None,
        difference: predicted
            .zip(recorded)
            .and_then(|(predicted, recorded)| change(predicted, recorded)),
    })
}

/// Half of the 95 % interval of a change, as a share. Units at the same places give it directly;
/// other estimates are independent of each other. `None`: both numbers are exact.
fn change_within(original: &ResultRow, row: &ResultRow, sampled: SampledTime) -> Option<f64> {
    let (within, paired) = sampled;
    let of = |row: &ResultRow| row.counters.core.as_ref()?.sampled.clone();
    match (of(original), of(row)) {
        (None, None) => None,
        (_, Some(own)) if paired(&own).is_some() => {
            paired(&own).map(|change| change.within / 100.0)
        }
        (its, own) => {
            let within = |sampled: Option<SampledResult>| sampled.map_or(0.0, |it| within(&it));
            Some(within(its).hypot(within(own)) / 100.0)
        }
    }
}

fn per_thousand(count: u64, instructions: u64) -> Option<f64> {
    (instructions > 0).then(|| 1000.0 * count as f64 / instructions as f64)
}

/// The relative difference of `value` to `base`. Equal values differ by 0, also when both are 0;
/// any other difference to 0 is `None`.
fn change(value: f64, base: f64) -> Option<f64> {
    if value == base {
        return Some(0.0);
    }
    (base != 0.0).then(|| value / base - 1.0)
}

fn functions(original: &ResultRow, layout: &ComparedLayout) -> Vec<ComparedFunction> {
    let mut found: Vec<ComparedFunction> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    let rows = [Some(original), layout.predicted.as_ref(), layout.recorded.as_ref()];
    for (column, row) in rows.into_iter().enumerate() {
        for function in row.map(|row| row.functions.as_slice()).unwrap_or_default() {
            let place = *places.entry(function.name.clone()).or_insert_with(|| {
                found.push(ComparedFunction {
                    name: function.name.clone(),
                    ..ComparedFunction::default()
                });
                found.len() - 1
            });
            let compared = &mut found[place];
            let cell = match column {
                0 => &mut compared.original,
                1 => &mut compared.predicted,
                _ => &mut compared.recorded,
            };
            // Two static functions may have the same name.
            *cell.get_or_insert(0) += function.misses;
            compared.hot_bytes.get_or_insert(function.hot_bytes);
            compared.cold_bytes.get_or_insert(function.cold_bytes);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{original, predicted, recorded};

    #[test]
    fn predicted_and_recorded_stand_beside_the_original() {
        let comparisons = compare(&[predicted(), original(), recorded()]).unwrap();
        assert_eq!(comparisons.len(), 1);
        let layout = &comparisons[0].layouts[0];
        assert_eq!(layout.layout, "ext-tsp");
        let metric = &layout.metrics[0];
        assert_eq!((&*metric.name, metric.original), ("kernel L1I misses", 1000.0));
        assert_eq!((metric.predicted, metric.recorded), (Some(600.0), Some(500.0)));
        assert_eq!((metric.predicted_change, metric.recorded_change), (Some(-0.4), Some(-0.5)));
        assert!((metric.difference.unwrap() - 0.2).abs() < 1e-12);
        // The machine describes no TLB, so iTLB misses are not compared.
        assert!(layout.metrics.iter().all(|metric| metric.name != "kernel iTLB misses"));
        let functions: Vec<_> = layout
            .functions
            .iter()
            .map(|f| (f.name.as_str(), f.original, f.predicted, f.recorded))
            .collect();
        let expected = [
            ("tcp_rcv", Some(70), Some(30), Some(25)),
            ("vfs_read", Some(50), None, None),
            ("skb_copy", None, Some(9), None),
        ];
        assert_eq!(functions, expected);
        assert_eq!(layout.functions[0].hot_bytes, Some(100));
    }

    #[test]
    fn rows_that_cannot_be_compared_are_errors() {
        let message = |rows: &[ResultRow]| format!("{:#}", compare(rows).unwrap_err());
        assert!(message(&[predicted()]).ends_with("no row of the original to compare with"));
        let other_seed = ResultRow { seed: 2, ..predicted() };
        assert!(
            message(&[original(), other_seed])
                .starts_with("net on server-32k, layout ext-tsp, seed 2")
        );
        let mut other = original();
        other.counters.breaks = 1;
        assert!(message(&[original(), other]).ends_with("two different originals"));
        let mut other = predicted();
        other.counters.breaks = 1;
        assert!(message(&[original(), predicted(), other]).ends_with("two different rows"));
    }

    #[test]
    fn a_repeated_row_counts_once() {
        let once = compare(&[original(), predicted()]).unwrap();
        assert_eq!(compare(&[original(), predicted(), original(), predicted()]).unwrap(), once);
    }

    #[test]
    fn zero_differs_from_zero_by_nothing() {
        assert_eq!(change(0.0, 0.0), Some(0.0));
        assert_eq!(change(5.0, 0.0), None);
        assert_eq!(change(5.0, 4.0), Some(0.25));
    }

    #[test]
    fn misses_of_modules_stand_beside_those_of_vmlinux() {
        let with = |row: ResultRow, misses: &[(&str, u64)]| {
            let misses = misses.iter().map(|&(name, misses)| {
                let name = name.to_owned();
                crate::results::ModuleMisses { name, misses }
            });
            ResultRow { modules: misses.collect(), ..row }
        };
        let rows = [
            with(original(), &[("nf_tables", 100), ("veth", 300)]),
            with(predicted(), &[("veth", 150)]),
            recorded(),
        ];
        let comparisons = compare(&rows).unwrap();
        let metrics = &comparisons[0].layouts[0].metrics;
        let of_code: Vec<_> = metrics
            .iter()
            .filter(|metric| metric.name.contains("misses, "))
            .map(|metric| (&*metric.name, metric.original, metric.predicted, metric.recorded))
            .collect();
        let expected = [
            ("kernel L1I misses, vmlinux", 600.0, Some(450.0), Some(500.0)),
            ("kernel L1I misses, module veth", 300.0, Some(150.0), Some(0.0)),
            ("kernel L1I misses, module nf_tables", 100.0, Some(0.0), Some(0.0)),
        ];
        assert_eq!(of_code, expected);
    }
}
