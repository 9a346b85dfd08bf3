//! The user code of a recording: which translation blocks ran, how often, and in which order.
//!
//! Input: a recording, chunk by chunk. Output: counts. Kernel code in between is left out: an
//! interrupted program continues where it was.

use anyhow::{Context, Result};
use execution::code::TranslatedCode;
use execution::flow::{self, FragmentExit};
use execution::walk::{Observer, Piece, Wants, walk};
use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use trace::{RecordingHeader, RecordingReader, RunAddr, StreamEvent, TaskId, Translation};

/// User code that ran. Translation blocks are numbered from 0 in the order in which they were first
/// seen.
#[derive(Default)]
pub struct UserCode {
    pub(super) translations: Vec<Translation>,
    pub(super) codes: Vec<TranslatedCode>,
    /// How often each translation block ran.
    pub(super) runs: Vec<u64>,
    /// How often the kernel entered each translation block, other than to continue an interrupted
    /// program: at the start of programs, threads and signal handlers.
    pub(super) entries: Vec<u64>,
    /// How often the second translation block ran directly after the first.
    pub(super) successors: BTreeMap<(u32, u32), u64>,
}

impl UserCode {
    /// Adds a translation block to the arrays; returns its number.
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
/// The recording is damaged or cut off, or of several CPUs.
pub fn recorded<R: Read>(reader: RecordingReader<R>) -> Result<UserCode> {
    let mut following = UserCodeWalk::default();
    walk(reader, &mut following)?;
    following.found.successors = following.successors.into_iter().collect();
    Ok(following.found)
}

/// The last thing that a task ran in user mode.
#[derive(Clone, Copy, Default)]
enum LastInUserMode {
    #[default]
    Nothing,
    /// A translation block that it left midway.
    Midway,
    Whole(u32),
}

#[derive(Default)]
struct UserCodeWalk {
    found: UserCode,
    successors: HashMap<(u32, u32), u64>,
    /// By translation block of the recording; `None` for kernel code.
    numbers: Vec<Option<u32>>,
    /// `None` before the first recorded switch.
    task: Option<TaskId>,
    others: HashMap<Option<TaskId>, LastInUserMode>,
    before: LastInUserMode,
    kernel_ran: bool,
}

impl Observer for UserCodeWalk {
    fn begin(&mut self, header: &RecordingHeader, _has_data: bool) -> Result<Wants> {
        header.one_cpu()?;
        Ok(Wants::default())
    }

    fn define(&mut self, translations: &[Translation], _: &[TranslatedCode]) -> Result<()> {
        translations.iter().try_for_each(|translation| self.number(translation))
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        piece.events().try_for_each(|event| self.event(event))
    }
}

impl UserCodeWalk {
    fn number(&mut self, translation: &Translation) -> Result<()> {
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
            StreamEvent::Marker(_)
            | StreamEvent::Woken(_)
            | StreamEvent::Clock(_)
            | StreamEvent::Cpu(_) => return Ok(()),
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
            LastInUserMode::Whole(from) if !self.kernel_ran || self.goes_on(from, number) => {
                *self.successors.entry((from, number)).or_default() += 1;
            }
            LastInUserMode::Midway => {}
            LastInUserMode::Whole(_) | LastInUserMode::Nothing => {
                self.found.entries[number as usize] += 1
            }
        }
        self.kernel_ran = false;
        self.before = if whole { LastInUserMode::Whole(number) } else { LastInUserMode::Midway };
    }

    fn goes_on(&self, from: u32, to: u32) -> bool {
        let codes = &self.found.codes;
        flow::exit_after_interruption(&codes[from as usize], codes[to as usize].addr)
            != FragmentExit::Interrupted
    }
}

/// The average of all recordings, each with the same weight. Equal code at an equal address is one
/// translation block.
pub(super) fn average(all: &[UserCode]) -> Result<UserCode> {
    let total = |one: &UserCode| one.runs.iter().map(|&count| u128::from(count)).sum::<u128>();
    let largest = all.iter().map(total).max().unwrap_or(0);
    let mut average = UserCode::default();
    let mut known: HashMap<(RunAddr, &[u8]), u32> = HashMap::new();
    for one in all {
        let own = total(one).max(1);
        // Rounded up: code that ran once must not become code that never ran.
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
