//! Compares the fast cache with a naive one on many geometries and streams: every answer is equal.

mod random;

use kernlane_sim::{
    Cache, CacheAccess, CacheGeometry, InstructionCache, LineId, MissCounts, Mode, PerMode,
    Replacement,
};
use random::XorShift;

/// A set is a list, and every search begins at the front.
struct NaiveCache {
    geometry: CacheGeometry,
    sets: Vec<Vec<LineId>>,
    /// Tree pseudo-LRU by its definition: for every node, whether the left half was used last.
    recent: Vec<std::collections::HashMap<(u32, u32), bool>>,
}

impl NaiveCache {
    fn new(geometry: CacheGeometry) -> NaiveCache {
        let sets = geometry.sets() as usize;
        NaiveCache {
            geometry,
            sets: vec![Vec::new(); sets],
            recent: vec![Default::default(); sets],
        }
    }

    fn access(&mut self, line: LineId) -> CacheAccess {
        match self.geometry.replacement() {
            Replacement::Lru => self.lru(line),
            Replacement::TreePlru => self.plru(line),
            Replacement::Fifo => self.fifo(line),
        }
    }

    fn set_of(&self, line: LineId) -> usize {
        (line.index() % self.geometry.sets()) as usize
    }

    /// Least recently used first.
    fn lru(&mut self, line: LineId) -> CacheAccess {
        let number = self.set_of(line);
        let set = &mut self.sets[number];
        if let Some(at) = set.iter().position(|&held| held == line) {
            set.remove(at);
            set.push(line);
            return CacheAccess::Hit;
        }
        let full = set.len() == self.geometry.ways() as usize;
        let evicted = full.then(|| set.remove(0));
        set.push(line);
        CacheAccess::Miss { evicted }
    }

    /// The first that came in stands in front.
    fn fifo(&mut self, line: LineId) -> CacheAccess {
        let number = self.set_of(line);
        let set = &mut self.sets[number];
        if set.contains(&line) {
            return CacheAccess::Hit;
        }
        let full = set.len() == self.geometry.ways() as usize;
        let evicted = full.then(|| set.remove(0));
        set.push(line);
        CacheAccess::Miss { evicted }
    }

    fn plru(&mut self, line: LineId) -> CacheAccess {
        let number = self.set_of(line);
        let ways = self.geometry.ways();
        let set = &mut self.sets[number];
        let (way, answer) = if let Some(at) = set.iter().position(|&held| held == line) {
            (at as u32, CacheAccess::Hit)
        } else if set.len() < ways as usize {
            set.push(line);
            (set.len() as u32 - 1, CacheAccess::Miss { evicted: None })
        } else {
            let victim = self.plru_victim(number, 0, ways);
            let evicted = Some(std::mem::replace(&mut self.sets[number][victim as usize], line));
            (victim, CacheAccess::Miss { evicted })
        };
        self.plru_touch(number, 0, ways, way);
        answer
    }

    /// The victim among `count` ways from `first` on. Descends into the half not used last.
    fn plru_victim(&self, set: usize, first: u32, count: u32) -> u32 {
        if count == 1 {
            return first;
        }
        let half = count / 2;
        let left_was_last = self.recent[set].get(&(first, count)).copied().unwrap_or(false);
        if left_was_last {
            self.plru_victim(set, first + half, half)
        } else {
            self.plru_victim(set, first, half)
        }
    }

    fn plru_touch(&mut self, set: usize, first: u32, count: u32, way: u32) {
        if count == 1 {
            return;
        }
        let half = count / 2;
        let left = way < first + half;
        self.recent[set].insert((first, count), left);
        self.plru_touch(set, if left { first } else { first + half }, half, way);
    }
}

fn below(random: &mut XorShift, bound: u32) -> u32 {
    random.below(bound.into()) as u32
}

fn random_line(random: &mut XorShift, bound: u32) -> LineId {
    let mode = Mode::BOTH[below(random, 2) as usize];
    LineId::new(mode, below(random, bound)).unwrap()
}

fn geometries() -> Vec<CacheGeometry> {
    let mut all = Vec::new();
    for line in [16, 32, 64, 128, 256] {
        for ways in [1, 2, 3, 4, 6, 8, 12, 16, 64] {
            for sets in [1, 2, 16, 64] {
                for &replacement in Replacement::ALL {
                    all.extend(CacheGeometry::cache(sets * ways * line, ways, line, replacement));
                }
            }
        }
    }
    assert!(all.len() > 250);
    all
}

/// Random lines, runs of one line, and loops that fit, that do not fit by one line, and that do not
/// fit by far, of both modes.
fn stream(geometry: CacheGeometry, random: &mut XorShift) -> Vec<LineId> {
    let capacity = geometry.sets() * geometry.ways();
    let mut lines = Vec::new();
    for _ in 0..6 {
        let span =
            [capacity, capacity + 1, capacity * 2, capacity / 2 + 1][below(random, 4) as usize];
        match below(random, 3) {
            0 => lines.extend((0..300).map(|_| random_line(random, span * 2))),
            1 => {
                let (start, length) = (below(random, 1000), 300.min(span * 3));
                lines.extend(
                    (0..length).map(|step| LineId::new(Mode::Kernel, start + step % span).unwrap()),
                );
            }
            _ => lines
                .extend((0..60).flat_map(|_| std::iter::repeat_n(random_line(random, span), 3))),
        }
    }
    lines
}

#[test]
fn fast_and_naive_agree_on_every_access() {
    let mut random = XorShift(0x9E37_79B9_7F4A_7C15);
    for geometry in geometries() {
        let (mut fast, mut naive) = (Cache::new(geometry), NaiveCache::new(geometry));
        for (step, line) in stream(geometry, &mut random).into_iter().enumerate() {
            assert_eq!(fast.access(line), naive.access(line), "{geometry:?}, access {step}");
        }
    }
}

#[test]
fn every_miss_has_the_cause_that_the_naive_model_finds() {
    let mut random = XorShift(88172645463325252);
    for geometry in geometries() {
        let (mut fast, mut naive) = (InstructionCache::new(geometry), NaiveCache::new(geometry));
        let mut evicted_by = std::collections::HashMap::<LineId, Mode>::new();
        let mut expected = PerMode::<MissCounts>::default();
        for line in stream(geometry, &mut random) {
            let answer = naive.access(line);
            assert_eq!(fast.fetch(line), answer != CacheAccess::Hit);
            let CacheAccess::Miss { evicted } = answer else {
                continue;
            };
            let misses = expected.get_mut(line.mode());
            match evicted_by.get(&line) {
                None => misses.cold += 1,
                Some(&mode) if mode == line.mode() => misses.own += 1,
                Some(_) => misses.other += 1,
            }
            evicted_by.extend(evicted.map(|left| (left, line.mode())));
        }
        assert_eq!(fast.misses(), expected, "{geometry:?}");
    }
}

/// In a fully associative LRU cache, a loop that is one line too long always misses. A loop that
/// fits misses once for each line.
#[test]
fn a_loop_that_is_one_line_too_long_always_misses() {
    let geometry = CacheGeometry::cache(64 * 64, 64, 64, Replacement::Lru).unwrap();
    for (length, misses) in [(64, 64), (65, 65 * 10)] {
        let mut cache = InstructionCache::new(geometry);
        for step in 0..length * 10 {
            cache.fetch(LineId::new(Mode::Kernel, step % length).unwrap());
        }
        assert_eq!(cache.misses().kernel.total(), misses, "{length} lines");
    }
}
