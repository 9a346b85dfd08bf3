//! Where curves step: the size up to which a structure holds what a point needs.
//!
//! Input: the cost of each point of a curve, by size. Output: sizes, also those that a machine's
//! file gives. This module measures nothing.

use sim::core::RegisterFile;
use sim::{CacheDescription, MachineModel};

/// A structure whose capacity a curve shows.
pub(super) struct Step {
    pub structure: &'static str,
    pub curve: &'static str,
    pub unit: &'static str,
    /// The sizes between which the curve steps once.
    from: u64,
    to: u64,
    /// The capacity that a machine's file gives.
    pub described: fn(&MachineModel) -> Option<f64>,
}

fn kilobytes(cache: &CacheDescription) -> f64 {
    let geometry = &cache.geometry;
    f64::from(geometry.sets()) * f64::from(geometry.ways()) * f64::from(cache.line) / 1024.0
}

/// The jumps that a target buffer holds, each to the next. Where entries belong to places, two
/// jumps share one.
fn level(machine: &MachineModel, at: usize) -> Option<f64> {
    let level = machine.core.as_ref()?.prediction.targets.get(at)?;
    let entries = f64::from(level.geometry.sets()) * f64::from(level.geometry.ways());
    Some(if level.by_start { 2.0 * entries } else { entries })
}

fn results(machine: &MachineModel, file: RegisterFile) -> Option<f64> {
    machine.core.as_ref()?.window.results[file.index()].map(f64::from)
}

/// A line of sixteen instructions takes two entries of up to nine.
fn uop_cache(machine: &MachineModel) -> Option<f64> {
    let cache = machine.core.as_ref()?.front_end.uop_cache?;
    let entries = f64::from(cache.geometry.sets()) * f64::from(cache.geometry.ways());
    let in_line = 16_u32.div_ceil(cache.slots);
    Some(entries / f64::from(in_line) * 64.0 / 1024.0)
}

/// Each place where control arrives has an entry of its own.
fn entries_by_start(machine: &MachineModel) -> Option<f64> {
    let cache = machine.core.as_ref()?.front_end.uop_cache.filter(|cache| cache.by_start)?;
    Some(f64::from(cache.geometry.sets()) * f64::from(cache.geometry.ways()))
}

pub(super) const STEPS: [Step; 18] = [
    Step {
        structure: "uop cache, 16 instructions a line",
        curve: "code",
        unit: "KB",
        from: 4,
        to: 64,
        described: uop_cache,
    },
    Step {
        structure: "uop cache, four blocks of five in a line",
        curve: "starts",
        unit: "blocks",
        from: 512,
        to: 1280,
        described: entries_by_start,
    },
    Step {
        structure: "L1I",
        curve: "l1i",
        unit: "lines",
        from: 128,
        to: 1280,
        described: |machine| Some(f64::from(machine.l1i.sets()) * f64::from(machine.l1i.ways())),
    },
    Step {
        structure: "first BTB, jumps 16 bytes apart",
        curve: "btb",
        unit: "jumps",
        from: 256,
        to: 4096,
        described: |machine| level(machine, 0),
    },
    Step {
        structure: "second BTB, jumps 16 bytes apart",
        curve: "btb",
        unit: "jumps",
        from: 4096,
        to: 10240,
        described: |machine| level(machine, 1),
    },
    Step {
        structure: "return stack",
        curve: "returns",
        unit: "calls",
        from: 4,
        to: 64,
        described: |machine| Some(machine.core.as_ref()?.prediction.return_stack.into()),
    },
    Step {
        structure: "direction predictor, random pattern",
        curve: "direction",
        unit: "outcomes",
        from: 64,
        to: 32768,
        described: |_| None,
    },
    Step {
        structure: "indirect predictor, targets in turn",
        curve: "indirect",
        unit: "targets",
        from: 2,
        to: 2048,
        described: |_| None,
    },
    Step {
        structure: "loads whose store is predicted",
        curve: "predicted",
        unit: "loads",
        from: 8,
        to: 48,
        described: |machine| Some(machine.core.as_ref()?.memory.predicted_loads.into()),
    },
    Step {
        structure: "loads that wait",
        curve: "waiting-load",
        unit: "loads",
        from: 40,
        to: 56,
        described: |machine| Some(machine.core.as_ref()?.window.waiting_loads?.into()),
    },
    Step {
        structure: "results in flight",
        curve: "results",
        unit: "comparisons",
        from: 216,
        to: 256,
        described: |machine| results(machine, RegisterFile::Any),
    },
    Step {
        structure: "integer results in flight",
        curve: "results-integer",
        unit: "moves",
        from: 176,
        to: 208,
        described: |machine| results(machine, RegisterFile::Integer),
    },
    Step {
        structure: "vector results in flight",
        curve: "results-vector",
        unit: "loads",
        from: 144,
        to: 192,
        described: |machine| results(machine, RegisterFile::Vector),
    },
    Step {
        structure: "first TLB of code",
        curve: "itlb",
        unit: "pages",
        from: 16,
        to: 256,
        described: |machine| {
            let geometry = machine.itlb?.geometry();
            Some(f64::from(geometry.sets()) * f64::from(geometry.ways()))
        },
    },
    Step {
        structure: "first TLB of data",
        curve: "dtlb",
        unit: "pages",
        from: 16,
        to: 512,
        described: |machine| {
            let geometry = machine.memory.as_ref()?.dtlb?;
            Some(f64::from(geometry.sets()) * f64::from(geometry.ways()))
        },
    },
    Step {
        structure: "second TLB",
        curve: "dtlb",
        unit: "pages",
        from: 1024,
        to: 6144,
        described: |machine| {
            let geometry = machine.core.as_ref()?.memory.second_tlb;
            Some(f64::from(geometry.sets()) * f64::from(geometry.ways()))
        },
    },
    Step {
        structure: "L1D",
        curve: "cache",
        unit: "KB",
        from: 8,
        to: 96,
        described: |machine| machine.memory.as_ref().map(|memory| kilobytes(&memory.l1d)),
    },
    Step {
        structure: "L2",
        curve: "cache",
        unit: "KB",
        from: 512,
        to: 4096,
        described: |machine| machine.memory.as_ref()?.l2.as_ref().map(kilobytes),
    },
];

/// The share of a step's height up to which a cost counts as before the step.
const FOOT: f64 = 0.1;
/// A ratio below this is not a step: the cost behind it divided by the cost before it.
const HEIGHT: f64 = 1.1;

/// The largest size that costs no more than smaller ones, interpolated to the foot of the step.
/// `costs`: size and cost of the points of the curve, ascending. `None`: the curve does not step
/// here, or points are missing.
pub(super) fn capacity(step: &Step, costs: &[(u64, f64)]) -> Option<f64> {
    let window: Vec<(f64, f64)> = costs
        .iter()
        .filter(|(size, _)| (step.from..=step.to).contains(size))
        .map(|&(size, cost)| (size as f64, cost))
        .collect();
    let (first, last) = (window.first()?, window.last()?);
    if first.0 != step.from as f64 || last.0 != step.to as f64 {
        return None;
    }
    let low = window.iter().take(3).map(|&(_, cost)| cost).fold(f64::INFINITY, f64::min);
    let high = last.1;
    if high < HEIGHT * low {
        return None;
    }
    let foot = low + FOOT * (high - low);
    let below = window.iter().rposition(|&(_, cost)| cost <= foot)?;
    let ((size, cost), (next, above)) = (window[below], *window.get(below + 1)?);
    Some(size + (next - size) * (foot - cost) / (above - cost))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Step = Step {
        structure: "a structure",
        curve: "a curve",
        unit: "lines",
        from: 8,
        to: 64,
        described: |_| None,
    };

    #[test]
    fn the_foot_of_a_step_is_found() {
        let costs = [(4, 9.0), (8, 1.0), (16, 1.02), (32, 1.0), (40, 3.0), (64, 3.0)];
        // A tenth of the height is 1.2, a tenth of the way from 32 to 40.
        let found = capacity(&STEP, &costs).unwrap();
        assert!((found - 32.8).abs() < 1e-9, "{found}");
    }

    #[test]
    fn a_level_curve_and_a_curve_with_gaps_have_no_step() {
        assert_eq!(capacity(&STEP, &[(8, 1.0), (16, 1.0), (64, 1.05)]), None);
        assert_eq!(capacity(&STEP, &[(8, 1.0), (16, 3.0)]), None);
        assert_eq!(capacity(&STEP, &[]), None);
    }

    #[test]
    fn steps_lie_on_the_curves_of_points() {
        let points = super::super::points::all();
        for step in &STEPS {
            for end in [step.from, step.to] {
                let on = |point: &&super::super::point::Point| {
                    point.curve() == step.curve && point.size == Some(end)
                };
                assert!(points.iter().any(|point| on(&point)), "{} {end}", step.structure);
            }
        }
    }
}
