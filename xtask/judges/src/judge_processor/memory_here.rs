//! The memory of this machine, as the points find it.
//!
//! A machine's file describes a processor. The levels behind its L2 belong to the machine around
//! it: walks go through two page tables in a virtual machine, and other virtual machines share the
//! L3 and the memory. The points show how much slower than the file that is.
//!
//! Input: points, measured and simulated, and a machine's file. Output: a file with the numbers of
//! the memory replaced. It uses no program's time.

use anyhow::Result;
use lab::machine_file::{self, MachineFile};
use sim::MachineModel;

/// Cycles of an operation of a point.
#[derive(Clone, Copy, Debug)]
pub(super) struct PointCosts {
    pub measured: f64,
    pub simulated: f64,
}

impl PointCosts {
    /// The measured cycles minus the simulated ones.
    fn missing(self) -> f64 {
        self.measured - self.simulated
    }
}

/// A number of a machine's file.
#[derive(Debug, PartialEq)]
struct Number {
    table: &'static [&'static str],
    key: &'static str,
    value: u64,
    source: String,
}

/// The numbers of the memory behind the L2, found from the points.
#[derive(Debug, PartialEq)]
pub(super) struct MemoryHere(Vec<Number>);

/// The point whose loads miss both TLBs and find their lines in the L2; the number counts pages.
const WALKS: &str = "dtlb/6144";
/// The point whose loads miss the L2 but not the second TLB; the number counts KB.
const FROM_L3: &str = "cache/2048";
/// The point whose loads miss the L3 and both TLBs; the number counts KB.
const FROM_MEMORY: &str = "cache/65536";
/// Working sets in KB that may fit into the L3.
const L3_SIZES: [u64; 5] = [2048, 4096, 8192, 16384, 32768];

impl MemoryHere {
    /// `costs`: of a point. `None`: a point was not measured, or the machine has no such memory.
    pub(super) fn new(
        machine: &MachineModel,
        costs: impl Fn(&str) -> Option<PointCosts>,
    ) -> Option<MemoryHere> {
        let (core, memory) = (machine.core.as_ref()?, machine.memory.as_ref()?);
        let latencies = &memory.latencies;
        let (walks, l3, far) = (costs(WALKS)?, costs(FROM_L3)?, costs(FROM_MEMORY)?);
        let walk = walks.missing();
        let number = |table, key, described: f64, missing: f64, from: &str| Number {
            table,
            key,
            value: (described + missing).round().max(1.0) as u64,
            source: format!("measured on this machine by cargo xtask judge-processor: {from}"),
        };
        let walked = f64::from(core.memory.page_walk);
        let mut numbers = vec![
            number(&["core", "memory"], "page_walk", walked, walk, WALKS),
            number(&["latencies"], "l3", latencies.l3(), l3.missing(), FROM_L3),
            number(
                &["latencies"],
                "memory",
                latencies.memory(),
                far.missing() - walk,
                &format!("{FROM_MEMORY}, less the page walk"),
            ),
        ];
        let half = (l3.measured + far.measured) / 2.0;
        let fits = |kb: &&u64| costs(&format!("cache/{kb}")).is_some_and(|it| it.measured < half);
        let kb = *L3_SIZES.iter().rfind(fits)?;
        let bytes = (kb * 1024) as f64;
        numbers.push(number(&["l3"], "size", bytes, 0.0, &format!("cache/{kb} and the next")));
        Some(MemoryHere(numbers))
    }

    /// The machine's file with these numbers, under another name.
    ///
    /// # Errors
    /// `text` does not describe a machine with an L3 and an out-of-order core.
    pub(super) fn file(&self, text: &str, name: &str) -> Result<String> {
        let mut file = MachineFile::named(text, name)?;
        for number in &self.0 {
            let table = file.table(number.table)?;
            machine_file::set(table, number.key, number.value, &number.source)?;
        }
        file.text()
    }

    /// The numbers in a sentence.
    pub(super) fn text(&self) -> String {
        let one =
            |number: &Number| format!("{}.{} {}", number.table.join("."), number.key, number.value);
        self.0.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machines::Machine;

    /// Walks take 60 cycles more than described, the L3 takes 5 more and has 8 MB, and memory takes
    /// 100 more.
    fn costs(point: &str) -> Option<PointCosts> {
        let (measured, simulated) = match point {
            "dtlb/6144" => (106.0, 46.0),
            "cache/2048" | "cache/4096" => (62.0, 57.0),
            "cache/8192" => (140.0, 57.0),
            "cache/16384" | "cache/32768" => (480.0, 60.0),
            "cache/65536" => (587.0, 427.0),
            _ => return None,
        };
        Some(PointCosts { measured, simulated })
    }

    #[test]
    fn what_the_points_find_replaces_what_is_described() {
        let Machine { model: described, text, .. } = machines::find("zen4").unwrap();
        let here = MemoryHere::new(&described, costs).unwrap();
        let changed = here.file(&text, "zen4-here").unwrap();
        let changed = Machine::parse(&changed, "zen4-here.toml").unwrap().model;
        let memory = changed.memory.as_ref().unwrap();
        assert_eq!((memory.latencies.l3(), memory.latencies.memory()), (55.0, 500.0));
        assert_eq!(changed.core.as_ref().unwrap().memory.page_walk, 85);
        let l3 = memory.l3.unwrap().geometry;
        assert_eq!(u64::from(l3.sets()) * u64::from(l3.ways()) * 64, 8 << 20);
        assert_eq!((changed.l1i, changed.branch), (described.l1i, described.branch));
        assert_eq!(
            here.text(),
            "core.memory.page_walk 85, latencies.l3 55, latencies.memory 500, l3.size 8388608"
        );
    }

    #[test]
    fn nothing_is_said_without_all_points() {
        let machine = machines::find("zen4").unwrap().model;
        let without = |point: &str| costs(point).filter(|_| point != "dtlb/6144");
        assert_eq!(MemoryHere::new(&machine, without), None);
        let here = MemoryHere::new(&machine, costs).unwrap();
        assert!(here.file("name = 'a'", "b").is_err());
    }
}
