//! Hit ratios of eviction policies: LRU, FIFO, this crate's policy with an exact forecast of two epochs and with one
//! that is wrong by up to a third, and the offline optimum.

#[path = "../tests/simulator/mod.rs"]
mod simulator;

use simulator::{Choice, Reader, Trace};

const EPOCHS: usize = 8;

fn main() {
    let shuffled = |speed, seed| Reader { shuffled: true, speed, seed };
    let traces = [
        ("reshuffled", vec![shuffled(1.0, 1)]),
        ("fixed order", vec![Reader { shuffled: false, speed: 1.0, seed: 1 }]),
        ("two jobs, 1 and 0.37", vec![shuffled(1.0, 1), shuffled(0.37, 2)]),
    ];
    println!("% of bytes hit        blocks capacity     LRU    FIFO  forecast     rough    Belady");
    for (name, readers) in &traces {
        for blocks in [200, 1000, 10_000] {
            let trace = Trace::new(blocks, EPOCHS, readers);
            for percent in [10, 25, 50, 75] {
                let hit = |choice| 100.0 * trace.hit_ratio(choice, percent);
                println!(
                    "{name:<21} {blocks:>6} {percent:>7}% {:>7.1} {:>7.1} {:>9.1} {:>9.1} {:>9.1}",
                    hit(Choice::LeastRecentlyUsed),
                    hit(Choice::FirstIn),
                    hit(Choice::Forecast),
                    hit(Choice::RoughForecast),
                    hit(Choice::Offline),
                );
            }
        }
    }
}
