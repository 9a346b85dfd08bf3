//! Each access to one field of the objects of a structure.
//!
//! Input: a recording, and what is known of its objects. Output: positions and instructions. Counts
//! nothing.

use super::collect::Wanted;
use super::resolve::{Asked, Resolved, Resolver};
use crate::misses::collector::accesses_only_a_stack;
use anyhow::{Result, ensure};
use execution::code::TranslatedCode;
use execution::data::DataWish;
use execution::executions::NoDataAccesses;
use execution::walk::{Observer, Piece, Wants};
use trace::{Accesses, RecordingHeader, RunAddr, Translation};

/// An access to the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldAccess {
    /// The position of the instruction, in instructions of the recording.
    pub position: u64,
    /// The instruction.
    pub code: RunAddr,
    /// Whether it stores.
    pub is_store: bool,
}

/// The accesses, as an observer of a recording.
pub(super) struct FieldAccesses<'a> {
    resolver: Resolver<'a>,
    wanted: Wanted<'a>,
    /// The bytes of the field in the structure.
    field: std::ops::Range<u64>,
    /// By translation block: for each instruction, whether it accesses only a stack. Empty: user
    /// code.
    stack: Vec<Box<[bool]>>,
    position: u64,
    pub found: Vec<FieldAccess>,
}

impl<'a> FieldAccesses<'a> {
    pub(super) fn new(
        resolver: Resolver<'a>,
        wanted: Wanted<'a>,
        offset: u64,
        bytes: u64,
    ) -> FieldAccesses<'a> {
        let field = offset..offset + bytes;
        FieldAccesses { resolver, wanted, field, stack: Vec::new(), position: 0, found: Vec::new() }
    }
}

impl Observer for FieldAccesses<'_> {
    fn begin(&mut self, _: &RecordingHeader, has_data: bool) -> Result<Wants> {
        ensure!(has_data, NoDataAccesses);
        Ok(Wants { data: Some(DataWish::EVERY_ACCESS), ..Wants::default() })
    }

    fn define(&mut self, translations: &[Translation], _: &[TranslatedCode]) -> Result<()> {
        for translation in translations {
            self.resolver.define(translation);
            let stack =
                translation.code_by_instruction().map(|(_, code)| accesses_only_a_stack(code));
            self.stack.push(if translation.is_kernel() { stack.collect() } else { Box::default() });
        }
        Ok(())
    }

    fn stream(&mut self, accesses: &Accesses) {
        self.resolver.stream(accesses, |_, _| {});
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        let Some(data) = &piece.data else { return Ok(()) };
        for (execution, accesses) in data.executed() {
            let translation = execution.translation.0;
            self.resolver.executed(translation, |_, _| {});
            let code = &piece.codes[translation as usize];
            let start = self.position;
            let left = u64::from(execution.left);
            self.position += if left > 0 { left } else { code.lengths.len() as u64 };
            if self.stack[translation as usize].is_empty() {
                continue;
            }
            for access in accesses {
                let asked = Asked::of(data, access, translation);
                let stack = self.stack[translation as usize].get(usize::from(access.instruction));
                if stack == Some(&true) {
                    self.resolver.owners.is_a_stack(asked.addr, asked.physical >> 12);
                }
                let Resolved::In(located) = self.resolver.resolve(&asked)? else { continue };
                let Some((_, at)) = self.wanted.hit(&located)? else { continue };
                if at < self.field.end && self.field.start < at + u64::from(access.size) {
                    self.found.push(FieldAccess {
                        position: start + u64::from(access.instruction),
                        code: code.addr_of(access.instruction),
                        is_store: access.is_store,
                    });
                }
            }
        }
        Ok(())
    }
}
