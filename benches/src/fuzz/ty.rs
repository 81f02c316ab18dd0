//! The SQL types that the generator knows, their names and their literals.

use std::fmt;

use super::constant::Constant;
use super::rng::Rng;

/// A type. Some are narrower than SQL's, so that an answer does not depend on the order in which rows are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ty {
    /// Signed or not, and its bits.
    Int(bool, u8),
    F32,
    F64,
    /// Floats whose sums are exact: multiples of 1/16 near zero. Any of them is also an `F32` or `F64`.
    Even32,
    Even64,
    Dec(u8, i8),
    /// A decimal of 256 bits, whose sums and arithmetic stay on the CPU.
    Wide(u8, i8),
    Date,
    /// Digits of the second, and the zone.
    Time(u8, Zone),
    /// A time from the year 1 to the year 9999, which nanoseconds do not reach; its digits of the second. Apart from
    /// [`Ty::Time`], because every cast of such a column to nanoseconds is an error.
    Era(u8),
    Span(Span),
    Bool,
    Text,
    /// A list of 64-bit integers.
    Ints,
    /// A structure of a `number`, a 64-bit integer, and a `word`, a text.
    Pair,
    /// A float of 16 bits; none is NaN or -0.0.
    Half,
    /// Some number: what DataFusion's coercion makes of an operator over two types.
    Number,
}

/// A time's zone: none, one whose offset never changes, or one with summer time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zone {
    None,
    PlusTwo,
    Utc,
    Berlin,
}

/// An interval's unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    Months,
    /// Days and milliseconds.
    Days,
    /// Months, days and nanoseconds.
    Mixed,
}

pub const INTEGERS: [Ty; 8] = [
    Ty::Int(true, 8),
    Ty::Int(true, 16),
    Ty::Int(true, 32),
    Ty::Int(true, 64),
    Ty::Int(false, 8),
    Ty::Int(false, 16),
    Ty::Int(false, 32),
    Ty::Int(false, 64),
];
pub const DECIMALS: [Ty; 5] = [Ty::Dec(5, 2), Ty::Dec(15, 2), Ty::Dec(18, 4), Ty::Dec(38, 10), Ty::Dec(12, 0)];
/// The first four have no zone.
pub const TIMES: [Ty; 9] = [
    Ty::Time(0, Zone::None),
    Ty::Time(3, Zone::None),
    Ty::Time(6, Zone::None),
    Ty::Time(9, Zone::None),
    Ty::Time(6, Zone::PlusTwo),
    Ty::Time(9, Zone::PlusTwo),
    Ty::Time(3, Zone::Utc),
    Ty::Time(9, Zone::Utc),
    Ty::Time(6, Zone::Berlin),
];
pub const ERAS: [Ty; 3] = [Ty::Era(0), Ty::Era(3), Ty::Era(6)];
pub const SPANS: [Ty; 3] = [Ty::Span(Span::Months), Ty::Span(Span::Days), Ty::Span(Span::Mixed)];
pub const WIDE: Ty = Ty::Wide(50, 6);

/// Arrow's name of a unit of time.
fn unit(digits: u8) -> &'static str {
    match digits {
        0 => "Second",
        3 => "Millisecond",
        6 => "Microsecond",
        _ => "Nanosecond",
    }
}

impl fmt::Display for Ty {
    /// Arrow's name, as `arrow_cast` reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Ty::Int(signed, bits) => write!(f, "{}Int{bits}", if signed { "" } else { "U" }),
            Ty::F32 | Ty::Even32 => f.write_str("Float32"),
            Ty::F64 | Ty::Even64 | Ty::Number => f.write_str("Float64"),
            Ty::Dec(precision, scale) => write!(f, "Decimal128({precision}, {scale})"),
            Ty::Wide(precision, scale) => write!(f, "Decimal256({precision}, {scale})"),
            Ty::Date => f.write_str("Date32"),
            Ty::Time(digits, zone) => {
                let zone = match zone {
                    Zone::None => "None",
                    Zone::PlusTwo => "Some(\"+02:00\")",
                    Zone::Utc => "Some(\"UTC\")",
                    Zone::Berlin => "Some(\"Europe/Berlin\")",
                };
                write!(f, "Timestamp({}, {zone})", unit(digits))
            }
            Ty::Era(digits) => write!(f, "Timestamp({}, None)", unit(digits)),
            Ty::Span(Span::Months) => f.write_str("Interval(YearMonth)"),
            Ty::Span(Span::Days) => f.write_str("Interval(DayTime)"),
            Ty::Span(Span::Mixed) => f.write_str("Interval(MonthDayNano)"),
            Ty::Bool => f.write_str("Boolean"),
            Ty::Text => f.write_str("Utf8"),
            Ty::Ints => f.write_str("List(Int64)"),
            Ty::Pair => f.write_str("Struct(\"number\": Int64, \"word\": Utf8)"),
            Ty::Half => f.write_str("Float16"),
        }
    }
}

impl Ty {
    /// SQL's own name, for CAST and TRY_CAST; `None` where it has none.
    pub fn sql(self) -> Option<String> {
        Some(match self {
            Ty::Int(true, 8) => "TINYINT".into(),
            Ty::Int(true, 16) => "SMALLINT".into(),
            Ty::Int(true, 32) => "INT".into(),
            Ty::Int(true, _) => "BIGINT".into(),
            Ty::Int(false, 8) => "TINYINT UNSIGNED".into(),
            Ty::Int(false, 16) => "SMALLINT UNSIGNED".into(),
            Ty::Int(false, 32) => "INT UNSIGNED".into(),
            Ty::Int(false, _) => "BIGINT UNSIGNED".into(),
            Ty::F32 | Ty::Even32 => "REAL".into(),
            Ty::F64 | Ty::Even64 => "DOUBLE".into(),
            Ty::Dec(precision, scale) => format!("DECIMAL({precision},{scale})"),
            Ty::Date => "DATE".into(),
            Ty::Time(digits, Zone::None) | Ty::Era(digits) => format!("TIMESTAMP({digits})"),
            Ty::Bool => "BOOLEAN".into(),
            Ty::Text => "VARCHAR".into(),
            Ty::Time(..) | Ty::Wide(..) | Ty::Span(_) | Ty::Number => return None,
            Ty::Ints | Ty::Pair | Ty::Half => return None,
        })
    }

    pub fn is_integer(self) -> bool {
        matches!(self, Ty::Int(..))
    }

    pub fn is_decimal(self) -> bool {
        matches!(self, Ty::Dec(..))
    }

    pub fn is_number(self) -> bool {
        let number = !matches!(self, Ty::Wide(..) | Ty::Date | Ty::Time(..) | Ty::Era(_) | Ty::Span(_));
        number && !matches!(self, Ty::Bool | Ty::Text | Ty::Half) && !self.is_nested()
    }

    pub fn is_nested(self) -> bool {
        matches!(self, Ty::Ints | Ty::Pair)
    }

    /// True of a type that has NaN.
    pub fn has_nan(self) -> bool {
        matches!(self, Ty::F32 | Ty::F64)
    }

    /// True if an expression of this type may replace one of type `wanted`.
    pub fn serves(self, wanted: Ty) -> bool {
        self == wanted
            || matches!((self, wanted), (Ty::Even32, Ty::F32) | (Ty::Even64, Ty::F64))
            || (wanted == Ty::Number && self.is_number() && !matches!(self, Ty::F32 | Ty::F64))
    }

    /// NULL of this type.
    pub fn null(self) -> String {
        format!("arrow_cast(NULL, '{self}')")
    }

    /// A literal of exactly this type.
    pub fn literal(self, rng: &mut Rng) -> Constant {
        if rng.chance(6) { Constant::same(self.null()) } else { self.value(rng) }
    }

    /// A literal that is not NULL.
    pub fn value(self, rng: &mut Rng) -> Constant {
        Constant::text(rng, |rng| self.text(rng))
    }

    fn text(self, rng: &mut Rng) -> String {
        let cast = |text: String| format!("arrow_cast({text}, '{self}')");
        match self {
            Ty::Int(signed, bits) => {
                let max = if signed { (1_i128 << (bits - 1)) - 1 } else { (1_i128 << bits) - 1 };
                let min = if signed { -max - 1 } else { 0 };
                let value = match rng.below(12) {
                    0 => max,
                    1 => min,
                    2 => 0,
                    // Around the ends of the widths in which columns of 64 bits may lie.
                    3 if bits == 64 => {
                        let near =
                            rng.pick(&[127, 255, 32_767, 65_535, i32::MAX.into(), u32::MAX.into(), 1_i128 << 62]);
                        (near + i128::from(rng.between(-1, 2))) * if signed && rng.chance(40) { -1 } else { 1 }
                    }
                    _ => i128::from(rng.between(if signed { -20 } else { 0 }, 20)),
                };
                match (signed, bits) {
                    (true, 64) if value > min => value.to_string(),
                    // The least of 64 bits has no literal of its own.
                    (true, 64) => "(-9223372036854775807 - 1)".into(),
                    _ => cast(value.to_string()),
                }
            }
            Ty::Even32 | Ty::Even64 => cast(format!("{}", rng.between(-160, 160) as f64 / 16.0)),
            Ty::F32 | Ty::F64 => match rng.below(8) {
                0 if rng.chance(50) => cast("'NaN'".into()),
                0 => format!("(- {})", cast("'NaN'".into())),
                1 => cast(format!("'{}'", rng.pick(&["inf", "-inf"]))),
                2 => cast(format!("'{}'", rng.pick(&["0.0", "-0.0"]))),
                _ => cast(format!("'{}'", rng.between(-1600, 1600) as f64 / 16.0)),
            },
            Ty::Dec(precision, scale) => {
                let digits = rng.between(1, i64::from(precision.min(12)).min(6)) as u32;
                let value =
                    rng.between(-(10_i64.pow(digits)), 10_i64.pow(digits)) % 10_i64.pow(u32::from(precision.min(18)));
                let factor = 10_i64.pow(scale as u32);
                let sign = if value < 0 { "-" } else { "" };
                let (whole, part) = (value.abs() / factor, value.abs() % factor);
                match scale {
                    0 => cast(format!("'{sign}{whole}'")),
                    scale => cast(format!("'{sign}{whole}.{part:0width$}'", width = scale as usize)),
                }
            }
            Ty::Wide(..) => cast(format!("'{}.{:06}'", rng.between(-999, 999), rng.below(1_000_000))),
            Ty::Date if rng.chance(15) => format!("DATE '{}'", far_day(rng)),
            Ty::Date => format!("DATE '{}'", day(rng)),
            Ty::Time(..) | Ty::Era(_) => {
                let day = if matches!(self, Ty::Era(_)) && rng.chance(50) { far_day(rng) } else { day(rng) };
                // Some local hours occur twice, and some never.
                let zone = if matches!(self, Ty::Time(_, Zone::Berlin)) { "Z" } else { "" };
                cast(format!("'{day}T{:02}:{:02}:{:02}{zone}'", rng.below(24), rng.below(60), rng.below(60)))
            }
            Ty::Span(Span::Months) => cast(format!("'{} months'", rng.between(-30, 30))),
            Ty::Span(Span::Days) => {
                cast(format!("'{} days {} milliseconds'", rng.between(-40, 40), rng.between(-90_000, 90_000)))
            }
            Ty::Span(Span::Mixed) => cast(format!(
                "'{} months {} days {} seconds'",
                rng.between(-3, 3),
                rng.between(-40, 40),
                rng.between(-90_000, 90_000)
            )),
            Ty::Bool => rng.pick(&["true", "false"]).into(),
            Ty::Text if rng.chance(25) => {
                let row = rng.below(200);
                format!("'{}'", super::data::grown(row, rng.below(2)))
            }
            Ty::Text => format!("'{}'", rng.pick(&super::data::WORDS).replace('\'', "''")),
            Ty::Ints => {
                let more = |rng: &mut Rng| match rng.below(3) {
                    0 => ", NULL".to_string(),
                    _ => format!(", {}", rng.between(-3, 3)),
                };
                let rest: String = (0..rng.below(3)).map(|_| more(rng)).collect();
                format!("[{}{rest}]", rng.between(-3, 3))
            }
            Ty::Pair => {
                let (number, word) = (Ty::Int(true, 64), Ty::Text);
                let mut field = |ty: Ty| if rng.chance(20) { ty.null() } else { ty.text(rng) };
                format!("named_struct('number', {}, 'word', {})", field(number), field(word))
            }
            Ty::Half => cast(format!("{}", rng.between(-40, 40) as f64 / 8.0)),
            Ty::Number => format!("{}", rng.between(-30, 30)),
        }
    }
}

fn day(rng: &mut Rng) -> String {
    let year = rng.pick(&[1969, 1970, 1999, 2000, 2023, 2024]);
    format!("{year}-{:02}-{:02}", rng.between(1, 12), rng.between(1, 28))
}

/// A day of the years 1 to 9999.
fn far_day(rng: &mut Rng) -> String {
    let year = match rng.below(4) {
        0 => rng.pick(&[1, 4, 1582, 1900, 2400, 9999]),
        _ => rng.between(1, 9999),
    };
    format!("{year:04}-{:02}-{:02}", rng.between(1, 12), rng.between(1, 28))
}
