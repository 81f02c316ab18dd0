//! State of an aggregation: cells, and the 64-bit words that form them.
//!
//!   sum(price), avg(price), count(*), sum(qty)        cells   sum price · count · sum qty
//!                                                     words   low  high · n     · total
//!
//! Every word starts at 0 and is only combined by one operation (add, float add, unsigned max), so words of threads,
//! thread blocks, launches and streams merge in any order with equal results (floats: up to rounding).
//!
//! Floats   are added in any order: a NaN among the addends keeps its sign, infinities of both signs give the negative
//!          NaN, and of several NaNs an unspecified one remains.
//! Sums     of decimals split each addend and never carry: 32 unsigned low bits and the signed rest, or three such
//!          limbs and a signed top one; exact for 2^32 rows. An addend below 2^37 is added whole by a thread, and the
//!          thread's sum is split when it is merged. A decimal whose sum over all rows fits 64 bits is not split.
//! Checked  sums raise the error flag if the total exceeds 128 bits: the last limb's word is wider than its limb.
//! Anchors  are the first values that rows stored in the shared table, complemented so that 0 means none. All threads
//!          read them and sum the deviations from them: variances and covariances lose no digits to a large mean.
//! Bits     are OR-ed (for AND: their complements) or XOR-ed.
//! Min, max are the unsigned max of an order-preserving encoding (complemented for min); 0 means no value yet. 128-bit
//!          values take two words under a lock.
//! First    rows of an order: the order's keys as words that sort unsigned, then the payload of the best row, all under
//!          a lock, in the table only. A text among the keys is its first sixteen bytes, its length and its address.
//! Seen     says whether any row contributed, if the result may be NULL and no count of the same rows exists.

use crate::codegen::ir::*;
use crate::codegen::text;
use crate::tune;

/// Operation that combines a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum WordOp {
    /// Set once, in the shared table; threads have no word for it. First, so that cells that read it come later.
    Anchor,
    /// Wrapping 64-bit addition.
    Add,
    /// A thread's signed sum, split into two `Add` words (32 unsigned low bits, signed rest) when it is merged.
    AddSplit,
    /// f64 addition.
    AddFloat,
    /// Unsigned 64-bit maximum.
    Max,
    Or,
    Xor,
    /// Unsigned 128-bit maximum over two words, low first, under the lock in the third.
    MaxWide,
    /// Exact float addition without rounding, see [`exact`](super::exact). Threads have no words for it.
    AddExact,
    /// Unsigned maximum over `keys` words, most significant first, followed by `payload` words and a lock word. Threads
    /// have no words for it.
    Best {
        keys: u32,
        payload: u32,
    },
}

impl WordOp {
    /// Number of words in the shared table.
    pub fn table_words(self) -> u32 {
        match self {
            WordOp::Anchor | WordOp::Add | WordOp::AddFloat | WordOp::Max | WordOp::Or | WordOp::Xor => 1,
            WordOp::AddSplit => 2,
            WordOp::MaxWide => 3,
            WordOp::AddExact => super::exact::WORDS,
            WordOp::Best { keys, payload } => keys + payload + 1,
        }
    }

    /// True if a thread block may keep the words in shared memory, in a thread's form: all operations without a lock.
    pub fn fits_block(self) -> bool {
        use WordOp::*;
        matches!(self, Add | AddSplit | AddFloat | Max | Or | Xor)
    }

    /// Number of words per thread.
    pub fn thread_words(self) -> u32 {
        match self {
            WordOp::Anchor | WordOp::AddExact | WordOp::Best { .. } => 0,
            WordOp::MaxWide => 2,
            _ => 1,
        }
    }
}

/// Value that one row adds to a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Contribution {
    /// 1 for each row that is valid (and passes the filter).
    One,
    /// 1 for each row, and for a seed, which is not a row.
    Presence,
    /// The integer itself, sign- or zero-extended.
    Whole(NodeId),
    /// 32-bit limb `index` of `of`; the last one signed.
    Limb { of: NodeId, index: u32, last: bool },
    /// The float as f64.
    Float(NodeId),
    /// The order-preserving encoding, complemented for min.
    Ordered { of: NodeId, min: bool },
    /// The integer's bits, complemented for AND.
    Bits { of: NodeId, complement: bool },
    /// The float's bits, complemented: the first one is kept.
    Anchor(NodeId),
    /// The float minus its anchor.
    Deviation(NodeId),
    /// The product of two deviations.
    CoDeviation(NodeId, NodeId),
    /// Keys and payload of `AggregatePlan::bests[i]`.
    Best(u32),
}

/// Keys and payload of the first row in an order.
#[derive(Debug, Clone)]
pub(crate) struct BestPlan {
    pub order: Vec<OrderKey>,
    pub payload: Vec<NodeId>,
    number: u32,
    filter: Option<NodeId>,
    valid: Option<NodeId>,
}

impl BestPlan {
    /// Words of one key: a NULL marker if it is nullable, then the value.
    fn key_words(graph: &Graph, first: bool, node: NodeId) -> u32 {
        let ty = graph.ty(node);
        let value = if lane(ty) == Lane::Text { text::ORDER_WORDS } else { value_words(ty) };
        // The first word also says that a row exists.
        u32::from(ty.nullable || first) + value
    }

    /// True if it contains views or addresses of texts.
    fn holds_texts(&self, graph: &Graph) -> bool {
        let nodes = self.order.iter().map(|key| key.node).chain(self.payload.iter().copied());
        nodes.into_iter().any(|node| lane(graph.ty(node)) == Lane::Text)
    }

    fn op(&self, graph: &Graph) -> WordOp {
        let keys = self.order.iter().enumerate().map(|(i, key)| Self::key_words(graph, i == 0, key.node)).sum();
        let payload = self.payload.iter().map(|&of| payload_words(graph.ty(of))).sum();
        WordOp::Best { keys, payload }
    }
}

/// Words of a value; for a text, of its view.
fn value_words(ty: Ty) -> u32 {
    if matches!(lane(ty), Lane::S128 | Lane::Text) { 2 } else { 1 }
}

/// Words of a value and of its validity, if it is nullable.
fn payload_words(ty: Ty) -> u32 {
    value_words(ty) + u32::from(ty.nullable)
}

/// One cell: a word (or word group) with its operation and its input.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Cell {
    pub op: WordOp,
    pub from: Contribution,
    /// The node whose validity decides whether the row contributes.
    pub valid: Option<NodeId>,
    pub filter: Option<NodeId>,
    /// First word in the shared table's record, after tag and keys.
    pub table_word: u32,
    /// First word among a thread's words.
    pub thread_word: u32,
}

/// Decoding of an emitted accumulator from the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reading {
    /// One word, unchanged.
    Word(u32),
    /// One word that is sign-extended to a 128-bit result.
    Widened(u32),
    /// Limbs of 32 bits, the last one signed. With `checked`, a total beyond 128 bits is an error.
    Limbs { first: u32, count: u32, checked: bool },
    /// An integer's bits.
    Bits { word: u32, complement: bool },
    /// A float's bits, complemented.
    Anchor(u32),
    /// A float's exact sum.
    Exact(u32),
    /// A value's bits.
    Plain { word: u32, ty: Ty },
    /// An f64.
    Float(u32),
    /// An encoded value of the given type.
    Ordered { word: u32, ty: Ty, min: bool },
}

/// One emitted accumulator.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResultPlan {
    pub reading: Reading,
    /// Index of a word that is 0 while the result is NULL.
    pub seen: Option<u32>,
    pub ty: Ty,
}

/// One grouping key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyPlan {
    pub node: NodeId,
    pub ty: Ty,
    pub lane: Lane,
    /// True if -0.0 and 0.0 are different keys.
    pub bitwise: bool,
    /// Lowest value and number of codes (NULL included), if the key's range is small enough to address a table.
    pub dense: Option<DenseKey>,
}

/// A key as a code: value − low, plus one code for NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DenseKey {
    pub low: i128,
    pub codes: u64,
}

/// Layout of the whole aggregation.
#[derive(Debug, Clone)]
pub(crate) struct AggregatePlan {
    pub regime: Regime,
    pub keys: Vec<KeyPlan>,
    /// Sorted by operation, so that equal operations fold in one loop.
    pub cells: Vec<Cell>,
    pub results: Vec<ResultPlan>,
    pub bests: Vec<BestPlan>,
    /// Word that is not 0 if the group has a row; dense regimes only.
    pub presence: Option<u32>,
    pub table_words: u32,
    pub thread_words: u32,
    /// Copies of a direct table; with 1, kernels have no code for copies.
    pub copies: u32,
    /// Upper bound of the number of groups, if the keys' ranges give one.
    pub max_groups: Option<u64>,
    /// Maximum number of rows per group before the word of a sum could wrap; `u64::MAX` if none can.
    pub max_rows: u64,
    /// True if the table points to texts, by views or addresses.
    pub holds_texts: bool,
}

impl AggregatePlan {
    pub fn new(graph: &Graph, spec: &AggregateSpec) -> AggregatePlan {
        let bitwise = |at: usize| spec.bitwise.contains(&(at as u32));
        let keys = spec.keys.iter().enumerate();
        let keys: Vec<KeyPlan> = keys.map(|(at, &node)| KeyPlan::new(graph, node, bitwise(at))).collect();
        let mut cells = Cells { graph, list: Vec::new(), bests: bests(graph, spec), max_rows: u64::MAX };
        // Counts first: a nullable result looks for a count of the same rows before it adds a word of its own.
        let order = |a: &&Accumulator| !matches!(a.aggregate, Aggregate::CountStar | Aggregate::Count(_));
        let mut sorted: Vec<(usize, &Accumulator)> = spec.accumulators.iter().enumerate().collect();
        sorted.sort_by_key(|(_, a)| order(a));
        let mut laid_out: Vec<Option<(Vec<usize>, Option<usize>)>> = vec![None; spec.accumulators.len()];
        for (at, accumulator) in sorted {
            laid_out[at] = Some(cells.accumulator(accumulator, spec.has_rowless_group()));
        }
        let dense: Option<u64> = keys
            .iter()
            .try_fold(1u64, |product, key| product.checked_mul(key.dense?.codes))
            .filter(|&groups| groups <= u32::MAX as u64);
        let mut presence = (!keys.is_empty() && dense.is_some()).then(|| match spec.seed {
            // With a seed, a group without rows may exist, which no count of rows shows.
            Some(_) => cells.cell(WordOp::Max, Contribution::Presence, None, None),
            None => cells.seen(None, None),
        });

        // Words are ordered by operation.
        let mut by_op: Vec<usize> = (0..cells.list.len()).collect();
        by_op.sort_by_key(|&i| (cells.list[i].op, i));
        let (mut table_words, mut thread_words) = (0, 0);
        for &i in &by_op {
            let cell = &mut cells.list[i];
            (cell.table_word, cell.thread_word) = (table_words, thread_words);
            table_words += cell.op.table_words();
            thread_words += cell.op.thread_words();
        }
        let Cells { list, bests, max_rows, .. } = cells;
        let holds_texts =
            keys.iter().any(|key| key.lane == Lane::Text) || bests.iter().any(|best| best.holds_texts(graph));
        if list.iter().any(|cell| matches!(cell.op, WordOp::Best { .. } | WordOp::AddExact)) {
            thread_words = NOT_IN_THREADS;
        }
        let in_blocks = list.iter().all(|cell| cell.op.fits_block());
        let words = Words { table: table_words, thread: thread_words, in_blocks };
        let regime = spec.regime.unwrap_or_else(|| choose(&keys, dense, words, spec.rows_hint));
        if regime == Regime::Hash {
            presence = None; // A claimed slot is a group.
        }
        let results = laid_out.into_iter().zip(&spec.accumulators).map(|(cells, accumulator)| {
            let (values, seen) = cells.expect("every accumulator was laid out");
            let ty = spec.result_type(graph, accumulator);
            ResultPlan::new(graph, (&list, &bests), accumulator, (&values, seen), ty)
        });
        let results = results.collect();
        let word = |i: usize| list[i].table_word;
        let presence = presence.map(word);
        let mut cells: Vec<Cell> = list;
        cells.sort_by_key(|cell| cell.table_word);
        let groups = dense.unwrap_or(0);
        let once = cells.iter().any(|cell| matches!(cell.op, WordOp::Anchor | WordOp::AddExact | WordOp::Best { .. }));
        let copies = if regime == Regime::Direct && !once { copies(groups, table_words, spec.rows_hint) } else { 1 };
        AggregatePlan {
            copies,
            regime,
            keys,
            cells,
            results,
            bests,
            presence,
            table_words,
            thread_words,
            max_groups: dense,
            max_rows,
            holds_texts,
        }
    }

    /// Records of a dense table; 1 without keys, 0 in the hash regime.
    pub fn groups(&self) -> u64 {
        if self.regime == Regime::Hash { 0 } else { self.max_groups.unwrap_or(0) }
    }

    /// Expressions of the grouping keys, in order.
    pub fn key_nodes(&self) -> Vec<NodeId> {
        self.keys.iter().map(|key| key.node).collect()
    }

    /// 64-bit key words in a hash table's record.
    pub fn key_words(&self) -> u32 {
        self.keys.iter().map(|key| key.words()).sum()
    }

    /// Bytes of one record of the table.
    pub fn record_bytes(&self) -> u64 {
        match self.regime {
            Regime::Hash => 8 * (1 + self.key_words() + self.table_words) as u64,
            _ => 8 * self.table_words as u64,
        }
    }

    /// True if threads keep the words of the only group in registers.
    pub fn in_registers(&self) -> bool {
        self.regime == Regime::Scalar && self.thread_words <= tune::REGISTER_WORDS
    }

    /// True if threads may have words of their own.
    pub fn fits_threads(&self) -> bool {
        self.thread_words != NOT_IN_THREADS
    }

    /// True if thread blocks may have tables of their own.
    pub fn fits_blocks(&self) -> bool {
        self.cells.iter().all(|cell| cell.op.fits_block())
    }

    /// Threads per block of the accumulating kernel.
    pub fn threads(&self) -> u32 {
        if self.regime == Regime::Block { tune::BLOCK_TABLE_THREADS } else { tune::AGGREGATE_THREADS }
    }

    /// Bytes of shared memory per block of that kernel.
    pub fn shared_bytes(&self) -> u64 {
        let words = match self.regime {
            Regime::Scalar if self.in_registers() => tune::AGGREGATE_THREADS.into(),
            Regime::Private => self.groups().saturating_mul(tune::AGGREGATE_THREADS.into()),
            Regime::Block => self.groups(),
            _ => 0,
        };
        words.saturating_mul(8 * self.thread_words as u64)
    }

    /// True if rows read the shared table even if threads have words of their own.
    pub fn has_anchors(&self) -> bool {
        self.cells.iter().any(|cell| cell.op == WordOp::Anchor)
    }

    /// Byte offset of the accumulators in a record.
    pub fn cells_offset(&self) -> u32 {
        if self.regime == Regime::Hash { 8 * (1 + self.key_words()) } else { 0 }
    }
}

impl ResultPlan {
    /// How the emitted value of `accumulator` is decoded from its cells, the indices `values` and `seen` of `list`.
    fn new(
        graph: &Graph,
        (list, bests): (&[Cell], &[BestPlan]),
        accumulator: &Accumulator,
        (values, seen): (&[usize], Option<usize>),
        ty: Ty,
    ) -> ResultPlan {
        let word = |i: usize| list[i].table_word;
        let reading = match (list[values[0]].from, list[values[0]].op) {
            (_, WordOp::AddExact) => Reading::Exact(word(values[0])),
            (Contribution::One | Contribution::Presence, _) => Reading::Word(word(values[0])),
            (Contribution::Float(_) | Contribution::Deviation(_) | Contribution::CoDeviation(..), _) => {
                Reading::Float(word(values[0]))
            }
            (Contribution::Anchor(_), _) => Reading::Anchor(word(values[0])),
            (Contribution::Best(at), op) => {
                let (Aggregate::First { of, .. }, WordOp::Best { keys, .. }) = (accumulator.aggregate, op) else {
                    unreachable!("only first rows bring a payload")
                };
                let place = bests[at as usize].payload.iter().position(|known| *known == of);
                let before = &bests[at as usize].payload[..place.expect("every argument is in the payload")];
                let before: u32 = before.iter().map(|&of| payload_words(graph.ty(of))).sum();
                let first = word(values[0]);
                let value = first + keys + before;
                let of = graph.ty(of);
                // The word is 0 for a NULL payload, and without a row.
                let seen = if of.nullable { value + value_words(of) } else { first };
                return ResultPlan { reading: Reading::Plain { word: value, ty: of }, seen: Some(seen), ty };
            }
            (Contribution::Bits { complement, .. }, _) => Reading::Bits { word: word(values[0]), complement },
            (Contribution::Ordered { of, min }, _) => Reading::Ordered { word: word(values[0]), ty: graph.ty(of), min },
            (_, WordOp::AddSplit) => Reading::Limbs { first: word(values[0]), count: 2, checked: false },
            (Contribution::Limb { .. }, _) => {
                let checked = matches!(accumulator.aggregate, Aggregate::SumChecked(_)) && values.len() == 4;
                Reading::Limbs { first: word(values[0]), count: values.len() as u32, checked }
            }
            (Contribution::Whole(_), _) if ty.repr == Repr::I128 => Reading::Widened(word(values[0])),
            (Contribution::Whole(_), _) => Reading::Word(word(values[0])),
        };
        ResultPlan { reading, seen: seen.map(word), ty }
    }
}

impl KeyPlan {
    fn new(graph: &Graph, node: NodeId, bitwise: bool) -> KeyPlan {
        let ty = graph.ty(node);
        let bounds = if ty.repr == Repr::Bool { Some(Range { low: 0, high: 1 }) } else { ty.bounds() };
        // Codes are decoded by 64-bit addition: keys outside that range are hashed, even if they are close together.
        let addressable = lane(ty) != Lane::S128;
        let dense = bounds.filter(|_| addressable).and_then(|Range { low, high }| {
            let span = high.checked_sub(low)?.checked_add(1)?;
            let codes = u64::try_from(span).ok()?.checked_add(ty.nullable as u64)?;
            Some(DenseKey { low, codes })
        });
        KeyPlan { node, ty, lane: lane(ty), bitwise, dense }
    }

    /// 64-bit words of the key in a hash table's record.
    pub fn words(&self) -> u32 {
        match self.lane {
            Lane::S128 => 2,
            Lane::Text => text::KEY_WORDS,
            _ => 1,
        }
    }
}

/// Words of a record in the table, words of a group per thread, and whether a block may keep the latter.
struct Words {
    table: u32,
    thread: u32,
    in_blocks: bool,
}

/// Chooses the cheapest regime whose table fits.
fn choose(keys: &[KeyPlan], dense: Option<u64>, words: Words, rows_hint: Option<u64>) -> Regime {
    if keys.is_empty() {
        return Regime::Scalar;
    }
    let Some(groups) = dense else { return Regime::Hash };
    let in_block = groups.saturating_mul(8 * words.thread as u64);
    if in_block.saturating_mul(tune::AGGREGATE_THREADS as u64) <= tune::PRIVATE_BIN_BYTES {
        return Regime::Private;
    }
    let many_rows = rows_hint.is_none_or(|rows| rows >= groups.saturating_mul(tune::BLOCK_ROWS_PER_GROUP));
    if words.in_blocks && in_block <= tune::BLOCK_TABLE_BYTES && many_rows {
        return Regime::Block;
    }
    let limit = rows_hint.map_or(tune::DIRECT_UNKNOWN_BYTES, |rows| {
        rows.saturating_mul(tune::DIRECT_BYTES_PER_ROW).clamp(tune::DIRECT_ALWAYS_BYTES, tune::DIRECT_NEVER_BYTES)
    });
    if groups.saturating_mul(8 * words.table as u64) <= limit { Regime::Direct } else { Regime::Hash }
}

/// Thread words of a plan with a cell that threads cannot keep: too many for any table.
const NOT_IN_THREADS: u32 = u32::MAX;

/// Plans for first rows, one per order and conditions.
fn bests(graph: &Graph, spec: &AggregateSpec) -> Vec<BestPlan> {
    let mut found: Vec<BestPlan> = Vec::new();
    for accumulator in &spec.accumulators {
        let Aggregate::First { of, order, skip_nulls } = accumulator.aggregate else { continue };
        let (filter, valid) = (accumulator.filter, (skip_nulls && graph.ty(of).nullable).then_some(of));
        let known = found.iter().position(|b| (b.number, b.filter, b.valid) == (order, filter, valid));
        let known = known.unwrap_or_else(|| {
            let order_keys = spec.orders[order as usize].clone();
            found.push(BestPlan { order: order_keys, payload: vec![], number: order, filter, valid });
            found.len() - 1
        });
        if !found[known].payload.contains(&of) {
            found[known].payload.push(of);
        }
    }
    found
}

/// Number of copies of a direct table that is worth clearing and folding.
fn copies(groups: u64, table_words: u32, rows_hint: Option<u64>) -> u32 {
    if table_words > tune::DIRECT_FOLDED_WORDS {
        return 1;
    }
    let in_cache = tune::DIRECT_COPIES_BYTES / (groups * 8 * table_words as u64).max(1);
    let worth = rows_hint.map_or(u64::MAX, |rows| rows / (groups * tune::DIRECT_ROWS_PER_COPY).max(1));
    let most = in_cache.min(worth).clamp(1, tune::DIRECT_MAX_COPIES as u64) as u32;
    1 << most.ilog2()
}

struct Cells<'a> {
    graph: &'a Graph,
    list: Vec<Cell>,
    bests: Vec<BestPlan>,
    /// Maximum rows for which every sum so far is exact.
    max_rows: u64,
}

impl Cells<'_> {
    /// Lays out one accumulator: its value cells, and the cell that says whether it saw a row.
    fn accumulator(&mut self, accumulator: &Accumulator, scalar: bool) -> (Vec<usize>, Option<usize>) {
        let filter = accumulator.filter;
        let nullable = |arg: NodeId| self.graph.ty(arg).nullable.then_some(arg);
        match accumulator.aggregate {
            Aggregate::CountStar => (vec![self.cell(WordOp::Add, Contribution::One, None, filter)], None),
            Aggregate::Count(arg) => {
                let valid = nullable(arg);
                (vec![self.cell(WordOp::Add, Contribution::One, valid, filter)], None)
            }
            Aggregate::SumExact(arg) => {
                let valid = nullable(arg);
                self.max_rows = self.max_rows.min(super::exact::MAX_ROWS);
                let value = self.cell(WordOp::AddExact, Contribution::Float(arg), valid, filter);
                (vec![value], self.seen_if_needed(valid, filter, scalar))
            }
            Aggregate::Sum(arg) | Aggregate::SumChecked(arg) => {
                let valid = nullable(arg);
                if matches!(accumulator.aggregate, Aggregate::SumChecked(_)) && self.graph.ty(arg).repr != Repr::I128 {
                    self.max_rows = self.max_rows.min(rows_within(magnitude(self.graph.ty(arg))));
                }
                let values = self.sum(arg, valid, filter);
                (values, self.seen_if_needed(valid, filter, scalar))
            }
            Aggregate::Min(arg) | Aggregate::Max(arg) => {
                let valid = nullable(arg);
                let min = matches!(accumulator.aggregate, Aggregate::Min(_));
                let op = if lane(self.graph.ty(arg)) == Lane::S128 { WordOp::MaxWide } else { WordOp::Max };
                let value = self.cell(op, Contribution::Ordered { of: arg, min }, valid, filter);
                (vec![value], self.seen_if_needed(valid, filter, scalar))
            }
            Aggregate::BitAnd(arg) | Aggregate::BitOr(arg) | Aggregate::BitXor(arg) => {
                let valid = nullable(arg);
                let complement = matches!(accumulator.aggregate, Aggregate::BitAnd(_));
                let xor = matches!(accumulator.aggregate, Aggregate::BitXor(_));
                let op = if xor { WordOp::Xor } else { WordOp::Or };
                let value = self.cell(op, Contribution::Bits { of: arg, complement }, valid, filter);
                (vec![value], self.seen_if_needed(valid, filter, scalar))
            }
            Aggregate::First { of, order, skip_nulls } => {
                let valid = if skip_nulls { nullable(of) } else { None };
                let at = self.bests.iter().position(|b| (b.number, b.filter, b.valid) == (order, filter, valid));
                let at = at.expect("every order was collected");
                let op = self.bests[at].op(self.graph);
                (vec![self.cell(op, Contribution::Best(at as u32), valid, filter)], None)
            }
            Aggregate::Anchor { of, among } => {
                let valid = nullable(among);
                let value = self.cell(WordOp::Anchor, Contribution::Anchor(of), valid, filter);
                (vec![value], self.seen_if_needed(valid, filter, scalar))
            }
            Aggregate::Deviation { of, among } => {
                let valid = nullable(among);
                self.cell(WordOp::Anchor, Contribution::Anchor(of), valid, filter);
                let value = self.cell(WordOp::AddFloat, Contribution::Deviation(of), valid, filter);
                (vec![value], self.seen_if_needed(valid, filter, scalar))
            }
            Aggregate::CoDeviation { left, right, among } => {
                let valid = nullable(among);
                for of in [left, right] {
                    self.cell(WordOp::Anchor, Contribution::Anchor(of), valid, filter);
                }
                let value = self.cell(WordOp::AddFloat, Contribution::CoDeviation(left, right), valid, filter);
                (vec![value], self.seen_if_needed(valid, filter, scalar))
            }
        }
    }

    fn sum(&mut self, arg: NodeId, valid: Option<NodeId>, filter: Option<NodeId>) -> Vec<usize> {
        let ty = self.graph.ty(arg);
        if ty.repr.is_float() {
            return vec![self.cell(WordOp::AddFloat, Contribution::Float(arg), valid, filter)];
        }
        let magnitude = magnitude(ty);
        let total_fits = magnitude <= (i64::MAX as u128) / tune::MAX_ROWS_PER_STATE as u128;
        if ty.repr != Repr::I128 {
            // SQL's own 64-bit sums wrap, after any number of rows.
            return vec![self.cell(WordOp::Add, Contribution::Whole(arg), valid, filter)];
        }
        if total_fits {
            self.max_rows = self.max_rows.min(rows_within(magnitude));
            return vec![self.cell(WordOp::Add, Contribution::Whole(arg), valid, filter)];
        }
        self.max_rows = self.max_rows.min(tune::MAX_ROWS_PER_STATE);
        if magnitude <= (i64::MAX as u128) / tune::MAX_ROWS_PER_THREAD as u128 {
            return vec![self.cell(WordOp::AddSplit, Contribution::Whole(arg), valid, filter)];
        }
        let limbs = if lane(ty) == Lane::S128 { 4 } else { 2 };
        (0..limbs)
            .map(|index| {
                let from = Contribution::Limb { of: arg, index, last: index + 1 == limbs };
                self.cell(WordOp::Add, from, valid, filter)
            })
            .collect()
    }

    fn seen_if_needed(&mut self, valid: Option<NodeId>, filter: Option<NodeId>, scalar: bool) -> Option<usize> {
        (valid.is_some() || filter.is_some() || scalar).then(|| self.seen(valid, filter))
    }

    /// A word that is not 0 after a matching row: an existing count, else a new flag.
    fn seen(&mut self, valid: Option<NodeId>, filter: Option<NodeId>) -> usize {
        let same = |cell: &Cell| cell.from == Contribution::One && cell.valid == valid && cell.filter == filter;
        match self.list.iter().position(same) {
            Some(at) => at,
            None => self.cell(WordOp::Max, Contribution::One, valid, filter),
        }
    }

    fn cell(&mut self, op: WordOp, from: Contribution, valid: Option<NodeId>, filter: Option<NodeId>) -> usize {
        let cell = Cell { op, from, valid, filter, table_word: 0, thread_word: 0 };
        if let Some(at) = self.list.iter().position(|c| *c == cell) {
            return at;
        }
        self.list.push(cell);
        self.list.len() - 1
    }
}

fn magnitude(ty: Ty) -> u128 {
    ty.bounds().map_or(1, |b| b.low.unsigned_abs().max(b.high.unsigned_abs()))
}

/// Number of addends of a magnitude whose sum fits 64 bits.
fn rows_within(magnitude: u128) -> u64 {
    u64::try_from(i64::MAX as u128 / magnitude.max(1)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(keys: &[Ty], make: impl FnOnce(&mut Graph) -> Vec<Accumulator>) -> AggregatePlan {
        let mut graph = Graph::new();
        let keys = keys.iter().enumerate().map(|(i, &ty)| graph.column(i as u32, ty)).collect();
        let mut spec = AggregateSpec::new(keys);
        for accumulator in make(&mut graph) {
            spec.accumulate(&graph, accumulator);
        }
        AggregatePlan::new(&graph, &spec)
    }

    fn all(aggregate: Aggregate) -> Accumulator {
        Accumulator { aggregate, filter: None }
    }

    fn decimal(graph: &mut Graph, high: i128) -> NodeId {
        graph.column(9, Ty::new(Repr::I128).within(0, high))
    }

    #[test]
    fn a_sum_takes_the_words_that_its_range_asks_for() {
        let words = |high: i128| {
            let plan = plan(&[], |graph| vec![all(Aggregate::Sum(decimal(graph, high))), all(Aggregate::CountStar)]);
            // One word of each counts rows.
            (plan.thread_words - 1, plan.table_words - 1)
        };
        assert_eq!(words((1 << 31) - 1), (1, 1));
        assert_eq!(words(1 << 36), (1, 2));
        assert_eq!(words(1 << 38), (2, 2));
        assert_eq!(words(1 << 62), (2, 2));
        assert_eq!(words(1 << 64), (4, 4));
    }

    #[test]
    fn a_state_takes_the_rows_for_which_its_sums_are_exact() {
        let max_rows = |aggregate: fn(&mut Graph) -> Aggregate| plan(&[], |graph| vec![all(aggregate(graph))]).max_rows;
        assert_eq!(max_rows(|_| Aggregate::CountStar), u64::MAX);
        assert_eq!(max_rows(|graph| Aggregate::Sum(graph.column(0, Ty::new(Repr::I64)))), u64::MAX);
        assert_eq!(max_rows(|graph| Aggregate::Sum(graph.column(0, Ty::new(Repr::F64)))), u64::MAX);
        // 2^30 · (2^33 − 1) is the last multiple of 2^30 within 63 bits.
        assert_eq!(max_rows(|graph| Aggregate::Sum(decimal(graph, 1 << 30))), (1 << 33) - 1);
        assert_eq!(max_rows(|graph| Aggregate::Sum(decimal(graph, 0))), i64::MAX as u64);
        let checked = |high: i128| {
            let column = |graph: &mut Graph| graph.column(0, Ty::new(Repr::I64).within(-high, high));
            plan(&[], |graph| vec![all(Aggregate::SumChecked(column(graph)))]).max_rows
        };
        assert_eq!([checked(1), checked(1 << 31)], [i64::MAX as u64, (1 << 32) - 1]);
        for bits in [36, 62, 100] {
            let plan = plan(&[], |graph| vec![all(Aggregate::Sum(decimal(graph, 1 << bits)))]);
            assert_eq!(plan.max_rows, 1 << 32, "addends of {bits} bits lie in limbs of 32");
        }
        assert_eq!(max_rows(|graph| Aggregate::SumExact(graph.column(0, Ty::new(Repr::F64)))), 1 << 31);
    }

    #[test]
    fn a_count_of_the_same_rows_tells_whether_a_sum_saw_any() {
        let nullable = Ty::new(Repr::I64).nullable(true);
        let with_count = plan(&[], |graph| {
            let x = graph.column(0, nullable);
            vec![all(Aggregate::Sum(x)), all(Aggregate::Count(x))]
        });
        assert_eq!(with_count.cells.len(), 2);
        let alone = plan(&[], |graph| vec![all(Aggregate::Sum(graph.column(0, nullable)))]);
        assert_eq!(alone.cells.len(), 2);
        assert!(alone.results[0].seen.is_some());
    }

    #[test]
    fn a_group_without_nulls_needs_no_mark_but_its_own_presence() {
        let key = Ty::new(Repr::I32).within(0, 2);
        let never_null = plan(&[key], |graph| vec![all(Aggregate::Min(graph.column(5, Ty::new(Repr::I64))))]);
        assert_eq!(never_null.results[0].seen, None);
        assert_eq!(never_null.cells.len(), 2, "the minimum, and whether the group has rows");
        let counted = plan(&[key], |_| vec![all(Aggregate::CountStar)]);
        assert_eq!((counted.cells.len(), counted.presence), (1, Some(0)));
    }

    #[test]
    fn the_code_space_of_several_keys_is_their_product() {
        let keys = [Ty::new(Repr::U32).within(0, 2), Ty::new(Repr::Bool).nullable(true)];
        let plan = plan(&keys, |_| vec![all(Aggregate::CountStar)]);
        assert_eq!((plan.groups(), plan.max_groups, plan.regime), (9, Some(9), Regime::Private));
    }

    #[test]
    fn key_space_and_state_choose_the_table() {
        let regime =
            |codes: i128| plan(&[Ty::new(Repr::I64).within(1, codes)], |_| vec![all(Aggregate::CountStar)]).regime;
        let bins = (tune::PRIVATE_BIN_BYTES / (8 * tune::AGGREGATE_THREADS as u64)) as i128;
        assert_eq!(regime(bins), Regime::Private);
        assert_eq!(regime(bins + 1), Regime::Block);
        assert_eq!(regime((tune::BLOCK_TABLE_BYTES / 8) as i128), Regime::Block);
        assert_eq!(regime((tune::BLOCK_TABLE_BYTES / 8) as i128 + 1), Regime::Direct);
        assert_eq!(regime((tune::DIRECT_UNKNOWN_BYTES / 8) as i128), Regime::Direct);
        assert_eq!(regime((tune::DIRECT_UNKNOWN_BYTES / 8) as i128 + 1), Regime::Hash);
    }
}
