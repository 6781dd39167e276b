//! Measures `again`: most figures beside a floor, and if a script can do the same, beside that
//! script as a peer; all are measured in the same run.
//!
//!   again-bench ROOM…    parts: charge cost waiter exit chain scale herd size fleet crowd
//!
//! `make bench` makes the tables from its output. `QUICK=1` takes few samples, to check that the
//! programs themselves work. Compared times are measured alternately, waiting processes at the same
//! time; the floor of thousands of timers is measured after them.

mod chain;
mod cost;
mod crowd;
mod exit;
mod fleet;
mod herd;
mod numbers;
mod peers;
mod plots;
mod quiet;
mod runs;
mod scale;
mod scene;
mod size;
mod start;
mod waiter;

use anyhow::{Result, bail};

fn main() -> Result<()> {
    let parts: Vec<String> = std::env::args().skip(1).collect();
    if let [within, again, times, peer] = &parts[..]
        && within == cost::WITHIN
    {
        return cost::within(again, times.parse()?, peer);
    }
    if let [stamp, path] = &parts[..]
        && stamp == scene::STAMP
    {
        return fleet::stamp(path);
    }
    let mut table = numbers::Table::default();
    for part in &parts {
        eprintln!("bench: {part}");
        match part.as_str() {
            "charge" => chain::charge(&mut table)?,
            "cost" => cost::measure(&mut table)?,
            "size" => size::measure(&mut table)?,
            "waiter" => waiter::measure(&mut table)?,
            "exit" => exit::measure(&mut table)?,
            "chain" => chain::measure(&mut table)?,
            "scale" => {
                scale::measure(&mut table)?;
                quiet::logs(&mut table)?;
            }
            "quiet" => quiet::targets(&mut table)?,
            "herd" => herd::measure(&mut table)?,
            "fleet" | "crowd" => fleet::measure(part, &mut table)?,
            _ => bail!("there is no part {part}"),
        }
    }
    print!("{}", table.text());
    Ok(())
}
