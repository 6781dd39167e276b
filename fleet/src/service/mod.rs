//! The service of a node: it exchanges triggers with the backend, and hands those for this node to
//! the executor. The service runs in one thread; [`crate::step`] makes the decisions.

mod alarm;
mod beats;
mod callers;
mod driver;
mod event_batch;
mod executor;
mod failures;
mod holders;
mod keep;
mod last_inventory;
mod link;
mod listener;
mod locks;
mod newest;
mod nodes;
mod places;
mod positions;
mod publisher;
mod reactions;
mod requests;
mod runs;
mod slots;
mod small_map;
mod tally;

use std::fs;
use std::future::Future;
use std::io;
use std::time::Duration;
use tracing::{error, info, warn};

use again_base::model::{Boottime, Moment, Span};
use again_base::sys::clock;
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use self::alarm::Alarm;
use self::driver::{Driver, Note, Reply, Ways};
use self::keep::Keep;
use self::link::{News, Order};
use self::listener::Sockets;
use crate::access::Access;
use crate::ask::Question;
use crate::policy::rule::Rule;
use crate::seal::Seals;
use crate::settings::{self, Flags, Settings, Surroundings, Trust};
use crate::step::model::{Event, State};

/// Time between two beats: less than half of the lease, and so short that, with the time for a
/// renewal, a silent connection is noticed within half a minute.
const BEAT: Span = Span::from_secs(27);
/// Difference in milliseconds between two beats from which on the clock counts as set; a slow
/// adjustment moves it by less.
const SET: u128 = 1000;
/// Longest wait for open requests when the service ends, and then for their connections.
const FAREWELL: Duration = Duration::from_secs(5);

/// Runs the service until a signal ends it.
///
/// # Errors
/// The service cannot start: settings, certificates, state directory or socket cannot be used.
pub fn serve(flags: &Flags, around: &Surroundings) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // The thread resolves host names, and ends a second later.
        .max_blocking_threads(1)
        .thread_keep_alive(Duration::from_secs(1))
        .build()?;
    let served = runtime.block_on(async {
        let (service, link) = Service::new(flags, around)?;
        // The link ends when the service orders it to, after the service itself.
        let (served, ()) = futures_util::future::join(service.run(), link).await;
        served
    });
    runtime.shutdown_background();
    served
}

/// State of the running service.
struct Service<'a> {
    flags: &'a Flags,
    around: &'a Surroundings,
    settings: Settings,
    /// Rules by which this node reacts to events.
    reactions: Vec<Rule>,
    /// Whether this node is a candidate for any lock.
    has_locks: bool,
    access: Access,
    /// Last error of a new access, as it was logged.
    trouble: Option<String>,
    driver: Driver,
    orders: UnboundedSender<Order<Reply>>,
    listener: JoinHandle<()>,
    alarm: Alarm,
    /// Time of the next beat.
    beat: Boottime,
    /// Time between two beats.
    pace: Span,
    /// Number of milliseconds that the clock was ahead of the time since boot at the last beat.
    clock: i128,
    ears: Ears,
}

/// Channels and signals from which the service receives events.
struct Ears {
    notes: UnboundedReceiver<Note>,
    news: UnboundedReceiver<News<Reply>>,
    end: Signal,
    interrupt: Signal,
    reload: Signal,
}

/// Event from one of these channels and signals, or from the timer.
enum Heard {
    Note(Note),
    News(News<Reply>),
    Time,
    End,
    Reload,
}

impl<'a> Service<'a> {
    /// Creates the service, and the future that runs its link.
    fn new(
        flags: &'a Flags,
        around: &'a Surroundings,
    ) -> io::Result<(Self, impl Future<Output = ()>)> {
        let settings = settings::settings(flags, around).map_err(io::Error::other)?;
        let rules = settings.rules().map_err(io::Error::other)?;
        let seals = Seals::new(&settings).map_err(io::Error::other)?;
        let reactions = settings.reactions().map_err(io::Error::other)?;
        let access = Access {
            rules: reactions.clone(),
            has_locks: !rules.locks.is_empty(),
            ..Access::new(&settings).map_err(io::Error::other)?
        };
        fs::create_dir_all(&settings.state_dir)?;
        let (keep, found) = Keep::open(&settings.state_dir.join("serve"))?;
        for why in found.unread {
            error!("something in the outbox is lost: {why}");
        }
        let sockets = listener::open(&settings.run_dir)?;
        let (tell, notes) = unbounded_channel();
        let (orders, to_do) = unbounded_channel();
        let (teller, news) = unbounded_channel();
        let ways = Ways {
            orders: orders.clone(),
            notes: tell.clone(),
            executor: settings.run_dir.join("executor"),
        };
        let mut state = State::new(rules.clone(), found.numbers, found.drafts, &clock::moment());
        state.logged = found.logged;
        let mut driver =
            Driver::new(state, keep, seals, &settings, ways).map_err(io::Error::other)?;
        driver.rule(rules, reactions.clone());
        let service = Service {
            driver,
            reactions,
            has_locks: access.has_locks,
            listener: tokio::spawn(guard(sockets, tell)),
            alarm: Alarm::new()?,
            beat: clock::boottime(),
            pace: pace(),
            clock: clock_of(&clock::moment()),
            ears: Ears::new(notes, news)?,
            access: access.clone(),
            trouble: None,
            flags,
            around,
            settings,
            orders,
        };
        Ok((service, link::keep_up(Box::new(access), to_do, teller)))
    }

    /// Runs the service until a signal, and answers open requests before it ends.
    async fn run(mut self) -> io::Result<()> {
        if self.settings.trust == Trust::Backend {
            warn!(
                "trust is \"backend\": nothing is signed, and whoever can write to the backend can have Puppet run here"
            );
        }
        tell_systemd(&[NotifyState::Ready]);
        self.attend(false).await?;
        tell_systemd(&[NotifyState::Stopping]);
        self.listener.abort();
        // Clients that still wait receive their results.
        let answered = timeout(FAREWELL, self.attend(true)).await;
        let connections = self.driver.callers.dismiss();
        let _ = timeout(FAREWELL, self.ears.until_left(connections)).await;
        self.driver.count(true);
        let _ = self.orders.send(Order::End);
        answered.unwrap_or(Ok(()))
    }

    /// Handles events until a signal ends the service, or, while it ends, until no client waits for
    /// an answer.
    async fn attend(&mut self, is_ending: bool) -> io::Result<()> {
        while !is_ending || self.driver.callers.is_owed() {
            let at = self
                .driver
                .wakes()
                .map_or(self.beat, |at| at.min(self.beat));
            self.alarm.set(at)?;
            match self.ears.next(&self.alarm).await? {
                Heard::End if is_ending => {}
                Heard::End => return Ok(()),
                Heard::Reload => self.reload(),
                Heard::Time => self.tick(),
                Heard::Note(note) => self.note(note),
                Heard::News(news) => self.driver.told(news),
            }
            // Everything that has arrived is handled before anything is sent, so that it is sent
            // together.
            while let Some(heard) = self.ears.already() {
                match heard {
                    Heard::Note(note) => self.note(note),
                    Heard::News(news) => self.driver.told(news),
                    Heard::Time | Heard::End | Heard::Reload => {}
                }
            }
            self.driver.flush();
            self.driver.count(false);
        }
        Ok(())
    }

    fn note(&mut self, note: Note) {
        match note {
            Note::Came(connection) => self.driver.let_in(connection),
            Note::Asked(client, question) => {
                // Requests that wait on disk are older, and are sent first.
                if matches!(question, Question::Fire { .. } | Question::TakeBack { .. }) {
                    self.driver.send_requests();
                }
                self.driver.asked(client, question);
            }
            Note::Left(client) => self.driver.left(client),
            Note::Handed(answers, why) => self.driver.handed(answers, why),
            Note::More => self.driver.show_more(),
            Note::Late(client) => self.driver.late(client),
            Note::Became(answers) => self.driver.became(answers),
            Note::ProcessEnded => self.driver.process_ended(),
            Note::Rung => {
                self.driver.send_requests();
                self.driver.tell_events();
            }
            Note::Marked(marked) => self.driver.marked(marked),
            Note::RunEnded(group, who) => self.driver.run_ended(&group, who),
        }
    }

    fn tick(&mut self) {
        let now = clock::boottime();
        let is_beat = self.beat <= now;
        if is_beat {
            self.beat = now + self.pace;
            let _ = self.orders.send(Order::Beat);
            self.look_at_clock();
            self.driver.look_at_files();
            self.look_at_access();
            self.driver.count(true);
            tell_systemd(&[
                NotifyState::Watchdog,
                NotifyState::Status(&self.driver.status()),
            ]);
        }
        self.driver.look_at_runs();
        self.driver.slots_go_on(is_beat);
        self.driver.locks_go_on(is_beat);
        if is_beat {
            self.driver.beat();
            self.driver.sign_anew();
            self.driver.send_requests();
        }
        self.driver.tell_events();
        self.driver.ask_for_nodes();
        self.driver.feed(Event::Tick);
    }

    /// Judges held triggers again if the clock was set since the last beat.
    fn look_at_clock(&mut self) {
        let clock = clock_of(&clock::moment());
        let before = std::mem::replace(&mut self.clock, clock);
        if clock.abs_diff(before) > SET {
            self.driver.feed(Event::Changed);
        }
    }

    /// Reconnects if the settings or the certificates call for a different access.
    fn look_at_access(&mut self) {
        let access = Access::new(&self.settings).and_then(Access::checked);
        let trouble = access.as_ref().err().cloned();
        if let Some(why) = trouble.as_ref().filter(|_| trouble != self.trouble) {
            warn!("the backend is reached as before: {why}");
        }
        self.trouble = trouble;
        let (rules, has_locks) = (self.reactions.clone(), self.has_locks);
        let access = access.map(|access| Access {
            rules,
            has_locks,
            ..access
        });
        if let Ok(access) = access
            && !access.is(&self.access)
        {
            self.access = access.clone();
            let _ = self.orders.send(Order::Access(Box::new(access)));
        }
    }

    /// Reads the settings and all files again.
    fn reload(&mut self) {
        match self.settings_anew() {
            Ok(()) => {
                info!("the settings were read anew");
                self.look_at_access();
            }
            Err(why) => warn!("the settings of before still count: {why}"),
        }
    }

    fn settings_anew(&mut self) -> Result<(), String> {
        let new = settings::settings(self.flags, self.around).map_err(|e| e.to_string())?;
        let fixed = |one: &Settings| {
            let certname = one.certname().cloned().map_err(|e| e.to_string());
            let Settings {
                namespace,
                state_dir,
                run_dir,
                spool_dir,
                ..
            } = one;
            (
                certname,
                namespace.clone(),
                state_dir.clone(),
                run_dir.clone(),
                spool_dir.clone(),
            )
        };
        if fixed(&new) != fixed(&self.settings) {
            return Err(
                "certname, namespace, state_dir, run_dir and spool_dir count from the next start on"
                    .to_owned(),
            );
        }
        let rules = new.rules().map_err(|e| e.to_string())?;
        let reactions = new.reactions().map_err(|e| e.to_string())?;
        self.driver.sign_by(Seals::new(&new)?);
        self.driver.health.backend = new.backend;
        self.driver.operators.clone_from(&new.operators);
        self.settings = new;
        self.reactions.clone_from(&reactions);
        self.has_locks = !rules.locks.is_empty();
        self.driver.rule(rules, reactions);
        Ok(())
    }
}

impl Ears {
    fn new(
        notes: UnboundedReceiver<Note>,
        news: UnboundedReceiver<News<Reply>>,
    ) -> io::Result<Ears> {
        Ok(Ears {
            notes,
            news,
            end: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            reload: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self, alarm: &Alarm) -> io::Result<Heard> {
        let gone = || io::Error::other("a part of this service has ended");
        Ok(tokio::select! {
            note = self.notes.recv() => Heard::Note(note.ok_or_else(gone)?),
            news = self.news.recv() => Heard::News(news.ok_or_else(gone)?),
            rung = alarm.ring() => rung.map(|()| Heard::Time)?,
            _ = self.end.recv() => Heard::End,
            _ = self.interrupt.recv() => Heard::End,
            _ = self.reload.recv() => Heard::Reload,
        })
    }

    /// Waits until this number of connections have ended.
    async fn until_left(&mut self, mut connections: usize) {
        while connections > 0 {
            match self.notes.recv().await {
                Some(Note::Left(_)) => connections -= 1,
                Some(_) => {}
                None => return,
            }
        }
    }

    /// Event that has already arrived.
    fn already(&mut self) -> Option<Heard> {
        let note = self.notes.try_recv().ok().map(Heard::Note);
        note.or_else(|| self.news.try_recv().ok().map(Heard::News))
    }
}

/// Accepts clients and receives wakeups until the task is aborted.
async fn guard(sockets: Sockets, tell: UnboundedSender<Note>) {
    let let_in = |connection| {
        let _ = tell.send(Note::Came(connection));
    };
    let people = async {
        let e = listener::attend(sockets.listener, let_in).await;
        error!("nobody can fire any more until a restart: {e}");
    };
    let runs = async {
        let Some(wakeup) = sockets.wakeup else { return };
        let rung = || {
            let _ = tell.send(Note::Rung);
        };
        let e = listener::listen(wakeup, rung).await;
        error!("events are told late until a restart: {e}");
    };
    futures_util::future::join(people, runs).await;
}

/// Number of milliseconds that the clock is ahead of the time since boot.
fn clock_of(now: &Moment) -> i128 {
    i128::from(now.wall.millis()) - i128::from(now.uptime.nanos() / 1_000_000)
}

/// Time between two beats: shorter if systemd's watchdog expects a sign of life more often.
fn pace() -> Span {
    let half = sd_notify::watchdog_enabled().map(|watchdog| watchdog / 2);
    let half = half.and_then(|half| u64::try_from(half.as_nanos()).ok());
    half.map_or(BEAT, |half| BEAT.min(Span::from_nanos(half)))
}

fn tell_systemd(what: &[NotifyState<'_>]) {
    if let Err(e) = sd_notify::notify(what) {
        warn!("systemd cannot be told anything: {e}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_beats_are_within_a_lease_and_one_that_fails_within_half_a_minute() {
        let beat = Duration::from_nanos(BEAT.nanos());
        assert!(2 * beat < crate::backend::Times::default().lease);
        assert!(BEAT + BEAT < crate::policy::beat::SURE);
        assert!(beat + link::RENEWAL <= Duration::from_secs(30));
    }
}
