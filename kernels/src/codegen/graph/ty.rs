//! Types of nodes: meaning, nullability, and the proven range of valid values.
//!
//! Width    a result is computed in the narrowest lane that holds its range.

/// Meaning of a value, and the point where it wraps or overflows. Its range determines the computed width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Repr {
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    I128,
    F32,
    F64,
    /// A string: address and length. Bytes compare as unsigned numbers.
    Text,
}

/// Inclusive bounds of an integer value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Range {
    pub low: i128,
    pub high: i128,
}

/// Type of a node: its meaning, its nullability, and the proven facts about valid values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ty {
    pub repr: Repr,
    pub nullable: bool,
    /// Bounds of every valid value; `None`: the bounds of `repr`. Integers only.
    pub range: Option<Range>,
}

impl Repr {
    /// Bounds of an integer representation.
    pub fn bounds(self) -> Option<Range> {
        let (low, high) = match self {
            Repr::I8 => (i8::MIN as i128, i8::MAX as i128),
            Repr::I16 => (i16::MIN as i128, i16::MAX as i128),
            Repr::I32 => (i32::MIN as i128, i32::MAX as i128),
            Repr::I64 => (i64::MIN as i128, i64::MAX as i128),
            Repr::U8 => (0, u8::MAX as i128),
            Repr::U16 => (0, u16::MAX as i128),
            Repr::U32 => (0, u32::MAX as i128),
            Repr::U64 => (0, u64::MAX as i128),
            Repr::I128 => (i128::MIN, i128::MAX),
            Repr::Bool | Repr::F32 | Repr::F64 | Repr::Text => return None,
        };
        Some(Range { low, high })
    }

    pub fn is_integer(self) -> bool {
        self.bounds().is_some()
    }

    pub fn is_number(self) -> bool {
        self.is_integer() || self.is_float()
    }

    pub fn is_float(self) -> bool {
        matches!(self, Repr::F32 | Repr::F64)
    }

    pub fn is_signed(self) -> bool {
        matches!(self, Repr::I8 | Repr::I16 | Repr::I32 | Repr::I64 | Repr::I128)
    }
}

impl Range {
    pub fn new(low: i128, high: i128) -> Self {
        debug_assert!(low <= high);
        Self { low, high }
    }

    pub fn contains(self, other: Range) -> bool {
        self.low <= other.low && other.high <= self.high
    }

    pub fn holds(self, value: i128) -> bool {
        self.low <= value && value <= self.high
    }

    /// Values in both ranges, if any.
    pub fn intersect(self, other: Range) -> Option<Range> {
        let (low, high) = (self.low.max(other.low), self.high.min(other.high));
        (low <= high).then_some(Range { low, high })
    }

    pub fn union(self, other: Range) -> Range {
        Range { low: self.low.min(other.low), high: self.high.max(other.high) }
    }
}

impl Ty {
    pub fn new(repr: Repr) -> Self {
        Self { repr, nullable: false, range: None }
    }

    pub fn nullable(mut self, nullable: bool) -> Self {
        self.nullable = nullable;
        self
    }

    /// Narrows the values to `low..=high`, clipped to the representation.
    pub fn within(mut self, low: i128, high: i128) -> Self {
        self.range = self.repr.bounds().map(|all| Range { low, high }.intersect(all).unwrap_or(all));
        if self.range == self.repr.bounds() {
            self.range = None;
        }
        self
    }

    /// The proven range, or the range of the representation. `None` for booleans and floats.
    pub fn bounds(self) -> Option<Range> {
        self.range.or_else(|| self.repr.bounds())
    }
}
