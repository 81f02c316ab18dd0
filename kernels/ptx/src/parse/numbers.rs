//! Numbers: literals, counts and offsets.
//!
//! Width    integers have 64 bits; a count beyond the type that it is read as is an error.

use super::{Parsed, Parser};
use crate::{PtxError, lex::Token};

pub(super) enum Number {
    Integer(i128),
    F32(u32),
    F64(u64),
}

/// Parses one literal without a sign, or returns an error message.
fn literal(text: &str) -> Result<Number, &'static str> {
    let prefix = text.get(..2).unwrap_or("");
    let digits = text.get(2..).unwrap_or("");
    match prefix {
        "0f" | "0F" => {
            if digits.len() != 8 || !digits.bytes().all(|c| c.is_ascii_hexdigit()) {
                return Err("a binary32 literal is `0f` and eight hexadecimal digits");
            }
            return u32::from_str_radix(digits, 16).map(Number::F32).map_err(|_| "not hexadecimal");
        }
        "0d" | "0D" => {
            if digits.len() != 16 || !digits.bytes().all(|c| c.is_ascii_hexdigit()) {
                return Err("a binary64 literal is `0d` and sixteen hexadecimal digits");
            }
            return u64::from_str_radix(digits, 16).map(Number::F64).map_err(|_| "not hexadecimal");
        }
        _ => {}
    }
    let hexadecimal = prefix == "0x" || prefix == "0X";
    if !hexadecimal && text.contains(['.', 'e', 'E']) {
        return text.parse().map(|value: f64| Number::F64(value.to_bits())).map_err(|_| "this is not a number");
    }
    let unsuffixed = text.strip_suffix('U').unwrap_or(text);
    let (digits, radix) = match prefix {
        "0x" | "0X" => (&unsuffixed[2..], 16),
        "0b" | "0B" => (unsuffixed.get(2..).unwrap_or(""), 2),
        _ if unsuffixed.len() > 1 && unsuffixed.starts_with('0') => (&unsuffixed[1..], 8),
        _ => (unsuffixed, 10),
    };
    if digits.is_empty() || !digits.bytes().all(|c| c.is_ascii_alphanumeric()) {
        return Err("this is not a number");
    }
    match u64::from_str_radix(digits, radix) {
        Ok(value) => Ok(Number::Integer(i128::from(value))),
        Err(error) if *error.kind() == std::num::IntErrorKind::PosOverflow => Err("this integer exceeds 64 bits"),
        Err(_) => Err("this is not a number"),
    }
}

impl<'a> Parser<'a> {
    /// A number with an optional minus sign.
    pub(super) fn number(&mut self) -> Parsed<Number> {
        let negative = self.accept('-')?;
        let Token::Number(text) = self.token else { return self.expected("a number") };
        let number = match literal(text) {
            Ok(number) => number,
            Err(message) => return self.fail(message),
        };
        let number = match (negative, number) {
            (false, number) => number,
            (true, Number::Integer(value)) if value <= 1 << 63 => Number::Integer(-value),
            (true, Number::Integer(_)) => return self.fail("this integer is below -2^63"),
            (true, Number::F32(bits)) => Number::F32(bits ^ 1 << 31),
            (true, Number::F64(bits)) => Number::F64(bits ^ 1 << 63),
        };
        self.advance()?;
        Ok(number)
    }

    pub(super) fn unsigned<T: TryFrom<i128>>(&mut self, what: &str) -> Parsed<T> {
        let span = self.span;
        if let Number::Integer(value) = self.number()?
            && let Ok(value) = T::try_from(value)
        {
            return Ok(value);
        }
        Err(PtxError::Syntax { span, message: format!("expected {what}") })
    }

    /// `+4`, `+-4` or `-4`; zero if there is no offset.
    pub(super) fn offset(&mut self) -> Parsed<i64> {
        if !self.at('+') && !self.at('-') {
            return Ok(0);
        }
        self.accept('+')?;
        let span = self.span;
        match self.number()? {
            // Offsets above 2⁶³ wrap, as address arithmetic does.
            Number::Integer(value) => Ok(value as i64),
            _ => Err(PtxError::Syntax { span, message: "an offset is an integer".into() }),
        }
    }
}
