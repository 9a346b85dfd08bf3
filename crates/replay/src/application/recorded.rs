//! What a recording says of user code: which translations ran, how often, and which ran behind
//! which.
//!
//! Takes the recording chunk by chunk; gives counts. What the kernel ran in between is left out: an
//! interrupted program goes on where it was.

use anyhow::{Context, Result};
use execution::code::TranslatedCode;
use execution::flow::{self, FragmentExit};
use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use trace::{Chunk, RecordingReader, RunAddr, StreamEvent, TaskId, Translation};

/// User code that ran, numbered from 0 in the order in which it was first seen.
#[derive(Default)]
pub struct Recorded {
    pub(super) translations: Vec<Translation>,
    pub(super) codes: Vec<TranslatedCode>,
    /// How often each ran.
    pub(super) runs: Vec<u64>,
    /// How often the kernel gave control to it, other than to go on with what it had interrupted:
    /// where programs begin, threads, signal handlers.
    pub(super) entries: Vec<u64>,
    /// How often the second ran behind the first.
    pub(super) successors: BTreeMap<(u32, u32), u64>,
}

impl Recorded {
    /// The number of a translation that is in none of the arrays yet.
    fn push(&mut self, translation: &Translation) -> Result<u32> {
        let number =
            u32::try_from(self.codes.len()).context("more user code ran than can be numbered")?;
        self.codes.push(TranslatedCode::new(translation)?);
        self.translations.push(translation.clone());
        self.runs.push(0);
        self.entries.push(0);
        Ok(number)
    }
}

/// The user code of a whole recording.
///
/// # Errors
/// The recording is damaged or cut off.
pub fn recorded<R: Read>(reader: &mut RecordingReader<R>) -> Result<Recorded> {
    let mut following = Following::default();
    while let Some(chunk) = reader.next_chunk()? {
        match chunk {
            Chunk::Translations(defined) => {
                defined.iter().try_for_each(|translation| following.define(translation))?
            }
            Chunk::Stream(words) => {
                trace::events(&words).try_for_each(|event| following.event(event))?
            }
            Chunk::Tasks(_) | Chunk::End(_) => {}
        }
    }
    following.found.successors = following.successors.into_iter().collect();
    Ok(following.found)
}

/// What a task ran last in user mode.
#[derive(Clone, Copy, Default)]
enum Before {
    #[default]
    Nothing,
    /// A translation that it left midway.
    Midway,
    Whole(u32),
}

#[derive(Default)]
struct Following {
    found: Recorded,
    successors: HashMap<(u32, u32), u64>,
    /// By translation of the recording; `None` for the kernel's.
    numbers: Vec<Option<u32>>,
    /// `None` before the first switch that was seen.
    task: Option<TaskId>,
    others: HashMap<Option<TaskId>, Before>,
    before: Before,
    kernel_ran: bool,
}

impl Following {
    fn define(&mut self, translation: &Translation) -> Result<()> {
        let number = match translation.is_kernel() {
            true => None,
            false => Some(self.found.push(translation)?),
        };
        self.numbers.push(number);
        Ok(())
    }

    fn event(&mut self, event: StreamEvent) -> Result<()> {
        let (id, whole) = match event {
            StreamEvent::Executed(id) => (id, true),
            StreamEvent::Left { translation, .. } => (translation, false),
            StreamEvent::Task(task) => {
                self.switch(task);
                return Ok(());
            }
            StreamEvent::Marker(_) | StreamEvent::Woken(_) | StreamEvent::Clock(_) => return Ok(()),
        };
        let number = self.numbers.get(id.0 as usize);
        match *number.with_context(|| format!("translation {} is not defined", id.0))? {
            None => self.kernel_ran = true,
            Some(number) => self.executed(number, whole),
        }
        Ok(())
    }

    fn switch(&mut self, task: TaskId) {
        let before = std::mem::take(&mut self.before);
        self.others.insert(self.task, before);
        self.task = Some(task);
        self.before = self.others.remove(&self.task).unwrap_or_default();
    }

    #[inline]
    fn executed(&mut self, number: u32, whole: bool) {
        self.found.runs[number as usize] += 1;
        match self.before {
            Before::Whole(from) if !self.kernel_ran || self.goes_on(from, number) => {
                *self.successors.entry((from, number)).or_default() += 1;
            }
            Before::Midway => {}
            Before::Whole(_) | Before::Nothing => self.found.entries[number as usize] += 1,
        }
        self.kernel_ran = false;
        self.before = if whole { Before::Whole(number) } else { Before::Midway };
    }

    fn goes_on(&self, from: u32, to: u32) -> bool {
        let codes = &self.found.codes;
        flow::exit_after_interruption(&codes[from as usize], codes[to as usize].addr)
            != FragmentExit::Interrupted
    }
}

/// All recordings as one, each of which weighs the same; the same code at the same address is the
/// same.
pub(super) fn average(all: &[Recorded]) -> Result<Recorded> {
    let total = |one: &Recorded| one.runs.iter().map(|&count| u128::from(count)).sum::<u128>();
    let largest = all.iter().map(total).max().unwrap_or(0);
    let mut average = Recorded::default();
    let mut known: HashMap<(RunAddr, &[u8]), u32> = HashMap::new();
    for one in all {
        let own = total(one).max(1);
        // Rounded up: what ran once must not become what never ran.
        let scaled = |count: u64| (u128::from(count) * largest).div_ceil(own) as u64;
        let mut numbers = Vec::with_capacity(one.translations.len());
        for translation in &one.translations {
            let key = (translation.addr, &*translation.code);
            let number = match known.get(&key) {
                Some(&number) => number,
                None => average.push(translation)?,
            };
            known.insert(key, number);
            numbers.push(number);
        }
        for (own, &number) in numbers.iter().enumerate() {
            average.runs[number as usize] += scaled(one.runs[own]);
            average.entries[number as usize] += scaled(one.entries[own]);
        }
        for (&(from, to), &count) in &one.successors {
            let ends = (numbers[from as usize], numbers[to as usize]);
            *average.successors.entry(ends).or_default() += scaled(count);
        }
    }
    Ok(average)
}
