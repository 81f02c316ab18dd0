//! Recorded results as a file: a text header, then bytes.
//!
//! ```text
//!   millpond vectors 1
//!   device NVIDIA H200, compute capability 9.0
//!   driver 580.159.04, CUDA 13.0
//!   date 2026-11-22
//!   forms 412, vectors 71040, 5f0a…          ◄── hash of all names and operands
//!                                                (an empty line)
//!   form │ name length u16 │ name │ vectors u16 │ results u8 │ hash of the operands u64 │ widths u8… │ bits …
//! ```
//!
//! Bits       each result takes the fewest whole bytes for its width, least significant first; a predicate takes one
//!            byte.
//! Same       equal results give equal bytes.

use super::forms::Form;
use super::operands::{fnv, hash, operands};
use super::run::Results;

const MAGIC: &str = "millpond vectors 1";

/// Results of all forms on one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recording {
    /// Device name and compute capability.
    pub device: String,
    /// Driver version.
    pub driver: String,
    /// Date, as `2026-11-22`.
    pub date: String,
    pub forms: Vec<Recorded>,
}

/// The results of a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    pub name: String,
    /// Hash of the operands that gave the results.
    pub operands: u64,
    pub results: Results,
    /// Width of each result in bits.
    pub widths: Vec<u32>,
}

/// Hash of names and operands: recordings can be compared if their hashes are equal.
pub fn list_hash<'a>(forms: impl Iterator<Item = (&'a str, u64)>) -> u64 {
    let text: String = forms.map(|(name, operands)| format!("{name} {operands:016x}\n")).collect();
    fnv(text.as_bytes())
}

impl Recorded {
    pub fn new(form: &Form, results: Results) -> Recorded {
        Recorded { name: form.name.clone(), operands: hash(&operands(form)), results, widths: form.results.clone() }
    }

    fn rows(&self) -> usize {
        self.results.first().map_or(0, Vec::len)
    }
}

impl Recording {
    /// Number of vectors.
    pub fn vectors(&self) -> usize {
        self.forms.iter().map(Recorded::rows).sum()
    }

    /// Writes the bytes of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (forms, vectors) = (self.forms.len(), self.vectors());
        let list = list_hash(self.forms.iter().map(|form| (form.name.as_str(), form.operands)));
        let (device, driver, date) = (&self.device, &self.driver, &self.date);
        let header = format!(
            "{MAGIC}\ndevice {device}\ndriver {driver}\ndate {date}\nforms {forms}, vectors {vectors}, {list:016x}\n\n"
        );
        let mut bytes = header.into_bytes();
        for form in &self.forms {
            bytes.extend((form.name.len() as u16).to_le_bytes());
            bytes.extend(form.name.as_bytes());
            bytes.extend((form.rows() as u16).to_le_bytes());
            bytes.push(form.widths.len() as u8);
            bytes.extend(form.operands.to_le_bytes());
            bytes.extend(form.widths.iter().map(|bits| *bits as u8));
            for (values, bits) in form.results.iter().zip(&form.widths) {
                let width = bits.div_ceil(8) as usize;
                values.iter().for_each(|value| bytes.extend(&value.to_le_bytes()[..width]));
            }
        }
        bytes
    }

    /// Reads the bytes of a file.
    ///
    /// # Errors
    /// A description of the first defect.
    pub fn from_bytes(bytes: &[u8]) -> Result<Recording, String> {
        let end = bytes.windows(2).position(|two| two == b"\n\n").ok_or("it has no header")?;
        let header = std::str::from_utf8(&bytes[..end]).map_err(|_| "its header is no text")?;
        let lines: Vec<&str> = header.lines().collect();
        let [MAGIC, device, driver, date, list] = lines[..] else {
            return Err(format!("its header is not that of `{MAGIC}`"));
        };
        let value = |line: &str, key: &str| {
            line.strip_prefix(key).map(str::to_string).ok_or_else(|| format!("its header has no line `{key}…`"))
        };
        let (device, driver, date) = (value(device, "device ")?, value(driver, "driver ")?, value(date, "date ")?);
        let mut rest = Rest(&bytes[end + 2..]);
        let mut forms = Vec::new();
        while !rest.0.is_empty() {
            let length = rest.number(2)? as usize;
            let name = String::from_utf8(rest.take(length)?.to_vec()).map_err(|_| "the name of a form is no text")?;
            let rows = rest.number(2)? as usize;
            let count = rest.number(1)? as usize;
            let operands = rest.number(8)?;
            let widths: Vec<u32> = rest.take(count)?.iter().map(|bits| u32::from(*bits)).collect();
            let mut results = Vec::with_capacity(count);
            for bits in &widths {
                let width = bits.div_ceil(8) as usize;
                if width > 8 {
                    return Err(format!("{name} has a result of {bits} bits"));
                }
                results.push((0..rows).map(|_| rest.number(width)).collect::<Result<Vec<u64>, String>>()?);
            }
            forms.push(Recorded { name, operands, results, widths });
        }
        let recording = Recording { device, driver, date, forms };
        let hash = list_hash(recording.forms.iter().map(|form| (form.name.as_str(), form.operands)));
        let expected = format!("forms {}, vectors {}, {hash:016x}", recording.forms.len(), recording.vectors());
        if list != expected {
            return Err(format!("its header says `{list}`, and it holds `{expected}`"));
        }
        Ok(recording)
    }
}

/// The unread bytes.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or("it ends in the middle of a form")?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self, length: usize) -> Result<u64, String> {
        let mut word = [0; 8];
        word[..length].copy_from_slice(self.take(length)?);
        Ok(u64::from_le_bytes(word))
    }
}
