//! The fast cache against the plainest one that can be written, on many geometries and streams:
//! every single answer is equal.

use kernlane_sim::{
    Access, Cache, Geometry, InstructionCache, Line, Misses, Mode, PerMode, Replacement,
};

/// A set is a list, and everything is looked for from the front.
struct Naive {
    geometry: Geometry,
    sets: Vec<Vec<Line>>,
    /// Tree-PLRU as its definition says it: for every path from the root, which half was used last.
    recent: Vec<std::collections::HashMap<(u32, u32), bool>>,
}

impl Naive {
    fn new(geometry: Geometry) -> Naive {
        let sets = geometry.sets() as usize;
        Naive { geometry, sets: vec![Vec::new(); sets], recent: vec![Default::default(); sets] }
    }

    fn access(&mut self, line: Line) -> Access {
        match self.geometry.replacement() {
            Replacement::Lru => self.lru(line),
            Replacement::TreePlru => self.plru(line),
        }
    }

    fn set_of(&self, line: Line) -> usize {
        (line.index() % self.geometry.sets()) as usize
    }

    /// Least recently used first.
    fn lru(&mut self, line: Line) -> Access {
        let number = self.set_of(line);
        let set = &mut self.sets[number];
        if let Some(at) = set.iter().position(|&held| held == line) {
            set.remove(at);
            set.push(line);
            return Access::Hit;
        }
        let full = set.len() == self.geometry.ways() as usize;
        let evicted = full.then(|| set.remove(0));
        set.push(line);
        Access::Miss { evicted }
    }

    fn plru(&mut self, line: Line) -> Access {
        let number = self.set_of(line);
        let ways = self.geometry.ways();
        let set = &mut self.sets[number];
        let (way, answer) = if let Some(at) = set.iter().position(|&held| held == line) {
            (at as u32, Access::Hit)
        } else if set.len() < ways as usize {
            set.push(line);
            (set.len() as u32 - 1, Access::Miss { evicted: None })
        } else {
            let victim = self.plru_victim(number, 0, ways);
            let evicted = Some(std::mem::replace(&mut self.sets[number][victim as usize], line));
            (victim, Access::Miss { evicted })
        };
        self.plru_touch(number, 0, ways, way);
        answer
    }

    /// Ways from `first` on, `count` of them: recursion into the half that was not used last.
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

/// A small generator of numbers (xorshift64*), so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % u64::from(bound)) as u32
    }

    fn line(&mut self, bound: u32) -> Line {
        let mode = Mode::BOTH[self.below(2) as usize];
        Line::new(mode, self.below(bound)).unwrap()
    }
}

fn geometries() -> Vec<Geometry> {
    let mut all = Vec::new();
    for line in [16, 32, 64, 128, 256] {
        for ways in [1, 2, 3, 4, 6, 8, 12, 16, 64] {
            for sets in [1, 2, 16, 64] {
                for replacement in [Replacement::Lru, Replacement::TreePlru] {
                    all.extend(Geometry::cache(sets * ways * line, ways, line, replacement));
                }
            }
        }
    }
    assert!(all.len() > 250);
    all
}

/// Lines at random; loops that just fit, just do not fit, and far do not; runs of the same line;
/// both sides.
fn stream(geometry: Geometry, random: &mut Random) -> Vec<Line> {
    let capacity = geometry.sets() * geometry.ways();
    let mut lines = Vec::new();
    for _ in 0..6 {
        let span =
            [capacity, capacity + 1, capacity * 2, capacity / 2 + 1][random.below(4) as usize];
        match random.below(3) {
            0 => lines.extend((0..300).map(|_| random.line(span * 2))),
            1 => {
                let (start, length) = (random.below(1000), 300.min(span * 3));
                lines.extend(
                    (0..length).map(|step| Line::new(Mode::Kernel, start + step % span).unwrap()),
                );
            }
            _ => lines.extend((0..60).flat_map(|_| std::iter::repeat_n(random.line(span), 3))),
        }
    }
    lines
}

#[test]
fn fast_and_naive_agree_on_every_access() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    for geometry in geometries() {
        let (mut fast, mut naive) = (Cache::new(geometry), Naive::new(geometry));
        for (step, line) in stream(geometry, &mut random).into_iter().enumerate() {
            assert_eq!(fast.access(line), naive.access(line), "{geometry:?}, access {step}");
        }
    }
}

#[test]
fn every_miss_has_the_cause_that_the_naive_model_finds() {
    let mut random = Random(88172645463325252);
    for geometry in geometries() {
        let (mut fast, mut naive) = (InstructionCache::new(geometry), Naive::new(geometry));
        let mut evicted_by = std::collections::HashMap::<Line, Mode>::new();
        let mut expected = PerMode::<Misses>::default();
        for line in stream(geometry, &mut random) {
            let answer = naive.access(line);
            assert_eq!(fast.fetch(line), answer != Access::Hit);
            let Access::Miss { evicted } = answer else {
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

/// A loop one line longer than a fully associative LRU cache misses always; one that fits misses
/// once a line.
#[test]
fn a_loop_that_just_does_not_fit_thrashes() {
    let geometry = Geometry::cache(64 * 64, 64, 64, Replacement::Lru).unwrap();
    for (length, misses) in [(64, 64), (65, 65 * 10)] {
        let mut cache = InstructionCache::new(geometry);
        for step in 0..length * 10 {
            cache.fetch(Line::new(Mode::Kernel, step % length).unwrap());
        }
        assert_eq!(cache.misses().kernel.total(), misses, "{length} lines");
    }
}
