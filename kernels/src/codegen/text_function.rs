//! Functions of texts: a row each, for the graph, the code generator, the arena, and the engine's lookup by SQL name.
//!
//! ```text
//!   variant    operands          result   code                        SQL name, the operand that SQL leaves out
//!   Left       Text, I64         Text     text_left(at, bytes, n)     left(s, n)
//!   PadStart   Text, I64, Text   Text     text_pad(…, 0, arena)       lpad(s, n [, t]); t = ' '; new bytes: arena
//! ```
//!
//! Operands  Texts are an address and a length in bytes, numbers `I64`; constants of the row come after them, then the
//!           arena, if the result is new bytes.
//! NULL      strict, unless the row says otherwise.
//! Errors    `raises` names the operands for which the error flag is not raised; the helper signals by its result.
//!
//! A new function is a variant and a row here, and its helper in `cuda/text.cu`: see docs/adding/function.md.

use millpond_ptx::build::Value as Operand;

use super::graph::{MAX_TEXT_BYTES, Overflow, Range, Repr, Ty};

/// Functions of strings. Characters are UTF-8 code points and counted from 1; patterns and sets are texts themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TextFunction {
    /// Text and pattern: LIKE, with [`ANY_CHARACTERS`](super::graph::ANY_CHARACTERS) for `%` and
    /// [`ONE_CHARACTER`](super::graph::ONE_CHARACTER) for `_` in the pattern. `Bool`.
    Like,
    /// Text and pattern: ILIKE. The pattern is lower-case ASCII. `Bool`.
    LikeAnyCase,
    /// Text and the prefix, suffix or substring to test for. `Bool`.
    StartsWith,
    EndsWith,
    Contains,
    /// The number of bytes (`I64`).
    Bytes,
    /// The number of characters (`I64`).
    Characters,
    /// Text and substring: position of the first occurrence in characters, 0 if there is none (`I64`).
    Position,
    /// Text, first character (`I64`), length (`I64`). Positions before the first character count towards the length. A
    /// negative length raises the error flag. `Text`.
    Substring,
    /// Text and a number (`I64`): that many first characters; if negative, all except that many last characters.
    /// `Text`.
    Left,
    /// As `Left`, from the end.
    Right,
    /// Text, begin and end (`I64`) in bytes: that part. Both are within the text and in order. `Text`.
    Slice,
    /// Text and a set of characters to remove at the beginning, the end, or both. `Text`.
    TrimStart,
    TrimEnd,
    TrimBoth,
    /// Eight bytes from byte `8 * index` on, as a number that sorts as they do (`U64`); bytes after the end are 0.
    Word {
        index: u32,
    },
    /// A hash of the bytes (`U64`).
    Hash,
    /// Text, delimiter, and the number of a part (`I64`), from 1, or negative from the end. A number of 0 or an empty
    /// delimiter raises the error flag. `Text`.
    SplitPart,
    /// Code point of the first character, or 0 (`I32`).
    Code,
    /// The integer that the text spells in decimal digits (`I64`); any other text overflows.
    ToInteger(Overflow),
    /// Concatenation of any number of texts. NULLs are skipped; if `strict`, they make the result NULL. `Text`, new.
    Concatenate {
        strict: bool,
    },
    /// A separator and any number of texts (CONCAT_WS): NULL texts are skipped; a NULL separator gives NULL. `Text`,
    /// new.
    Join,
    /// Text and its [`case_table`](crate::text::case_table). A character unknown to the table raises the error flag.
    /// `Text`, new.
    Upper,
    Lower,
    /// Capitalizes the first letter of each word. Non-ASCII characters raise the error flag. `Text`, new.
    Capitals,
    Reverse,
    /// Text, substring, and its replacement. `Text`, new.
    Replace,
    /// Text and the [automata](crate::regex::automata) of a regular expression: whether it matches anywhere. If they
    /// `quit`, a text that they cannot decide raises the error flag. `Bool`.
    RegexMatch {
        quits: bool,
    },
    /// As `RegexMatch`, with a first character (`I64`): the number of matches from it on. A first character below 1
    /// also raises the error flag (`I64`).
    RegexCount {
        quits: bool,
    },
    /// As `RegexCount`, with the number of a match (`I64`): the character where it begins, 0 if there are fewer
    /// matches. Needs automata of both directions. A number below 1 also raises the error flag (`I64`).
    RegexPlace {
        quits: bool,
    },
    /// Text, automata of both directions, and the replacement of the first match, or of `all`. `Text`, new.
    RegexReplace {
        all: bool,
        quits: bool,
    },
    /// Text, characters, and their replacements, in order. `Text`, new.
    Translate,
    /// Text, length in characters (`I64`), and the filling text at the beginning or the end. `Text`, new.
    PadStart,
    PadEnd,
    /// Text and a number of repetitions (`I64`). A result that is too long raises the error flag. `Text`, new.
    Repeat,
    /// The character of a code point (`I64`). An invalid code point raises the error flag. `Text`, new.
    OfCode,
    /// An `I64` in decimal digits with `scale` digits after the point. `Text`, new.
    OfInteger {
        scale: u8,
    },
    /// A day (`I64`) as year, month and day. Years outside 0 to 9999 raise the error flag. `Text`, new.
    OfDate,
}

/// The row of a function.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    /// Name in SQL, for functions that SQL calls with these operands.
    pub sql: Option<&'static str>,
    /// The last operand, where a call in SQL leaves it out.
    pub filler: Option<Filler>,
    pub takes: Takes,
    pub gives: Ty,
    pub nulls: NullRule,
    pub(super) by: By,
    /// Constant operand after the others.
    pub(super) constant: Option<Operand>,
    /// Capacity of the arena for the results; `None` if they are no new bytes.
    pub(crate) arena: Option<Capacity>,
    pub(super) raises: Raises,
}

/// A last operand that SQL does not write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filler {
    /// A blank.
    Blank,
    /// A count of characters that exceeds any text.
    All,
    /// The case table of capital or of small letters. No call writes it.
    Cases { upper: bool },
}

/// Operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    These(&'static [Repr]),
    /// Texts, of which there are at least this number.
    Texts(usize),
}

/// When a result is NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NullRule {
    /// If an operand is NULL.
    Strict,
    /// If an operand is NULL, and for operands without a result.
    StrictOrUndefined,
    /// If the first operand is NULL.
    OfFirst,
    Never,
}

/// How a function is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// A helper of `cuda/text.cu`. Texts at address 1 raise the error flag.
    Helper(&'static str),
    /// A helper whose operands are checked before the call.
    Guarded(&'static str),
    /// A helper that walks automata, and signals by its number that they cannot decide.
    Automata(&'static str),
    /// A helper that also gives whether the number fits.
    Parse(&'static str, Overflow),
    /// Address and length, computed by instructions alone.
    Slice,
    Bytes,
    /// Calls for each part.
    Concatenate,
}

/// Bytes of the results of all rows, as an estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Capacity {
    /// Multiple of the bytes of the first text.
    OfFirst(u64),
    /// The sum of all texts.
    Sum,
    /// The sum of all texts but the first, which comes between them.
    Between,
    /// The first text, and the characters of operand 1.
    Padded,
    /// The first text as often as operand 1 says.
    Repeated,
    /// Bytes for each row.
    PerRow(u64),
}

/// Whether the error flag may be raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Raises {
    Never,
    Always,
    /// Unless each of these operands is proven to be in its range.
    Outside(&'static [(usize, Range)]),
}

const TEXT: &[Repr] = &[Repr::Text];
const TWO_TEXTS: &[Repr] = &[Repr::Text; 2];
const THREE_TEXTS: &[Repr] = &[Repr::Text; 3];
const TEXT_AND_NUMBER: &[Repr] = &[Repr::Text, Repr::I64];
const PART: &[Repr] = &[Repr::Text, Repr::I64, Repr::I64];
const PADDING: &[Repr] = &[Repr::Text, Repr::I64, Repr::Text];
const NUMBER: &[Repr] = &[Repr::I64];

const POSITIVE: Range = Range { low: 1, high: i128::MAX };
const REFUSED_PARTS: Raises = Raises::Outside(&[
    (1, Range { low: i64::MIN as i128 + 1, high: i128::MAX }),
    (2, Range { low: 0, high: i128::MAX }),
]);
const TOO_LONG: Raises = Raises::Outside(&[(1, Range { low: i128::MIN, high: MAX_TEXT_BYTES as i128 })]);
const OTHER_YEARS: Raises = Raises::Outside(&[(0, Range { low: -719_528, high: 2_932_896 })]);

impl TextFunction {
    /// Functions that SQL calls by name.
    pub const NAMED: [TextFunction; 26] = {
        use TextFunction::*;
        [
            StartsWith,
            EndsWith,
            Contains,
            Bytes,
            Characters,
            Position,
            Substring,
            Left,
            Right,
            TrimStart,
            TrimEnd,
            TrimBoth,
            SplitPart,
            Code,
            OfCode,
            Upper,
            Lower,
            Capitals,
            Reverse,
            Replace,
            Translate,
            PadStart,
            PadEnd,
            Repeat,
            Concatenate { strict: false },
            Join,
        ]
    };

    /// The function's row.
    pub fn spec(self) -> Spec {
        use TextFunction::*;
        let (bool, text, word) = (Ty::new(Repr::Bool), Ty::new(Repr::Text), Ty::new(Repr::U64));
        let length = Ty::new(Repr::I64).within(0, MAX_TEXT_BYTES.into());
        // There may be one more match after the last character.
        let match_number = Ty::new(Repr::I64).within(0, i128::from(MAX_TEXT_BYTES) + 1);
        match self {
            Like => row(TWO_TEXTS, bool, "text_like"),
            LikeAnyCase => row(TWO_TEXTS, bool, "text_ilike"),
            StartsWith => row(TWO_TEXTS, bool, "text_starts").sql("starts_with"),
            EndsWith => row(TWO_TEXTS, bool, "text_ends").sql("ends_with"),
            Contains => row(TWO_TEXTS, bool, "text_contains").sql("contains"),
            Bytes => row(TEXT, length, By::Bytes).sql("octet_length"),
            Characters => row(TEXT, length, "text_characters").sql("character_length"),
            Position => row(TWO_TEXTS, length, "text_position").sql("strpos"),
            Substring => {
                row(PART, text, By::Guarded("text_substring")).sql("substr").filler(Filler::All).raises(REFUSED_PARTS)
            }
            Left => row(TEXT_AND_NUMBER, text, "text_left").sql("left"),
            Right => row(TEXT_AND_NUMBER, text, "text_right").sql("right"),
            Slice => row(PART, text, By::Slice),
            TrimStart => row(TWO_TEXTS, text, "text_trim").constant(1).sql("ltrim").filler(Filler::Blank),
            TrimEnd => row(TWO_TEXTS, text, "text_trim").constant(2).sql("rtrim").filler(Filler::Blank),
            TrimBoth => row(TWO_TEXTS, text, "text_trim").constant(3).sql("btrim").filler(Filler::Blank),
            Word { index } => row(TEXT, word, "text_word").constant(index),
            Hash => row(TEXT, word, "text_hash"),
            SplitPart => row(&[Repr::Text, Repr::Text, Repr::I64], text, "text_split_part")
                .sql("split_part")
                .raises(Raises::Always),
            Code => row(TEXT, Ty::new(Repr::I32).within(0, char::MAX as i128), "text_code").sql("ascii"),
            ToInteger(overflow) => Spec {
                nulls: if overflow == Overflow::Null { NullRule::StrictOrUndefined } else { NullRule::Strict },
                ..row(TEXT, Ty::new(Repr::I64), By::Parse("text_to_integer", overflow))
                    .raises(if overflow == Overflow::Null { Raises::Never } else { Raises::Always })
            },
            Concatenate { strict } => Spec {
                takes: Takes::Texts(1),
                nulls: if strict { NullRule::Strict } else { NullRule::Never },
                sql: (!strict).then_some("concat"),
                ..row(&[], text, By::Concatenate).arena(Capacity::Sum)
            },
            Join => Spec {
                takes: Takes::Texts(2),
                nulls: NullRule::OfFirst,
                ..row(&[], text, By::Concatenate).sql("concat_ws").arena(Capacity::Between)
            },
            Upper => row(TWO_TEXTS, text, "text_case")
                .constant(1)
                .sql("upper")
                .filler(Filler::Cases { upper: true })
                .arena(Capacity::OfFirst(1))
                .raises(Raises::Always),
            Lower => row(TWO_TEXTS, text, "text_case")
                .constant(0)
                .sql("lower")
                .filler(Filler::Cases { upper: false })
                .arena(Capacity::OfFirst(1))
                .raises(Raises::Always),
            Capitals => {
                row(TEXT, text, "text_capitals").sql("initcap").arena(Capacity::OfFirst(1)).raises(Raises::Always)
            }
            Reverse => row(TEXT, text, "text_reverse").sql("reverse").arena(Capacity::OfFirst(1)),
            Replace => row(THREE_TEXTS, text, "text_replace").sql("replace").arena(Capacity::OfFirst(2)),
            RegexMatch { quits } => row(TWO_TEXTS, bool, By::Automata("text_regex_match")).raises(if quits {
                Raises::Always
            } else {
                Raises::Never
            }),
            RegexCount { quits } => {
                row(&[Repr::Text, Repr::Text, Repr::I64], match_number, By::Automata("text_regex_count"))
                    .raises(if quits { Raises::Always } else { Raises::Outside(&[(2, POSITIVE)]) })
            }
            RegexPlace { quits } => {
                let takes = &[Repr::Text, Repr::Text, Repr::I64, Repr::I64];
                let positive = Raises::Outside(&[(2, POSITIVE), (3, POSITIVE)]);
                row(takes, match_number, By::Automata("text_regex_place")).raises(if quits {
                    Raises::Always
                } else {
                    positive
                })
            }
            RegexReplace { all, quits } => row(THREE_TEXTS, text, "text_regex_replace")
                .constant(u32::from(all))
                .arena(Capacity::OfFirst(2))
                .raises(if quits { Raises::Always } else { Raises::Never }),
            Translate => row(THREE_TEXTS, text, "text_translate").sql("translate").arena(Capacity::OfFirst(2)),
            PadStart => row(PADDING, text, "text_pad")
                .constant(0)
                .sql("lpad")
                .filler(Filler::Blank)
                .arena(Capacity::Padded)
                .raises(TOO_LONG),
            PadEnd => row(PADDING, text, "text_pad")
                .constant(1)
                .sql("rpad")
                .filler(Filler::Blank)
                .arena(Capacity::Padded)
                .raises(TOO_LONG),
            Repeat => {
                row(TEXT_AND_NUMBER, text, "text_repeat").sql("repeat").arena(Capacity::Repeated).raises(Raises::Always)
            }
            OfCode => row(NUMBER, text, "text_of_code").sql("chr").arena(Capacity::PerRow(32)).raises(Raises::Always),
            OfInteger { scale } => {
                row(NUMBER, text, "text_of_integer").constant(scale.into()).arena(Capacity::PerRow(32))
            }
            OfDate => row(NUMBER, text, "text_of_date").arena(Capacity::PerRow(32)).raises(OTHER_YEARS),
        }
    }
}

impl From<&'static str> for By {
    fn from(helper: &'static str) -> By {
        By::Helper(helper)
    }
}

/// A strict function that creates no text and raises nothing.
fn row(takes: &'static [Repr], gives: Ty, by: impl Into<By>) -> Spec {
    Spec {
        sql: None,
        filler: None,
        takes: Takes::These(takes),
        gives,
        nulls: NullRule::Strict,
        by: by.into(),
        constant: None,
        arena: None,
        raises: Raises::Never,
    }
}

impl Spec {
    /// Numbers of arguments with which SQL may call the function.
    pub fn arguments(&self) -> std::ops::RangeInclusive<usize> {
        match (self.takes, self.filler) {
            (Takes::Texts(least), _) => least..=usize::MAX,
            (Takes::These(takes), None) => takes.len()..=takes.len(),
            (Takes::These(takes), Some(Filler::Cases { .. })) => takes.len() - 1..=takes.len() - 1,
            (Takes::These(takes), Some(_)) => takes.len() - 1..=takes.len(),
        }
    }

    /// Whether the function takes operands of these representations.
    pub(super) fn accepts(&self, given: &[Repr]) -> bool {
        match self.takes {
            Takes::These(takes) => takes == given,
            Takes::Texts(least) => given.len() >= least && given.iter().all(|repr| *repr == Repr::Text),
        }
    }

    fn sql(self, name: &'static str) -> Spec {
        Spec { sql: Some(name), ..self }
    }

    fn filler(self, filler: Filler) -> Spec {
        Spec { filler: Some(filler), ..self }
    }

    fn constant(self, value: u32) -> Spec {
        Spec { constant: Some(value.into()), ..self }
    }

    fn arena(self, capacity: Capacity) -> Spec {
        Spec { arena: Some(capacity), ..self }
    }

    fn raises(self, raises: Raises) -> Spec {
        Spec { raises, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_of_one_function() {
        let mut names: Vec<&str> = TextFunction::NAMED.iter().filter_map(|function| function.spec().sql).collect();
        assert_eq!(names.len(), TextFunction::NAMED.len());
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TextFunction::NAMED.len());
    }
}
