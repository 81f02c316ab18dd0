//! Windows over ordered rows: ranks, values of other rows, aggregates over frames. Device side: `cuda/window.cu`.
//!
//! ```text
//!   keys, order ── heads ──► Positions   begin and end of the partition and the peers of each row
//!   Positions ─┬─ rank ────► row_number, rank, dense_rank, percent_rank, cume_dist, ntile
//!              ├─ take ────► lag, lead, first_value, last_value, nth_value
//!              ├─ fold ────► count, sum, avg, min, max, variances: over a tree of states (window/fold.rs)
//!              └─ list ────► array_agg: begin and length of each frame (window/list.rs)
//!   DISTINCT arguments: window/distinct.rs         medians and percentiles: window/percentile.rs
//!   covariances, regression: window/bivariate.rs   string_agg: window/concat.rs
//! ```
//!
//! NULL     a row whose argument is NULL is in no sum; the caller decides whether such rows count elsewhere
//!          ([`Counted`]).
//! Memory   [`positions_bytes`], and per argument [`tree_bytes`] or [`counted_bytes`]; [`scratch_bytes`] for scans.
//! Waits    never: the number of rows stays on the device.
//! Cost     per frame: at most logarithmic in its number of rows.

mod bivariate;
mod concat;
mod distinct;
mod fold;
mod list;
mod percentile;

use millpond_memory::{DeviceView, Stream};

use crate::codegen::ir::{Physical, Range};
use crate::error::KernelError;
use crate::image::Images;
use crate::pipeline::{ColumnInput, ExtentInput, ExtentRows};
use crate::rows::{Rows, bitmap_words, expect_bytes, striding};
use crate::sort::{PARAMETER_ALIGNMENT, SortKey, few_keys, kind};
use crate::{Launch, LaunchConfig, abi, tune};

pub use bivariate::{Bivariate, Statistic, bivariate_bytes};
pub use concat::Concatenated;
pub use distinct::{Side, changes_bytes, firsts_bytes, near_bytes, spans_bytes};
pub use fold::{Argument, Folding, Operation, tree_bytes};
pub use list::chosen_bytes;
pub use percentile::{Matrix, Place, matrix_bytes, matrix_scratch_bytes, ranks_bytes};

type Result<T> = std::result::Result<T, KernelError>;

/// Rows that a thread block scans per step.
const TILE_ROWS: u64 = tune::WINDOW_THREADS as u64 * 4;
/// Maximum rows of a window: two such counts fit one status word.
pub const MAX_ROWS: u64 = (1 << 31) - 1;
/// Maximum number of keys that define partitions and peers.
pub const MAX_KEYS: usize = tune::SORT_FEW_KEYS as usize;
/// Bytes before the row numbers of an order.
const IDENTITY_NUMBERS: u64 = 256;

/// Unit of the ends of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Units {
    Rows,
    /// Counts peer groups.
    Groups,
    /// Counts by distance of the order key's value, which may be an integer or the bits of a float.
    Range,
}

/// One end of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bound {
    Unbounded,
    Preceding(u64),
    Current,
    Following(u64),
}

/// Rows of its partition that a row's result covers.
#[derive(Debug, Clone)]
pub struct Frame {
    pub units: Units,
    pub start: Bound,
    pub end: Bound,
    /// Order key for [`Units::Range`]: distances are measured from its values.
    pub key: Option<FrameKey>,
}

/// The only order key, as a column in row order.
#[derive(Debug, Clone)]
pub struct FrameKey {
    pub column: Column,
    pub descending: bool,
    /// Limits of the key's SQL type, whose values may be stored in fewer bits; `None` if no distance can leave the
    /// type, as for floats.
    pub limits: Option<Range>,
}

/// A column in row order.
#[derive(Debug, Clone)]
pub struct Column {
    pub values: DeviceView,
    pub validity: Option<DeviceView>,
    pub physical: Physical,
}

/// Begin and end of the partition and the peers of each row.
#[derive(Debug, Clone)]
pub struct Positions {
    part_of: DeviceView,
    group_of: DeviceView,
    part_starts: DeviceView,
    group_starts: DeviceView,
}

/// For a column with NULLs: per row the number of valid rows before it, and the positions of the valid rows.
#[derive(Debug, Clone)]
pub struct Counted {
    before: DeviceView,
    places: DeviceView,
}

/// A ranking function: it depends only on the row's position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ranking {
    RowNumber,
    Rank,
    DenseRank,
    /// A double, as is `CumeDist`; the other rankings are u64.
    PercentRank,
    CumeDist,
    Ntile(u64),
}

/// Choice of the row whose value is taken.
#[derive(Debug, Clone)]
pub enum Taken {
    /// Distance to a later row of the partition; negative: to an earlier row.
    Shift(i64),
    /// Row number in the frame, counted from its first row (1) or from its last row (-1).
    Nth(i64, Frame),
}

/// Output of a window function: values of `physical`, and whole words of validity.
#[derive(Debug, Clone)]
pub struct Out {
    pub values: DeviceView,
    pub validity: Option<DeviceView>,
    pub physical: Physical,
}

/// Ordered rows, and the stream for the launches.
#[derive(Clone, Copy)]
pub struct Window<'a> {
    pub images: &'a Images,
    pub rows: &'a ExtentRows,
    pub on: &'a Stream,
}

/// Bytes of [`Positions`] of `rows` rows.
pub fn positions_bytes(rows: u64) -> u64 {
    4 * list_bytes(rows)
}

/// Bytes of an order of `rows` rows.
pub fn identity_bytes(rows: u64) -> u64 {
    IDENTITY_NUMBERS + 4 * rows
}

/// Bytes of [`Counted`] of `rows` rows.
pub fn counted_bytes(rows: u64) -> u64 {
    2 * list_bytes(rows)
}

/// Bytes of scratch for a scan of `rows` rows: the ticket and one status word per tile.
pub fn scratch_bytes(rows: u64) -> u64 {
    8 + 8 * rows.div_ceil(TILE_ROWS).max(1)
}

/// Bytes of a list with one number (u32) per row, and one more.
fn list_bytes(rows: u64) -> u64 {
    (4 * (rows + 1)).next_multiple_of(256)
}

/// Number of states of each level, and the rows that one state covers.
fn levels(rows: u64) -> impl Iterator<Item = (u64, u64)> {
    let fanout = u64::from(tune::WINDOW_FANOUT);
    (1..=tune::WINDOW_LEVELS)
        .map(move |level| fanout.pow(level))
        .map(move |each| (rows / each, each))
        .take_while(|level| level.0 > 0)
}

impl Window<'_> {
    fn bound(&self) -> u64 {
        self.rows.upper_bound()
    }

    /// Finds partitions (rows with equal first `partition` of `keys`) and peers (rows with all keys equal). `order`
    /// holds the row numbers of the keys; without it the rows are in order. `positions` has [`positions_bytes`],
    /// `scratch` [`scratch_bytes`].
    ///
    /// # Errors
    /// [`KernelError::Shape`] if a length does not fit, for 2³¹ rows or more, and for more than [`MAX_KEYS`] keys.
    pub fn heads(
        &self,
        keys: &[SortKey],
        partition: usize,
        reached: &[DeviceView],
        order: Option<&DeviceView>,
        positions: &DeviceView,
        scratch: &DeviceView,
    ) -> Result<Positions> {
        let rows = self.bound();
        if rows > MAX_ROWS {
            return Err(KernelError::Shape { what: "window", why: format!("{rows} rows are more than {MAX_ROWS}") });
        }
        let lists = lists("positions", positions, rows, 4)?;
        if let Some(order) = order {
            expect_bytes("window", "the order", order, 4 * rows)?;
        }
        let kernel = self.images.kernel("window", "window_heads")?;
        let launch = Launch::new(&kernel, self.scanning());
        let mut launch = launch.bytes(&few_keys(keys, rows)?, PARAMETER_ALIGNMENT).value(partition as u32);
        for key in keys {
            launch = launch.reads(key.values.padded());
            for view in key.validity.iter().chain(&key.ranks) {
                launch = launch.reads(view.padded());
            }
        }
        launch = reached.iter().fold(launch, |launch, view| launch.reads(view));
        launch = match order {
            Some(order) => launch.read(order),
            None => launch.value(0u64),
        };
        launch = lists.iter().fold(launch, |launch, list| launch.write(list));
        self.scan(launch, scratch)?;
        let [part_of, group_of, part_starts, group_starts] = <[DeviceView; 4]>::try_from(lists).expect("four lists");
        Ok(Positions { part_of, group_of, part_starts, group_starts })
    }

    /// Writes the identity order. `order` has [`identity_bytes`]; the returned extent reads it.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if a length does not fit.
    pub fn identity(&self, order: &DeviceView) -> Result<ExtentInput> {
        expect_bytes("window", "an order", order, identity_bytes(self.bound()))?;
        let control = order.view(0..abi::CONTROL_BYTES as usize)?;
        let values = order.view(IDENTITY_NUMBERS as usize..identity_bytes(self.bound()) as usize)?;
        control.fill(0, self.on)?;
        let kernel = self.images.kernel("window", "window_identity")?;
        // A launch over no rows still writes a control block.
        let launch = Launch::new(&kernel, self.striding(self.bound().max(1))).write(&control);
        let launch = match self.rows {
            ExtentRows::OnDevice { control, .. } => launch.read(control),
            ExtentRows::Known(_) => launch.value(0u64),
        };
        self.submit(launch.write(&values))?;
        let rows = ExtentRows::OnDevice { control, upper_bound: self.bound() };
        Ok(ExtentInput { rows, columns: vec![Some(ColumnInput { values, validity: None, base: 0 })] })
    }

    /// Counts the valid rows. `counted` has [`counted_bytes`], `scratch` [`scratch_bytes`].
    ///
    /// # Errors
    /// [`KernelError::Shape`] if a length does not fit.
    pub fn count_valid(&self, validity: &DeviceView, counted: &DeviceView, scratch: &DeviceView) -> Result<Counted> {
        let lists = lists("counts", counted, self.bound(), 2)?;
        let validity = bitmap_words("window", "validity", validity, &Rows::known(self.bound()))?;
        let kernel = self.images.kernel("window", "window_valid")?;
        let launch = Launch::new(&kernel, self.scanning()).read(&validity);
        self.scan(lists.iter().fold(launch, |launch, list| launch.write(list)), scratch)?;
        let [before, places] = <[DeviceView; 2]>::try_from(lists).expect("two lists");
        Ok(Counted { before, places })
    }

    /// Ranks the rows: u64 or doubles, none NULL.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if a length does not fit, and for an ntile of 0 buckets.
    pub fn rank(&self, positions: &Positions, ranking: Ranking, out: &DeviceView) -> Result<()> {
        expect_bytes("window", "ranks", out, 8 * self.bound())?;
        let (code, buckets) = match ranking {
            Ranking::RowNumber => (0u32, 1),
            Ranking::Rank => (1, 1),
            Ranking::DenseRank => (2, 1),
            Ranking::PercentRank => (3, 1),
            Ranking::CumeDist => (4, 1),
            Ranking::Ntile(0) => return Err(KernelError::Shape { what: "window", why: "no buckets".into() }),
            Ranking::Ntile(buckets) => (5, buckets),
        };
        let kernel = self.images.kernel("window", "window_rank")?;
        let launch = positions.put(Launch::new(&kernel, self.striding(self.bound())));
        self.submit(launch.value(code).value(buckets).write(out))
    }

    /// Writes for each row the value of another row; if that row does not exist, `otherwise` or NULL. With `counted`,
    /// rows that are NULL are skipped.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if a length does not fit, and for row number 0 of a frame.
    pub fn take(
        &self,
        positions: &Positions,
        of: &Column,
        taken: &Taken,
        counted: Option<&Counted>,
        otherwise: Option<u128>,
        out: &Out,
    ) -> Result<()> {
        of.check("a column", self.bound())?;
        out.check(self.bound())?;
        if out.physical.width() != of.physical.width() {
            return Err(KernelError::Shape { what: "window", why: "values of two widths".into() });
        }
        let (by, frame) = match taken {
            Taken::Shift(by) => (*by, None),
            Taken::Nth(0, _) => return Err(KernelError::Shape { what: "window", why: "a row 0 of a frame".into() }),
            Taken::Nth(by, frame) => (*by, Some(frame)),
        };
        let mut bytes = frame.map_or(vec![0; FRAME_BYTES], Frame::bytes);
        bytes.extend(u32::from(frame.is_some()).to_le_bytes());
        bytes.extend(of.physical.width().to_le_bytes());
        bytes.extend(by.to_le_bytes());
        put_address(&mut bytes, Some(&of.values));
        put_address(&mut bytes, of.validity.as_ref());
        put_address(&mut bytes, counted.map(|counted| &counted.before));
        put_address(&mut bytes, counted.map(|counted| &counted.places));
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        bytes.extend(otherwise.unwrap_or(0).to_le_bytes());
        bytes.extend(u64::from(otherwise.is_some()).to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        let kernel = self.images.kernel("window", "window_take")?;
        let mut launch = positions.put(Launch::new(&kernel, self.striding(self.bound()))).bytes(&bytes, 16);
        launch = of.read_by(launch);
        launch = frame.into_iter().fold(launch, |launch, frame| frame.read_by(launch));
        if let Some(counted) = counted {
            launch = launch.reads(&counted.before).reads(&counted.places);
        }
        self.submit(out.put(launch))
    }

    /// Grid for kernels that take tiles by ticket: at most as many blocks as can be resident.
    fn scanning(&self) -> LaunchConfig {
        let limits = self.images.device().limits();
        let resident = limits.multiprocessors * (limits.max_threads_per_multiprocessor / tune::WINDOW_THREADS).max(1);
        let blocks = self.bound().div_ceil(TILE_ROWS).max(1).min(u64::from(resident)) as u32;
        LaunchConfig::linear(blocks, tune::WINDOW_THREADS)
    }

    /// Grid for kernels whose threads stride over `items`.
    fn striding(&self, items: u64) -> LaunchConfig {
        striding(self.images.device(), items, tune::WINDOW_THREADS)
    }

    fn scan(&self, launch: Launch<'_>, scratch: &DeviceView) -> Result<()> {
        expect_bytes("window", "scratch", scratch, scratch_bytes(self.bound()))?;
        let scratch = scratch.view(0..scratch_bytes(self.bound()) as usize)?;
        scratch.fill(0, self.on)?;
        self.submit(launch.write(&scratch))
    }

    fn submit(&self, launch: Launch<'_>) -> Result<()> {
        Rows::try_from(self.rows)?.put(launch).submit(self.on)?;
        Ok(())
    }
}

/// Views of `count` lists of numbers in one buffer.
fn lists(what: &'static str, of: &DeviceView, rows: u64, count: u64) -> Result<Vec<DeviceView>> {
    let each = list_bytes(rows);
    expect_bytes("window", what, of, count * each)?;
    let list = |index: u64| Ok(of.view((index * each) as usize..((index + 1) * each) as usize)?);
    (0..count).map(list).collect()
}

fn put_address(bytes: &mut Vec<u8>, view: Option<&DeviceView>) {
    bytes.extend(view.map_or(0, |view| view.address().0).to_le_bytes());
}

impl Positions {
    /// Partition number of each row (u32).
    pub fn part_of(&self) -> &DeviceView {
        &self.part_of
    }

    fn put<'l>(&self, launch: Launch<'l>) -> Launch<'l> {
        let all = [&self.part_of, &self.group_of, &self.part_starts, &self.group_starts];
        let mut bytes = Vec::with_capacity(32);
        all.iter().for_each(|view| put_address(&mut bytes, Some(view)));
        all.iter().fold(launch.bytes(&bytes, 8), |launch, view| launch.reads(view))
    }
}

impl Column {
    fn check(&self, what: &'static str, rows: u64) -> Result<()> {
        match self.physical {
            Physical::Bit => drop(bitmap_words("window", what, &self.values, &Rows::known(rows))?),
            physical => expect_bytes("window", what, &self.values, physical.value_bytes(rows))?,
        }
        if let Some(validity) = &self.validity {
            bitmap_words("window", what, validity, &Rows::known(rows))?;
        }
        Ok(())
    }

    fn read_by<'l>(&self, launch: Launch<'l>) -> Launch<'l> {
        let launch = launch.reads(self.values.padded());
        self.validity.iter().fold(launch, |launch, validity| launch.reads(validity.padded()))
    }
}

impl Out {
    fn check(&self, rows: u64) -> Result<()> {
        let words = rows.div_ceil(32) * 4;
        let wanted = if self.physical == Physical::Bit { words } else { self.physical.value_bytes(rows) };
        expect_bytes("window", "the result", &self.values, wanted)?;
        self.validity.iter().try_for_each(|validity| expect_bytes("window", "the result's validity", validity, words))
    }

    fn put<'l>(&self, launch: Launch<'l>) -> Launch<'l> {
        match &self.validity {
            Some(validity) => launch.write(&self.values).write(validity),
            None => launch.write(&self.values).value(0u64),
        }
    }
}

/// Bytes of `struct Frame` in window.cuh.
const FRAME_BYTES: usize = 88;

impl Frame {
    /// The whole partition.
    pub fn whole() -> Frame {
        Frame { units: Units::Rows, start: Bound::Unbounded, end: Bound::Unbounded, key: None }
    }

    fn bytes(&self) -> Vec<u8> {
        let bound = |bound: Bound| match bound {
            Bound::Unbounded => (0u32, 0u64),
            Bound::Preceding(by) => (1, by),
            Bound::Current => (2, 0),
            Bound::Following(by) => (3, by),
        };
        let ((start, start_by), (end, end_by)) = (bound(self.start), bound(self.end));
        let key = self.key.as_ref();
        let mut bytes = Vec::with_capacity(FRAME_BYTES);
        let numbers = [
            self.units as u32,
            start,
            end,
            key.map_or(0, |key| kind(key.column.physical)),
            key.map_or(0, |key| u32::from(key.descending)),
            0,
        ];
        numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes.extend(start_by.to_le_bytes());
        bytes.extend(end_by.to_le_bytes());
        put_address(&mut bytes, key.map(|key| &key.column.values));
        put_address(&mut bytes, key.and_then(|key| key.column.validity.as_ref()));
        let limits = key.and_then(|key| key.limits).unwrap_or(Range { low: i128::MIN, high: i128::MAX });
        bytes.extend(limits.low.to_le_bytes());
        bytes.extend(limits.high.to_le_bytes());
        bytes
    }

    fn read_by<'l>(&self, launch: Launch<'l>) -> Launch<'l> {
        self.key.iter().fold(launch, |launch, key| key.column.read_by(launch))
    }
}
