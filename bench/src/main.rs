//! Measures `again`: each figure beside a floor and a peer that were measured in the same run, in turns with it.
//!
//!   again-bench ROOM…    rooms: charge cost waiter exit chain scale herd size
//!
//! `make bench` makes the tables of what it prints. `QUICK=1` takes few samples, to see that the
//! programs themselves work. Whatever is compared with another is measured with it alternately, on the same machine.

mod chain;
mod cost;
mod exit;
mod herd;
mod numbers;
mod scale;
mod size;
mod stage;
mod start;
mod waiter;

use anyhow::{Result, bail};

fn main() -> Result<()> {
    // The stand-in for a puppet run is this program under another name.
    if stage::is_stand_in() {
        return stage::stand_in();
    }
    let rooms: Vec<String> = std::env::args().skip(1).collect();
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
            "scale" => scale::measure(&mut table)?,
            "herd" => herd::measure(&mut table)?,
            _ => bail!("there is no room {room}"),
        }
    }
    print!("{}", table.text());
    Ok(())
}
