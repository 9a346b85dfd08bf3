//! Random programs of several CPUs. A naive scheduler, which remembers every step, gives the same
//! order and the same times; and in a naive memory, every load reads the store that it read in the
//! order of the recording.

use super::clocks::{CpuClocks, CpuWaits};
use super::window::{CpuSet, MOST_CPUS, Step, Stretch, Window, bit};
use super::words::WordLinks;
use crate::data::DataAccess;
use sim::{LineId, Mode, PerMode, PhysAddr};
use std::collections::HashMap;
use trace::{CpuCount, CpuId};

/// xorshift64* (Vigna 2016).
struct XorShift(u64);

impl XorShift {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// A CPU, and the number of a step of it, from 1.
type Made = (usize, u64);
/// By CPU.
type Times = Vec<(f64, PerMode<CpuWaits>)>;

/// A step in user mode without accesses.
const NOTHING: Step =
    Step { fragment: None, is_execution: true, mode: Mode::User, loads: 0, stores: 0, accesses: 0 };

/// What a step costs.
fn cycles((cpu, number): Made) -> f64 {
    let mixed = (number * 8 + cpu as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    // Some steps take no time.
    (mixed % 61) as f64 * if cpu == 1 { 3.0 } else { 1.0 }
}

/// A program of `steps` steps, whose accesses fall on a few words of three pages.
fn random_program(random: &mut XorShift, cpus: usize, steps: usize) -> Vec<Stretch> {
    let mut program: Vec<Stretch> = Vec::new();
    let mut made = 0;
    while made < steps {
        let cpu = random.below(cpus);
        let mut stretch = Stretch::new(CpuId(cpu as u8));
        if random.chance(15) {
            stretch.woken.push(0);
        }
        for _ in 0..1 + random.below(60) {
            let accesses = random.below(5);
            let mode = if random.chance(50) { Mode::Kernel } else { Mode::User };
            stretch.steps.push(Step { mode, accesses: accesses as u32, ..NOTHING });
            stretch.accesses.extend((0..accesses).map(|_| random_access(random, cpu)));
            made += 1;
        }
        program.push(stretch);
    }
    program
}

/// Most accesses of a CPU fall on words of its own, so that it runs ahead of others.
fn random_access(random: &mut XorShift, cpu: usize) -> DataAccess {
    let size = 1 << random.below(5);
    let own = random.chance(80);
    let offset = if own { 512 + 64 * cpu + random.below(48) } else { random.below(40) };
    let at = 4096 * random.below(3) + offset;
    DataAccess {
        physical: PhysAddr(0x7000 + at as u64),
        page: LineId::physical(0),
        instruction: 0,
        size,
        is_store: random.chance(40),
    }
}

/// The steps of each CPU, with their accesses.
fn by_cpu(program: &[Stretch], cpus: usize) -> Vec<Vec<&[DataAccess]>> {
    let mut steps = vec![Vec::new(); cpus];
    for (cpu, accesses) in in_recorded_order(program) {
        steps[cpu].push(accesses);
    }
    steps
}

fn in_recorded_order(program: &[Stretch]) -> impl Iterator<Item = (usize, &[DataAccess])> {
    program.iter().flat_map(|stretch| {
        let mut rest = &stretch.accesses[..];
        stretch.steps.iter().map(move |step| {
            let (own, behind) = rest.split_at(step.accesses as usize);
            rest = behind;
            (usize::from(stretch.cpu.0), own)
        })
    })
}

/// For each step, which step stored each byte that it loads; and the last store to each byte.
type Loaded = (HashMap<Made, Vec<Option<Made>>>, HashMap<u64, Made>);

/// Executes steps in this order on a memory of bytes.
fn executed<'a>(steps: impl Iterator<Item = (usize, &'a [DataAccess])>) -> Loaded {
    let (mut loaded, mut memory) = Loaded::default();
    let mut made = [0; MOST_CPUS];
    for (cpu, accesses) in steps {
        made[cpu] += 1;
        let own = (cpu, made[cpu]);
        for access in accesses {
            for byte in access.physical.0..access.physical.0 + u64::from(access.size) {
                match access.is_store {
                    true => drop(memory.insert(byte, own)),
                    false => loaded.entry(own).or_default().push(memory.get(&byte).copied()),
                }
            }
        }
    }
    (loaded, memory)
}

/// What the schedulers say.
#[derive(Debug, PartialEq)]
struct Scheduled {
    order: Vec<usize>,
    times: Times,
}

/// Runs the program through a window. Reads this number of stretches at once.
fn scheduled(program: &[Stretch], cpus: usize, at_once: usize, limit: u64) -> Scheduled {
    let count = CpuCount::new(cpus as u32).unwrap();
    let (mut links, mut window) = (WordLinks::default(), Window::new(count, limit));
    let mut clocks = CpuClocks::new(count);
    let (mut order, mut made, mut bytes) = (Vec::new(), [0; MOST_CPUS], 0);
    let mut advance = |clocks: &mut CpuClocks, window: &Window, most: u64| {
        clocks.advance(window, |cpu, step, _, _| {
            let cpu = usize::from(cpu.0);
            order.push(cpu);
            made[cpu] += 1;
            bytes += step.bytes();
            cycles((cpu, made[cpu]))
        });
        assert!(window.bytes() - bytes <= most, "{} bytes are left", window.bytes() - bytes);
    };
    for (batch, stretches) in program.chunks(at_once).enumerate() {
        let mut stretches = stretches.to_vec();
        links.link(&mut stretches);
        let behind = &program[((batch + 1) * at_once).min(program.len())..];
        window.append(stretches.into_iter(), halted(behind, cpus));
        advance(&mut clocks, &window, limit);
        (0..cpus).for_each(|cpu| window.forget(cpu, clocks.stretch(cpu).unwrap()));
    }
    window.end();
    advance(&mut clocks, &window, 0);
    Scheduled { order, times: clocks.times().collect() }
}

/// The CPUs that were halted before their next step.
fn halted(behind: &[Stretch], cpus: usize) -> CpuSet {
    let next = |cpu| behind.iter().find(|stretch| usize::from(stretch.cpu.0) == cpu);
    let is_halted = |&cpu: &usize| next(cpu).is_some_and(|stretch| !stretch.woken.is_empty());
    (0..cpus).filter(is_halted).fold(0, |set, cpu| set | bit(cpu))
}

/// Every step that a step comes behind.
fn dependencies(program: &[Stretch], cpus: usize) -> Vec<Vec<Vec<Made>>> {
    let mut of = vec![Vec::new(); cpus];
    // By word: the last store, and the loads since.
    let mut words: HashMap<u64, (Option<Made>, Vec<Made>)> = HashMap::new();
    for stretch in program {
        let cpu = usize::from(stretch.cpu.0);
        let steps = in_recorded_order(std::slice::from_ref(stretch));
        for (at, (_, accesses)) in steps.enumerate() {
            let own = (cpu, of[cpu].len() as u64 + 1);
            let mut needs = Vec::new();
            if stretch.woken.contains(&(at as u32)) {
                needs.extend((0..cpus).map(|other| (other, of[other].len() as u64)));
            }
            for access in accesses {
                let last = access.physical.0 + u64::from(access.size) - 1;
                for word in access.physical.0 / 8..=last / 8 {
                    let (store, loads) = words.entry(word).or_default();
                    needs.extend(*store);
                    if access.is_store {
                        needs.append(loads);
                        *store = Some(own);
                    } else {
                        loads.push(own);
                    }
                }
            }
            needs.retain(|&(other, number)| other != cpu && number > 0);
            of[cpu].push(needs);
        }
    }
    of
}

/// The order in which steps begin, and when each CPU's last step ends.
fn naive(program: &[Stretch], cpus: usize) -> (Vec<usize>, Vec<f64>) {
    let needs = dependencies(program, cpus);
    let mut ends: Vec<Vec<f64>> = vec![Vec::new(); cpus];
    let mut order = Vec::new();
    loop {
        let begins = |cpu: usize| {
            let of_step = needs[cpu].get(ends[cpu].len())?;
            let mut begins = ends[cpu].last().copied().unwrap_or(0.0);
            for &(other, number) in of_step {
                begins = ends[other].get(number as usize - 1)?.max(begins);
            }
            Some(begins)
        };
        let ready = (0..cpus).filter_map(|cpu| Some((begins(cpu)?, cpu)));
        let Some((begins, cpu)) = ready.min_by(|a, b| a.partial_cmp(b).unwrap()) else { break };
        order.push(cpu);
        let number = ends[cpu].len() as u64 + 1;
        ends[cpu].push(begins + cycles((cpu, number)));
    }
    (order, ends.into_iter().map(|ends| ends.last().copied().unwrap_or(0.0)).collect())
}

/// The steps in the order of a schedule.
fn in_order<'a>(
    steps: &'a [Vec<&'a [DataAccess]>],
    order: &'a [usize],
) -> impl Iterator<Item = (usize, &'a [DataAccess])> {
    let mut next = [0; MOST_CPUS];
    order.iter().map(move |&cpu| {
        next[cpu] += 1;
        (cpu, steps[cpu][next[cpu] - 1])
    })
}

const UNLIMITED: u64 = u64::MAX;

#[test]
fn every_load_reads_the_store_that_it_read_in_the_recording() {
    let mut random = XorShift(17);
    let (mut accesses, mut reordered) = (0, 0);
    let small = (2..=MOST_CPUS).flat_map(|cpus| [100, 1000, 5000].map(|steps| (cpus, steps)));
    for (cpus, steps) in small.chain([(MOST_CPUS, 60_000)]) {
        let program = random_program(&mut random, cpus, steps);
        let steps = by_cpu(&program, cpus);
        let recorded = executed(in_recorded_order(&program));
        // Also with a small limit, where CPUs are held back.
        for limit in [UNLIMITED, 3000] {
            let scheduled = scheduled(&program, cpus, 3, limit);
            assert!(executed(in_order(&steps, &scheduled.order)) == recorded);
            let moved = in_recorded_order(&program).zip(&scheduled.order);
            reordered += moved.filter(|((cpu, _), other)| cpu != *other).count();
        }
        accesses += program.iter().map(|stretch| stretch.accesses.len()).sum::<usize>();
    }
    assert!(accesses > 190_000 && reordered > 50_000, "{accesses} {reordered}");
}

#[test]
fn a_naive_scheduler_gives_the_same_order_and_times() {
    let mut random = XorShift(23);
    for round in 0..60 {
        let cpus = 2 + round % (MOST_CPUS - 1);
        let program = random_program(&mut random, cpus, 20 + 40 * round);
        let Scheduled { order, times } = scheduled(&program, cpus, 5, UNLIMITED);
        let (naive_order, naive_ends) = naive(&program, cpus);
        assert_eq!(order, naive_order, "round {round}");
        let ends: Vec<f64> = times.iter().map(|(ends, _)| *ends).collect();
        assert_eq!(ends, naive_ends, "round {round}");
        let steps = by_cpu(&program, cpus);
        for (cpu, (ends, waits)) in times.iter().enumerate() {
            let made: f64 = (1..=steps[cpu].len() as u64).map(|at| cycles((cpu, at))).sum();
            assert_eq!(*ends, made + waits.kernel.total() + waits.user.total());
            assert_eq!(waits.kernel.held + waits.user.held, 0.0);
        }
    }
}

#[test]
fn what_is_read_at_once_changes_nothing() {
    let mut random = XorShift(5);
    for cpus in 2..=MOST_CPUS {
        let program = random_program(&mut random, cpus, 5000);
        let whole = scheduled(&program, cpus, program.len(), UNLIMITED);
        for at_once in [1, 2, 7, 50] {
            assert_eq!(scheduled(&program, cpus, at_once, UNLIMITED), whole, "{at_once} at once");
        }
    }
}

/// CPU 0 takes 100 cycles for a step, CPU 1 takes 1, and they share nothing. CPU 1 could be done
/// when CPU 0 has made 10 steps. The window has room for few steps, so CPU 1 is held back.
#[test]
fn a_full_window_holds_the_faster_cpu_back() {
    let turn = |cpu| Stretch { steps: vec![NOTHING; 10], ..Stretch::new(CpuId(cpu)) };
    let count = CpuCount::new(2).unwrap();
    let run = |limit| {
        let mut clocks = CpuClocks::new(count);
        let mut window = Window::new(count, limit);
        let cost =
            |cpu: CpuId, _: &Step, _: &[DataAccess], _: f64| [100.0, 1.0][usize::from(cpu.0)];
        for _ in 0..100 {
            window.append([turn(0), turn(1)].into_iter(), 0);
            clocks.advance(&window, cost);
        }
        window.end();
        clocks.advance(&window, cost);
        clocks.times().map(|(ends, waits)| (ends, waits.user)).collect::<Vec<_>>()
    };
    let free = [(100_000.0, CpuWaits::default()), (1000.0, CpuWaits::default())];
    assert_eq!(run(UNLIMITED), free);
    let held = run(20 * NOTHING.bytes());
    assert_eq!(held[0], free[0]);
    let (ends, waits) = held[1];
    assert_eq!(ends, 1000.0 + waits.held);
    // CPU 1 begins its last turn when CPU 0 has 30 steps left, or a few more.
    assert!((95_000.0..99_000.0).contains(&ends), "{ends}");
    assert_eq!(waits.total(), waits.held);
}
