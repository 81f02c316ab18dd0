//! Records which submissions touched which sectors of a buffer, and detects unordered conflicting touches.
//!
//!   sector   0 ········ 7  8 ······· 15           stream 1 writes 0–7, stream 2 writes 8–15: silent
//!   write    launch, 1     launch, 2
//!   reads    —             upload, 3               stream 1 reads 8 without a wait: a conflict with `launch, 2`
//!
//! Classes    plain read, plain write, atomic. Two reads or two atomics never conflict; every other pair must be
//!            ordered.
//! Sectors    32 bytes. Parts that share a state are kept as one piece, so a buffer touched as a whole costs nothing;
//!            a buffer touched in many places becomes an array with one word per sector.
//! Order      pairs are found whichever of the two ran first: a touch is compared with all that ran before it.
//! Bounds     states that no sector has are dropped. Beyond `MOST_STATES` only the newest reader of a state is kept:
//!            then a conflict may be missed, and none is ever invented.

use super::clock::{Epoch, Moment};
use super::report::Submission;
use std::sync::Arc;

/// Bytes that share one state.
pub(super) const SECTOR_BYTES: u64 = 32;

/// A buffer whose sectors have more different histories than this forgets older readers.
const MOST_STATES: usize = 1 << 14;

/// A buffer in more pieces becomes dense: a touch of a few sectors then costs no more than these.
const MOST_PIECES: usize = 4096;

/// How a sector is touched; the bits may be combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Classes(u8);

impl Classes {
    pub(super) const NONE: Self = Self(0);
    pub(super) const READ: Self = Self(1);
    pub(super) const WRITE: Self = Self(2);
    pub(super) const ATOMIC: Self = Self(4);

    pub(super) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(super) fn covers(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(super) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// How one submission touched a sector, for reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Touch {
    /// A plain load, or the source of a copy.
    Read,
    /// A plain store, a fill, or the destination of a copy.
    Write,
    /// An atomic or another strong access.
    Atomic,
}

/// Neighbouring sectors that are touched alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) classes: Classes,
}

/// The run of sectors that holds these bytes of a buffer.
pub(super) fn run_over(offset: u64, len: u64, classes: Classes) -> Run {
    let start = u32::try_from(offset / SECTOR_BYTES).unwrap_or(u32::MAX);
    let end = u32::try_from((offset + len).div_ceil(SECTOR_BYTES)).unwrap_or(u32::MAX);
    Run { start, end, classes }
}

/// Merges the sectors of each class, given as (first, count) in order, into runs.
pub(super) fn merge_runs(reads: &[(u64, u64)], writes: &[(u64, u64)], atomics: &[(u64, u64)]) -> Vec<Run> {
    let mut lists = [(reads, Classes::READ), (writes, Classes::WRITE), (atomics, Classes::ATOMIC)];
    let mut runs: Vec<Run> = Vec::new();
    let mut at = 0;
    loop {
        let mut classes = Classes::NONE;
        let mut end = u64::MAX;
        for (list, class) in &mut lists {
            while let [(first, count), rest @ ..] = list {
                if first + count <= at {
                    *list = rest;
                } else if *first <= at {
                    classes = classes.with(*class);
                    end = end.min(first + count);
                    break;
                } else {
                    end = end.min(*first);
                    break;
                }
            }
        }
        if end == u64::MAX {
            return runs;
        }
        if classes != Classes::NONE {
            let sector = |sector: u64| u32::try_from(sector).unwrap_or(u32::MAX);
            runs.push(Run { start: sector(at), end: sector(end), classes });
        }
        at = end;
    }
}

/// Two conflicting touches of one sector without an order between them.
#[derive(Debug, Clone)]
pub(super) struct Conflict {
    /// The first sector where the two meet.
    pub(super) sector: u32,
    /// Submission that had touched the sector before.
    pub(super) other: Arc<Submission>,
    pub(super) other_touch: Touch,
    /// Kind of access of the new submission.
    pub(super) touch: Touch,
}

/// Latest touches of a sector. Readers and atomics are kept one per lane, since the last write.
#[derive(Debug, Clone, Default)]
struct Touches {
    write: Option<Arc<Submission>>,
    reads: Vec<Arc<Submission>>,
    atomics: Vec<Arc<Submission>>,
}

impl Touches {
    /// Calls `report` for each touch that `classes` conflicts with and that `after` does not order.
    fn unordered(
        &self,
        classes: Classes,
        after: &dyn Fn(Epoch) -> bool,
        report: &mut dyn FnMut(&Arc<Submission>, Touch, Touch),
    ) {
        let touch = if classes.has(Classes::WRITE) {
            Touch::Write
        } else if classes.has(Classes::ATOMIC) {
            Touch::Atomic
        } else {
            Touch::Read
        };
        for by in self.write.iter().filter(|by| !after(by.epoch)) {
            report(by, Touch::Write, touch);
        }
        if classes.has(Classes::WRITE.with(Classes::ATOMIC)) {
            for by in self.reads.iter().filter(|by| !after(by.epoch)) {
                report(by, Touch::Read, touch);
            }
        }
        if classes.has(Classes::WRITE.with(Classes::READ)) {
            let touch = if classes.has(Classes::WRITE) { Touch::Write } else { Touch::Read };
            for by in self.atomics.iter().filter(|by| !after(by.epoch)) {
                report(by, Touch::Atomic, touch);
            }
        }
    }

    fn touched(&self, classes: Classes, by: &Arc<Submission>) -> Self {
        if classes.has(Classes::WRITE) {
            return Self { write: Some(by.clone()), ..Self::default() };
        }
        let put = |list: &[Arc<Submission>]| {
            let mut list: Vec<_> = list.iter().filter(|other| other.epoch.lane != by.epoch.lane).cloned().collect();
            list.push(by.clone());
            list
        };
        Self {
            write: self.write.clone(),
            reads: if classes.has(Classes::READ) { put(&self.reads) } else { self.reads.clone() },
            atomics: if classes.has(Classes::ATOMIC) { put(&self.atomics) } else { self.atomics.clone() },
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    start: u32,
    state: u32,
}

#[derive(Debug)]
enum Cells {
    /// Sorted, the first at 0, each reaching to the next; neighbours differ.
    Pieces(Vec<Piece>),
    /// One state per sector.
    Dense(Vec<u32>),
}

/// The history of one buffer.
#[derive(Debug)]
pub(super) struct Shadow {
    sectors: u32,
    cells: Cells,
    /// State 0 is "untouched".
    states: Vec<Touches>,
    /// States are swept when there are this many.
    sweep_at: usize,
}

impl Shadow {
    /// An empty history: no byte has been touched.
    pub(super) fn new(bytes: u64) -> Self {
        let sectors = u32::try_from(bytes.div_ceil(SECTOR_BYTES)).unwrap_or(u32::MAX);
        Self {
            sectors,
            cells: Cells::Pieces(vec![Piece { start: 0, state: 0 }]),
            states: vec![Touches::default()],
            sweep_at: 64,
        }
    }

    #[cfg(test)]
    fn sectors(&self) -> u32 {
        self.sectors
    }

    /// Records that `by`, at `moment`, touched these runs (sorted, disjoint). Returns the unordered conflicts.
    pub(super) fn touch(&mut self, moment: &Moment, by: &Arc<Submission>, runs: &[Run]) -> Vec<Conflict> {
        let mut step = Step {
            states: &mut self.states,
            memo: Vec::new(),
            written: 0,
            conflicts: Vec::new(),
            by,
            after: &|epoch| moment.is_after(epoch),
        };
        let mut filled = None;
        match &mut self.cells {
            Cells::Pieces(pieces) => {
                let mut walk = Walk { old: pieces, index: 0, at: 0, sectors: self.sectors, new: Vec::new() };
                for run in runs {
                    walk.until(run.start, |_, state| state);
                    walk.until(run.end, |start, state| step.apply(start, state, run.classes));
                }
                walk.until(self.sectors, |_, state| state);
                *pieces = walk.new;
            }
            Cells::Dense(cells) => {
                for run in runs {
                    let end = run.end.min(self.sectors);
                    for sector in run.start.min(end)..end {
                        let cell = &mut cells[sector as usize];
                        *cell = step.apply(sector, *cell, run.classes);
                    }
                }
                if let [run] = runs
                    && run.start == 0
                    && run.end >= self.sectors
                    && run.classes.has(Classes::WRITE)
                {
                    filled = cells.first().copied();
                }
            }
        }
        let conflicts = step.conflicts;
        if let Some(state) = filled {
            self.cells = Cells::Pieces(vec![Piece { start: 0, state }]);
        }
        self.settle();
        conflicts
    }

    /// Touches of `run` that conflict with its classes and that `after` does not order. Records nothing.
    pub(super) fn conflicts(&self, run: Run, after: &dyn Fn(Epoch) -> bool) -> Vec<Conflict> {
        let mut conflicts = Vec::new();
        let mut asked = vec![false; self.states.len()];
        let mut ask = |sector: u32, state: u32| {
            if !std::mem::replace(&mut asked[state as usize], true) {
                self.states[state as usize].unordered(run.classes, after, &mut |by, other_touch, touch| {
                    note(&mut conflicts, Conflict { sector, other: by.clone(), other_touch, touch });
                });
            }
        };
        let end = run.end.min(self.sectors);
        match &self.cells {
            Cells::Pieces(pieces) => {
                let first = pieces.partition_point(|piece| piece.start <= run.start).saturating_sub(1);
                for piece in pieces[first..].iter().take_while(|piece| piece.start < end) {
                    ask(piece.start.max(run.start), piece.state);
                }
            }
            Cells::Dense(cells) => {
                for sector in run.start.min(end)..end {
                    ask(sector, cells[sector as usize]);
                }
            }
        }
        conflicts
    }

    /// Touches of any part of the buffer that `after` does not order. Used by frees.
    pub(super) fn unfinished(&self, after: &dyn Fn(Epoch) -> bool) -> Vec<Conflict> {
        self.conflicts(Run { start: 0, end: self.sectors, classes: Classes::WRITE }, after)
    }

    /// Changes form when the pieces became many, and drops states that no sector has.
    fn settle(&mut self) {
        if let Cells::Pieces(pieces) = &self.cells
            && pieces.len() > (self.sectors as usize / 8).clamp(64, MOST_PIECES)
        {
            let mut cells = vec![0; self.sectors as usize];
            for (index, piece) in pieces.iter().enumerate() {
                let end = pieces.get(index + 1).map_or(self.sectors, |next| next.start);
                cells[piece.start as usize..end as usize].fill(piece.state);
            }
            self.cells = Cells::Dense(cells);
        }
        if self.states.len() >= self.sweep_at {
            self.sweep();
            self.sweep_at = 64.max(self.states.len() * 2);
        }
    }

    fn sweep(&mut self) {
        const UNUSED: u32 = u32::MAX;
        let mut renamed = vec![UNUSED; self.states.len()];
        let mut kept = vec![Touches::default()];
        renamed[0] = 0;
        let states = &mut self.states;
        let mut rename = |state: &mut u32| {
            let slot = &mut renamed[*state as usize];
            if *slot == UNUSED {
                *slot = kept.len() as u32;
                kept.push(std::mem::take(&mut states[*state as usize]));
            }
            *state = *slot;
        };
        match &mut self.cells {
            Cells::Pieces(pieces) => pieces.iter_mut().for_each(|piece| rename(&mut piece.state)),
            Cells::Dense(cells) => cells.iter_mut().for_each(rename),
        }
        if kept.len() > MOST_STATES {
            self.forget_older_readers(kept);
        } else {
            self.states = kept;
        }
    }

    /// Keeps one reader per state and merges states that are then the same.
    fn forget_older_readers(&mut self, states: Vec<Touches>) {
        let newest = |list: Vec<Arc<Submission>>| list.into_iter().max_by_key(|by| by.number).into_iter().collect();
        let key = |touches: &Touches| {
            let first = |list: &[Arc<Submission>]| list.first().map(|by| by.epoch);
            (touches.write.as_ref().map(|by| by.epoch), first(&touches.reads), first(&touches.atomics))
        };
        let mut known = std::collections::HashMap::new();
        let mut kept: Vec<Touches> = Vec::new();
        let renamed: Vec<u32> = states
            .into_iter()
            .map(|state| {
                let state = Touches { write: state.write, reads: newest(state.reads), atomics: newest(state.atomics) };
                *known.entry(key(&state)).or_insert_with(|| {
                    kept.push(state);
                    kept.len() as u32 - 1
                })
            })
            .collect();
        match &mut self.cells {
            Cells::Pieces(pieces) => pieces.iter_mut().for_each(|piece| piece.state = renamed[piece.state as usize]),
            Cells::Dense(cells) => cells.iter_mut().for_each(|cell| *cell = renamed[*cell as usize]),
        }
        self.states = kept;
    }
}

/// One touch on its way over a buffer; each different state is worked out once.
struct Step<'a> {
    states: &'a mut Vec<Touches>,
    /// New state by old state and classes; 0 is not computed yet, because no touch leads to "untouched".
    memo: Vec<[u32; 8]>,
    /// The state that every write of this touch leads to; 0 is not known yet.
    written: u32,
    conflicts: Vec<Conflict>,
    by: &'a Arc<Submission>,
    after: &'a dyn Fn(Epoch) -> bool,
}

impl Step<'_> {
    fn apply(&mut self, sector: u32, state: u32, classes: Classes) -> u32 {
        if classes == Classes::NONE {
            return state;
        }
        let (index, class) = (state as usize, usize::from(classes.0));
        if let Some(row) = self.memo.get(index)
            && row[class] != 0
        {
            return row[class];
        }
        let conflicts = &mut self.conflicts;
        self.states[index].unordered(classes, self.after, &mut |by, other_touch, touch| {
            note(conflicts, Conflict { sector, other: by.clone(), other_touch, touch });
        });
        let write = classes.has(Classes::WRITE);
        let new = if write && self.written != 0 {
            self.written
        } else {
            let touched = self.states[index].touched(classes, self.by);
            self.states.push(touched);
            self.states.len() as u32 - 1
        };
        if write {
            self.written = new;
        }
        if self.memo.len() <= index {
            self.memo.resize(index + 1, [0; 8]);
        }
        self.memo[index][class] = new;
        new
    }
}

/// Keeps one conflict per pair of submissions and touches.
fn note(conflicts: &mut Vec<Conflict>, conflict: Conflict) {
    let known = conflicts.iter().any(|known| {
        Arc::ptr_eq(&known.other, &conflict.other)
            && known.other_touch == conflict.other_touch
            && known.touch == conflict.touch
    });
    if !known {
        conflicts.push(conflict);
    }
}

/// Rewrites a list of pieces from left to right.
struct Walk<'a> {
    old: &'a [Piece],
    index: usize,
    at: u32,
    sectors: u32,
    new: Vec<Piece>,
}

impl Walk<'_> {
    fn until(&mut self, end: u32, mut change: impl FnMut(u32, u32) -> u32) {
        let end = end.min(self.sectors);
        while self.at < end {
            let piece_end = self.old.get(self.index + 1).map_or(self.sectors, |next| next.start);
            let state = change(self.at, self.old[self.index].state);
            if self.new.last().is_none_or(|last| last.state != state) {
                self.new.push(Piece { start: self.at, state });
            }
            self.at = end.min(piece_end);
            if self.at == piece_end {
                self.index += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::Clock;
    use super::*;

    /// A submission on `lane` with number `seq`, ordered after the given others.
    fn submission(lane: u32, seq: u64, after: &[&Moment]) -> (Moment, Arc<Submission>) {
        let mut seen = Clock::default();
        for moment in after {
            seen.join(&moment.knowledge());
        }
        let epoch = Epoch { lane, seq };
        (Moment { epoch, seen: Arc::new(seen) }, Arc::new(Submission::for_test(epoch)))
    }

    fn whole(shadow: &Shadow, classes: Classes) -> [Run; 1] {
        [Run { start: 0, end: shadow.sectors(), classes }]
    }

    #[test]
    fn ordered_touches_are_silent_and_unordered_ones_conflict() {
        let mut shadow = Shadow::new(1024);
        let (m1, s1) = submission(0, 1, &[]);
        let (m2, s2) = submission(1, 1, &[&m1]);
        let (m3, s3) = submission(2, 1, &[&m1]);
        let write = whole(&shadow, Classes::WRITE);
        let read = whole(&shadow, Classes::READ);
        assert!(shadow.touch(&m1, &s1, &write).is_empty());
        assert!(shadow.touch(&m2, &s2, &read).is_empty());
        assert!(shadow.touch(&m3, &s3, &read).is_empty(), "two readers do not conflict");
        // Ordered after one reader only: the other one is found.
        let (m4, s4) = submission(0, 2, &[&m2]);
        let conflicts = shadow.touch(&m4, &s4, &write);
        assert_eq!(conflicts.len(), 1);
        assert!(Arc::ptr_eq(&conflicts[0].other, &s3));
        assert_eq!((conflicts[0].other_touch, conflicts[0].touch), (Touch::Read, Touch::Write));
    }

    #[test]
    fn atomics_go_together_and_conflict_with_plain_touches() {
        let mut shadow = Shadow::new(64);
        let (m1, s1) = submission(0, 1, &[]);
        let (m2, s2) = submission(1, 1, &[]);
        let atomic = whole(&shadow, Classes::ATOMIC);
        assert!(shadow.touch(&m1, &s1, &atomic).is_empty());
        assert!(shadow.touch(&m2, &s2, &atomic).is_empty());
        let (m3, s3) = submission(2, 1, &[&m1]);
        let conflicts = shadow.touch(&m3, &s3, &whole(&shadow, Classes::READ));
        assert_eq!(conflicts.len(), 1, "the reader waited for one of the two");
        assert_eq!((conflicts[0].other_touch, conflicts[0].touch), (Touch::Atomic, Touch::Read));
        let (m4, s4) = submission(3, 1, &[&m1, &m2]);
        let conflicts = shadow.touch(&m4, &s4, &whole(&shadow, Classes::ATOMIC));
        assert_eq!(conflicts.len(), 1, "an atomic must wait for the plain reader");
        assert_eq!(conflicts[0].other_touch, Touch::Read);
    }

    #[test]
    fn disjoint_sectors_are_independent() {
        let mut shadow = Shadow::new(64 * 32);
        for lane in 0..8 {
            let (moment, by) = submission(lane, 1, &[]);
            let run = run_over(u64::from(lane) * 256, 256, Classes::WRITE);
            assert!(shadow.touch(&moment, &by, &[run]).is_empty());
        }
        let (moment, by) = submission(8, 1, &[]);
        let conflicts = shadow.touch(&moment, &by, &[run_over(0, 512, Classes::READ)]);
        assert_eq!(conflicts.iter().map(|c| (c.sector, c.other.epoch.lane)).collect::<Vec<_>>(), [(0, 0), (8, 1)]);
    }

    #[test]
    fn scattered_touches_keep_their_sectors_and_a_full_write_tidies_up() {
        let mut shadow = Shadow::new(10_000 * 32);
        let (m1, s1) = submission(0, 1, &[]);
        let scattered: Vec<Run> =
            (0..5000).map(|i| Run { start: 2 * i, end: 2 * i + 1, classes: Classes::WRITE }).collect();
        assert!(shadow.touch(&m1, &s1, &scattered).is_empty());
        assert!(matches!(shadow.cells, Cells::Dense(_)));
        let (m2, s2) = submission(1, 1, &[]);
        assert!(shadow.touch(&m2, &s2, &[Run { start: 4001, end: 4002, classes: Classes::WRITE }]).is_empty());
        assert_eq!(shadow.touch(&m2, &s2, &[Run { start: 4002, end: 4003, classes: Classes::WRITE }]).len(), 1);
        let (m3, s3) = submission(2, 1, &[&m1, &m2]);
        assert!(shadow.touch(&m3, &s3, &whole(&shadow, Classes::WRITE)).is_empty());
        assert!(matches!(&shadow.cells, Cells::Pieces(pieces) if pieces.len() == 1));
    }

    #[test]
    fn history_stays_bounded() {
        let mut shadow = Shadow::new(32 * 32);
        for seq in 1..10_000 {
            let (moment, by) = submission(0, seq, &[]);
            let start = (seq % 31) as u32;
            assert!(shadow.touch(&moment, &by, &[Run { start, end: start + 1, classes: Classes::READ }]).is_empty());
        }
        assert!(shadow.states.len() <= 128, "{} states", shadow.states.len());
    }

    #[test]
    fn classes_merge_into_runs() {
        let runs = merge_runs(&[(1, 2), (64, 1)], &[(2, 1)], &[(2, 3)]);
        let all = Classes::READ.with(Classes::WRITE).with(Classes::ATOMIC);
        let expected = [
            Run { start: 1, end: 2, classes: Classes::READ },
            Run { start: 2, end: 3, classes: all },
            Run { start: 3, end: 5, classes: Classes::ATOMIC },
            Run { start: 64, end: 65, classes: Classes::READ },
        ];
        assert_eq!(runs, expected);
        assert!(merge_runs(&[], &[], &[]).is_empty());
    }

    /// The compact history against one that keeps every touch of every sector.
    #[test]
    fn agrees_with_a_plain_model() {
        let mut random = super::super::fault::Random::new(0x5eed);
        for _ in 0..200 {
            let sectors = 1 + random.below(200) as u32;
            let mut shadow = Shadow::new(u64::from(sectors) * 32);
            let mut model: Vec<Vec<(Arc<Submission>, Moment, Classes)>> = vec![Vec::new(); sectors as usize];
            let mut lanes: Vec<Moment> =
                (0..4).map(|lane| Moment { epoch: Epoch { lane, seq: 0 }, seen: Arc::default() }).collect();
            for _ in 0..30 {
                let lane = random.below(4) as usize;
                if random.below(3) == 0 {
                    let knowledge = lanes[random.below(4) as usize].knowledge();
                    let mut seen = (*lanes[lane].seen).clone();
                    seen.join(&knowledge);
                    lanes[lane].seen = Arc::new(seen);
                }
                lanes[lane].epoch.seq += 1;
                let moment = lanes[lane].clone();
                let by = Arc::new(Submission::for_test(moment.epoch));
                let mut runs = Vec::new();
                let mut at = random.below(u64::from(sectors)) as u32;
                let classes = Classes(1 << random.below(3));
                while at < sectors {
                    let end = (at + 1 + random.below(20) as u32).min(sectors);
                    runs.push(Run { start: at, end, classes });
                    at = end + 1 + random.below(9) as u32;
                }
                let found = !shadow.touch(&moment, &by, &runs).is_empty();
                let mut expected = false;
                for run in &runs {
                    for touches in &mut model[run.start as usize..run.end as usize] {
                        // A conflict hidden behind a later write was reported when that write came, or is implied by
                        // it.
                        let last_write = touches.iter().rposition(|(_, _, c)| *c == Classes::WRITE).unwrap_or(0);
                        expected |= touches[last_write..].iter().any(|(other, _, other_classes)| {
                            let pair = other_classes.with(classes);
                            let harmless = pair == Classes::READ || pair == Classes::ATOMIC;
                            !harmless && !moment.is_after(other.epoch)
                        });
                        touches.push((by.clone(), moment.clone(), classes));
                    }
                }
                assert_eq!(found, expected);
            }
        }
    }
}
