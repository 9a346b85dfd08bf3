//! Distinguishes the code of programs: a recording has only addresses, and several programs have
//! code at the same addresses.
//!
//! Input: translation blocks and the control transfers between them. Output: a *space* for each
//! translation block. Two translation blocks in one space never differ in a byte or in where an
//! instruction begins. Code that direct branches and fall-throughs connect goes into one space, the
//! most frequent transfers first. The rest goes into the space that already has most of its bytes,
//! or else into the first space that it fits.

use crate::application::UserCode;
use anyhow::{Context, Result, ensure};
use execution::code::TranslatedCode;
use std::cmp::Reverse;
use std::collections::HashMap;
use trace::{RunAddr, Translation};

/// Bytes of a space: the users' half of 4-level paging (Documentation/arch/x86/x86_64/mm.rst).
/// Addresses behind it belong to the next space.
const BITS: u32 = 47;
/// All spaces lie in the half without bit 63. The first space does not lie where the recorded user
/// code lay.
const MOST_SPACES: usize = (1 << (63 - BITS)) - 1;

/// The space of each translation block of user code.
pub struct Spaces {
    by_code: HashMap<(RunAddr, Box<[u8]>), u64>,
}

impl Spaces {
    pub(super) fn new(recorded: &UserCode) -> Result<Spaces> {
        let translations = &recorded.translations;
        for translation in translations {
            let end = translation.addr.0.saturating_add(translation.code.len() as u64);
            ensure!(
                end <= 1 << BITS,
                "user code at {}: no program can have code there",
                translation.addr
            );
        }
        let spaces = packed(connected(recorded));
        let count = spaces.len();
        ensure!(
            count <= MOST_SPACES,
            "user code has {count} versions at the same addresses, at most {MOST_SPACES} can be \
             told apart"
        );
        let mut by_code = HashMap::new();
        for (space, numbers) in (1_u64..).zip(&spaces) {
            for &number in numbers {
                let translation = &translations[number as usize];
                by_code.insert((translation.addr, translation.code.clone()), space << BITS);
            }
        }
        Ok(Spaces { by_code })
    }

    /// A user translation block at its address in its space.
    ///
    /// # Errors
    /// The translation block is not in the recordings that the spaces were made from.
    pub(crate) fn code(&self, translation: &Translation) -> Result<TranslatedCode> {
        let key = (translation.addr, translation.code.clone());
        let base = self.by_code.get(&key);
        let base = base.with_context(|| {
            let addr = translation.addr;
            format!(
                "user code at {addr} was not in the recordings that the application was laid \
                     out for: lay it out for this one, too"
            )
        })?;
        Ok(TranslatedCode::new(translation)?.shifted(*base))
    }
}

/// The known code bytes: by address, a byte and whether an instruction begins there.
#[derive(Default)]
struct KnownBytes(HashMap<u64, (u8, bool)>);

impl KnownBytes {
    fn of(translation: &Translation) -> KnownBytes {
        let instructions = translation.code_by_instruction();
        let bytes = instructions.flat_map(|(addr, code)| (addr.0..).zip(code.iter().enumerate()));
        KnownBytes(bytes.map(|(addr, (at, &byte))| (addr, (byte, at == 0))).collect())
    }

    /// How many bytes of `other` are also here; `None` if a byte differs.
    fn common(&self, other: &KnownBytes) -> Option<usize> {
        let mut common = 0;
        for (addr, byte) in &other.0 {
            match self.0.get(addr) {
                Some(own) if own != byte => return None,
                Some(_) => common += 1,
                None => {}
            }
        }
        Some(common)
    }
}

/// Translation blocks that belong to one program, as far as transfers show.
struct CodeGroup {
    numbers: Vec<u32>,
    bytes: KnownBytes,
}

impl CodeGroup {
    fn take(&mut self, other: CodeGroup) {
        self.numbers.extend(other.numbers);
        self.bytes.0.extend(other.bytes.0);
    }
}

/// Groups of translation blocks that direct transfers connect. The most frequent transfers connect
/// first; groups that differ in a byte stay apart.
fn connected(recorded: &UserCode) -> Vec<CodeGroup> {
    let group = |(number, translation)| CodeGroup {
        numbers: vec![number],
        bytes: KnownBytes::of(translation),
    };
    let mut groups: Vec<Option<CodeGroup>> =
        (0..).zip(&recorded.translations).map(|one| Some(group(one))).collect();
    let mut group_of: Vec<usize> = (0..groups.len()).collect();
    let mut direct: Vec<(Reverse<u64>, u32, u32)> = recorded
        .successors
        .iter()
        .filter(|&(&(from, to), _)| {
            leads(&recorded.codes[from as usize], recorded.codes[to as usize].addr)
        })
        .map(|(&(from, to), &count)| (Reverse(count), from, to))
        .collect();
    direct.sort_unstable();
    for (_, from, to) in direct {
        let bytes = |group: usize| groups[group].as_ref().map_or(0, |group| group.bytes.0.len());
        let (one, other) = (group_of[from as usize], group_of[to as usize]);
        let (small, large) = if bytes(one) < bytes(other) { (one, other) } else { (other, one) };
        let Ok([small, Some(large_group)]) = groups.get_disjoint_mut([small, large]) else {
            continue;
        };
        if let Some(taken) = small.take_if(|small| large_group.bytes.common(&small.bytes).is_some())
        {
            taken.numbers.iter().for_each(|&number| group_of[number as usize] = large);
            large_group.take(taken);
        }
    }
    groups.into_iter().flatten().collect()
}

/// Whether `code` leads to `addr` by a direct branch or at its end.
fn leads(code: &TranslatedCode, addr: RunAddr) -> bool {
    addr == code.end() || code.target() == Some(addr)
}

/// The translation blocks of each space, by number. The largest groups are packed first.
fn packed(mut groups: Vec<CodeGroup>) -> Vec<Vec<u32>> {
    groups.sort_by_key(|group| (Reverse(group.bytes.0.len()), group.numbers.iter().min().copied()));
    let mut spaces: Vec<CodeGroup> = Vec::new();
    for group in groups {
        let fits = spaces.iter().enumerate();
        let fits =
            fits.filter_map(|(at, space)| Some((space.bytes.common(&group.bytes)?, Reverse(at))));
        match fits.max() {
            Some((_, Reverse(at))) => spaces[at].take(group),
            None => spaces.push(group),
        }
    }
    spaces.into_iter().map(|space| space.numbers).collect()
}
