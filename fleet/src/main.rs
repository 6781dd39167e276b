//! The entry point. Everything is in the library; this hands over the arguments.

fn main() -> std::process::ExitCode {
    again_fleet::main(std::env::args_os().collect())
}
