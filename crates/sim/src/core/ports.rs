//! Execution ports: in each cycle, each port begins one uop.
//!
//! Input: uops in program order, with the cycle from which their operands are there. Output: the
//! cycle in which each begins. A later uop may take an earlier cycle, as in a processor that
//! executes out of order. The order in time is not walked: a calendar of coming cycles holds the
//! busy ports of each.
//!
//! In some processors a uop is bound to one or two of its ports when it is dispatched, and waits
//! for these. In others it takes any free port: the one with the highest number. Tables give the
//! highest numbers to ports that only execute common uops, so that ports with rare abilities stay
//! free.

use super::description::PortBinding;

/// The cycles in the calendar. Uops of one window begin within this number of cycles, except in
/// long chains of misses. A uop further ahead finds its ports free.
const CALENDAR: usize = 1 << 13;

/// The number of units that are not pipelined.
pub(crate) const UNITS: usize = 8;

#[derive(Clone, Debug)]
pub(crate) struct Ports {
    /// For a cycle modulo [`CALENDAR`]: the cycle, and in the low 16 bits its busy ports.
    calendar: Box<[u64; CALENDAR]>,
    /// The cycle from which each unit is free.
    units: [u64; UNITS],
    binding: Option<PortBinding>,
    /// The state of a linear congruential generator.
    random: u64,
}

impl Ports {
    /// `binding`: the ports that a uop is bound to when it is dispatched.
    pub(super) fn new(binding: Option<PortBinding>) -> Ports {
        Ports { calendar: Box::new([0; CALENDAR]), units: [0; UNITS], binding, random: 0 }
    }

    /// The ports that a uop is bound to.
    #[inline]
    fn bind(&mut self, ports: u16) -> u16 {
        match self.binding {
            None | Some(PortBinding::Fewest) => ports,
            Some(PortBinding::Pair) => {
                let first = self.any(ports);
                first | self.any(ports & !first)
            }
        }
    }

    /// One of `ports`, chosen pseudo-randomly; 0 if there are none.
    #[inline]
    fn any(&mut self, mut ports: u16) -> u16 {
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let skipped = ((self.random >> 32) * u64::from(ports.count_ones())) >> 32;
        for _ in 0..skipped {
            ports &= ports - 1;
        }
        ports & ports.wrapping_neg()
    }

    /// Begins a uop on one of `ports` (at least one) in the first possible cycle from `earliest`
    /// on. Returns the cycle.
    #[inline]
    pub(super) fn begin(&mut self, ports: u16, earliest: u64) -> u64 {
        let ports = self.bind(ports);
        let mut cycle = earliest;
        loop {
            let entry = &mut self.calendar[cycle as usize % CALENDAR];
            let busy = match (*entry >> 16).cmp(&cycle) {
                std::cmp::Ordering::Less => 0,
                std::cmp::Ordering::Equal => *entry as u16,
                std::cmp::Ordering::Greater => return cycle,
            };
            let free = ports & !busy;
            if free != 0 {
                let port = 15 - free.leading_zeros();
                *entry = cycle << 16 | u64::from(busy | 1 << port);
                return cycle;
            }
            cycle += 1;
        }
    }

    /// As [`Ports::begin`], for a uop that also keeps `unit` for `cycles`.
    #[inline]
    pub(super) fn begin_on_unit(&mut self, ports: u16, earliest: u64, unit: u8, cycles: u8) -> u64 {
        let unit = unit as usize % UNITS;
        let cycle = self.begin(ports, earliest.max(self.units[unit]));
        self.units[unit] = cycle + u64::from(cycles);
        cycle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_begins_one_uop_a_cycle() {
        let mut ports = Ports::new(None);
        // Two ports: three uops need two cycles.
        assert_eq!([0; 3].map(|_| ports.begin(0b11, 5)), [5, 5, 6]);
        // Port 1 took 5 and 6, port 0 took 5.
        assert_eq!(ports.begin(0b10, 5), 7);
        assert_eq!(ports.begin(0b01, 5), 6);
        // A later uop takes an earlier cycle.
        assert_eq!(ports.begin(0b01, 3), 3);
        // Another turn of the calendar knows nothing of this one.
        assert_eq!(ports.begin(0b11, 5 + CALENDAR as u64), 5 + CALENDAR as u64);
    }

    /// Six ports have fifteen pairs.
    #[test]
    fn each_pair_is_bound_equally_often() {
        let mut ports = Ports::new(Some(PortBinding::Pair));
        let mut pairs = std::collections::BTreeMap::new();
        for _ in 0..15_000 {
            *pairs.entry(ports.bind(0b11_1111_0000)).or_insert(0) += 1;
        }
        assert_eq!(pairs.len(), 15);
        for (pair, uops) in pairs {
            assert_eq!((pair & !0b11_1111_0000, pair.count_ones()), (0, 2));
            assert!((850..1150).contains(&uops), "{pair:b}: {uops}");
        }
        // With two ports, both. With one, that one.
        assert_eq!([ports.bind(0b110), ports.bind(1 << 15)], [0b110, 1 << 15]);
    }

    #[test]
    fn a_unit_is_kept() {
        let mut ports = Ports::new(None);
        let starts = [0; 3].map(|_| ports.begin_on_unit(0b1, 0, 2, 6));
        assert_eq!(starts, [0, 6, 12]);
        // The port itself is free in between.
        assert_eq!(ports.begin(0b1, 0), 1);
    }
}
