use again_test_support::{Scratch, answer, in_namespaces};
use serde_json::Value;

/// Another user asks, where /proc hides the processes of others.
#[test]
fn status_does_not_call_the_hidden_waiter_of_another_user_dead() {
    in_namespaces(
        &["--mount"],
        "privileged::status_does_not_call_the_hidden_waiter_of_another_user_dead",
        || {
            let scratch = Scratch::new();
            scratch.again_well(&["run", "--delta", "1h", "--", "/bin/true"]);
            let done = std::process::Command::new("mount")
                .args(["-t", "proc", "-o", "hidepid=2", "proc", "/proc"])
                .status()
                .expect("mount");
            assert!(done.success());
            let mut command = scratch.as_nobody(scratch.path("bin/again"));
            command.args(["status", "--json"]);
            let done = answer(&mut command);
            assert_eq!(done.code, Some(0), "{done:?}");
            let status: Value = serde_json::from_str(&done.out).expect("JSON");
            let timer = &status["targets"][0]["timers"][0];
            println!("{timer}");
            assert_ne!(
                timer["state"], "dead",
                "it lives, it merely cannot be seen: {timer:#}"
            );
            scratch.again_well(&["stop"]);
            scratch.assert_nothing_left();
        },
    );
}
