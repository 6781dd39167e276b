use std::fs;

use again_test_support::place::Machine;

/// Seven runs: five to see the same three hosts three times, one to act, one that has nothing left to do.
#[test]
fn a_state_machine_settles_after_three_equal_observations() {
    let machine = Machine::get();
    assert_eq!(machine.drop_in("settle", "1"), 7);
    assert_eq!(
        fs::read_to_string("/var/lib/settle/seen").expect("the observations"),
        "1 hosts\n2 hosts\n3 hosts\n3 hosts\n3 hosts\n"
    );
    assert!(fs::exists("/var/lib/settle/volume").expect("a volume"));
    assert_eq!(machine.timers_that_ran(), vec!["settle-exec-again"; 6]);
}

/// Two runs, and the second has to find that the time is up: nothing would ask again.
#[test]
fn a_run_once_timer_is_met_when_its_time_is_up() {
    let machine = Machine::get();
    assert_eq!(machine.drop_in("once", "5"), 2);
    assert!(fs::exists("/var/lib/once/done").expect("what was to be done"));
    assert_eq!(machine.timers_that_ran(), ["once-timer-timer"]);
}

/// One run for each level, and one that finds them all.
#[test]
fn a_recursion_goes_through_facts() {
    let machine = Machine::get();
    assert_eq!(machine.drop_in("tower", "120"), 5);
    assert_eq!(
        fs::read_to_string("/tmp/tower-4").expect("the last level"),
        "on 3\n"
    );
}
