use crate::{assert_same_run, changes_once};
use again_rig::{LONG, Scratch};

/// Asks by an Exec of this form in the first run of two; both runs have to be equal.
fn asks_by(form: &str) {
    let scratch = Scratch::with_puppet();
    let form = form
        .replace("AGAIN", &(scratch.root() + "/bin/again"))
        .replace("ROOT", &scratch.root());
    let body = format!(
        "{}\nexec {{ 'ask': refreshonly => true, logoutput => true, {form} }}",
        changes_once(&scratch, "Exec['ask']")
    );
    scratch.write("work/site.pp", &scratch.bare_manifest(&body));
    // Ignored as by nohup and by `&`: what stands between must not change that for the rerun.
    let conf = scratch.root() + "/puppet/conf";
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
    assert_eq!(run.lines_of_again().len(), 1, "{}", run.out);
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

#[test]
fn a_string() {
    asks_by("command => 'AGAIN run'");
}

/// Puppet puts `sh -c` between.
#[test]
fn a_string_with_quotes_and_a_redirection() {
    asks_by("command => 'AGAIN \"run\" 2>&1'");
}

#[test]
fn an_array() {
    asks_by("command => ['AGAIN', 'run']");
}

/// Two more processes between, one of which waits for the other.
#[test]
fn the_provider_shell() {
    asks_by("command => 'AGAIN run; true', provider => 'shell'");
}

#[test]
fn a_timeout() {
    asks_by("command => ['/usr/bin/timeout', '60', '/usr/bin/env', 'AGAIN', 'run'], timeout => 60");
}

#[test]
fn a_path() {
    asks_by("command => 'again run', path => ['ROOT/bin', '/nowhere']");
}

#[test]
fn an_environment() {
    asks_by(
        "command => 'AGAIN run', environment => ['RIG_LEAK=1', 'RIG_MARK=changed', 'HOME=/nowhere', 'LANG=C', 'RUBYOPT=']",
    );
}

#[test]
fn a_directory_of_its_own() {
    asks_by("command => 'AGAIN run', cwd => '/'");
}

/// That user may neither read the run's environment nor act for it.
#[test]
fn another_user_is_an_error_that_says_so() {
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
    assert!(
        said[0].starts_with("again: error: this run belongs to another user"),
        "{}",
        run.out
    );
    assert!(
        said[0].contains("(root") && said[0].contains("'user'"),
        "evidence and remedy: {}",
        said[0]
    );
    scratch.settle(LONG);
    assert_eq!(scratch.starts().len(), 1);
}
