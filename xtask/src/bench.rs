//! Measures, and writes the tables of doc/numbers from what was measured.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::repository;

/// What is measured, and how.
#[derive(clap::Args)]
pub struct Options {
    /// Only try the programs, with a few samples, and write nothing
    #[arg(long)]
    quick: bool,
    /// What to measure; all of it without a name. The tables are written once there is a part of each, of one binary
    #[arg(value_parser = ROOMS)]
    rooms: Vec<String>,
}

const ROOMS: [&str; 10] = [
    "charge", "cost", "waiter", "exit", "chain", "scale", "herd", "size", "fleet", "crowd",
];

/// Which rooms' rows each table has, what its columns are, and which of a row's columns these are.
struct Table {
    file: &'static str,
    rooms: &'static [&'static str],
    head: &'static str,
    columns: &'static [usize],
}

const TABLES: [Table; 4] = [
    Table {
        file: "table.md",
        rooms: &["charge", "cost", "waiter", "exit", "chain", "scale"],
        head: "| what | again | floor | peer | bar |",
        columns: &[0, 1, 2, 3, 4],
    },
    Table {
        file: "herd.md",
        rooms: &["herd"],
        head: "| what | again | fixed delay | Puppet's splay | bar |",
        columns: &[0, 1, 2, 3, 4],
    },
    Table {
        file: "size.md",
        rooms: &["size"],
        head: "| what | size | floor | bar |",
        columns: &[0, 1, 2, 4],
    },
    Table {
        file: "fleet.md",
        rooms: &["fleet", "crowd"],
        head: "| what | again-fleet | floor | peer | bar |",
        columns: &[0, 1, 2, 3, 4],
    },
];

/// What was measured of a room.
#[derive(Clone)]
struct Part {
    rows: String,
    /// Load of the machine afterwards.
    load: String,
    /// SHA-256 of the binary.
    binary: String,
    day: String,
}

/// Measures the rooms; with a part of each, all of the same binary, writes the tables, else says which are left and fails.
pub fn bench(options: &Options) -> Result<()> {
    let rooms: Vec<&str> = match options.rooms.is_empty() {
        // The parts of the size take two more builds.
        true if options.quick => ROOMS
            .into_iter()
            .filter(|room| *room != "size" && *room != "chain")
            .collect(),
        true => ROOMS.to_vec(),
        false => options.rooms.iter().map(String::as_str).collect(),
    };
    run(Command::new("tests/tools/build").args(["x86_64", "again"]))?;
    let is_fleet = |room: &&str| matches!(*room, "fleet" | "crowd");
    if rooms.iter().any(is_fleet) && std::env::var_os("AGAIN_FLEET_BIN").is_none() {
        run(Command::new("tests/tools/build").args(["x86_64", "again-fleet"]))?;
    }
    run(Command::new("cargo").args([
        "build",
        "--quiet",
        "--locked",
        "--profile",
        "bench-programs",
        "--package",
        "again-bench",
    ]))?;
    let parts = repository().join("target/bench-parts");
    fs::create_dir_all(parts.join("plots"))?;
    for room in &rooms {
        if options.quick {
            run(program(room, 120).env("QUICK", "1").stdout(Stdio::null()))?;
        } else {
            measure(room, &parts)?;
        }
    }
    if options.quick {
        println!("bench: {} passed, 0 failed", rooms.len());
        return Ok(());
    }
    write_tables(&parts)
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.current_dir(repository()).status()?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

fn output(command: &mut Command) -> Result<String> {
    let output = command
        .current_dir(repository())
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// The benchmark of a room, which thousands of processes may take, each with a few descriptors.
fn program(room: &str, seconds: u32) -> Command {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            "ulimit -n \"$(ulimit -Hn)\" && exec timeout \"$@\"",
            "sh",
        ])
        .arg(seconds.to_string())
        .arg(target.join("bench-programs/again-bench"))
        .arg(room);
    command
}

/// The binary that a room measures.
fn binary(room: &str) -> PathBuf {
    let (variable, file) = match room {
        "fleet" | "crowd" => ("AGAIN_FLEET_BIN", "dist/again-fleet"),
        _ => ("AGAIN_BIN", "dist/again"),
    };
    std::env::var_os(variable).map_or_else(|| repository().join(file), PathBuf::from)
}

/// SHA-256 of the binary that a room measures.
fn sum(room: &str) -> Result<String> {
    let text = output(Command::new("sha256sum").arg(binary(room)))?;
    Ok(text.split(' ').next().unwrap_or_default().to_owned())
}

/// Measures one room, and keeps what came of it.
fn measure(room: &str, parts: &Path) -> Result<()> {
    let before = sum(room)?;
    let mut command = program(room, 900);
    command
        .env_remove("QUICK")
        .env("PLOTS", parts.join("plots"));
    if room == "size" {
        // The same build, symbols kept.
        for (option, variable) in [("--symbols", "AGAIN_SYMBOLS"), ("--bare", "AGAIN_BARE")] {
            let path = repository().join("target").join(format!("again{option}"));
            run(Command::new("tests/tools/build").arg(option).arg(&path))?;
            command.env(variable, path);
        }
    }
    let rows = output(&mut command)?;
    let load = fs::read_to_string("/proc/loadavg")?;
    let load = load.split(' ').next().unwrap_or_default();
    ensure!(
        sum(room)? == before,
        "{} has changed while {room} measured it",
        binary(room).display()
    );
    let day = output(Command::new("date").args(["-u", "+%F"]))?;
    let part = format!("{before} {} {load}\n{rows}", day.trim());
    fs::write(parts.join(room), part)?;
    Ok(())
}

/// What is kept of a room.
fn part(parts: &Path, room: &str) -> Option<Part> {
    let text = fs::read_to_string(parts.join(room)).ok()?;
    let (head, rows) = text.split_once('\n')?;
    let [binary, day, load] = head.split(' ').collect::<Vec<_>>()[..] else {
        return None;
    };
    Some(Part {
        rows: rows.to_owned(),
        load: format!("{room} {load}"),
        binary: binary.to_owned(),
        day: day.to_owned(),
    })
}

fn write_tables(parts: &Path) -> Result<()> {
    let mut left = Vec::new();
    for room in ROOMS {
        let now = sum(room)?;
        match part(parts, room) {
            None => eprintln!("{room}: not measured yet"),
            Some(part) if part.binary != now => {
                eprintln!(
                    "{room}: measured {} with another binary, {:.12}; this is {now:.12}",
                    part.day, part.binary
                );
            }
            Some(_) => continue,
        }
        left.push(room);
    }
    if !left.is_empty() {
        bail!(
            "no table was written; what was measured is kept. Run: cargo xtask bench {}",
            left.join(" ")
        );
    }
    let of = |rooms: &[&str]| -> Vec<Part> {
        let rooms = rooms.iter();
        rooms.filter_map(|room| part(parts, room)).collect()
    };
    let days: BTreeSet<String> = of(&ROOMS).into_iter().map(|part| part.day).collect();
    let numbers = repository().join("doc/numbers");
    for table in &TABLES {
        let all = of(table.rooms);
        let note = match table.file {
            "table.md" => note(&all, &sum("cost")?, &days, &machine()?),
            "fleet.md" => fleet_note(&all, &sum("fleet")?),
            "herd.md" => herd_note(&all),
            _ => String::new(),
        };
        let text = table.text(&all, &note);
        println!("{text}");
        fs::write(numbers.join(table.file), text)?;
    }
    let path = repository().join("README.md");
    fs::write(&path, readme(&fs::read_to_string(&path)?, &numbers)?)?;
    for plot in [
        "herd.csv",
        "herd.svg",
        "never-settles.csv",
        "never-settles.svg",
        "crowd.csv",
        "crowd.svg",
    ] {
        fs::copy(parts.join("plots").join(plot), numbers.join(plot))
            .with_context(|| format!("no plot {plot}"))?;
    }
    Ok(())
}

/// The README with the figures of its few rows as the tables in `numbers` have them now.
///
/// # Errors
/// A row that no table has.
pub fn readme(text: &str, numbers: &Path) -> Result<String> {
    const MARKS: [&str; 2] = ["<!-- five -->\n", "<!-- end of five -->"];
    let (before, rest) = text
        .split_once(MARKS[0])
        .context("no mark of the numbers")?;
    let (block, after) = rest.split_once(MARKS[1]).context("no end of the numbers")?;
    let mut rows = Vec::new();
    for table in ["table.md", "size.md", "fleet.md"] {
        let text = fs::read_to_string(numbers.join(table))?;
        rows.extend(text.lines().filter_map(cells));
    }
    let mut new = String::new();
    for (at, line) in block.lines().enumerate() {
        let name = cells(line).and_then(|cells| cells.into_iter().next());
        let Some(name) = name.filter(|_| at >= 2) else {
            new += &format!("{line}\n");
            continue;
        };
        let row = rows.iter().find(|row| row.first() == Some(&name));
        let row = row.with_context(|| format!("no table has the row '{name}'"))?;
        let cell = |at: usize| row.get(at).map_or("", String::as_str);
        let bar = row.last().map_or("", String::as_str);
        new += &format!("| {name} | {} | {} | {bar} |\n", cell(1), cell(2));
    }
    Ok([before, MARKS[0], &new, MARKS[1], after].concat())
}

/// The cells of a table's row.
fn cells(line: &str) -> Option<Vec<String>> {
    let row = line.strip_prefix('|')?.strip_suffix('|')?;
    Some(row.split('|').map(|cell| cell.trim().to_owned()).collect())
}

/// Processors, kernel, and the file system under the state.
fn machine() -> Result<String> {
    let info = fs::read_to_string("/proc/cpuinfo")?;
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model
        .unwrap_or_default()
        .trim_start_matches([' ', '\t', ':']);
    let release = output(Command::new("uname").arg("-r"))?;
    let release = release
        .trim()
        .split('-')
        .next()
        .unwrap_or_default()
        .to_owned();
    let system = output(
        Command::new("stat")
            .args(["-f", "-c", "%T"])
            .arg(std::env::temp_dir()),
    )?;
    let cores = std::thread::available_parallelism()?;
    Ok(format!(
        "{cores} × {model}, Linux {release}, {} under the state",
        system.trim()
    ))
}

fn loads(parts: &[Part]) -> String {
    let loads: Vec<&str> = parts.iter().map(|part| part.load.as_str()).collect();
    loads.join(", ")
}

fn note(parts: &[Part], sum: &str, days: &BTreeSet<String>, machine: &str) -> String {
    let between = match (days.first(), days.last()) {
        (Some(first), Some(last)) if first != last => format!("{first} to {last}"),
        (first, _) => first.cloned().unwrap_or_default(),
    };
    format!(
        "\nMedian / 99th percentile (quartiles). {machine}; load of the machine after each part: {}. All rows, and those of the \
         herd and of the size, are of one binary, `sha256sum` {sum:.12}…, measured {between}.\n",
        loads(parts)
    )
}

fn herd_note(parts: &[Part]) -> String {
    format!(
        "\nThe real waiters are of the same binary; load of the machine: {}. All else is simulated, with the policy of the sources \
         that it was built from, and comes out the same each time.\n",
        loads(parts)
    )
}

fn fleet_note(parts: &[Part], sum: &str) -> String {
    format!(
        "\nMedian / 99th percentile (quartiles). Two nodes and an etcd on the same machine, with TLS and signatures by a Puppet CA; \
         load of the machine: {}. The binary is `sha256sum` {sum:.12}….\n",
        loads(parts)
    )
}

impl Table {
    fn text(&self, parts: &[Part], note: &str) -> String {
        let columns = self.head.matches('|').count() - 1;
        let mut text = format!("{}\n|{}\n", self.head, " --- |".repeat(columns));
        for row in parts.iter().flat_map(|part| part.rows.lines()) {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            for column in self.columns {
                text += &format!("| {} ", cells.get(*column).unwrap_or(&""));
            }
            text += "|\n";
        }
        text + note
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> Vec<Part> {
        let part = |rows: &str, load: &str| Part {
            rows: rows.to_owned(),
            load: load.to_owned(),
            binary: "b".repeat(64),
            day: "2026-01-02".to_owned(),
        };
        vec![
            part(
                "| a request | 2 ms | 1 ms | 30 ms | ≤ 3 ×: reached |\n",
                "cost 0.10",
            ),
            part("| its size | 5 bytes |  |  |  |\n", "size 0.20"),
        ]
    }

    #[test]
    fn a_table_has_its_columns_and_the_rows_of_its_rooms() {
        assert_eq!(
            TABLES[0].text(&parts()[..1], "\nnote\n"),
            "| what | again | floor | peer | bar |\n| --- | --- | --- | --- | --- |\n\
             | a request | 2 ms | 1 ms | 30 ms | ≤ 3 ×: reached |\n\nnote\n"
        );
        assert_eq!(
            TABLES[2].text(&parts()[1..], ""),
            "| what | size | floor | bar |\n| --- | --- | --- | --- |\n| its size | 5 bytes |  |  |\n"
        );
    }

    #[test]
    fn the_readmes_figures_are_those_of_the_tables() {
        let root = repository();
        let text = fs::read_to_string(root.join("README.md")).expect("the README");
        let now = readme(&text, &root.join("doc/numbers")).expect("rows");
        assert_eq!(text, now, "`make bench` writes them");
    }

    #[test]
    fn the_note_says_which_binary_which_days_and_how_busy() {
        let days = BTreeSet::from(["2026-01-02".to_owned(), "2026-01-04".to_owned()]);
        let note = note(&parts(), &"0123456789abcdef".repeat(4), &days, "2 × CPU");
        assert!(
            note.contains("2 × CPU; load of the machine after each part: cost 0.10, size 0.20.")
        );
        assert!(
            note.contains("`sha256sum` 0123456789ab…, measured 2026-01-02 to 2026-01-04.\n"),
            "{note}"
        );
    }
}
