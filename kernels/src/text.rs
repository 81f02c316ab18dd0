//! Packs scattered texts into one dense run of bytes; sizes arenas for texts that a launch creates. Device side:
//! `cuda/text.cu`.
//!
//! ```text
//!   views   [3: "abc"] [0:] [14: → 0x7f…]        a text column as a pipeline writes it
//!   sizes   [3, 0, 14]  ──►  control block: 17 bytes │ ends [3, 3, 17]      dense_ends: two launches
//!   pack    "abc" + 14 bytes from 0x7f…                                     after the host has allocated 17 bytes
//! ```
//!
//! Memory   callers allocate: [`Working::bytes`], then as many bytes as the control block says.
//! Waits    never.

use std::collections::HashMap;
use std::ops::Range;

use millpond_memory::{DeviceView, Stream};

use crate::codegen::ir::{Literal, MAX_TEXT_BYTES, Node, NodeId, Physical, PipelineSpec, Repr};
use crate::codegen::text_function::Capacity;
use crate::error::KernelError;
use crate::image::Images;
use crate::pipeline::{ExtentRows, Input};
use crate::rows::{Rows, expect_bytes, striding};
use crate::{Launch, abi, scan, tune};

type Result<T> = std::result::Result<T, KernelError>;

/// Bytes of a view.
const VIEW_BYTES: u64 = 16;

/// Layout of the working memory for up to `rows` texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Working {
    rows: u64,
}

impl Working {
    pub fn new(rows: u64) -> Working {
        Working { rows }
    }

    /// Range of the error word and the number of bytes. The host reads [`abi::CONTROL_RESULT_BYTES`] of it.
    pub const CONTROL: Range<usize> = 0..abi::CONTROL_BYTES as usize;

    /// End offsets of the texts in the dense bytes (u64 per row).
    pub fn ends(&self) -> Range<usize> {
        abi::CONTROL_BYTES as usize..scan::expansion_bytes(self.rows) as usize
    }

    fn sizes(&self) -> Range<usize> {
        let start = (scan::expansion_bytes(self.rows) as usize).next_multiple_of(256);
        start..start + self.rows as usize * 4
    }

    fn scratch(&self) -> Range<usize> {
        let start = self.sizes().end.next_multiple_of(256);
        start..start + scan::scratch_bytes(self.rows) as usize
    }

    /// Length of the allocation.
    pub fn bytes(&self) -> usize {
        self.scratch().end.next_multiple_of(256)
    }
}

/// Computes the end offset of each text in a dense run, and the total number of bytes, into `working`. Takes over an
/// error of the kernel that wrote the views.
///
/// | name      | length            | unit                                  |
/// |-----------|-------------------|---------------------------------------|
/// | `views`   | at least `rows`   | 16-byte views; empty for NULL         |
/// | `working` | [`Working::bytes`] | bytes                                |
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit.
pub fn dense_ends(
    images: &Images,
    views: &DeviceView,
    rows: &ExtentRows,
    working: &DeviceView,
    on: &Stream,
) -> Result<()> {
    let place = Working::new(rows.upper_bound());
    expect_bytes("text_sizes", "views", views, rows.upper_bound() * VIEW_BYTES)?;
    expect_bytes("text_sizes", "working", working, place.bytes() as u64)?;
    let sizes = working.view(place.sizes())?;
    let kernel = images.kernel("text", "text_sizes")?;
    let launch = Launch::new(&kernel, striding(images.device(), rows.upper_bound(), tune::MOVE_THREADS));
    Rows::try_from(rows)?.put(launch.read(views).write(&sizes)).submit(on)?;
    let expansion = working.view(0..place.ends().end)?;
    scan::running_sums(images, &sizes, rows, &expansion, &working.view(place.scratch())?, on)
}

/// Copies the texts to `out`, one after the other, at the offsets of [`dense_ends`].
///
/// | name      | length             | unit                                                        |
/// |-----------|--------------------|-------------------------------------------------------------|
/// | `views`   | at least `rows`    | 16-byte views                                               |
/// | `reached` | any                | the buffers that the views point into                       |
/// | `working` | [`Working::bytes`] | output of [`dense_ends`]                                    |
/// | `out`     | the control block's number of bytes | bytes                                      |
///
/// # Errors
/// [`KernelError::Shape`] if a length does not fit.
pub fn pack(
    images: &Images,
    views: &DeviceView,
    reached: &[DeviceView],
    rows: &ExtentRows,
    working: &DeviceView,
    out: &DeviceView,
    on: &Stream,
) -> Result<()> {
    let place = Working::new(rows.upper_bound());
    expect_bytes("text_pack", "views", views, rows.upper_bound() * VIEW_BYTES)?;
    expect_bytes("text_pack", "working", working, place.bytes() as u64)?;
    let kernel = images.kernel("text", "text_pack")?;
    let launch = Launch::new(&kernel, striding(images.device(), rows.upper_bound(), tune::MOVE_THREADS));
    let launch = launch.read(views).read(working.view(place.ends())?).write(out);
    let launch = reached.iter().fold(Rows::try_from(rows)?.put(launch), |launch, view| launch.reads(view.padded()));
    launch.submit(on)?;
    Ok(())
}

/// Bytes of an arena's header.
pub const ARENA_HEAD_BYTES: u64 = 256;
/// Assumed bytes of a text of unknown length.
const TYPICAL_BYTES: u64 = 32;
/// Bytes by which a text in an arena may be rounded up.
const ROUNDED_BYTES: u64 = 8;

/// Bytes of an arena for the texts that a launch creates: an estimate from the lengths of its columns and constants,
/// multiplied by `times` after an arena was too small
/// ([`ErrorCode::ArenaFull`](crate::codegen::ir::ErrorCode::ArenaFull)). 0 if it creates no texts.
pub fn arena_bytes(spec: &PipelineSpec, input: &Input<'_>, times: u64) -> u64 {
    let texts = spec.graph.new_texts(&spec.roots());
    if texts.is_empty() {
        return 0;
    }
    let rows = input.extents.iter().fold(0, |rows: u64, extent| rows + extent.rows.upper_bound());
    let mut sizes = Sizes { spec, input, rows, known: HashMap::new() };
    let rounding = rows * ROUNDED_BYTES;
    let all = texts.iter().fold(0, |all: u64, node| all.saturating_add(sizes.of(*node)).saturating_add(rounding));
    // Larger than any device's memory: the allocation reports it.
    all.saturating_mul(times).min(1 << 46).next_multiple_of(256) + ARENA_HEAD_BYTES
}

/// Estimates the total bytes of a node's texts over all rows.
struct Sizes<'a> {
    spec: &'a PipelineSpec,
    input: &'a Input<'a>,
    rows: u64,
    known: HashMap<NodeId, u64>,
}

impl Sizes<'_> {
    fn of(&mut self, node: NodeId) -> u64 {
        if let Some(&size) = self.known.get(&node) {
            return size;
        }
        let size = self.estimate(node);
        self.known.insert(node, size);
        size
    }

    fn estimate(&mut self, id: NodeId) -> u64 {
        let typical = self.rows.saturating_mul(TYPICAL_BYTES);
        let graph = &self.spec.graph;
        let is_text = |id: NodeId| graph.ty(id).repr == Repr::Text;
        match graph.node(id) {
            Node::Column { index } => {
                let stored = self.spec.columns.get(*index as usize).map(|column| column.physical);
                let column = |extent: &crate::pipeline::ExtentInput, physical: Physical| {
                    let column = extent.columns.get(*index as usize)?.as_ref()?;
                    Some(
                        (column.values.len() as u64)
                            .saturating_sub(extent.rows.upper_bound() * u64::from(physical.width())),
                    )
                };
                match stored {
                    // In an expanded pipeline a source row may occur several times.
                    Some(physical @ (Physical::Text | Physical::LongText)) => {
                        let bytes = self.input.extents.iter().filter_map(|extent| column(extent, physical)).sum();
                        if self.spec.expanded { typical.max(bytes) } else { bytes }
                    }
                    _ => typical,
                }
            }
            Node::Lookup { code, table } => {
                let bytes = self.input.lookups.get(*table as usize).map_or(0, |table| table.values.len() as u64);
                let all = bytes.saturating_mul(self.rows);
                match graph.node(*code) {
                    Node::Constant { .. } => all,
                    _ => all.min(typical),
                }
            }
            Node::Text { function, of } => {
                let first = of.iter().copied().find(|id| is_text(*id)).map_or(typical, |id| self.of(id));
                match function.spec().arena {
                    None => first,
                    Some(Capacity::OfFirst(times)) => first.saturating_mul(times),
                    Some(Capacity::Sum) => of.iter().fold(0, |all: u64, id| all.saturating_add(self.of(*id))),
                    Some(Capacity::Between) => {
                        let between = first.saturating_mul(of.len() as u64 - 1);
                        of[1..].iter().fold(between, |all, id| all.saturating_add(self.of(*id)))
                    }
                    Some(Capacity::Padded) => {
                        first.saturating_add(self.number(of[1]).map_or(typical, |n| self.rows.saturating_mul(n)))
                    }
                    Some(Capacity::Repeated) => first.saturating_mul(self.number(of[1]).unwrap_or(8)),
                    Some(Capacity::PerRow(bytes)) => self.rows.saturating_mul(bytes),
                }
            }
            Node::Case { branches, otherwise } => {
                let all = branches.iter().map(|(_, then)| *then).chain(*otherwise);
                all.fold(0, |most, id| most.max(self.of(id)))
            }
            Node::Present { of } => self.of(*of),
            Node::Null => 0,
            _ => typical,
        }
    }

    /// A number that is equal in every row.
    fn number(&self, id: NodeId) -> Option<u64> {
        let value = match self.spec.graph.node(id) {
            Node::Constant { bits } => *bits,
            Node::Convert { of, .. } => return self.number(*of),
            Node::Literal { slot } => match self.input.literals.get(*slot as usize)? {
                Literal::Int(value) => *value,
                _ => return None,
            },
            _ => return None,
        };
        Some(value.clamp(0, MAX_TEXT_BYTES.into()) as u64)
    }
}

/// Case table of [`TextFunction::Upper`](crate::codegen::ir::TextFunction::Upper) or `Lower` for letters beyond ASCII.
/// Two bytes per character of two UTF-8 bytes: its mapping; the second is 0 if the mapping has one byte, both are 0 if
/// the mapping is longer or depends on neighbours. Then one bit per character of three bytes, set if the case changes
/// it.
pub fn case_table(upper: bool) -> Vec<u8> {
    const TWO_BYTES: std::ops::Range<u32> = 0x80..0x800;
    const THREE_BYTES: std::ops::Range<u32> = 0x800..0x1_0000;
    let other = |character: char| -> String {
        if upper { character.to_uppercase().collect() } else { character.to_lowercase().collect() }
    };
    let mut table = Vec::with_capacity(2 * TWO_BYTES.len() + THREE_BYTES.len() / 8);
    for character in TWO_BYTES.filter_map(char::from_u32) {
        let becomes = other(character);
        // The lower case of Σ at the end of a word is ς, not σ.
        let known = becomes.len() <= 2 && (upper || character != '\u{3a3}');
        let mut bytes = becomes.bytes().filter(|_| known);
        table.extend([bytes.next().unwrap_or(0), bytes.next().unwrap_or(0)]);
    }
    for first in THREE_BYTES.step_by(8) {
        let changes =
            |code: u32| char::from_u32(code).is_some_and(|character| !other(character).chars().eq([character]));
        table.push((0..8).fold(0, |byte, bit| byte | u8::from(changes(first + bit)) << bit));
    }
    table
}

#[cfg(test)]
mod tests {
    /// The kernels rely on this.
    #[test]
    fn characters_of_four_bytes_from_1f000_on_have_one_case() {
        for character in (0x1_f000..=0x10_ffff).filter_map(char::from_u32) {
            assert!(character.to_uppercase().eq([character]) && character.to_lowercase().eq([character]));
        }
    }
}
