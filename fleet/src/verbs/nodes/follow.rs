//! `again-fleet nodes --follow`: watches the backend, and draws changes on a terminal or prints
//! them line by line.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use again_base::layout::frame::Frame;
use again_base::layout::{Look, Tone, say};
use again_base::model::{Span, Walltime};
use again_base::sys::attributes::SignalState;
use again_base::sys::clock::walltime;
use again_base::sys::terminal::{self, Terminal, clean};
use again_base::sys::viewer::end_by;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

use super::super::watching::{self, Place, Seen};
use super::super::{Exit, Problem, clock};
use super::live::{Live, Stands, news};
use super::roster::Columns;
use crate::backend::{Change, Value};
use crate::policy::select::Selection;
use crate::policy::slots::Standing;
use crate::seal::Seals;
use crate::settings::{Backend, Settings};
use crate::wire::key::{Key, Prefix};
use crate::wire::name::Namespace;

/// Shortest interval between two updates of a terminal.
const DRAWN: Duration = Duration::from_secs(2);
/// Interval between two checks for new lines.
const LINES_EVERY: Duration = Duration::from_millis(500);
/// Number of values that are verified together, on all processors.
const PORTION: usize = 64;
/// Number of heartbeats between two lists of the nodes. Such a list is large, and needed only if an
/// old etcd has lost a change.
const SELDOM: u32 = 20;

/// Shows the nodes until a signal ends this process.
///
/// # Errors
/// This node has no certificate, or standard output is closed.
pub fn main(settings: &Settings, selection: Selection) -> Result<Exit, Problem> {
    let inherited = SignalState::of_this_process();
    let view = RefCell::new(View::new(settings, selection)?);
    let signal = Cell::new(None);
    let work = follow(settings, &view, inherited, &signal);
    let exit = watching::block_on(Box::pin(work));
    // The terminal is restored first.
    drop(view);
    if let Some(kind) = signal.get() {
        end_by(kind.as_raw_value());
    }
    exit
}

async fn follow(
    settings: &Settings,
    view: &RefCell<View>,
    inherited: SignalState,
    ended_by: &Cell<Option<SignalKind>>,
) -> Result<(), Problem> {
    let ending = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
        SignalKind::quit(),
    ];
    // Signals that were ignored at the start stay ignored, as under nohup(1).
    let ending = ending.into_iter();
    let ending = ending.filter(|kind| !inherited.ignores(kind.as_raw_value()));
    let (kinds, mut heard): (Vec<_>, Vec<_>) = ending
        .map(|kind| Ok((kind, signal(kind)?)))
        .collect::<std::io::Result<Vec<_>>>()?
        .into_iter()
        .unzip();
    let cont = SignalKind::from_raw(rustix::process::Signal::CONT.as_raw());
    let mut redrawn = [signal(SignalKind::window_change())?, signal(cont)?];
    let pace = view.borrow().out.pace();
    let places = places(settings);
    let mut see = |seen| view.borrow_mut().see(seen);
    let mut watching = pin!(watching::all(settings, &places, true, &mut see));
    view.borrow_mut().show()?;
    loop {
        tokio::select! {
            ended = &mut watching => return ended,
            at = any(&mut heard) => {
                ended_by.set(kinds.get(at).copied());
                return Ok(());
            }
            _ = any(&mut redrawn) => view.borrow_mut().anew()?,
            () = sleep(pace) => view.borrow_mut().show()?,
        }
    }
}

/// Index of the first of these signals to arrive.
async fn any(signals: &mut [Signal]) -> usize {
    poll_fn(|context| {
        let mut signals = signals.iter_mut();
        match signals.position(|one| one.poll_recv(context).is_ready()) {
            Some(at) => Poll::Ready(at),
            None => Poll::Pending,
        }
    })
    .await
}

/// Prefixes to watch. NATS has no slots.
fn places(settings: &Settings) -> Vec<Place> {
    let slots = settings
        .backend
        .supports_slots()
        .then_some((Prefix::AllSlots, 1));
    let all = [(Prefix::Nodes, SELDOM)].into_iter().chain(slots);
    all.map(|(prefix, often)| (prefix.encode(&settings.namespace), often))
        .collect()
}

/// Output: a terminal, or lines.
enum Out {
    Drawn(Terminal, Frame, Columns),
    /// Line by line; the first line has the counts of all nodes.
    Lines(Option<Stands>),
}

impl Out {
    fn pace(&self) -> Duration {
        match self {
            Out::Drawn(..) => DRAWN,
            Out::Lines(_) => LINES_EVERY,
        }
    }
}

/// State of the connection to the backend.
enum Link {
    Asked,
    Here,
    Away(Walltime, String),
}

/// State of the output.
struct View {
    backend: Backend,
    namespace: Namespace,
    seals: Seals,
    selection: Selection,
    skew: Span,
    live: Live,
    /// State from a new connection, which is incomplete until its first list ends.
    coming: Option<Live>,
    /// Inventories that wait to be verified.
    early: Vec<Value>,
    link: Link,
    is_new: bool,
    /// Minute of the last update of a terminal: some text depends on the date.
    minute: u64,
    out: Out,
}

impl View {
    fn new(settings: &Settings, selection: Selection) -> Result<View, Problem> {
        let seals = Seals::new(settings).map_err(Problem::Failed)?;
        let drawn = |terminal| Out::Drawn(terminal, Frame::default(), Columns::default());
        Ok(View {
            backend: settings.backend,
            namespace: settings.namespace.clone(),
            seals,
            selection,
            skew: settings.skew,
            live: Live::default(),
            coming: None,
            early: Vec::new(),
            link: Link::Asked,
            is_new: false,
            minute: 0,
            out: Terminal::new().map_or(Out::Lines(None), drawn),
        })
    }

    fn see(&mut self, seen: Seen) -> Result<(), Problem> {
        match seen {
            Seen::Begins => {
                self.seals.refresh().map_err(Problem::Failed)?;
                self.coming = Some(Live::default());
                self.early.clear();
                Ok(())
            }
            Seen::Changed(Change::Put(value)) => {
                let is_told = value
                    .key
                    .starts_with(&Prefix::Nodes.encode(&self.namespace));
                if !is_told || self.coming.is_none() {
                    self.put(&value);
                    return Ok(());
                }
                self.early.push(value);
                if self.early.len() >= PORTION {
                    self.verify();
                }
                Ok(())
            }
            Seen::Changed(Change::Removed { key, .. }) => {
                self.verify();
                self.removed(&key);
                Ok(())
            }
            Seen::All => self.all(),
            Seen::Lost(lost) => self.lost(&lost.to_string()),
        }
    }

    /// Shows the state when the first list of a connection is complete.
    fn all(&mut self) -> Result<(), Problem> {
        self.verify();
        let Some(coming) = self.coming.take() else {
            return Ok(());
        };
        (self.live, self.is_new) = (coming, true);
        self.live.judge(walltime(), self.skew);
        let before = std::mem::replace(&mut self.link, Link::Here);
        if let (Link::Away(..), Out::Lines(Some(_))) = (before, &self.out) {
            let (backend, counts) = (self.backend, self.live.counts(&self.selection));
            say(&format!(
                "again-fleet: {backend} is reached again: {counts}"
            ))?;
        }
        self.show()
    }

    fn lost(&mut self, why: &str) -> Result<(), Problem> {
        self.coming = None;
        if let Link::Away(_, is) = &mut self.link {
            *is = why.to_owned();
            return Ok(());
        }
        self.is_new = true;
        self.link = Link::Away(walltime(), why.to_owned());
        if let Out::Lines(_) = self.out {
            let (backend, why) = (self.backend, clean(why));
            say(&format!("again-fleet: {backend} {why}; it is tried again"))?;
        }
        Ok(())
    }

    fn verify(&mut self) {
        let early = std::mem::take(&mut self.early);
        self.seals.meet(&early);
        early.iter().for_each(|value| self.put(value));
    }

    fn put(&mut self, value: &Value) {
        let Ok(key) = Key::decode(&value.key, &self.namespace) else {
            return;
        };
        let live = self.coming.as_mut().unwrap_or(&mut self.live);
        match &key {
            Key::Node(_) => match self.seals.inventory(&value.bytes, &key) {
                // Each node signs an unchanged inventory again and again.
                Ok(told) => {
                    self.is_new |= live.tells(&key, Some(told));
                    return;
                }
                Err(_) => live.lies(&key),
            },
            Key::Slot { .. } => {
                let slot = self.seals.read(&value.bytes, &key).ok();
                let (revision, first, writes) = (value.revision, value.first, value.writes);
                let standing = slot.and_then(|one| Standing::new(one, revision, first, writes));
                live.stands(&key, standing);
            }
            _ => {}
        }
        self.is_new = true;
    }

    fn removed(&mut self, key: &str) {
        let Ok(key) = Key::decode(key, &self.namespace) else {
            return;
        };
        let live = self.coming.as_mut().unwrap_or(&mut self.live);
        match &key {
            Key::Node(_) => {
                live.tells(&key, None);
            }
            _ => live.stands(&key, None),
        }
        self.is_new = true;
    }

    /// Redraws the terminal after its size has changed or another program has used it.
    fn anew(&mut self) -> Result<(), Problem> {
        if let Out::Drawn(_, frame, columns) = &mut self.out
            && !terminal::is_anothers()
        {
            terminal::write(frame.clear())?;
            *columns = Columns::default();
        }
        self.is_new = true;
        self.show()
    }

    /// Shows what has changed.
    fn show(&mut self) -> Result<(), Problem> {
        if let Out::Drawn(_, frame, _) = &mut self.out
            && terminal::is_anothers()
        {
            // Everything is redrawn once this process is in the foreground again.
            frame.clear();
            self.is_new = true;
            return Ok(());
        }
        let now = walltime();
        let minute = now.millis() / 60_000;
        let is_next_minute = std::mem::replace(&mut self.minute, minute) != minute;
        let is_new = std::mem::take(&mut self.is_new);
        // Without a connection to the backend, the state says nothing about which nodes are
        // connected now.
        let is_judged = matches!(self.link, Link::Here) && (is_new || is_next_minute);
        let has_changed = is_judged && self.live.judge(now, self.skew);
        let is_new = is_new || has_changed;
        if is_new {
            // Later values are verified with the current files.
            let _ = self.seals.refresh();
        }
        let is_due = is_new || is_next_minute;
        match &mut self.out {
            Out::Drawn(..) if is_due => self.draw(),
            Out::Drawn(..) => Ok(()),
            Out::Lines(_) if !terminal::is_read() => Err(Problem::NobodyReads),
            Out::Lines(before) if is_new && matches!(self.link, Link::Here) => {
                let now = self.live.each(&self.selection);
                let lines = match before {
                    Some(before) => news(before, &now),
                    None => vec![self.live.counts(&self.selection)],
                };
                *before = Some(now);
                for line in lines {
                    say(&format!("again-fleet: {line}"))?;
                }
                Ok(())
            }
            Out::Lines(_) => Ok(()),
        }
    }

    fn draw(&mut self) -> Result<(), Problem> {
        let Out::Drawn(terminal, frame, columns) = &mut self.out else {
            return Ok(());
        };
        let (now, look) = (walltime(), Look::of_this_process());
        terminal.is_quiet();
        let [rows, width] = terminal.size();
        let backend = self.backend;
        let counts = || self.live.counts(&self.selection);
        let (tone, counts, why) = match &self.link {
            Link::Asked => (Tone::Heading, format!("{backend} is asked"), None),
            Link::Here => (Tone::Heading, counts(), None),
            Link::Away(since, why) => {
                let since = clock(*since, now);
                let why = format!("{backend} {}; it is tried again", clean(why));
                let words = format!("{backend} is away since {since}; before: {}", counts());
                (
                    Tone::Attention,
                    words,
                    Some(look.paint(Tone::Attention, &why)),
                )
            }
        };
        // The cursor is on the last line.
        let most = rows.saturating_sub(2 + usize::from(why.is_some()));
        let lines = self.live.lines(&self.selection, most, columns, &look, now);
        let mut all = vec![look.paint(tone, &counts)];
        all.extend(lines.into_iter().chain(why));
        Ok(terminal::write(&frame.show(all, width))?)
    }
}
