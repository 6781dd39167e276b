//! Measures `again`, most figures beside a floor, and where a script does the same, beside that as a peer; both are
//! measured in the same run.
//!
//!   again-bench ROOM…    rooms: charge cost waiter exit chain scale herd size fleet crowd
//!
//! `make bench` makes the tables of what it prints. `QUICK=1` takes few samples, to see that the
//! programs themselves work. Times that are compared are taken alternately; what waits, waits at the same time; the
//! floor of thousands of timers is measured after them.

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
    let rooms: Vec<String> = std::env::args().skip(1).collect();
    if let [within, again, times, peer] = &rooms[..]
        && within == cost::WITHIN
    {
        return cost::within(again, times.parse()?, peer);
    }
    if let [stamp, path] = &rooms[..]
        && stamp == scene::STAMP
    {
        return fleet::stamp(path);
    }
    let mut table = numbers::Table::default();
    for room in &rooms {
        eprintln!("bench: {room}");
        match room.as_str() {
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
            "fleet" | "crowd" => fleet::measure(room, &mut table)?,
            _ => bail!("there is no room {room}"),
        }
    }
    print!("{}", table.text());
    Ok(())
}
