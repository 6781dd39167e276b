/// The agent: against a real puppetserver, as a daemon; its lock, its switch, and the cap.
mod agent;
/// `puppet apply`: deltas, another user, and the examples of the script that it replaces.
mod apply;
/// `on_failure`: when a run that failed asks for another one, and when it does not.
mod failure;
