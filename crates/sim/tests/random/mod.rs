//! xorshift64* (Vigna 2016). The script that ran the public simulator (`pycachesim.py`) uses the
//! same generator.

pub(crate) struct XorShift(pub u64);

impl XorShift {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound
    }
}
