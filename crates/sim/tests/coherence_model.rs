//! Compares the coherent caches with a naive model: every answer and every counter is equal.
//!
//! The model follows the rules at the head of `src/coherent/mod.rs` literally, with lists and maps.
//! It keeps every write to a line since each core lost it, and searches them.

mod coherent_machine;
mod random;

use coherent_machine::{LARGE, Sizes, machine};
use kernlane_sim::coherent::{
    CoherentCaches, CoreCounters, MissClass, Protocol, Served, Supplier, SupplierCounts,
};
use kernlane_sim::{MachineModel, Mode, PerMode, PhysAddr};
use random::XorShift;
use std::collections::{HashMap, HashSet};

/// Line numbers of a cache, by set, the least recently used first.
struct NaiveCache {
    sets: Vec<Vec<u64>>,
    ways: usize,
}

impl NaiveCache {
    fn new(size: u64, ways: u64, line: u64) -> NaiveCache {
        let sets = vec![Vec::new(); (size / line / ways) as usize];
        NaiveCache { sets, ways: ways as usize }
    }

    fn set(&mut self, line: u64) -> &mut Vec<u64> {
        let number = line as usize % self.sets.len();
        &mut self.sets[number]
    }

    fn has(&mut self, line: u64) -> bool {
        self.set(line).contains(&line)
    }

    /// Uses the line. Returns the line that left.
    fn bring(&mut self, line: u64) -> Option<u64> {
        let ways = self.ways;
        self.drop(line);
        let set = self.set(line);
        set.push(line);
        (set.len() > ways).then(|| set.remove(0))
    }

    fn drop(&mut self, line: u64) {
        self.set(line).retain(|&held| held != line);
    }
}

/// How a core came to be without a line.
#[derive(Clone, Copy, PartialEq)]
enum Gone {
    Evicted,
    Taken,
}

struct NaiveCore {
    l1i: NaiveCache,
    l1d: NaiveCache,
    l2: NaiveCache,
    gone: HashMap<u64, Gone>,
    /// By line: the bytes that others wrote since a write took the line.
    written: HashMap<u64, HashSet<u64>>,
    /// By line: the mode of the last miss, whether it fetched, and the bytes whose use turns it
    /// into true sharing.
    open: HashMap<u64, (Mode, bool, HashSet<u64>)>,
    counters: PerMode<CoreCounters>,
}

/// Who may write a line.
#[derive(Clone, Copy, PartialEq)]
enum Alone {
    Clean(usize),
    Dirty(usize),
}

struct NaiveMachine {
    cores: Vec<NaiveCore>,
    clusters: Vec<Option<NaiveCache>>,
    alone: HashMap<u64, Alone>,
    protocol: Protocol,
    sizes: Sizes,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Fetch,
    Load,
    Store,
}

fn count(counts: &mut SupplierCounts, supplier: Supplier) {
    match supplier {
        Supplier::LastLevel => counts.last_level += 1,
        Supplier::Core => counts.core += 1,
        Supplier::Cluster => counts.cluster += 1,
        Supplier::Memory => counts.memory += 1,
    }
}

impl NaiveMachine {
    fn new(cores: usize, clusters: usize, protocol: Protocol, sizes: Sizes) -> NaiveMachine {
        let core = |_| NaiveCore {
            l1i: NaiveCache::new(sizes.l1, 1, sizes.l1_line),
            l1d: NaiveCache::new(sizes.l1, 1, sizes.l1_line),
            l2: NaiveCache::new(sizes.l2, 2, sizes.l2_line),
            gone: HashMap::new(),
            written: HashMap::new(),
            open: HashMap::new(),
            counters: PerMode::default(),
        };
        let l3 = |_| sizes.l3.map(|l3| NaiveCache::new(l3, 4, sizes.l2_line));
        NaiveMachine {
            cores: (0..cores).map(core).collect(),
            clusters: (0..clusters).map(l3).collect(),
            alone: HashMap::new(),
            protocol,
            sizes,
        }
    }

    fn cluster(&self, core: usize) -> usize {
        core / (self.cores.len() / self.clusters.len())
    }

    fn holders(&mut self, line: u64) -> Vec<usize> {
        let cores = self.cores.iter_mut().enumerate();
        cores.filter_map(|(at, core)| core.l2.has(line).then_some(at)).collect()
    }

    fn l3_has(&mut self, cluster: usize, line: u64) -> bool {
        self.clusters[cluster].as_mut().is_some_and(|l3| l3.has(line))
    }

    fn other_l3_has(&mut self, cluster: usize, line: u64) -> bool {
        (0..self.clusters.len()).any(|at| at != cluster && self.l3_has(at, line))
    }

    fn fill_l3(&mut self, core: usize, line: u64) {
        let cluster = self.cluster(core);
        if let Some(l3) = &mut self.clusters[cluster] {
            l3.bring(line);
        }
    }

    fn leave_l1s(&mut self, core: usize, line: u64) {
        let ratio = self.sizes.l2_line / self.sizes.l1_line;
        for part in line * ratio..(line + 1) * ratio {
            self.cores[core].l1i.drop(part);
            self.cores[core].l1d.drop(part);
        }
        self.cores[core].open.remove(&line);
    }

    fn take(&mut self, core: usize, line: u64) {
        for other in self.holders(line) {
            if other != core {
                self.cores[other].l2.drop(line);
                self.leave_l1s(other, line);
                self.cores[other].gone.insert(line, Gone::Taken);
                self.cores[other].written.insert(line, HashSet::new());
            }
        }
        let own = self.cluster(core);
        for (at, l3) in self.clusters.iter_mut().enumerate() {
            if let (true, Some(l3)) = (at != own, l3) {
                l3.drop(line);
            }
        }
    }

    /// Everyone in the order of distance.
    fn supplier(&mut self, core: usize, line: u64) -> Supplier {
        let cluster = self.cluster(core);
        let near: Vec<bool> =
            self.holders(line).into_iter().map(|holder| self.cluster(holder) == cluster).collect();
        let alone = self.alone.contains_key(&line);
        if alone {
            return if near[0] { Supplier::Core } else { Supplier::Cluster };
        }
        if self.l3_has(cluster, line) {
            Supplier::LastLevel
        } else if near.contains(&true) {
            Supplier::Core
        } else if self.other_l3_has(cluster, line) {
            Supplier::Cluster
        } else {
            Supplier::Memory
        }
    }

    fn access(
        &mut self,
        core: usize,
        mode: Mode,
        addr: u64,
        size: u64,
        kind: Kind,
    ) -> (Served, bool) {
        let (l1_line, line) = (addr / self.sizes.l1_line, addr / self.sizes.l2_line);
        let bytes: HashSet<u64> = match kind {
            Kind::Fetch => {
                let first = l1_line * self.sizes.l1_line;
                (first..first + self.sizes.l1_line).collect()
            }
            Kind::Load | Kind::Store => (addr..addr + size).collect(),
        };
        let had_l2 = self.cores[core].l2.has(line);
        let own = &mut self.cores[core];
        let l1 = if kind == Kind::Fetch { &mut own.l1i } else { &mut own.l1d };
        let had_l1 = l1.has(l1_line);
        l1.bring(l1_line);
        let counters = own.counters.get_mut(mode);
        match kind {
            Kind::Fetch => counters.l1i += u64::from(!had_l1),
            Kind::Load | Kind::Store => counters.l1d += u64::from(!had_l1),
        }
        let mut was_true = false;
        if let Some((mode, fetched, lost)) = own.open.get(&line)
            && had_l2
            && !lost.is_disjoint(&bytes)
        {
            was_true = true;
            let counters = own.counters.get_mut(*mode);
            let classes =
                if *fetched { &mut counters.l2_instructions } else { &mut counters.l2_data };
            classes.false_sharing -= 1;
            classes.true_sharing += 1;
            own.open.remove(&line);
        }
        let served = if !had_l2 {
            self.missed(core, mode, line, &bytes, kind)
        } else {
            if !had_l1 {
                self.cores[core].l2.bring(line);
            }
            if kind == Kind::Store && !self.alone.contains_key(&line) {
                self.upgraded(core, mode, line)
            } else if had_l1 {
                Served::L1
            } else {
                Served::L2
            }
        };
        if kind == Kind::Store {
            self.alone.insert(line, Alone::Dirty(core));
            for (at, other) in self.cores.iter_mut().enumerate() {
                if at != core && other.gone.get(&line) == Some(&Gone::Taken) {
                    other.written.entry(line).or_default().extend(&bytes);
                }
            }
        }
        (served, was_true)
    }

    fn upgraded(&mut self, core: usize, mode: Mode, line: u64) -> Served {
        let cluster = self.cluster(core);
        let others: Vec<usize> =
            self.holders(line).into_iter().filter(|&holder| holder != core).collect();
        let supplier = if others.iter().any(|&other| self.cluster(other) != cluster) {
            Supplier::Cluster
        } else if !others.is_empty() {
            Supplier::Core
        } else if self.clusters[0].is_some() {
            Supplier::LastLevel
        } else {
            Supplier::Memory
        };
        self.take(core, line);
        let counters = self.cores[core].counters.get_mut(mode);
        counters.upgrades += 1;
        count(&mut counters.upgraded, supplier);
        Served::Upgraded(supplier)
    }

    fn missed(
        &mut self,
        core: usize,
        mode: Mode,
        line: u64,
        bytes: &HashSet<u64>,
        kind: Kind,
    ) -> Served {
        let own = &mut self.cores[core];
        let written = own.written.remove(&line).unwrap_or_default();
        let class = match own.gone.remove(&line) {
            None => MissClass::Cold,
            Some(Gone::Evicted) => MissClass::Capacity,
            Some(Gone::Taken) if !written.is_disjoint(bytes) => MissClass::TrueSharing,
            Some(Gone::Taken) => {
                own.open.insert(line, (mode, kind == Kind::Fetch, written));
                MissClass::FalseSharing
            }
        };
        let supplier = self.supplier(core, line);
        let cluster = self.cluster(core);
        let holders = self.holders(line);
        if kind == Kind::Store {
            self.take(core, line);
        } else if !holders.is_empty() {
            if let Some(Alone::Dirty(writer)) = self.alone.remove(&line) {
                self.fill_l3(writer, line);
            }
        } else if self.protocol == Protocol::Mesi && !self.other_l3_has(cluster, line) {
            self.alone.insert(line, Alone::Clean(core));
        }
        self.fill_l3(core, line);
        let counters = self.cores[core].counters.get_mut(mode);
        count(&mut counters.supplied, supplier);
        let classes = match kind {
            Kind::Fetch => &mut counters.l2_instructions,
            Kind::Load | Kind::Store => &mut counters.l2_data,
        };
        match class {
            MissClass::Cold => classes.cold += 1,
            MissClass::Capacity => classes.capacity += 1,
            MissClass::TrueSharing => classes.true_sharing += 1,
            MissClass::FalseSharing => classes.false_sharing += 1,
        }
        if let Some(evicted) = self.cores[core].l2.bring(line) {
            self.leave_l1s(core, evicted);
            self.cores[core].gone.insert(evicted, Gone::Evicted);
            self.cores[core].written.remove(&evicted);
            match self.alone.get(&evicted) {
                Some(Alone::Dirty(writer)) => {
                    let writer = *writer;
                    assert_eq!(writer, core, "only its holder writes a line");
                    self.alone.remove(&evicted);
                    self.fill_l3(core, evicted);
                }
                Some(Alone::Clean(_)) => drop(self.alone.remove(&evicted)),
                None => {}
            }
        }
        Served::Missed(class, supplier)
    }
}

/// Accesses near each other, so that lines are shared, evicted and written often.
fn compare(model: &MachineModel, mut naive: NaiveMachine, accesses: u64, seed: u64) {
    let mut caches = CoherentCaches::new(model).unwrap();
    let mut random = XorShift(seed);
    let cores = naive.cores.len() as u64;
    let lines = 3 * naive.sizes.l2 / naive.sizes.l2_line;
    let mut modes = vec![Mode::Kernel; cores as usize];
    for step in 0..accesses {
        let number = random.below(cores) as usize;
        let core = caches.core(number as u8).unwrap();
        if random.below(50) == 0 {
            modes[number] = Mode::BOTH[random.below(2) as usize];
            caches.runs(core, modes[number]);
        }
        // Half of the accesses go to a few lines.
        let line = if random.below(2) == 0 { random.below(6) } else { random.below(lines) };
        let size = 1 << random.below(4);
        let within = random.below(naive.sizes.l2_line / size) * size;
        let addr = line * naive.sizes.l2_line + within;
        let kind = match random.below(8) {
            0 => Kind::Fetch,
            1..4 => Kind::Store,
            _ => Kind::Load,
        };
        let answer = match kind {
            Kind::Fetch => caches.fetch(core, PhysAddr(addr)),
            Kind::Load => caches.data(core, PhysAddr(addr), size as u32, false),
            Kind::Store => caches.data(core, PhysAddr(addr), size as u32, true),
        };
        let expected = naive.access(number, modes[number], addr, size, kind);
        assert_eq!((answer.served, answer.was_true), expected, "step {step}, address {addr:#x}");
    }
    for core in caches.cores() {
        let expected = naive.cores[usize::from(core.number())].counters;
        assert_eq!(caches.counters(core), expected, "core {}", core.number());
    }
}

/// `accesses` in all, over machines of both protocols, with and without an L3, with lines of the L1
/// as long as the L2's and shorter.
fn compare_all(accesses: u64) {
    let small = Sizes { l1: 512, l2: 2048, l3: Some(4096), l1_line: 64, l2_line: 64 };
    let short = Sizes { l1: 256, l2: 1024, l3: None, l1_line: 16, l2_line: 64 };
    let machines = [
        (2, 1, Protocol::Mesi, small),
        (4, 2, Protocol::Mesi, small),
        (8, 2, Protocol::Mesi, small),
        (8, 4, Protocol::Mesi, short),
        (8, 1, Protocol::ThreeStates, short),
        (4, 1, Protocol::Mesi, LARGE),
        (3, 3, Protocol::ThreeStates, small),
        (8, 1, Protocol::Mesi, small),
    ];
    for (at, &(cores, clusters, protocol, sizes)) in machines.iter().enumerate() {
        let naive = NaiveMachine::new(cores, clusters, protocol, sizes);
        let model = machine(cores as u64, clusters as u64, protocol, sizes);
        compare(&model, naive, accesses / machines.len() as u64, 0x5eed + at as u64);
    }
}

/// A million accesses, or as many as the variable `KERNLANE_ACCESSES` says.
#[test]
fn random_accesses_agree_with_the_model() {
    let wanted = std::env::var("KERNLANE_ACCESSES").ok();
    compare_all(wanted.map_or(1_000_000, |number| number.parse().expect("a number")));
}
