//! Random numbers that a seed repeats on every machine and with every release of any library
//! (SplitMix64).

use std::time::Duration;

/// Random number generator.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`, which must be more than 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }

    /// Returns true `times` times out of a thousand.
    pub fn permille(&mut self, times: u64) -> bool {
        self.below(1000) < times
    }

    /// Waits for a random time less than `most`, so that the next step hits another moment each
    /// time.
    pub fn pause(&mut self, most: Duration) {
        let most = u64::try_from(most.as_micros()).expect("hours at most");
        std::thread::sleep(Duration::from_micros(self.below(most)));
    }
}
