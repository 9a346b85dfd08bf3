//! Stacks of frames with several counts each: what formats of profilers hold.
//!
//! Input: chains of calls. Output: a table of frames and the stacks over it. Counts go out as they
//! are; a service is the frame that calls the functions with which its chains begin.

use crate::callgrind::CallgrindEvents;
use crate::folded::{mode, title};
use services::ObservedRecording;
use services::calls::{CallCost, CallTree};
use std::collections::HashMap;

/// A file of stacks.
#[derive(Debug)]
pub struct StackFile {
    /// Its bytes.
    pub contents: Vec<u8>,
    /// How many stacks it holds.
    pub stacks: u64,
}

/// What a count counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measure {
    pub name: &'static str,
    of: fn(&CallCost) -> u64,
}

const MEASURES: [Measure; 5] = [
    Measure { name: "instructions", of: |cost| cost.instructions },
    Measure { name: "calls", of: |cost| cost.calls },
    Measure { name: "l1i_misses", of: |cost| cost.misses.l1i },
    Measure { name: "l1d_misses", of: |cost| cost.misses.l1d },
    Measure { name: "l2_misses", of: |cost| cost.misses.l2 },
];

/// A frame: a function of the kernel, or a service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Frame {
    pub name: String,
    pub is_function: bool,
}

/// What ran under one stack itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stack {
    /// Indices of frames, innermost first.
    pub frames: Vec<u32>,
    /// A value for each measure.
    pub values: Vec<u64>,
}

/// All stacks of a recording.
#[derive(Debug)]
pub(crate) struct Stacks {
    pub measures: &'static [Measure],
    pub frames: Vec<Frame>,
    /// Those with a value above 0.
    pub stacks: Vec<Stack>,
}

impl Stacks {
    pub(crate) fn of(observed: &ObservedRecording) -> Stacks {
        let measures = match CallgrindEvents::of(&observed.table) {
            CallgrindEvents::Instructions => &MEASURES[..2],
            CallgrindEvents::Fetches => &MEASURES[..3],
            CallgrindEvents::Memory => &MEASURES[..],
        };
        Stacks::of_tree(&observed.calls, measures)
    }

    fn of_tree(tree: &CallTree, measures: &'static [Measure]) -> Stacks {
        let mut frames = FrameTable::default();
        let mut stacks = Vec::new();
        for service in &tree.services {
            let outermost = [title(service), mode(service).to_owned()];
            let outermost = outermost.map(|name| frames.index(name, false));
            for (node, cost) in &service.costs {
                let values: Vec<u64> = measures.iter().map(|measure| (measure.of)(cost)).collect();
                if values.iter().all(|&value| value == 0) {
                    continue;
                }
                let functions = tree.chain(*node).into_iter().rev();
                let functions = functions.map(|name| frames.index(name.to_owned(), true));
                stacks.push(Stack { frames: functions.chain(outermost).collect(), values });
            }
        }
        Stacks { measures, frames: frames.frames, stacks }
    }
}

/// Frames by their number.
#[derive(Default)]
struct FrameTable {
    frames: Vec<Frame>,
    numbers: HashMap<Frame, u32>,
}

impl FrameTable {
    fn index(&mut self, name: String, is_function: bool) -> u32 {
        let frame = Frame { name, is_function };
        if let Some(&number) = self.numbers.get(&frame) {
            return number;
        }
        let number = self.frames.len() as u32;
        self.frames.push(frame.clone());
        self.numbers.insert(frame, number);
        number
    }
}

/// A table of texts in which the number 0 is the empty text, as protocol buffers of profiles have
/// it.
pub(crate) struct Texts {
    all: Vec<String>,
    numbers: HashMap<String, usize>,
}

impl Texts {
    pub(crate) fn new() -> Texts {
        Texts { all: vec![String::new()], numbers: HashMap::from([(String::new(), 0)]) }
    }

    /// The number of a text.
    pub(crate) fn number<N: TryFrom<usize, Error: std::fmt::Debug>>(&mut self, text: &str) -> N {
        let next = self.all.len();
        let number = *self.numbers.entry(text.to_owned()).or_insert(next);
        if number == next {
            self.all.push(text.to_owned());
        }
        N::try_from(number).expect("a recording has fewer names")
    }

    pub(crate) fn into_table(self) -> Vec<String> {
        self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folded::folded;
    use crate::tests::nested;

    #[test]
    fn stacks_are_those_of_the_folded_text() {
        let tree = nested().calls();
        let Stacks { frames, stacks, measures } = Stacks::of_tree(&tree, &MEASURES[..2]);
        assert_eq!([measures[0].name, measures[1].name], ["instructions", "calls"]);
        let text = |stack: &Stack| {
            let names = stack.frames.iter().rev().map(|&frame| &*frames[frame as usize].name);
            format!("{} {}\n", names.collect::<Vec<_>>().join(";"), stack.values[0])
        };
        let mut lines: Vec<String> = stacks.iter().map(text).collect();
        lines.sort();
        assert_eq!(lines.concat(), folded(&tree));
        let functions = frames.iter().filter(|frame| frame.is_function);
        assert!(functions.clone().any(|frame| frame.name == "do_syscall_64"));
        assert!(functions.clone().all(|frame| frame.name != "system call read"));
    }

    #[test]
    fn the_first_text_is_empty() {
        let mut texts = Texts::new();
        let numbers: [i32; 4] = ["b", "", "a", "b"].map(|text| texts.number(text));
        assert_eq!(numbers, [1, 0, 2, 1]);
        assert_eq!(texts.into_table(), ["", "b", "a"]);
    }
}
