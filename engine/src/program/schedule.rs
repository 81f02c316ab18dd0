//! Order of a run's segments, and the number of times that each runs.
//!
//!   usually         build ─► probe ─► finish                                           each once, in program order
//!   rows are fed    independent segments are fed concurrently, on their own streams; at most `millpond.partitions`
//!   memory is short [ build part 0 ─ probe part 0 ] [ build part 1 ─ probe part 1 ] …  one key part at a time
//!
//! Parts   of the keys are cut by a hash: equal keys are in the same part on both sides, so every kind of join can be
//!         cut, except NOT IN, which depends on all keys at once. The input is read once for each part.
//! Learns  from where memory ran out, what to cut; the next attempt cuts it.

use std::collections::HashMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use millpond_kernels::tune;
use millpond_memory::{Stream, recorder};
use tokio::task::JoinSet;

use crate::error::EngineError;
use crate::error::failure::Failure;
use crate::error::panics;
use crate::profile;
use crate::program::build_side::{Build, KeySlice};
use crate::program::part::Kept;
use crate::program::prepared::Split;
use crate::program::prepared::merged;
use crate::program::run::Run;
use crate::program::segment_result::SegmentResult;
use crate::program::segment_run::{SegmentRun, SegmentStart};
use crate::program::segments::Origin;

/// Factor by which the number of key partitions grows after running out of memory.
const MORE_PARTS: u32 = 4;

/// The segments of one attempt, with the results so far.
pub struct Schedule<'r> {
    run: &'r Arc<Run>,
    stream: &'r Stream,
    given: Vec<Option<SegmentResult>>,
    built: HashMap<usize, Build>,
    done: Vec<bool>,
}

/// Parameters of one pass of a segment.
#[derive(Clone, Copy)]
struct Pass {
    /// Part of the segment's own keys that it builds.
    own: Option<KeySlice>,
    /// Part of a build side that it uses.
    probed: Option<(usize, KeySlice)>,
    /// Number of the part of its groups' keys.
    groups: u32,
    /// No later pass reads its source.
    is_last: bool,
}

impl<'r> Schedule<'r> {
    pub fn new(run: &'r Arc<Run>, stream: &'r Stream) -> Self {
        let segments = run.prepared.program.segments.len();
        let given = (0..segments).map(|_| None).collect();
        Self { run, stream, given, built: HashMap::new(), done: vec![false; segments] }
    }

    /// Runs all segments; returns the result, or `None` if its rows have streamed out.
    pub async fn result(mut self) -> Result<Option<SegmentResult>, Failure> {
        let segments = self.run.prepared.program.segments.len();
        self.run.context.tally.preparing(|| self.run.compile_ahead());
        if self.run.streams_out() {
            // After its rows have left nothing remains to be finished, and the device is no longer needed.
            let run = self.run;
            let pass = self.pass(0, Pass { own: None, probed: None, groups: 0, is_last: true }, None);
            profile::segment(|| run.prepared.program.segment_name(0), pass).await?;
            return Ok(None);
        }
        for index in 0..segments {
            if self.done[index] || self.run.is_deferred(index) {
                continue;
            }
            let beside = self.fed_beside(index);
            let given = match beside.as_slice() {
                [] => vec![(index, self.produce(index, None).await?)],
                _ => self.feed(&beside).await?,
            };
            for (index, given) in given {
                self.keep(index, given);
                self.finished(index);
            }
            self.forget();
        }
        self.given.pop().flatten().map(Some).ok_or_else(|| EngineError::internal("the last segment gives rows").into())
    }

    /// Segments from `first` on that can be fed at the same time; empty unless there are several and `first` is one of
    /// them.
    fn fed_beside(&self, first: usize) -> Vec<usize> {
        let run = self.run;
        let Some(last) = self.done.len().checked_sub(1) else { return vec![] };
        let lessons = &run.prepared.lessons;
        if lessons.one_by_one || !lessons.passes.is_empty() || !lessons.join_parts.is_empty() {
            return vec![];
        }
        let may_be_fed = |index: &usize| {
            let Origin::Source(source) = run.prepared.program.segments[*index].origin else { return false };
            let mut builds = run.prepared.program.probed(*index);
            builds.all(|build| self.built.contains_key(&build)) && run.sources[source].feeds_freely()
        };
        let fed = (first..last).filter(|index| !self.done[*index]).filter(may_be_fed);
        let fed: Vec<usize> = fed.take(run.context.options.partitions).collect();
        if fed.len() > 1 && fed[0] == first { fed } else { vec![] }
    }

    /// Results of segments that are fed at the same time.
    async fn feed(&self, segments: &[usize]) -> Result<Vec<(usize, SegmentResult)>, Failure> {
        let mut tasks = JoinSet::new();
        for index in segments.iter().copied() {
            let pass = Pass { own: None, probed: None, groups: 0, is_last: true };
            let active = self.begin(index, pass, None)?;
            let run = Arc::clone(self.run);
            let fed = async move {
                let stream = run.context.engine.streams.take(&run.context.scope)?;
                let name = || run.prepared.program.segment_name(index);
                let given = profile::segment(name, async {
                    run.feed(index, &active).await?;
                    active.end_pass(&stream).await?;
                    active.finish(&stream).await
                });
                Ok::<_, Failure>((index, given.await?))
            };
            tasks.spawn(profile::beside("segment", profile::step::FEED, fed));
        }
        let mut given = Vec::with_capacity(segments.len());
        // Dropping the set, when one fails or the run is dropped, ends the others.
        while let Some(joined) = tasks.join_next().await {
            let ended = joined.map_err(|error| Failure::from(panics::task_ended(error)))?;
            given.push(ended.inspect_err(|failure| {
                if failure.wants_less() {
                    self.run.lessons().split_next = Some(Split::Feeds);
                }
            })?);
        }
        Ok(given)
    }

    /// Marks a segment as done, with the segments that ran for it, one part of the keys after the other.
    fn finished(&mut self, index: usize) {
        let mut open = vec![index];
        while let Some(index) = open.pop() {
            if !std::mem::replace(&mut self.done[index], true)
                && let Some(build) = self.run.cut_build(index)
            {
                open.extend(self.run.users(build).chain([build]));
            }
        }
    }

    /// Keeps the result of a segment.
    fn keep(&mut self, index: usize, mut given: SegmentResult) {
        match given.built.take() {
            Some(built) => drop(self.built.insert(index, built)),
            None => self.given[index] = Some(given),
        }
    }

    /// Drops the results that no segment will read any more.
    fn forget(&mut self) {
        let program = &self.run.prepared.program;
        let open = |index: usize| !self.done[index];
        let wanted = |of: usize| {
            of + 1 == program.segments.len()
                || (0..program.segments.len()).filter(|index| open(*index)).any(|index| {
                    match &program.segments[index].origin {
                        Origin::Segments(from) => from.contains(&of),
                        Origin::Built { like, .. } => *like == Some(of),
                        Origin::Source(_) => false,
                    }
                })
        };
        let given: Vec<bool> = (0..program.segments.len()).map(wanted).collect();
        self.given.iter_mut().zip(given).filter(|(_, wanted)| !wanted).for_each(|(given, _)| *given = None);
        let done = &self.done;
        self.built.retain(|build, _| self.run.users(*build).any(|user| !done[user]));
    }

    /// Whether a segment other than `index` has yet to read the result of segment `of`.
    fn is_read_by_others(&self, of: usize, index: usize) -> bool {
        let reads = |other: usize| match &self.run.prepared.program.segments[other].origin {
            Origin::Segments(from) => from.contains(&of),
            _ => false,
        };
        (0..self.done.len()).any(|other| other != index && !self.done[other] && reads(other))
    }

    /// The result of segment `index`: all of it, or the part `own` of the keys by which it is joined.
    fn produce(&mut self, index: usize, own: Option<KeySlice>) -> BoxFuture<'_, Result<SegmentResult, Failure>> {
        let run = self.run;
        let produced = async move {
            let cut = run.cut_build(index);
            let parts = cut.map_or(1, |build| run.parts(build));
            // If rows of the build side itself are needed, an earlier segment marks them first.
            let marking = cut.and_then(|build| run.users(build).find(|user| *user < index));
            let passes = run.passes(index);
            let (mut active, mut first): (Option<Arc<SegmentRun>>, Option<Arc<SegmentRun>>) = (None, None);
            for groups in 0..passes {
                for part in 0..parts {
                    let slice = KeySlice { index: part, parts };
                    let probed = cut.map(|build| (build, slice));
                    let is_last = own.is_none() && groups + 1 == passes && part + 1 == parts;
                    if let Some(build) = cut {
                        let rows = self.produce(build, Some(slice)).await?;
                        self.keep(build, rows);
                    }
                    let pass = Pass { own: None, probed, groups, is_last };
                    if let Some(marking) = marking {
                        let done = self.pass(marking, pass, first.take()).await?;
                        if groups == 0 && part == 0 {
                            // The segment that reads the rest of the build side writes columns like these.
                            self.given[marking] = Some(done.shape()?);
                        }
                        first = Some(done);
                    }
                    active = Some(self.pass(index, Pass { own, ..pass }, active.take()).await?);
                    if let Some(build) = cut {
                        self.built.remove(&build);
                    }
                }
                if let Some(active) = &active {
                    active.end_pass(self.stream).await.inspect_err(|failure| run.cut_somewhere(active, failure))?;
                }
            }
            if let (Some(marking), Some(first)) = (marking, first) {
                first.end_pass(self.stream).await?;
                self.given[marking] = Some(first.finish(self.stream).await?);
            }
            let active = active.ok_or_else(|| EngineError::internal("a segment runs at least once"))?;
            active.finish(self.stream).await.inspect_err(|failure| run.cut_build_side(index, failure))
        };
        Box::pin(profile::segment(move || run.prepared.program.segment_name(index), produced))
    }

    /// Segment `index`, ready for a pass over its source.
    fn begin(&self, index: usize, pass: Pass, before: Option<Arc<SegmentRun>>) -> Result<Arc<SegmentRun>, Failure> {
        let run = self.run;
        let segment = &run.prepared.program.segments[index];
        let mut start = SegmentStart::over(index, vec![]);
        for build in run.prepared.program.probed(index) {
            let waiting = self.built.get(&build).ok_or_else(|| unbuilt(build))?;
            start.builds.insert(build, waiting.on_device(self.stream)?);
        }
        match &segment.origin {
            Origin::Source(upload) => start.columns.clone_from(&run.prepared.sources[*upload].columns),
            Origin::Segments(from) => {
                let given: Vec<&SegmentResult> = from.iter().filter_map(|from| self.given[*from].as_ref()).collect();
                start.columns = merged(given.iter().map(|given| given.columns.as_slice()));
                start.rows_hint = given.iter().flat_map(|given| &given.parts).map(Kept::rows).sum();
                if let Some(first) = given.first() {
                    (start.produced, start.looked_up) = (first.details.clone(), Arc::clone(&first.looked_up));
                }
            }
            Origin::Built { build, like } => {
                if let Some(built) = start.builds.get(build) {
                    start.columns.clone_from(&built.form().columns);
                }
                let like = like.and_then(|like| self.given[like].as_ref());
                start.like = like.map(|given| given.columns.clone());
            }
        }
        start.slices = pass.own.map(|slice| (index, slice)).into_iter().chain(pass.probed).collect();
        let active = Arc::new(SegmentRun::new(run, start).after(before)?);
        active.begin_pass(pass.groups);
        run.context.tally.preparing(|| active.compile_ahead());
        Ok(active)
    }

    /// One pass over the source of segment `index`.
    async fn pass(
        &mut self,
        index: usize,
        pass: Pass,
        before: Option<Arc<SegmentRun>>,
    ) -> Result<Arc<SegmentRun>, Failure> {
        let run = self.run;
        let active = self.begin(index, pass, before)?;
        let ended = match &run.prepared.program.segments[index].origin {
            Origin::Source(_) => run.feed(index, &active).await,
            Origin::Segments(from) => {
                let mut ended = Ok(());
                for from in from {
                    let stays = !pass.is_last || self.is_read_by_others(*from, index);
                    let Some(given) = &mut self.given[*from] else { continue };
                    ended = match stays {
                        true => active.read_and_leave(&given.parts, self.stream).await,
                        false => active.read(std::mem::take(&mut given.parts), self.stream).await,
                    };
                    if ended.is_err() {
                        break;
                    }
                }
                ended
            }
            Origin::Built { build, .. } => active.read_build(*build, self.stream).await,
        };
        ended.inspect_err(|failure| run.cut_somewhere(&active, failure))?;
        Ok(active)
    }
}

impl Run {
    /// Feeds all rows of the source of segment `index`.
    async fn feed(&self, index: usize, active: &Arc<SegmentRun>) -> Result<(), Failure> {
        let Origin::Source(source) = self.prepared.program.segments[index].origin else { return Ok(()) };
        let extents = self.sources[source].extents(source, active);
        recorder::during(profile::step::FEED, extents).await
    }

    /// Segments that use the build side of segment `build`, in order.
    pub fn users(&self, build: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.prepared.program.segments.len())
            .filter(move |index| self.prepared.program.probed(*index).any(|probed| probed == build))
    }

    /// Number of parts of the keys of this build side's join.
    pub fn parts(&self, build: usize) -> u32 {
        self.prepared.lessons.join_parts.get(&build).copied().unwrap_or(1)
    }

    /// The build side of segment `index` whose keys are cut in parts: at most one.
    fn cut_build(&self, index: usize) -> Option<usize> {
        self.prepared.program.probed(index).find(|build| self.parts(*build) > 1)
    }

    /// True for segments that run together with a later one, one part of the keys at a time.
    fn is_deferred(&self, index: usize) -> bool {
        let is_early = self.cut_build(index).is_some_and(|build| self.users(build).any(|user| user > index));
        self.parts(index) > 1 || is_early
    }

    /// Records how a segment that ran out of memory could be split.
    fn cut_somewhere(&self, active: &SegmentRun, failure: &Failure) {
        if !failure.wants_less() {
            return;
        }
        let own = [(active.index, active.kept_bytes())];
        let largest =
            active.builds().chain(own).filter(|(build, _)| self.can_cut(*build)).max_by_key(|(_, bytes)| *bytes);
        let next = match (largest, active.may_cut()) {
            (Some((build, bytes)), table) if table.as_ref().is_none_or(|table| bytes > table.bytes) => {
                Some(Split::Join(build, self.parts(build) * MORE_PARTS))
            }
            (_, Some(_)) => {
                // If memory ended early in the input, half of the keys at a time would not suffice for much more.
                Some(Split::Groups(active.index, active.passes * if active.was_early() { 4 } else { 2 }))
            }
            _ => self.cut_source(active.index),
        };
        self.lessons().split_next = next;
    }

    /// Splits groups into more passes, which leaves fewer groups at a time for the segment that reads them.
    fn cut_source(&self, index: usize) -> Option<Split> {
        let Origin::Segments(from) = &self.prepared.program.segments[index].origin else { return None };
        let passes = |from: usize| self.passes(from);
        let may = |from: &usize| {
            self.prepared.program.segments[*from].sink.may_take_passes() && passes(*from) < tune::MAX_KEY_PARTS
        };
        from.iter().copied().find(may).map(|from| Split::Groups(from, passes(from) * 2))
    }

    /// Like [`cut_somewhere`](Self::cut_somewhere), for a table that could not be built.
    fn cut_build_side(&self, build: usize, failure: &Failure) {
        if failure.wants_less() && self.can_cut(build) {
            let next = Split::Join(build, self.parts(build) * MORE_PARTS);
            self.lessons().split_next = Some(next);
        }
    }

    /// True if the join of this build side can be cut further.
    fn can_cut(&self, build: usize) -> bool {
        let sink = &self.prepared.program.segments[build].sink;
        let sliced = self.prepared.keys.get(&build).is_some_and(|keys| sink.may_slice(keys));
        let alone = self.users(build).all(|user| self.cut_build(user).is_none_or(|cut| cut == build));
        let more = self.parts(build) < tune::MAX_KEY_PARTS;
        sliced && alone && more
    }
}

fn unbuilt(build: usize) -> EngineError {
    EngineError::internal(format!("segment {build} builds before it is probed"))
}
