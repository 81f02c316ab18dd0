//! Older values that a strong load may return instead of the newest one, as on a GPU.
//!
//!   stores to x           7 ── 4 ── 9 ── 2       the heap holds the newest
//!   block 0 has seen           4                 it may load 4, 9 or 2
//!   block 1 knows that         9 was stored      it may load 9 or 2
//!
//! Coherence  a block never reads older values again, nor does a thread that has since learned of its reads.
//!            Read-modify-writes read the newest value. Plain loads do so anyway: without a race they are ordered after
//!            all stores.
//! Messages   a value keeps the view released with it: an older value carries an older view.
//! Bounds     a fixed table of locations with a few values each. A history is dropped on table collisions, plain stores
//!            and accesses of another width: without a history a load returns the newest value, which is always
//!            allowed.

use super::order::{Epoch, Message, Observer};
use super::random::Random;
use std::collections::VecDeque;

/// Binary logarithm of the number of table slots.
const PLACES: u32 = 12;
/// Maximum number of values kept per location, including the newest.
const MOST_VALUES: usize = 5;
/// Maximum number of blocks whose observed values are kept.
const MOST_FLOORS: usize = 6;
/// One in this number of loads with an older candidate returns an older value.
const ODDS_OF_OLDER: u64 = 4;

/// Location of a strong access: up to 8 bytes inside one 8-byte word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub address: u64,
    pub bytes: usize,
}

impl Place {
    fn word(self) -> u64 {
        self.address / 8
    }
}

/// Current value of a location and its writer.
#[derive(Debug)]
pub(super) struct Held {
    pub bits: u64,
    /// The last strong write; none if a plain write is newer, or if no thread of the launch wrote it.
    pub writer: Epoch,
}

/// An overwritten value and the message of its store.
#[derive(Debug, Clone)]
pub(super) struct Older {
    pub bits: u64,
    pub message: Option<Message>,
}

#[derive(Debug)]
struct Value {
    bits: u64,
    writer: Epoch,
    /// Message of the store; for the newest value it is in the machine's table instead.
    message: Option<Message>,
}

/// Values of a location that a block has seen.
#[derive(Debug)]
struct Floor {
    block: u32,
    /// Number of the newest value that it stored or loaded.
    seen: u32,
    /// Number of the newest value that it loaded, and the clock of its first load: a thread that knows of this clock
    /// counts as knowing the newest loaded value. Knowledge of its stores follows from the writers of values.
    loaded: u32,
    clock: u32,
}

#[derive(Debug)]
struct History {
    place: Place,
    /// Number of the first entry of `values`.
    first: u32,
    /// Oldest first.
    values: VecDeque<Value>,
    floors: Vec<Floor>,
    /// Number of the oldest value that any block may load.
    floor: u32,
}

impl History {
    fn newest(&self) -> u32 {
        self.first + self.values.len() as u32 - 1
    }

    /// Whether the recorded stores alone produced the current value of the location.
    fn ends_with(&self, place: Place, held: &Held) -> bool {
        self.place == place
            && held.writer.is_some()
            && self.values.back().is_some_and(|last| last.writer == held.writer && last.bits == held.bits)
    }

    /// Number of the oldest value that a lane may load.
    fn oldest_for(&self, observer: &Observer<'_>, lane: u32) -> u32 {
        let known = self.values.iter().rposition(|value| value.writer.is_some() && observer.knows(value.writer, lane));
        let mut oldest = self.floor.max(self.first + known.unwrap_or(0) as u32);
        for floor in &self.floors {
            if floor.block == observer.block {
                oldest = oldest.max(floor.seen);
            } else if floor.loaded > oldest && observer.knows_of(floor.block, floor.clock, lane) {
                oldest = floor.loaded;
            }
        }
        oldest
    }

    /// Records that a block stored or loaded a value.
    fn saw(&mut self, observer: &Observer<'_>, number: u32, by_load: bool) {
        if number <= self.floor.max(self.first) {
            return;
        }
        let known = self.floors.iter().position(|floor| floor.block == observer.block);
        let at = known.unwrap_or_else(|| {
            if self.floors.len() == MOST_FLOORS
                && let Some(least) = (0..MOST_FLOORS).min_by_key(|&at| self.floors[at].seen)
            {
                // The floor of a block without an entry becomes the floor of all blocks.
                self.floor = self.floor.max(self.floors.swap_remove(least).seen);
            }
            self.floors.push(Floor { block: observer.block, seen: 0, loaded: 0, clock: 0 });
            self.floors.len() - 1
        });
        let floor = &mut self.floors[at];
        floor.seen = floor.seen.max(number);
        if by_load {
            if floor.loaded == 0 {
                floor.clock = observer.clock;
            }
            floor.loaded = floor.loaded.max(number);
        }
    }
}

/// Histories of one machine.
#[derive(Debug, Default)]
pub(super) struct Histories {
    /// By hash of a word: number of a history plus one, or zero. Allocated at the first store.
    table: Vec<u32>,
    histories: Vec<History>,
}

fn slot(word: u64) -> usize {
    (word.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - PLACES)) as usize
}

impl Histories {
    /// Records a strong store, also of a read-modify-write. `before` is the previous value, if it was written;
    /// `message` is the message currently at the location.
    pub fn push(
        &mut self,
        place: Place,
        before: Option<Held>,
        message: Option<&Message>,
        bits: u64,
        writer: Epoch,
        observer: &Observer<'_>,
    ) {
        if self.table.is_empty() {
            self.table = vec![0; 1 << PLACES];
        }
        let slot = &mut self.table[slot(place.word())];
        if *slot == 0 {
            let values = VecDeque::with_capacity(MOST_VALUES + 1);
            self.histories.push(History { place, first: 0, values, floors: Vec::new(), floor: 0 });
            *slot = self.histories.len() as u32;
        }
        let history = &mut self.histories[*slot as usize - 1];
        if !before.as_ref().is_some_and(|before| history.ends_with(place, before)) {
            history.place = place;
            (history.first, history.floor) = (0, 0);
            history.values.clear();
            history.floors.clear();
            let before = before.map(|Held { bits, writer }| Value { bits, writer, message: None });
            history.values.extend(before);
        }
        if let Some(last) = history.values.back_mut() {
            last.message = message.cloned();
        }
        history.values.push_back(Value { bits, writer, message: None });
        if history.values.len() > MOST_VALUES {
            history.values.pop_front();
            history.first += 1;
        }
        history.saw(observer, history.newest(), false);
    }

    /// A strong load. Returns an older value if the load does not return the newest.
    pub fn load(
        &mut self,
        place: Place,
        held: &Held,
        observer: &Observer<'_>,
        lane: u32,
        random: &mut Random,
    ) -> Option<Older> {
        let history = self.history_at(place, Some(held))?;
        let newest = history.newest();
        let oldest = history.oldest_for(observer, lane);
        let older = newest.saturating_sub(oldest);
        let number = match older > 0 && random.below(ODDS_OF_OLDER) == 0 {
            true => oldest + random.below(older.into()) as u32,
            false => newest,
        };
        history.saw(observer, number, true);
        let value = &history.values[(number - history.first) as usize];
        (number < newest).then(|| Older { bits: value.bits, message: value.message.clone() })
    }

    /// Records that a read-modify-write without a store has seen the newest value.
    pub fn saw_newest(&mut self, place: Place, held: &Held, observer: &Observer<'_>) {
        if let Some(history) = self.history_at(place, Some(held)) {
            history.saw(observer, history.newest(), true);
        }
    }

    /// Drops the histories under an access that covers more than one location, such as one of two words.
    pub fn forget(&mut self, address: u64, bytes: usize) {
        for at in (0..bytes as u64).step_by(8) {
            self.history_at(Place { address: address + at, bytes: 0 }, None);
        }
    }

    /// The history of a location if it matches the current value; otherwise the history is dropped.
    fn history_at(&mut self, place: Place, held: Option<&Held>) -> Option<&mut History> {
        let slot = self.table.get_mut(slot(place.word())).filter(|slot| **slot != 0)?;
        let history = &mut self.histories[*slot as usize - 1];
        if history.place.word() != place.word() {
            return None;
        }
        if !held.is_some_and(|held| history.ends_with(place, held)) {
            history.values.clear();
            return None;
        }
        Some(history)
    }
}

#[cfg(test)]
mod tests {
    use super::super::order::ONE_LANE;
    use super::*;
    use std::collections::HashMap;

    /// More blocks and values than a history keeps, and colliding locations.
    const BLOCKS: u32 = 12;

    fn addresses() -> Vec<u64> {
        let base = 0x7_0000_0000_u64;
        let same = (1..).map(|n| base + 8 * n).filter(|address| slot(address / 8) == slot(base / 8)).take(2);
        [base, base + 4, base + 64, base + 128].into_iter().chain(same).collect()
    }

    fn observer(block: u32, clock: u32) -> Observer<'static> {
        Observer { block, warp: 0, clock, full: 0, sync: 0, views: None, launch: (0, BLOCKS) }
    }

    #[test]
    fn no_block_goes_back_whatever_is_forgotten() {
        let mut random = Random::new(Some(5));
        let mut histories = Histories::default();
        let addresses = addresses();
        // The n-th value stored is n. `seen`: the newest value seen, by block and address.
        let mut held: HashMap<u64, Held> =
            addresses.iter().map(|&at| (at, Held { bits: 0, writer: Epoch::NONE })).collect();
        let mut seen: HashMap<(u32, u64), u64> = HashMap::new();
        let mut older = 0;
        for clock in 1..40_000 {
            let block = random.below(BLOCKS.into()) as u32;
            let address = addresses[random.below(addresses.len() as u64) as usize];
            let place = Place { address, bytes: 4 };
            let observer = observer(block, clock);
            let held = held.get_mut(&address).unwrap();
            let floor = seen.entry((block, address)).or_default();
            match random.below(20) {
                0..5 => {
                    let writer = Epoch::new(block, 0, 0, ONE_LANE, clock);
                    let bits = held.bits + 1;
                    let before = std::mem::replace(held, Held { bits, writer });
                    histories.push(place, Some(before), None, bits, writer, &observer);
                    *floor = bits;
                }
                5 => histories.forget(address, 16),
                // A plain store ordered after all earlier ones: no older value may be loaded afterwards.
                6 => *held = Held { bits: held.bits, writer: Epoch::NONE },
                _ => {
                    let loaded = histories.load(place, held, &observer, 0, &mut random);
                    older += usize::from(loaded.is_some());
                    let value = loaded.map_or(held.bits, |loaded| loaded.bits);
                    assert!((*floor..=held.bits).contains(&value), "{value} after {floor}, of {}", held.bits);
                    *floor = value;
                }
            }
        }
        assert!(older > 100, "{older}");
    }

    #[test]
    fn a_store_that_is_known_hides_what_it_overwrote() {
        let place = Place { address: 0x7_0000_0000, bytes: 8 };
        let writer = |clock| Epoch::new(1, 0, 0, ONE_LANE, clock);
        let load = |seed, block| {
            let mut histories = Histories::default();
            histories.push(place, None, None, 1, writer(1), &observer(1, 1));
            let held = Held { bits: 1, writer: writer(1) };
            histories.push(place, Some(held), None, 2, writer(2), &observer(1, 2));
            let held = Held { bits: 2, writer: writer(2) };
            let older = histories.load(place, &held, &observer(block, 9), 0, &mut Random::new(Some(seed)));
            older.map(|older| older.bits)
        };
        // Nothing wrote the location before, so no value is older than 1; and block 1 stored 2 itself.
        assert!((0..50).all(|seed| load(seed, 1).is_none()));
        let other: Vec<u64> = (0..50).filter_map(|seed| load(seed, 2)).collect();
        assert!(other.len() > 3 && other.iter().all(|&bits| bits == 1), "{other:?}");
    }
}
