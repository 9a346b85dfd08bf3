//! What each instruction of a kernel can be, in the file and after the kernel patched it.
//!
//! Input: the executable sections of a vmlinux, and its sites. Output: for an address, every form
//! of the instruction there. Where a patch replaces a stretch, the inside of the stretch also
//! counts: a call in an alternative's replacement, or the no-ops behind a shortened retpoline. This
//! module never says which form the kernel chose.

use super::form::{self, BranchForm, BranchTarget};
use super::{PatchKind, PatchSite, PatchSites, ThunkUse};
use crate::BuildId;
use crate::linked::LinkedKernel;
use crate::mapping::map_file;
use anyhow::{Context, Result};
use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use object::{Object, ObjectSection, ObjectSymbol};
use std::ops::Range;
use std::path::Path;

/// The longest instruction.
const LONGEST: usize = 15;
/// `lfence`, which the kernel may put in front of an indirect branch.
const LFENCE: u64 = 3;
/// `jcc.d8` over an indirect jump, which takes the place of a conditional jump to a thunk.
const SHORT_BRANCH: u64 = 2;
/// A direct call.
const CALL: u64 = 5;
/// An alternative that calls the function in a pointer (`ALT_FLAG_DIRECT_CALL`, asm/alternative.h).
const DIRECT_CALL: u32 = 1 << 17;

/// The code of a kernel, with what the kernel may make of it.
#[derive(Clone, Debug, Default)]
pub struct PatchableCode {
    /// Ascending by address.
    sections: Vec<(u64, Vec<u8>)>,
    sites: PatchSites,
    /// The entries of the thunks that returns may go through, ascending.
    return_thunks: Vec<u64>,
    /// The entries of the thunks of indirect branches, ascending.
    indirect_thunks: Vec<u64>,
    /// Instructions of which the kernel changes the target or makes a return, ascending: the
    /// trampolines of static calls, and the calls in the tracer's own code.
    redirected: Vec<u64>,
}

impl PatchableCode {
    /// Code with these sections (address and bytes) and sites, and no thunks.
    pub fn new(mut sections: Vec<(u64, Vec<u8>)>, sites: PatchSites) -> PatchableCode {
        sections.sort();
        PatchableCode { sections, sites, ..PatchableCode::default() }
    }

    /// The same code with these thunks, for returns and for indirect branches.
    #[cfg(test)]
    pub(super) fn with_thunks(mut self, thunks: &[u64]) -> PatchableCode {
        self.return_thunks = thunks.to_vec();
        self.indirect_thunks = thunks.to_vec();
        self
    }

    /// Reads the vmlinux at `path`.
    ///
    /// # Errors
    /// The file cannot be read, or is not ELF.
    pub fn read(path: &Path) -> Result<PatchableCode> {
        let named = || path.display().to_string();
        let bytes = map_file(path)?;
        Self::parse(&bytes).with_context(named)
    }

    /// Reads the bytes of a vmlinux.
    ///
    /// # Errors
    /// The same errors as `read`.
    pub fn parse(bytes: &[u8]) -> Result<PatchableCode> {
        let elf = object::File::parse(bytes).context("not a readable ELF file")?;
        let text = elf.sections().filter(|section| section.kind() == object::SectionKind::Text);
        let sections = text
            .map(|section| Ok((section.address(), section.data()?.to_vec())))
            .collect::<Result<Vec<_>, object::Error>>()
            .context("a section of code cannot be read")?;
        let tables = LinkedKernel::tables_of_code(BuildId(String::new()), &elf)?;
        let mut code = PatchableCode::new(sections, PatchSites::of(&tables));
        for symbol in elf.symbols() {
            let Ok(name) = symbol.name() else { continue };
            let list = match name {
                "ftrace_call" | "ftrace_regs_call" => &mut code.redirected,
                _ if name.starts_with("__SCT__") => &mut code.redirected,
                _ => match ThunkUse::of(name) {
                    Some(ThunkUse::Returns) => &mut code.return_thunks,
                    Some(ThunkUse::IndirectBranches) => &mut code.indirect_thunks,
                    None => continue,
                },
            };
            list.push(symbol.address());
        }
        for list in [&mut code.redirected, &mut code.return_thunks, &mut code.indirect_thunks] {
            list.sort_unstable();
        }
        Ok(code)
    }

    /// Whether an address lies in the kernel's code.
    pub fn contains(&self, at: u64) -> bool {
        self.bytes(at).is_some_and(|bytes| !bytes.is_empty())
    }

    /// The code from an address to the end of its section.
    fn bytes(&self, at: u64) -> Option<&[u8]> {
        let after = self.sections.partition_point(|(addr, _)| *addr <= at);
        let (addr, bytes) = &self.sections[after.checked_sub(1)?];
        bytes.get(usize::try_from(at - addr).ok()?..)
    }

    /// The instruction that the file has at an address.
    fn decode(&self, at: u64) -> Option<(BranchForm, u8)> {
        let bytes = self.bytes(at)?;
        form::decode(at, &bytes[..bytes.len().min(LONGEST)])
    }

    /// Every form that an instruction at `at` can have. Empty: none can begin there.
    pub fn forms(&self, at: u64) -> Vec<BranchForm> {
        let mut forms = self.forms_without_alternatives(at);
        for site in self.alternatives_over(at..at.saturating_add(1)) {
            self.alternative_forms(site, at, &mut forms);
        }
        forms
    }

    fn forms_without_alternatives(&self, at: u64) -> Vec<BranchForm> {
        use BranchForm::{Call, Conditional, Jump, Next, Return};
        use BranchTarget::{AnyFunction, At};
        // Inside of what a patch replaces, the file need not have an instruction.
        let mut forms: Vec<BranchForm> = self.inside_retpoline(at).into_iter().collect();
        let Some((file, len)) = self.decode(at) else { return forms };
        forms.insert(0, file);
        let through_thunks = |forms: &mut Vec<BranchForm>| {
            forms.push(Return);
            forms.extend(self.return_thunks.iter().map(|&thunk| Jump(At(thunk))));
        };
        for kind in self.sites.kinds_at(at) {
            match (kind, file) {
                (PatchKind::Tracer, _) => forms.extend([Next, Call(AnyFunction)]),
                (PatchKind::Return, _) => through_thunks(&mut forms),
                (PatchKind::StaticKey { target }, _) => forms.extend([Next, Jump(At(target))]),
                (PatchKind::Paravirt, _) | (PatchKind::StaticCall, Call(_)) => {
                    forms.extend([Next, Call(AnyFunction)])
                }
                (PatchKind::StaticCall, Conditional(_)) => forms.push(Conditional(AnyFunction)),
                (PatchKind::StaticCall, _) => {
                    forms.push(Jump(AnyFunction));
                    through_thunks(&mut forms);
                }
                (PatchKind::Retpoline, Conditional(_)) => {
                    forms.push(Conditional(At(at.saturating_add(len.into()))));
                    forms.extend(self.indirect_thunks.iter().map(|&t| Conditional(At(t))));
                }
                (PatchKind::Retpoline, _) => {
                    forms.push(indirect(file));
                    forms.extend(self.indirect_thunks.iter().map(|&thunk| match file {
                        Call(_) => Call(At(thunk)),
                        _ => Jump(At(thunk)),
                    }));
                }
                (
                    PatchKind::Alternative { .. }
                    | PatchKind::DepthCall
                    | PatchKind::Lock
                    | PatchKind::EndbrSeal
                    | PatchKind::Constant,
                    _,
                ) => {}
            }
        }
        if self.redirected.binary_search(&at).is_ok() {
            match file {
                Call(_) => forms.extend([Next, Call(AnyFunction)]),
                _ => {
                    forms.push(Jump(AnyFunction));
                    through_thunks(&mut forms);
                }
            }
        }
        forms
    }

    /// The indirect branch that a retpoline in front of `at` becomes: it may stand behind `lfence`,
    /// behind the short branch that a conditional jump becomes, or behind both.
    fn inside_retpoline(&self, at: u64) -> Option<BranchForm> {
        [LFENCE, SHORT_BRANCH, SHORT_BRANCH + LFENCE].into_iter().find_map(|skip| {
            let site = at.wrapping_sub(skip);
            let mut kinds = self.sites.kinds_at(site);
            let (file, _) =
                kinds.find(|&kind| kind == PatchKind::Retpoline).and_then(|_| self.decode(site))?;
            let conditional = matches!(file, BranchForm::Conditional(_));
            (conditional == (skip != LFENCE)).then(|| indirect(file))
        })
    }

    fn alternatives_over(&self, range: Range<u64>) -> impl Iterator<Item = &PatchSite> {
        let near = self.sites.overlapping(range.start, range.end);
        near.filter(|site| matches!(site.kind, PatchKind::Alternative { .. }))
    }

    /// Adds the forms that an alternative's replacement, and the no-ops in it, give to `at`.
    fn alternative_forms(&self, site: &PatchSite, at: u64, forms: &mut Vec<BranchForm>) {
        let PatchKind::Alternative { replacement, replacement_len, flags } = site.kind else {
            return;
        };
        let offset = at - site.at;
        if flags & DIRECT_CALL != 0 && offset == 0 {
            forms.extend([BranchForm::Next, BranchForm::Call(BranchTarget::AnyFunction)]);
        }
        if offset < u64::from(replacement_len) {
            let inside = self.forms_without_alternatives(replacement.wrapping_add(offset));
            let moved = |form| moved_into(site, replacement, replacement_len, form);
            forms.extend(inside.into_iter().map(moved));
        } else {
            forms.push(BranchForm::Next);
        }
        // A long run of no-ops becomes a jump over them (`optimize_nops`).
        for bytes in [self.original(site), self.replaced(site)].into_iter().flatten() {
            let runs = runs_of_no_ops(&bytes);
            let run = runs.iter().find(|run| run.contains(&offset));
            let over = run.map(|run| BranchTarget::At(site.at.wrapping_add(run.end)));
            forms.extend(over.map(BranchForm::Jump));
        }
    }

    fn original(&self, site: &PatchSite) -> Option<Vec<u8>> {
        self.bytes(site.at)?.get(..site.len.into()).map(<[u8]>::to_vec)
    }

    /// The replacement, filled with no-ops.
    fn replaced(&self, site: &PatchSite) -> Option<Vec<u8>> {
        let PatchKind::Alternative { replacement, replacement_len, .. } = site.kind else {
            return None;
        };
        const NO_OP: u8 = 0x90;
        let mut bytes = match replacement_len {
            0 => Vec::new(),
            len => self.bytes(replacement)?.get(..len.into())?.to_vec(),
        };
        bytes.resize(site.len.into(), NO_OP);
        Some(bytes)
    }

    /// The address of the last instruction that the file has in `[from, end)`, which begins with an
    /// instruction.
    pub fn last_instruction(&self, from: u64, end: u64) -> u64 {
        let mut last = from;
        while let Some((_, len)) = self.decode(last) {
            match last.checked_add(len.into()) {
                Some(next) if next < end => last = next,
                _ => break,
            }
        }
        last
    }

    /// Whether control may go from the instruction of the file in `[at, end)` to `end` without a
    /// branch.
    pub fn may_run_on(&self, at: u64, end: u64) -> bool {
        self.forms(at).into_iter().any(BranchForm::may_run_on)
            || self.alternatives_over(end.saturating_sub(1)..end).any(|site| {
                let behind = end - site.at;
                self.instructions_of(site).any(|(form, range)| {
                    range.start < behind && behind <= range.end && form.may_run_on()
                })
            })
    }

    /// Whether the kernel may have put a call in front of `at` where the file has another
    /// instruction, or a longer one.
    pub fn may_return_to(&self, at: u64) -> bool {
        let Some(last) = at.checked_sub(1) else { return false };
        let retpolines = self.sites.beginning_in(at.saturating_sub(LONGEST as u64), at);
        let mut retpolines = retpolines.iter().filter(|site| site.kind == PatchKind::Retpoline);
        retpolines.any(|site| self.returns_into_retpoline(site.at, at))
            || self.alternatives_over(last..at).any(|site| {
                let behind = at - site.at;
                let PatchKind::Alternative { flags, .. } = site.kind else { return false };
                (flags & DIRECT_CALL != 0 && behind == CALL)
                    || self
                        .instructions_of(site)
                        .any(|(form, range)| range.end == behind && form.is_call())
            })
    }

    /// Whether `at` is the end of the indirect call that a retpoline at `site` becomes.
    fn returns_into_retpoline(&self, site: u64, at: u64) -> bool {
        let Some((BranchForm::Call(_), len)) = self.decode(site) else { return false };
        // `call *%rax` has two bytes, `call *%r8` three.
        let shorter = [2, 3, LFENCE + 2, LFENCE + 3].contains(&(at - site));
        shorter && at - site <= u64::from(len)
    }

    /// The instructions of an alternative's replacement, and the no-ops behind it, with their
    /// ranges from the site on.
    fn instructions_of(&self, site: &PatchSite) -> impl Iterator<Item = (BranchForm, Range<u64>)> {
        let mut found = Vec::new();
        if let PatchKind::Alternative { replacement, replacement_len, .. } = site.kind {
            let mut offset = 0;
            while offset < u64::from(replacement_len) {
                let at = replacement.wrapping_add(offset);
                let Some((_, len)) = self.decode(at) else { break };
                let end = offset + u64::from(len);
                let forms = self.forms_without_alternatives(at);
                found.extend(forms.into_iter().map(|form| (form, offset..end)));
                offset = end;
            }
            found.extend(
                (offset..site.len.into()).map(|no_op| (BranchForm::Next, no_op..no_op + 1)),
            );
        }
        found.into_iter()
    }
}

/// What the branch through a thunk becomes.
fn indirect(file: BranchForm) -> BranchForm {
    match file {
        BranchForm::Call(_) => BranchForm::IndirectCall,
        _ => BranchForm::IndirectJump,
    }
}

/// The form of an instruction of a replacement at its site. A branch that stays in the replacement
/// stays in the site.
fn moved_into(site: &PatchSite, replacement: u64, len: u8, form: BranchForm) -> BranchForm {
    let inside = |target| match target {
        BranchTarget::At(at) if at.wrapping_sub(replacement) <= u64::from(len) => {
            BranchTarget::At(site.at.wrapping_add(at.wrapping_sub(replacement)))
        }
        other => other,
    };
    match form {
        BranchForm::Conditional(target) => BranchForm::Conditional(inside(target)),
        BranchForm::Jump(target) => BranchForm::Jump(inside(target)),
        BranchForm::Call(target) => BranchForm::Call(inside(target)),
        other => other,
    }
}

/// The ranges of offsets that hold no-ops only.
fn runs_of_no_ops(bytes: &[u8]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for instruction in Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE) {
        if instruction.mnemonic() == Mnemonic::Nop {
            match runs.last_mut().filter(|run| run.end == instruction.ip()) {
                Some(run) => run.end = instruction.next_ip(),
                None => runs.push(instruction.ip()..instruction.next_ip()),
            }
        }
    }
    runs
}
