//! Sorts rows by any number of keys. The result is the row numbers in order, or the first of them.
//!
//! ```text
//!   keys  [price desc, name]  ──►  order  [control │ 7, 2, 0, …]  ──gather──►  sorted columns
//!
//!   up to 2,048 rows       one launch: a thread block sorts them                         Method::Tile    cuda/sort.cu
//!   top k of many rows     one launch: each thread block keeps its best rows             Method::Top     cuda/top.cu
//!   fixed-width keys       one launch per word and one per eight bits of the keys        Method::Radix   cuda/radix.cu
//!   strings, wide keys     tiles, then one launch per doubling of the runs               Method::Merge   cuda/sort.cu
//! ```
//!
//! NULL     first or last, by key.
//! Order    stable. Floats by the total order of IEEE 754, as in DataFusion: -NaN, …, -0, +0, …, NaN. Strings by bytes.
//! Keys     up to 16 descriptors fit the parameters of a launch; more are written to the scratch by launches of 16
//!          each: nothing is uploaded.
//! Memory   [`Sort::order_bytes`] for the result, [`Sort::scratch_bytes`] during the sort; a radix sort takes up to
//!          24.5 bytes per row.
//! Waits    never: the row count and the set of active digits stay on the device.
//! Speed    depends on the bits of the keys: set their ranges ([`SortKey::range`]) if they are known.

mod compare;
mod key;
mod radix;
mod top;

use std::ops::Range;

use millpond_memory::{DeviceView, Stream};

use crate::abi;
use crate::error::KernelError;
use crate::image::Images;
use crate::pipeline::{ColumnInput, ExtentInput, ExtentRows};
use crate::rows::{Rows, bitmap_words, expect_bytes};
use crate::{Launch, LaunchConfig, tune};

pub use key::SortKey;
pub(crate) use key::{PARAMETER_ALIGNMENT, kind};

use key::{FEW_BYTES, KEY_BYTES, Layout};

type Result<T> = std::result::Result<T, KernelError>;

/// Bytes before the row numbers of an order.
const NUMBERS: u64 = 256;
/// Maximum number of rows: row numbers are 32-bit.
const MAX_ROWS: u64 = u32::MAX as u64 - 1;

/// Sort algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// One thread block sorts all rows.
    Tile,
    /// Top k: finds the first rows without sorting the others.
    Top,
    /// Radix sort by digits.
    Radix,
    /// Merge sort by comparison.
    Merge,
}

/// A sort of at most `bound` rows.
#[derive(Debug, Clone)]
pub struct Sort {
    keys: Vec<SortKey>,
    layout: Layout,
    bound: u64,
    limit: u64,
    method: Method,
}

impl Sort {
    /// Creates a sort of up to `rows_upper_bound` rows by `keys`; it returns the first `limit` rows, or all.
    ///
    /// # Errors
    /// [`KernelError::Shape`] without keys, if a column is too short, for 2³² - 1 rows or more, for texts that are not
    /// views, and for ranks of values that are not codes.
    pub fn new(keys: Vec<SortKey>, rows_upper_bound: u64, limit: Option<u64>) -> Result<Sort> {
        let shape = |why: String| Err(KernelError::Shape { what: "sort", why });
        if rows_upper_bound > MAX_ROWS {
            return shape(format!("{rows_upper_bound} rows are more than the {MAX_ROWS} that it can number"));
        }
        if keys.is_empty() {
            return shape("there is nothing to sort by".into());
        }
        check_keys("sort", &keys, rows_upper_bound)?;
        let layout = Layout::of(&keys);
        let limit = limit.unwrap_or(u64::MAX);
        let mut sort = Sort { keys, layout, bound: rows_upper_bound, limit, method: Method::Tile };
        sort.method = sort.best();
        Ok(sort)
    }

    /// Overrides the chosen method.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if `method` cannot do this sort.
    pub fn by(self, method: Method) -> Result<Sort> {
        if self.can(method) {
            return Ok(Sort { method, ..self });
        }
        let Sort { bound, limit, layout: Layout { whole, .. }, .. } = self;
        let why = format!(
            "{method:?} cannot give {} of {bound} rows by {}",
            if limit == u64::MAX { "all".to_string() } else { format!("the first {limit}") },
            if whole { "fixed-width keys" } else { "strings" },
        );
        Err(KernelError::Shape { what: "sort", why })
    }

    pub fn method(&self) -> Method {
        self.method
    }

    fn can(&self, method: Method) -> bool {
        match method {
            Method::Tile => self.bound <= u64::from(tune::SORT_TILE_ROWS),
            Method::Top => self.limit <= u64::from(tune::TOP_MAX_ROWS),
            Method::Radix => self.layout.whole,
            Method::Merge => true,
        }
    }

    fn best(&self) -> Method {
        let digits = self.layout.bits.div_ceil(8);
        if self.can(Method::Tile) {
            Method::Tile
        } else if self.can(Method::Top) {
            Method::Top
        } else if self.can(Method::Radix) && digits <= tune::RADIX_DIGITS_PER_MERGE * self.doublings() {
            Method::Radix
        } else {
            Method::Merge
        }
    }

    /// Launches of a merge sort after the first.
    fn doublings(&self) -> u32 {
        self.tiles(tune::SORT_TILE_ROWS).next_power_of_two().trailing_zeros()
    }

    fn tiles(&self, rows: u32) -> u32 {
        self.bound.div_ceil(u64::from(rows)) as u32
    }

    /// Launches that [`Sort::run`] makes.
    pub fn launches(&self) -> u32 {
        let rows = match self.method {
            Method::Tile | Method::Top => 1,
            Method::Radix => radix::launches(self),
            Method::Merge => 1 + self.doublings(),
        };
        self.many_bytes().div_ceil(FEW_BYTES) as u32 + rows
    }

    /// Bytes of the key descriptors in scratch; 0 if they fit the parameters of a launch.
    fn many_bytes(&self) -> usize {
        match self.keys.len() * KEY_BYTES {
            0..=FEW_BYTES => 0,
            many => many,
        }
    }

    /// Upper bound of the rows in the order.
    pub fn rows_upper_bound(&self) -> u64 {
        self.bound.min(self.limit)
    }

    /// Bytes of the result: a control block, then a row number (u32) per returned row.
    pub fn order_bytes(&self) -> usize {
        (NUMBERS + 4 * self.rows_upper_bound()) as usize
    }

    /// Bytes of scratch; 0 for some sorts.
    pub fn scratch_bytes(&self) -> usize {
        let rows = match self.method {
            Method::Tile => 0,
            Method::Top => top::scratch_bytes(self),
            Method::Radix => radix::scratch_bytes(self),
            Method::Merge => compare::scratch_bytes(self),
        };
        self.many_bytes().next_multiple_of(256) + rows as usize
    }

    /// The row numbers in `order` as the only input column of the next pipeline; valid once the sort has run.
    ///
    /// # Errors
    /// If `order` is too short.
    pub fn order(&self, order: &DeviceView) -> Result<ExtentInput> {
        let control = order.view(0..abi::CONTROL_BYTES as usize)?;
        let values = order.view(NUMBERS as usize..self.order_bytes())?;
        let numbers = ColumnInput { values, validity: None, base: 0 };
        let rows = ExtentRows::OnDevice { control, upper_bound: self.rows_upper_bound() };
        Ok(ExtentInput { rows, columns: vec![Some(numbers)] })
    }

    /// Writes the numbers of the sorted rows and their count to `order`. Takes over an error of the kernel that wrote
    /// the rows.
    ///
    /// | name      | length                  | unit                                |
    /// |-----------|-------------------------|-------------------------------------|
    /// | `reached` | any                     | the byte buffers of string views    |
    /// | `order`   | [`Sort::order_bytes`]   | bytes; read through [`Sort::order`] |
    /// | `scratch` | [`Sort::scratch_bytes`] | bytes; prepared here                |
    ///
    /// # Errors
    /// [`KernelError::Shape`] if a length does not fit.
    pub fn run(
        &self,
        images: &Images,
        reached: &[DeviceView],
        rows: &ExtentRows,
        order: &DeviceView,
        scratch: Option<&DeviceView>,
        on: &Stream,
    ) -> Result<()> {
        if rows.upper_bound() > self.bound {
            let why = format!("{} rows where at most {} were to come", rows.upper_bound(), self.bound);
            return Err(KernelError::Shape { what: "sort", why });
        }
        expect_bytes("sort", "order", order, self.order_bytes() as u64)?;
        let control = order.view(0..abi::CONTROL_BYTES as usize)?;
        let numbers = order.view(NUMBERS as usize..self.order_bytes())?;
        let wanted = self.scratch_bytes();
        let scratch = match (scratch, wanted) {
            (_, 0) => None,
            (Some(scratch), wanted) => {
                expect_bytes("sort", "scratch", scratch, wanted as u64)?;
                Some(scratch.view(0..wanted)?)
            }
            (None, wanted) => {
                return Err(KernelError::Shape { what: "sort", why: format!("{wanted} bytes of scratch are needed") });
            }
        };
        let count = Rows::try_from(rows)?;
        let source = match rows {
            ExtentRows::OnDevice { control, .. } => Some(control.clone()),
            ExtentRows::Known(_) => None,
        };
        let end_of_many = self.many_bytes().next_multiple_of(256);
        let part = |of: &DeviceView, range: Range<usize>| (!range.is_empty()).then(|| of.view(range)).transpose();
        let (many, scratch) = match scratch {
            Some(scratch) => (part(&scratch, 0..self.many_bytes())?, part(&scratch, end_of_many..wanted)?),
            None => (None, None),
        };
        let keys = self.describe(images, many.as_ref(), on)?;
        let running = Running { sort: self, images, keys, many, reached, count, source, control, numbers, on };
        match (self.method, scratch) {
            (Method::Top, Some(scratch)) => top::run(&running, &scratch),
            (Method::Radix, Some(scratch)) => radix::run(&running, &scratch),
            (_, scratch) => compare::run(&running, scratch.as_ref()),
        }
    }

    /// Returns the key parameter; first writes the descriptors to `many` if they do not fit the parameter.
    fn describe(&self, images: &Images, many: Option<&DeviceView>, on: &Stream) -> Result<Vec<u8>> {
        let descriptors = self.layout.descriptors(&self.keys);
        let Some(many) = many else {
            return Ok(self.layout.parameter(&descriptors, None, self.keys.len()));
        };
        let kernel = images.kernel("sort", "sort_keys")?;
        for (index, few) in descriptors.chunks(FEW_BYTES).enumerate() {
            let start = index * FEW_BYTES;
            let launch = Launch::new(&kernel, LaunchConfig::linear(1, tune::SORT_FEW_KEYS));
            let parameter = self.layout.parameter(few, None, few.len() / KEY_BYTES);
            let launch = launch.bytes(&parameter, PARAMETER_ALIGNMENT);
            launch.write(many.view(start..start + few.len())?).submit(on)?;
        }
        Ok(self.layout.parameter(&[], Some(many), self.keys.len()))
    }
}

/// `struct Keys` of keys.cuh with all descriptors inline, for kernels that only compare.
///
/// # Errors
/// [`KernelError::Shape`] for more than [`tune::SORT_FEW_KEYS`] keys, and for keys that cannot be compared.
pub(crate) fn few_keys(keys: &[SortKey], rows: u64) -> Result<Vec<u8>> {
    if keys.len() > tune::SORT_FEW_KEYS as usize {
        let why = format!("{} keys are more than the {} of a launch", keys.len(), tune::SORT_FEW_KEYS);
        return Err(KernelError::Shape { what: "keys", why });
    }
    check_keys("keys", keys, rows)?;
    let layout = Layout::of(keys);
    Ok(layout.parameter(&layout.descriptors(keys), None, keys.len()))
}

/// Returns an error for keys without an order, and for keys that are too short for `rows` rows.
pub(crate) fn check_keys(what: &'static str, keys: &[SortKey], rows: u64) -> Result<()> {
    for key in keys {
        key.check(what)?;
        expect_bytes(what, "a key", &key.values.padded(), key.value_bytes(rows))?;
        if let Some(validity) = &key.validity {
            bitmap_words(what, "a key's validity", validity, &Rows::known(rows))?;
        }
    }
    Ok(())
}

/// Adds the first parameter of a kernel that compares rows by few keys: `struct Keys` of keys.cuh.
pub(crate) fn with_few_keys<'k>(launch: Launch<'k>, keys: &[SortKey], reached: &[DeviceView]) -> Launch<'k> {
    let layout = Layout::of(keys);
    let parameter = layout.parameter(&layout.descriptors(keys), None, keys.len());
    let launch = reads_of_keys(launch.bytes(&parameter, PARAMETER_ALIGNMENT), keys);
    reached.iter().fold(launch, |launch, view| launch.reads(view))
}

/// Declares the buffers that the key descriptors point to.
fn reads_of_keys<'k>(mut launch: Launch<'k>, keys: &[SortKey]) -> Launch<'k> {
    for key in keys {
        // The last word of a bitmap may extend into the padding.
        launch = launch.reads(key.values.padded());
        for view in key.validity.iter().chain(&key.ranks) {
            launch = launch.reads(view.padded());
        }
    }
    launch
}

/// State shared by all launches of one sort.
struct Running<'a> {
    sort: &'a Sort,
    images: &'a Images,
    /// Key parameter; `many` holds the descriptors if they do not fit it.
    keys: Vec<u8>,
    many: Option<DeviceView>,
    reached: &'a [DeviceView],
    count: Rows,
    /// Control block of the rows.
    source: Option<DeviceView>,
    /// Control block of the order, and its row numbers.
    control: DeviceView,
    numbers: DeviceView,
    on: &'a Stream,
}

impl Running<'_> {
    /// Adds the key parameter and declares the buffers that it leads to.
    fn keys<'k>(&self, launch: Launch<'k>) -> Launch<'k> {
        let launch = reads_of_keys(launch.bytes(&self.keys, PARAMETER_ALIGNMENT), &self.sort.keys);
        self.many.iter().chain(self.reached).fold(launch, |launch, view| launch.reads(view))
    }

    /// Adds the control blocks of the order and of the rows.
    fn controls<'k>(&self, launch: Launch<'k>) -> Launch<'k> {
        let launch = launch.write(&self.control);
        match &self.source {
            Some(source) => launch.read(source),
            None => launch.value(0u64),
        }
    }
}

/// Cuts scratch into lists, each of which begins at a multiple of 256 bytes.
struct Cutter<'a> {
    scratch: Option<&'a DeviceView>,
    end: u64,
}

impl<'a> Cutter<'a> {
    /// Without scratch it only counts the bytes.
    fn new(scratch: Option<&'a DeviceView>) -> Self {
        Self { scratch, end: 0 }
    }

    fn take(&mut self, bytes: u64) -> Result<Option<DeviceView>> {
        let start = self.end;
        self.end = (start + bytes).next_multiple_of(256);
        let view = |scratch: &DeviceView| scratch.view(start as usize..(start + bytes) as usize);
        Ok(self.scratch.map(view).transpose()?)
    }
}
