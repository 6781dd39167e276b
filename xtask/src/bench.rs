//! Runs the benchmarks, and writes the tables of doc/numbers from the results.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::repository;

/// What is measured, and how.
#[derive(clap::Args)]
pub struct Options {
    /// Only try the programs, with a few samples, and write nothing
    #[arg(long)]
    quick: bool,
    /// Measure and print only these parts, and write no tables
    #[arg(value_parser = ROOMS)]
    layers: Vec<String>,
}

const ROOMS: [&str; 11] = [
    "charge", "cost", "waiter", "exit", "chain", "scale", "quiet", "herd", "size", "fleet", "crowd",
];

/// Table of doc/numbers: the layers whose rows it has, its columns, and the columns of a row that
/// they come from.
struct Table {
    file: &'static str,
    layers: &'static [&'static str],
    head: &'static str,
    columns: &'static [usize],
}

const TABLES: [Table; 4] = [
    Table {
        file: "table.md",
        layers: &[
            "charge", "cost", "waiter", "exit", "chain", "scale", "quiet",
        ],
        head: "| what | again | floor | peer | bar |",
        columns: &[0, 1, 2, 3, 4],
    },
    Table {
        file: "herd.md",
        layers: &["herd"],
        head: "| what | again | fixed delay | Puppet's splay | bar |",
        columns: &[0, 1, 2, 3, 4],
    },
    Table {
        file: "size.md",
        layers: &["size"],
        head: "| what | size | limit |",
        columns: &[0, 1, 4],
    },
    Table {
        file: "fleet.md",
        layers: &["fleet", "crowd"],
        head: "| what | again-fleet | floor | peer | bar |",
        columns: &[0, 1, 2, 3, 4],
    },
];

/// Results of a layer.
struct Part {
    layer: String,
    rows: String,
    /// Load of the machine afterwards.
    load: String,
}

/// Measures the layers. Prints the rows of the named ones; without names, measures all layers and
/// writes the tables.
pub fn bench(options: &Options) -> Result<()> {
    let is_all = options.layers.is_empty();
    let layers: Vec<&str> = match is_all {
        true if options.quick => ROOMS
            .into_iter()
            .filter(|layer| *layer != "chain")
            .collect(),
        true => ROOMS.to_vec(),
        false => options.layers.iter().map(String::as_str).collect(),
    };
    run(&mut Command::new("tests/tools/build"))?;
    run(Command::new("cargo").args([
        "build",
        "--quiet",
        "--locked",
        "--profile",
        "bench-programs",
        "--package",
        "again-bench",
    ]))?;
    if options.quick {
        for layer in &layers {
            run(program(layer, 120).env("QUICK", "1").stdout(Stdio::null()))?;
        }
        println!("bench: {} passed, 0 failed", layers.len());
        return Ok(());
    }
    let plots = repository().join("target/plots");
    // Plots of an earlier run must not be mistaken for new ones.
    let _ = fs::remove_dir_all(&plots);
    fs::create_dir_all(&plots)?;
    let before = sums()?;
    let parts = layers.iter().map(|layer| measure(layer, &plots));
    let parts: Vec<Part> = parts.collect::<Result<_>>()?;
    ensure!(
        sums()? == before,
        "a program has changed while it was measured"
    );
    match is_all {
        true => write_tables(&parts, &plots, &before),
        false => Ok(()),
    }
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

/// Returns the benchmark command of a layer, which may use thousands of processes, each with a few
/// descriptors.
fn program(layer: &str, seconds: u32) -> Command {
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
        .arg(layer)
        // The program with its symbols.
        .env(
            "AGAIN_SYMBOLS",
            target.join("x86_64-unknown-linux-musl/release/again"),
        );
    command
}

/// Returns the SHA-256 sums of both programs.
fn sums() -> Result<[String; 2]> {
    let sum = |variable, file: &str| -> Result<String> {
        let program = std::env::var_os(variable);
        let program = program.map_or_else(|| repository().join(file), PathBuf::from);
        let text = output(Command::new("sha256sum").arg(program))?;
        Ok(text.split(' ').next().unwrap_or_default().to_owned())
    };
    Ok([
        sum("AGAIN_BIN", "dist/again")?,
        sum("AGAIN_FLEET_BIN", "dist/again-fleet")?,
    ])
}

/// Measures one layer, and prints its rows.
fn measure(layer: &str, plots: &Path) -> Result<Part> {
    let mut command = program(layer, 900);
    let rows = output(command.env_remove("QUICK").env("PLOTS", plots))?;
    print!("{rows}");
    let load = fs::read_to_string("/proc/loadavg")?;
    let load = load.split(' ').next().unwrap_or_default();
    Ok(Part {
        layer: layer.to_owned(),
        load: format!("{layer} {load}"),
        rows,
    })
}

fn write_tables(parts: &[Part], plots: &Path, sums: &[String; 2]) -> Result<()> {
    let numbers = repository().join("doc/numbers");
    let day = output(Command::new("date").args(["-u", "+%F"]))?;
    for table in &TABLES {
        let is_of = |part: &&Part| table.layers.contains(&part.layer.as_str());
        let parts: Vec<&Part> = parts.iter().filter(is_of).collect();
        let note = match table.file {
            "table.md" => note(&parts, &sums[0], day.trim(), &machine()?),
            "fleet.md" => fleet_note(&parts, &sums[1]),
            "herd.md" => herd_note(&parts),
            _ => String::new(),
        };
        fs::write(numbers.join(table.file), table.text(&parts, &note))?;
    }
    for plot in [
        "herd.csv",
        "herd.svg",
        "never-settles.csv",
        "never-settles.svg",
        "crowd.csv",
        "crowd.svg",
    ] {
        fs::copy(plots.join(plot), numbers.join(plot))
            .with_context(|| format!("no plot {plot}"))?;
    }
    Ok(())
}

/// Describes the processors, the kernel, and the file system under the state.
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

fn loads(parts: &[&Part]) -> String {
    let loads: Vec<&str> = parts.iter().map(|part| part.load.as_str()).collect();
    loads.join(", ")
}

fn note(parts: &[&Part], sum: &str, day: &str, machine: &str) -> String {
    format!(
        "\nMedian / 99th percentile (quartiles). {machine}; load of the machine after each part: {}. All rows, and those of the \
         herd and of the size, are of one binary, `sha256sum` {sum:.12}…, measured {day}.\n",
        loads(parts)
    )
}

fn herd_note(parts: &[&Part]) -> String {
    format!(
        "\nThe real waiters are of the same binary; load of the machine: {}. All else is simulated, with the policy of the sources \
         that it was built from, and comes out the same each time.\n",
        loads(parts)
    )
}

fn fleet_note(parts: &[&Part], sum: &str) -> String {
    format!(
        "\nMedian / 99th percentile (quartiles). Two nodes and an etcd on the same machine, with TLS and signatures by a Puppet CA; \
         load of the machine: {}. The binary is `sha256sum` {sum:.12}….\n",
        loads(parts)
    )
}

impl Table {
    fn text(&self, parts: &[&Part], note: &str) -> String {
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

    fn part(rows: &str, load: &str) -> Part {
        Part {
            layer: "cost".to_owned(),
            rows: rows.to_owned(),
            load: load.to_owned(),
        }
    }

    #[test]
    fn a_table_has_its_columns_and_the_rows_of_its_layers() {
        let cost = part(
            "| a request | 2 ms | 1 ms | 30 ms | ≤ 3 ×: reached |\n",
            "cost 0.10",
        );
        assert_eq!(
            TABLES[0].text(&[&cost], "\nnote\n"),
            "| what | again | floor | peer | bar |\n| --- | --- | --- | --- | --- |\n\
             | a request | 2 ms | 1 ms | 30 ms | ≤ 3 ×: reached |\n\nnote\n"
        );
        assert_eq!(
            TABLES[2].text(&[&part("| its size | 5 bytes |  |  |  |\n", "")], ""),
            "| what | size | limit |\n| --- | --- | --- |\n| its size | 5 bytes |  |\n"
        );
    }

    #[test]
    fn the_note_says_which_binary_which_day_and_how_busy() {
        let parts = [part("", "cost 0.10"), part("", "size 0.20")];
        let parts: Vec<&Part> = parts.iter().collect();
        let note = note(
            &parts,
            &"0123456789abcdef".repeat(4),
            "2026-01-02",
            "2 × CPU",
        );
        assert!(
            note.contains("2 × CPU; load of the machine after each part: cost 0.10, size 0.20.")
        );
        assert!(
            note.contains("`sha256sum` 0123456789ab…, measured 2026-01-02.\n"),
            "{note}"
        );
    }
}
