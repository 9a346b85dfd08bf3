//! Checks that everything that code refers to is the same thing in both kernels.
//!
//! Input: the walk's references and fall-throughs, and the complete correspondence. Output: proofs
//! and differences. This module also proves that the new text holds nothing else: only padding lies
//! between paired code.

use super::code_walk::{CodeWalk, DeadEnd, FallThrough, InstructionReference, ReferenceKind};
use super::correspond::{Correspondence, Landing};
use super::intervals::{contains, intervals};
use super::kernel::KernelFile;
use super::noreturn::NeverReturns;
use super::padding::{is_padding, no_op_length};
use super::verdict::Findings;
use super::walk::CodeUnit;
use rayon::prelude::*;
use std::collections::{HashMap, HashSet};

/// Checks all references, successors and stops of the walk.
pub(crate) fn resolve(
    walk: &CodeWalk,
    correspondence: &Correspondence,
    units: &[CodeUnit],
    noreturn: &NeverReturns,
) -> Findings {
    let placed = intervals(units.iter().map(|u| (u.new, u.new_size + u64::from(u.appended))));
    let mut targets: Vec<u64> = walk.references.iter().map(|r| r.old).collect();
    targets.sort_unstable();
    let flow = ReferenceCheck {
        correspondence,
        placed: &placed,
        dead_ends: &walk.dead_ends,
        targets: &targets,
        functions: FunctionExtents::of(correspondence.old),
    };
    let mut findings = parallel(&walk.references, |chunk, findings| {
        chunk.iter().for_each(|r| flow.reference(r, findings))
    });
    findings.absorb(parallel(&walk.falls, |chunk, findings| {
        chunk.iter().for_each(|fall| flow.fall_through(fall, noreturn, findings));
    }));
    for &(old, new) in &walk.stops {
        flow.stop(old, new, &mut findings);
    }
    findings.prove("jumps appended", walk.appended.len() as u64);
    findings.absorb(nothing_else(correspondence, units, &placed));
    findings
}

fn parallel<T: Sync>(items: &[T], judge: impl Fn(&[T], &mut Findings) + Sync) -> Findings {
    let parts: Vec<Findings> = items
        .par_chunks(4096)
        .map(|chunk| {
            let mut findings = Findings::default();
            judge(chunk, &mut findings);
            findings
        })
        .collect();
    let mut all = Findings::default();
    parts.into_iter().for_each(|part| all.absorb(part));
    all
}

struct ReferenceCheck<'a, 'k, 'd> {
    correspondence: &'a Correspondence<'k, 'd>,
    /// The places of the new kernel that hold paired code.
    placed: &'a [(u64, u64)],
    dead_ends: &'a HashMap<u64, DeadEnd>,
    /// The places that code of the old kernel refers to, ascending.
    targets: &'a [u64],
    functions: FunctionExtents,
}

/// Where the functions of the old kernel lie.
struct FunctionExtents {
    /// All bytes of functions, as intervals.
    bytes: Vec<(u64, u64)>,
    /// The addresses behind functions.
    ends: HashSet<u64>,
}

impl FunctionExtents {
    fn of(kernel: &KernelFile) -> Self {
        let sized = || kernel.symbols.iter().filter(|s| s.function && s.size > 0);
        let inlined = kernel.additions.iter().flat_map(|additions| &additions.ends).copied();
        FunctionExtents {
            bytes: intervals(sized().map(|s| (s.addr.0, s.size))),
            ends: sized().filter_map(|s| s.addr.0.checked_add(s.size)).chain(inlined).collect(),
        }
    }

    /// Whether `addr` is the first byte of the linker's padding behind a function.
    fn padding_begins(&self, addr: u64) -> bool {
        self.ends.contains(&addr) && !contains(&self.bytes, addr)
    }
}

impl ReferenceCheck<'_, '_, '_> {
    fn reference(&self, r: &InstructionReference, findings: &mut Findings) {
        let landing = match r.refers {
            ReferenceKind::Branch => self.branch_lands(r.old, r.new),
            _ => self.correspondence.lands(r.old, r.new),
        };
        let kind = match (r.refers, landing) {
            (_, Landing::Biased) => "references beside a thing",
            (ReferenceKind::Branch, _) => "targets of branches",
            (ReferenceKind::RipRelative, _) => "RIP-relative operands",
            (ReferenceKind::Absolute, _) => "absolute operands",
        };
        findings.expect(landing != Landing::No, kind, r.at_old, r.at_new, || {
            self.wrong_target(r.old, r.new)
        });
    }

    /// How well the target `new` of a branch corresponds to `old`. A branch to paired code goes to
    /// that code itself, as in the old kernel: the kernel's tables (ftrace, static calls) name
    /// entries, not the no-ops in front of them.
    fn branch_lands(&self, old: u64, new: u64) -> Landing {
        let c = self.correspondence;
        match c.lands(old, new) {
            Landing::Exact => Landing::Exact,
            _ if c.pair_at(old).is_some() => Landing::No,
            _ if self.control_lands(old, new) => Landing::Exact,
            beside => beside,
        }
    }

    fn wrong_target(&self, old: u64, new: u64) -> String {
        let c = self.correspondence;
        let meant = match c.image(old) {
            Some(image) => format!(", which is now at {image:016x}"),
            None => String::new(),
        };
        format!(
            "refers to {new:016x} {} instead of {old:016x} {}{meant}",
            c.new.describe(new),
            c.old.describe(old)
        )
    }

    fn fall_through(&self, fall: &FallThrough, noreturn: &NeverReturns, findings: &mut Findings) {
        let lands = match fall.jumps {
            true => self.branch_lands(fall.old, fall.new) == Landing::Exact,
            false => self.control_lands(fall.old, fall.new),
        };
        if lands {
            return findings.prove("successors", 1);
        }
        if self.is_dead_end(fall.old, noreturn) {
            return findings.prove("ends that nothing reaches", 1);
        }
        if fall.callee.is_some_and(|callee| noreturn.contains(callee)) {
            return findings.prove("calls that never return", 1);
        }
        // A compiler lets a function run beyond its end only behind a call that it knows never to
        // return.
        if fall.callee.is_some() && self.functions.ends.contains(&fall.old) {
            return findings.prove("calls that end a function", 1);
        }
        let what =
            || format!("control continues elsewhere: {}", self.wrong_target(fall.old, fall.new));
        findings.expect(false, "successors", fall.at_old, fall.at_new, what);
    }

    /// Checks an int3 behind a return or an indirect jump. It keeps a processor from speculating
    /// straight on, if it belongs to the function. Code annotated as safe
    /// (`ANNOTATE_RETPOLINE_SAFE`, which `objtool --sls` honours) has no int3, and the bytes behind
    /// such code are the linker's padding.
    fn stop(&self, old: u64, new: u64, findings: &mut Findings) {
        let int3 = |kernel: &KernelFile, addr| kernel.bytes(addr, 1) == Some(&[0xcc]);
        let c = self.correspondence;
        if int3(c.old, old) && !self.functions.padding_begins(old) {
            let what = || "the int3 behind a return or an indirect jump is missing".to_owned();
            findings.expect(int3(c.new, new), "int3 behind returns", old, new, what);
        }
    }

    /// Whether only padding behind code that stops leads to `old`, and nothing refers into that
    /// padding.
    fn is_dead_end(&self, old: u64, noreturn: &NeverReturns) -> bool {
        self.dead_ends.get(&old).is_some_and(|dead| {
            let at = self.targets.partition_point(|&t| t < dead.from);
            self.targets.get(at).is_none_or(|&t| t >= old)
                && dead.callee.is_none_or(|callee| noreturn.contains(callee))
        })
    }

    /// Whether control at `new` is control at `old`. In either kernel, no-ops that belong to no
    /// function may lie in between.
    fn control_lands(&self, old: u64, new: u64) -> bool {
        let c = self.correspondence;
        let exact = |old, new| c.image(old) == Some(new);
        exact(old, new) || {
            let old = skip_no_ops(old, |a| c.pair_at(a).is_none(), c.old);
            let new = skip_no_ops(new, |a| !contains(self.placed, a), c.new);
            exact(old, new) || self.leaves_code(old, new)
        }
    }

    /// Whether control leaves the section at its end. Code that is copied elsewhere before it runs
    /// (replacements of alternatives) ends with its section.
    fn leaves_code(&self, old: u64, new: u64) -> bool {
        let end = |kernel: &KernelFile, addr: u64| {
            kernel.sections.iter().find(|s| s.end() == addr).map(|s| s.name.to_owned())
        };
        let c = self.correspondence;
        c.pair_at(old).is_none()
            && end(c.old, old).is_some_and(|name| end(c.new, new) == Some(name))
    }
}

fn skip_no_ops(mut addr: u64, free: impl Fn(u64) -> bool, kernel: &KernelFile) -> u64 {
    while free(addr) {
        let len = kernel.tail(addr).map_or(0, |tail| no_op_length(&tail[..tail.len().min(15)]));
        if len == 0 {
            break;
        }
        addr += len as u64;
    }
    addr
}

/// Checks that no two units share a byte of the new kernel, and that only padding lies between
/// units.
fn nothing_else(
    correspondence: &Correspondence,
    units: &[CodeUnit],
    placed: &[(u64, u64)],
) -> Findings {
    let mut findings = Findings::default();
    let mut by_new: Vec<&CodeUnit> =
        units.iter().filter(|u| u.new_size + u64::from(u.appended) > 0).collect();
    by_new.sort_by_key(|u| u.new);
    for pair in by_new.windows(2) {
        if pair[0].new.saturating_add(pair[0].new_size + u64::from(pair[0].appended)) > pair[1].new
        {
            findings.differ(
                "coverage",
                Some(pair[1].old),
                Some(pair[1].new),
                "two blocks share bytes of the new kernel",
            );
        }
    }
    for section in correspondence.new.sections.iter().filter(|s| s.executable) {
        let mut free = section.addr;
        let inside = placed.iter().filter(|p| p.1 > section.addr && p.0 < section.end());
        for &(start, end) in inside.chain([&(section.end(), section.end())]) {
            if free < start {
                match correspondence.new.bytes(free, start - free) {
                    Some(bytes) if is_padding(bytes) => {
                        findings.prove("bytes of padding in the new code", start - free)
                    }
                    _ => findings.differ(
                        "coverage",
                        None,
                        Some(free),
                        format!("{} bytes of new code correspond to no old code", start - free),
                    ),
                }
            }
            free = free.max(end);
        }
    }
    findings
}
