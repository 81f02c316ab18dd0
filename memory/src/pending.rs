//! Results that are still in flight from the device.
//!
//! ```text
//!   copy, kernel ─► event ─► word          Pending<T> ── .await ──► Result<T>
//!                     │        │               ▲
//!                     └────────┴── poller ─────┘ one thread per device polls: the word first, then the event
//! ```
//!
//! Waits      an `.await` never blocks a worker; `wait()` blocks its thread and is for tests and tools.
//! Dropped    at any time: the poller keeps memory that the device still reads or writes until the device is past it.
//! Lost       when the device is lost, every `Pending` ends in `DeviceLost`. A device that hangs is lost after its time
//!            limit, as is one that repeatedly refuses event queries.
//! Spins      for 200 µs after the last completion or arrival; then it polls every 20 µs, plus the system's own delay.
//! Word       the device stores its progress in pinned memory, which the host reads with a load; the event then
//!            confirms it and carries errors. Without words, or on the simulated device, only events are queried.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::driver::{CaptureMode, DriverKind, HostSpan};
use crate::error::{MemoryError, Result};
use crate::event::Event;
use crate::ids::StreamId;
use crate::recorder::Waiting;
use crate::stream::Stream;
use crate::watch::Began;

/// Values of a dropped `Pending` that the poller keeps until the device is past them.
type Kept = Box<dyn Send>;

enum State {
    Waiting { waker: Option<Waker>, kept: Option<Kept> },
    Done,
    Failed(MemoryError),
}

/// State shared by a `Pending` and the poller.
struct Completion {
    state: Mutex<State>,
}

impl Completion {
    fn new() -> Arc<Self> {
        Arc::new(Completion { state: Mutex::new(State::Waiting { waker: None, kept: None }) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, result: Result<()>) {
        let state = match result {
            Ok(()) => State::Done,
            Err(error) => State::Failed(error),
        };
        let before = std::mem::replace(&mut *self.state(), state);
        // Outside the lock, because drops of kept values and wakers run arbitrary code.
        if let State::Waiting { waker: Some(waker), .. } = before {
            waker.wake();
        }
    }
}

/// A value that is available once the device has reached a certain event.
#[must_use = "a result on its way is awaited, waited for, or dropped on purpose"]
pub struct Pending<T: 'static> {
    completion: Arc<Completion>,
    event: Option<Event>,
    /// Constructs the value. `None` once taken.
    take: Option<Box<dyn FnOnce() -> Result<T> + Send>>,
    counted: bool,
    feeds: bool,
    /// Set while it is awaited on a path.
    waiting: Option<Waiting>,
}

impl<T: 'static> Pending<T> {
    /// Returns `value` once `event` has passed. Until then the value is kept alive, even if the `Pending` is dropped.
    pub fn behind(event: Event, value: T) -> Self
    where
        T: Send,
    {
        Self::behind_with(event, move || Ok(value))
    }

    /// Returns the result of `take` once `event` has passed. Captures of `take` are kept alive until then.
    pub fn behind_with(event: Event, take: impl FnOnce() -> Result<T> + Send + 'static) -> Self {
        let completion = Completion::new();
        if event.is_known_done() {
            completion.finish(Ok(()));
        } else {
            event.device().poller().watch(event.clone(), Arc::clone(&completion));
        }
        Pending {
            completion,
            event: Some(event),
            take: Some(Box::new(take)),
            counted: false,
            feeds: false,
            waiting: None,
        }
    }

    /// A value that is already available.
    pub fn ready(value: T) -> Self
    where
        T: Send,
    {
        let completion = Completion::new();
        completion.finish(Ok(()));
        let take: Option<Box<dyn FnOnce() -> Result<T> + Send>> = Some(Box::new(move || Ok(value)));
        Pending { completion, event: None, take, counted: true, feeds: false, waiting: None }
    }

    /// Counts the wait as one for space in pinned memory (a feed wait), not as one for a result.
    pub fn feeding(mut self) -> Self {
        self.feeds = true;
        self
    }

    /// Converts the value when it is available.
    pub fn map<U: 'static>(self, f: impl FnOnce(T) -> U + Send + 'static) -> Pending<U> {
        self.and_then(move |value| Ok(f(value)))
    }

    /// Converts the value, or fails, when it is available.
    pub fn and_then<U: 'static>(mut self, f: impl FnOnce(T) -> Result<U> + Send + 'static) -> Pending<U> {
        let take = self.take.take().expect("a pending value is mapped before it is awaited");
        Pending {
            completion: Arc::clone(&self.completion),
            event: self.event.take(),
            take: Some(Box::new(move || f(take()?))),
            counted: self.counted,
            feeds: self.feeds,
            waiting: None,
        }
    }

    /// True once the value, or an error, is available without waiting.
    pub fn is_ready(&self) -> bool {
        !matches!(*self.completion.state(), State::Waiting { .. })
    }

    /// Blocks this thread until the value is available. For tests and tools; queries await.
    pub fn wait(mut self) -> Result<T> {
        self.count();
        let take = self.take.take().expect("a pending value is taken once");
        let passed = match &self.event {
            Some(event) => {
                let _waiting = Waiting::begin(|| event.stream_id().index);
                event.wait_uncounted()
            }
            None => Ok(()),
        };
        match passed {
            Ok(()) => take(),
            Err(error) => {
                self.keep(Box::new(take));
                Err(error)
            }
        }
    }

    fn count(&mut self) {
        if let (false, Some(event)) = (self.counted, &self.event) {
            event.scope().count(|c| if self.feeds { &c.feed_waits } else { &c.host_waits });
            self.counted = true;
        }
    }

    /// Passes `kept` to the poller if the device is not past it.
    fn keep(&self, kept: Kept) {
        if let State::Waiting { kept: slot, .. } = &mut *self.completion.state() {
            *slot = Some(kept);
        }
    }
}

impl<T: 'static> Future for Pending<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        self.count();
        let this = &mut *self;
        match &mut *this.completion.state() {
            State::Waiting { waker, .. } => {
                *waker = Some(context.waker().clone());
                if this.waiting.is_none() {
                    let stream = || this.event.as_ref().map_or(0, |event| event.stream_id().index);
                    this.waiting = Waiting::begin(stream);
                }
                return Poll::Pending;
            }
            State::Failed(error) => return Poll::Ready(Err(error.clone())),
            State::Done => {}
        }
        this.waiting = None;
        let take = this.take.take().expect("a future is not polled after it is ready");
        Poll::Ready(take())
    }
}

impl<T: 'static> Drop for Pending<T> {
    fn drop(&mut self) {
        if let Some(take) = self.take.take() {
            self.keep(Box::new(take));
        }
    }
}

impl<T: 'static> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.event {
            Some(event) => write!(f, "pending on {event:?}"),
            None => f.write_str("ready"),
        }
    }
}

/// Consecutive refused queries of an event after which the device counts as lost, because its remaining work is
/// unknown.
const MOST_REFUSALS: u32 = 16;

struct Watched {
    event: Event,
    began: Began,
    word: Option<HostSpan>,
    completion: Arc<Completion>,
    refusals: u32,
}

impl Watched {
    fn seq(&self) -> u64 {
        self.event.position().seq()
    }

    /// Whether the event has passed. `ask`: query the driver even if the word has not reached it.
    fn passed(&mut self, ask: bool) -> Option<Result<()>> {
        if self.event.is_known_done() {
            return Some(Ok(()));
        }
        if let Err(lost) = self.event.device().alive() {
            return Some(Err(lost));
        }
        let reached = self.word.as_ref().is_none_or(|span| {
            let word = span.block().load_word(span.offset()).unwrap_or(0);
            // Words wrap; a stream is never 2³¹ positions ahead of the oldest position that the host waits for.
            word.wrapping_sub(self.seq() as u32) as i32 >= 0
        });
        if !reached && !ask {
            return None;
        }
        match self.event.query() {
            Ok(true) => Some(Ok(())),
            Ok(false) => {
                self.refusals = 0;
                self.event.device().check_time(self.began).err().map(Err)
            }
            Err(MemoryError::Driver { error, .. }) if !error.code.is_of_capture() => {
                self.refusals += 1;
                (self.refusals >= MOST_REFUSALS).then(|| Err(self.event.device().lose(error)))
            }
            Err(error) => Some(Err(error)),
        }
    }
}

#[derive(Default)]
struct Inbox {
    watched: Vec<Watched>,
    running: bool,
    /// The thread sleeps, and only a system call wakes it.
    asleep: bool,
    stop: bool,
}

struct Shared {
    inbox: Mutex<Inbox>,
    changed: Condvar,
    kind: DriverKind,
}

impl Shared {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The polling thread. One per device, started by the first event to watch.
pub(crate) struct Poller {
    shared: Arc<Shared>,
}

impl Poller {
    pub(crate) fn new(kind: DriverKind) -> Self {
        Poller { shared: Arc::new(Shared { inbox: Mutex::default(), changed: Condvar::new(), kind }) }
    }

    fn watch(&self, event: Event, completion: Arc<Completion>) {
        let word = event.device().progress_word(event.stream_id()).filter(|word| {
            let stream = event.device().stream_cell(event.stream_id());
            let stream = stream.map(|cell| Stream::of(event.device(), cell, event.scope().clone()));
            stream.is_ok_and(|stream| stream.write_word(word, event.position().seq() as u32).is_ok())
        });
        let began = event.device().watchdog().begin();
        let mut inbox = self.shared.inbox();
        inbox.watched.push(Watched { event, began, word, completion, refusals: 0 });
        if !inbox.running {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("millpond-poller".into()).spawn(move || look(&shared));
            match thread {
                Ok(_) => inbox.running = true,
                // Without the thread nothing would ever complete: wait and finish here.
                Err(_) => {
                    let watched = inbox.watched.pop().expect("just pushed");
                    drop(inbox);
                    watched.completion.finish(watched.event.wait_uncounted());
                    return;
                }
            }
        }
        let asleep = inbox.asleep;
        drop(inbox);
        if asleep {
            self.wake();
        }
    }

    pub(crate) fn wake(&self) {
        self.shared.changed.notify_one();
    }

    pub(crate) fn stop(&self) {
        self.shared.inbox().stop = true;
        self.wake();
    }
}

/// Time after the last completion or arrival during which the poller does not pause: most kernels of a query are done
/// by then, and a sleeping thread wakes tens of microseconds late.
const SPIN: Duration = Duration::from_micros(200);

/// Pause of a polling loop after `idle` rounds without progress; the poller applies it only after [`SPIN`].
pub(crate) fn pause(idle: u32) -> Option<Duration> {
    (idle >= 32).then_some(Duration::from_micros(20))
}

fn look(shared: &Shared) {
    let mut streams: BTreeMap<StreamId, VecDeque<Watched>> = BTreeMap::new();
    let mut idle = 0u32;
    let mut harmless = false;
    let mut quiet = Instant::now();
    loop {
        let mut inbox = shared.inbox();
        while inbox.watched.is_empty() && streams.is_empty() {
            if inbox.stop {
                return;
            }
            inbox.asleep = true;
            inbox = shared.changed.wait(inbox).unwrap_or_else(PoisonError::into_inner);
            inbox.asleep = false;
            (idle, quiet) = (0, Instant::now());
        }
        let arrived = std::mem::take(&mut inbox.watched);
        let may_pause = arrived.is_empty() && quiet.elapsed() >= SPIN;
        if let Some(pause) = pause(idle).filter(|_| may_pause) {
            inbox.asleep = true;
            let (mut inbox, _) = shared.changed.wait_timeout(inbox, pause).unwrap_or_else(PoisonError::into_inner);
            inbox.asleep = false;
        } else {
            drop(inbox);
        }
        for watched in arrived {
            if !harmless {
                // Event queries would break the captures of other threads, if this thread's capture mode were not
                // relaxed.
                harmless = watched.event.device().driver().thread_capture_mode(CaptureMode::Relaxed).is_ok();
            }
            let queue = streams.entry(watched.event.stream_id()).or_default();
            let place = queue.partition_point(|other| other.seq() <= watched.seq());
            queue.insert(place, watched);
            (idle, quiet) = (0, Instant::now());
        }

        // Words are loaded in every round; the driver is queried every 16th round, and always on the simulated device,
        // where queries let time pass.
        let ask = shared.kind == DriverKind::Sim || idle % 16 == 15;
        let mut progress = false;
        for queue in streams.values_mut() {
            while let Some(result) = queue.front_mut().and_then(|head| head.passed(ask)) {
                let head = queue.pop_front().expect("looked at");
                head.completion.finish(result);
                progress = true;
            }
        }
        streams.retain(|_, queue| !queue.is_empty());
        (idle, quiet) = if progress { (0, Instant::now()) } else { (idle.saturating_add(1), quiet) };
        if pause(idle).is_none() || quiet.elapsed() < SPIN {
            std::thread::yield_now();
        }
    }
}
