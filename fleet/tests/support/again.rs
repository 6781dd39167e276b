//! `again`, built with the feature `shift-clock`, for a node whose clock is wrong.

fn main() -> std::process::ExitCode {
    let exit = again::main(std::env::args_os().collect());
    std::process::ExitCode::from(u8::try_from(exit).unwrap_or(u8::MAX))
}
