//! Builds helper.c with the compiler that Rust links with.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=helper.c");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("OUT_DIR"));
    let built = Command::new("cc")
        .args(["-O1", "-o"])
        .arg(out.join("helper"))
        .arg("helper.c")
        .status()
        .expect("cc, which Rust links with");
    assert!(built.success(), "helper.c does not compile");
}
