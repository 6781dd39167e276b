use std::fs;

use crate::{assert_same_run, changes_once};
use again_test_support::{LONG, Scratch};

/// An Exec's attributes by a name; REQUEST is the command line of a request under that name.
const FORMS: [(&str, &str); 8] = [
    ("string", "command => 'REQUEST'"),
    // Puppet puts `sh -c` between.
    (
        "redirection",
        "command => 'ROOT/bin/again \"run\" --name redirection --delta 600 2>&1'",
    ),
    (
        "array",
        "command => ['ROOT/bin/again', 'run', '--name', 'array', '--delta', '600']",
    ),
    // Two more processes between, one of which waits for the other.
    ("shell", "command => 'REQUEST; true', provider => 'shell'"),
    (
        "timeout",
        "command => '/usr/bin/timeout 60 /usr/bin/env REQUEST', timeout => 60",
    ),
    (
        "path",
        "command => 'again run --name path --delta 600', path => ['ROOT/bin', '/nowhere']",
    ),
    (
        "environment",
        "command => 'REQUEST', environment => ['RIG_LEAK=1', 'RIG_MARK=changed', 'HOME=/nowhere', 'LANG=C', 'RUBYOPT=']",
    ),
    ("directory", "command => 'REQUEST', cwd => '/'"),
];

/// Every form asks in the first run of two, under a name of its own. Their orders are the same, and
/// both runs are equal.
#[test]
fn every_form_of_an_exec_orders_the_same_rerun() {
    let scratch = Scratch::with_puppet();
    let mut body = changes_once(&scratch, "Exec['string']");
    for (name, form) in FORMS {
        let request = format!("ROOT/bin/again run --name {name} --delta 600");
        let form = form.replace("REQUEST", &request);
        let form = form.replace("ROOT", &scratch.root());
        body += &format!(
            "\nexec {{ '{name}': refreshonly => true, subscribe => File['{}/made'], logoutput => true, {form} }}",
            scratch.root()
        );
    }
    scratch.write("work/site.pp", &scratch.bare_manifest(&body));
    // Ignored as by nohup and by `&`: what stands between must not change that for the rerun.
    let conf = scratch.at("puppet/conf");
    let env = [
        "env",
        "--ignore-signal=HUP,QUIT",
        "puppet",
        "apply",
        "--confdir",
        &conf,
        "site.pp",
    ];
    let run = scratch
        .prepare(&env)
        .env("RIG_LINGER", "0.4")
        .run()
        .expect(&[0]);
    assert_eq!(run.lines_of_again().len(), FORMS.len(), "{}", run.out);
    let orders = scratch.target().join("orders");
    let rerun = |name: String| {
        let text = fs::read_to_string(orders.join(name)).expect("an order");
        text.lines().last().expect("the rerun").to_owned()
    };
    let reruns: Vec<_> = scratch.orders("state").into_iter().map(rerun).collect();
    assert_eq!(reruns.len(), FORMS.len());
    assert!(
        reruns.iter().all(|other| *other == reruns[0]),
        "{reruns:#?}"
    );
    scratch.again_well(&["now"]);
    scratch.settle(LONG);
    let starts = scratch.starts();
    assert_eq!(
        (starts.len(), scratch.catalogs().len()),
        (2, 2),
        "{}",
        run.out
    );
    assert_same_run(&starts[0], &starts[1]);
}

/// That user may neither read the run's environment nor act for it.
#[test]
fn request_of_an_exec_with_another_user_fails() {
    let scratch = Scratch::with_puppet();
    let body = format!(
        "{}\nexec {{ 'ask': command => ['{}/bin/again', 'run'], user => 'nobody', refreshonly => true, logoutput => true }}",
        changes_once(&scratch, "Exec['ask']"),
        scratch.root()
    );
    scratch.write("work/site.pp", &scratch.bare_manifest(&body));
    let run = scratch
        .puppet_apply(&["--detailed-exitcodes", "site.pp"])
        .run()
        .expect(&[6]);
    let said = run.lines_of_again();
    let (start, evidence) = if scratch.hides_processes() {
        ("no puppet run above this process", "none that can be seen")
    } else {
        ("this run belongs to another user", "(root")
    };
    assert!(
        said[0].starts_with(&format!("again: error: {start}")),
        "{}",
        run.out
    );
    assert!(said[0].contains(evidence), "evidence: {}", said[0]);
    assert!(
        scratch.hides_processes() || said[0].contains("'user'"),
        "remedy: {}",
        said[0]
    );
    scratch.settle(LONG);
    assert_eq!(scratch.starts().len(), 1);
}
