//! A matrix of small flat Parquet files to test decoders: each pair of a writer's choices occurs in some file.
//!
//! ```text
//!   kinds × encodings × NULLs × …  ──cover──►  1,736 cases  ──write──►  0417-i64.delta.random.half-zstd-….parquet
//!                                                    └──────rows──────►  the record batch that a reader must return
//! ```
//!
//! A file has one to four columns `c0`, `c1`, … of related kinds, and `row_id`, an INT32 that counts from zero.
//!
//! Same     a case is a function of its number; its file always has equal bytes, and its rows can be computed without
//!          it.
//! Small    most files are below 20 KB, so that a simulated device can read them all.
//! Covers   all legal pairs of choices; each (kind, encoding) with each other choice, and more: see `cover.rs`.
//! Beside   files of other writers are in `data/foreign`.

mod choice;
mod cover;
mod kind;
mod values;
mod write;

#[cfg(test)]
mod tests;

pub use choice::{
    Bloom, Compress, Dictionary, Encoding, Groups, Index, Nulls, PageLimits, Pages, ROWS, Statistics, Values, Version,
};
pub use kind::Kind;
pub use write::{bytes, rows, write};

/// Name of the column that counts rows.
pub const ROW_ID: &str = "row_id";

/// A file of the matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// Index in the list of [`cases`].
    pub number: usize,
    /// Columns without `row_id`.
    pub columns: Vec<Column>,
    pub codec: Compress,
    pub version: Version,
    pub num_rows: usize,
    pub pages: Pages,
    pub groups: Groups,
    pub statistics: Statistics,
    pub index: Index,
}

/// A column of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    pub kind: Kind,
    pub encoding: Encoding,
    pub dictionary: Dictionary,
    pub nulls: Nulls,
    pub values: Values,
    pub bloom: Bloom,
}

impl Case {
    /// Name of the file without its extension: the number, the columns, the choices of the file.
    ///
    /// `0417-i64.delta.random.half+i64.plain.few.required-zstd-v2-1000r-page32r-one_group-page_stats-index`
    pub fn name(&self) -> String {
        let columns: Vec<String> = self.columns.iter().map(Column::name).collect();
        [
            format!("{:04}", self.number),
            columns.join("+"),
            self.codec.name().to_string(),
            self.version.name().to_string(),
            format!("{}r", self.num_rows),
            self.pages.name().to_string(),
            self.groups.name().to_string(),
            self.statistics.name().to_string(),
            self.index.name().to_string(),
        ]
        .join("-")
    }
}

impl Column {
    /// Kind, encoding, values and NULLs of the column.
    pub fn name(&self) -> String {
        let encoding = format!("{}{}", self.encoding.name(), self.dictionary.name());
        let mut words = vec![self.kind.name(), &encoding, self.values.name(), self.nulls.name()];
        words.extend((self.bloom == Bloom::With).then_some(self.bloom.name()));
        words.join(".")
    }
}

/// All cases: those of the cover, then those listed by hand.
pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = cover::files().iter().map(|columns| case(columns)).collect();
    cases.extend(long_texts());
    cases.extend(wide_codes());
    for (number, case) in cases.iter_mut().enumerate() {
        case.number = number;
    }
    cases
}

/// A case of the cover; its number is set later.
fn case(columns: &[cover::Choices]) -> Case {
    let file = columns[0];
    let at = |factor: usize| file[factor] as usize;
    let column = |choices: &cover::Choices| Column {
        kind: Kind::ALL[choices[cover::KIND] as usize],
        encoding: Encoding::ALL[choices[cover::ENCODING] as usize],
        dictionary: Dictionary::ALL[choices[cover::DICTIONARY] as usize],
        nulls: Nulls::ALL[choices[cover::NULLS] as usize],
        values: Values::ALL[choices[cover::VALUES] as usize],
        bloom: Bloom::ALL[choices[cover::BLOOM] as usize],
    };
    Case {
        number: 0,
        columns: columns.iter().map(column).collect(),
        codec: Compress::ALL[at(cover::CODEC)],
        version: Version::ALL[at(cover::VERSION)],
        num_rows: ROWS[at(cover::NUM_ROWS)],
        pages: Pages::ALL[at(cover::PAGES)],
        groups: Groups::ALL[at(cover::GROUPS)],
        statistics: Statistics::ALL[at(cover::STATISTICS)],
        index: Index::ALL[at(cover::INDEX)],
    }
}

/// Texts of 70,000 bytes, longer than a decompressor's window of 64 KiB.
fn long_texts() -> Vec<Case> {
    let mut cases = Vec::new();
    for &encoding in Kind::Utf8Long.encodings() {
        for codec in [Compress::None, Compress::Snappy, Compress::Zstd] {
            for &version in Version::ALL {
                let dictionary = if encoding == Encoding::Dictionary { Dictionary::Whole } else { Dictionary::Unused };
                let nulls = if version == Version::V1 { Nulls::Required } else { Nulls::Seventh };
                let (kind, values, bloom) = (Kind::Utf8Long, Values::Random, Bloom::Without);
                let column = Column { kind, encoding, dictionary, nulls, values, bloom };
                cases.push(by_hand(column, codec, version, 12));
            }
        }
    }
    cases
}

/// Dictionaries whose codes have 13, 15 and 17 bits, so that some do not fit two bytes.
fn wide_codes() -> Vec<Case> {
    let mut cases = Vec::new();
    for num_rows in [5_000, 20_000, 70_000] {
        for kind in [Kind::Int32, Kind::Int64] {
            for &version in Version::ALL {
                let nulls = if version == Version::V1 { Nulls::Required } else { Nulls::Seventh };
                let (encoding, dictionary) = (Encoding::Dictionary, Dictionary::Whole);
                let column =
                    Column { kind, encoding, dictionary, nulls, values: Values::Sorted, bloom: Bloom::Without };
                cases.push(by_hand(column, Compress::Zstd, version, num_rows));
            }
        }
    }
    cases
}

/// A file of one column with default choices.
fn by_hand(column: Column, codec: Compress, version: Version, num_rows: usize) -> Case {
    let (pages, groups) = (Pages::Whole, Groups::One);
    let (statistics, index) = (Statistics::Chunk, Index::With);
    Case { number: 0, columns: vec![column], codec, version, num_rows, pages, groups, statistics, index }
}
