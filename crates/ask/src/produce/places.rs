//! The addresses of instructions at positions of a recording.
//!
//! Input: a recording, and positions, which count its instructions from 0. Output: addresses, each
//! once. Reads executions only.

use crate::recording::AskedRecording;
use anyhow::{Result, ensure};
use execution::code::TranslatedCode;
use execution::walk::{Observer, Piece, Wants};
use std::collections::BTreeSet;
use trace::{RecordingHeader, StreamEvent, Translation};

/// The addresses of the instructions at positions, ascending. `positions`: ascending.
///
/// # Errors
/// The recording is damaged, or ends before the last position.
pub fn addresses_at(recording: &AskedRecording, positions: &[u64]) -> Result<Vec<u64>> {
    let mut found = AddressesAt { positions, position: 0, addresses: BTreeSet::new() };
    recording.attribution.opened(&recording.path, "places of probes")?.walk(&mut found)?;
    let AddressesAt { positions, position, addresses } = found;
    if let Some(last) = positions.first() {
        anyhow::bail!("the recording has {position} instructions, and no position {last}");
    }
    Ok(addresses.into_iter().collect())
}

struct AddressesAt<'a> {
    /// Those that are still to come.
    positions: &'a [u64],
    position: u64,
    addresses: BTreeSet<u64>,
}

impl AddressesAt<'_> {
    #[inline]
    fn ran(&mut self, code: &TranslatedCode, instructions: u32) {
        let end = self.position + u64::from(instructions);
        while let Some((&next, rest)) = self.positions.split_first().filter(|(it, _)| **it < end) {
            let number = next.saturating_sub(self.position) as u16;
            self.addresses.insert(code.addr_of(number).0);
            self.positions = rest;
        }
        self.position = end;
    }
}

impl Observer for AddressesAt<'_> {
    fn begin(&mut self, _: &RecordingHeader, _: bool) -> Result<Wants> {
        ensure!(self.positions.is_sorted(), "positions that do not ascend");
        Ok(Wants::default())
    }

    fn define(&mut self, _: &[Translation], _: &[TranslatedCode]) -> Result<()> {
        Ok(())
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        for event in piece.events() {
            match event {
                StreamEvent::Executed(id) => {
                    let code = &piece.codes[id.0 as usize];
                    self.ran(code, code.lengths.len() as u32);
                }
                StreamEvent::Left { translation, instructions } => {
                    self.ran(&piece.codes[translation.0 as usize], instructions);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.positions.is_empty()
    }
}
