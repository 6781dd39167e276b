//! Size of the program by the crate that each symbol belongs to.
//!
//! The symbols come from `AGAIN_SYMBOLS`, the program before `strip`.

use std::collections::BTreeMap;
use std::process::Command;

use again_test_support::binary_under_test;
use anyhow::{Context, Result, ensure};

use crate::numbers::Table;

/// Returns the crate of a symbol in Rust's own mangling (RFC 2603): the first
/// `C s HASH _ LENGTH NAME`.
fn crate_of(symbol: &str) -> Option<String> {
    let mut rest = symbol.strip_prefix("_R")?;
    loop {
        let at = rest.find("Cs")?;
        rest = rest.get(at + 2..)?;
        let (hash, after) = rest.split_once('_')?;
        if hash.bytes().all(|b| b.is_ascii_alphanumeric()) {
            let digits = after.bytes().take_while(u8::is_ascii_digit).count();
            let length: usize = after.get(..digits)?.parse().ok()?;
            return Some(
                after
                    .get(digits..)?
                    .trim_start_matches('_')
                    .get(..length)?
                    .to_owned(),
            );
        }
    }
}

pub fn measure(table: &mut Table) -> Result<()> {
    let whole = std::fs::metadata(binary_under_test())?.len();
    let symbols = std::env::var_os("AGAIN_SYMBOLS").context("AGAIN_SYMBOLS")?;
    let output = Command::new("nm")
        .args(["-S", "--defined-only"])
        .arg(symbols)
        .output()?;
    ensure!(output.status.success(), "nm");
    let mut sizes: BTreeMap<String, u64> = BTreeMap::new();
    let mut seen = std::collections::BTreeSet::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [at, size, kind, name] = words.as_slice() else {
            continue;
        };
        // Two names of one function share an address; zero-initialized data is not in the file.
        if "bB".contains(kind) || !seen.insert(at.to_string()) {
            continue;
        }
        let name = crate_of(name).unwrap_or_else(|| "musl and the rest".into());
        let name = match name.as_str() {
            "core" | "alloc" | "std" | "hashbrown" | "compiler_builtins" | "panic_abort" => {
                "Rust's standard library"
            }
            "serde_core" | "serde" | "serde_json" => "serde, serde_json",
            "clap_builder" | "clap" | "clap_lex" | "anstyle" | "strsim" => "clap",
            "rand" | "rand_core" | "chacha20" | "getrandom" => "rand",
            "tracing" | "tracing_core" => "tracing",
            "rustix" | "linux_raw_sys" => "rustix",
            other => other,
        };
        *sizes.entry(name.to_owned()).or_default() += u64::from_str_radix(size, 16)?;
    }
    table.add(
        "the binary",
        &format!("{whole} bytes"),
        "",
        "",
        &crate::numbers::verdict("≤ 2,000,000", whole <= 2_000_000),
    );
    let mut sizes: Vec<(String, u64)> = sizes.into_iter().collect();
    sizes.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    for (name, size) in sizes.iter().filter(|(_, size)| *size >= 1000) {
        table.add(
            &format!("of which {name}"),
            &format!("{:.1} kB", *size as f64 / 1e3),
            "",
            "",
            "",
        );
    }
    let named: u64 = sizes.iter().map(|(_, size)| size).sum();
    table.add(
        "of which constants without a name, relocations, headers",
        &format!("{:.1} kB", (whole - named.min(whole)) as f64 / 1e3),
        "",
        "",
        "",
    );
    Ok(())
}
