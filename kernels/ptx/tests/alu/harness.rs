//! Runs one instruction on tables of cases.
//!
//! Registers  input i of a case is in %p(i) %b(i) %rs(i) %r(i) %rd(i) %f(i) %fd(i), counted from 1; the result is read
//!            from register 0 of the first class in the text, a second result from register 9.
//! Lanes      every table runs with all lanes and with every other lane; inactive lanes must keep a poison value.

use millpond_ptx::ast::{Instruction, Statement};
use millpond_ptx::interpret::alu::{AluError, AluOp, Names, Register, Row, decode};

const CLASSES: [(&str, u32); 7] = [("p", 1), ("b", 8), ("rs", 16), ("r", 32), ("rd", 64), ("f", 32), ("fd", 64)];
const NUMBERS: usize = 10;
const SINK: usize = CLASSES.len() * NUMBERS;
pub const CARRY: usize = SINK + 1;
const ROWS: usize = CARRY + 1;
const POISON: u64 = 0xdead_beef_dead_beef;

#[derive(Default)]
struct Registers {
    constants: Vec<Row>,
}

fn register(name: &str) -> Option<(usize, u32)> {
    let name = name.strip_prefix('%')?;
    let digits = name.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    let class = &name[..name.len() - digits.len()];
    let number: usize = digits.parse().ok()?;
    let place = CLASSES.iter().position(|(known, _)| *known == class)?;
    (number < NUMBERS).then_some((place * NUMBERS + number, CLASSES[place].1))
}

impl Names for Registers {
    fn register(&mut self, name: &str) -> Option<Register> {
        register(name).map(|(row, bits)| Register { row: row as u32, bits })
    }
    fn constant(&mut self, bits: u64) -> u32 {
        self.constants.push([bits; 32]);
        self.constants.len() as u32 - 1
    }
    fn sink(&mut self) -> u32 {
        SINK as u32
    }
    fn carry(&mut self) -> u32 {
        CARRY as u32
    }
}

/// Parses the instruction in a module, on line 4.
pub fn parse(text: &str) -> Instruction {
    let module = format!(
        ".version 8.2\n.target sm_80\n.address_size 64\n.visible .entry kernel() {{ {} ; }}",
        text.trim_end_matches(';')
    );
    let module = millpond_ptx::parse(&module).unwrap_or_else(|error| panic!("`{text}`: {error}"));
    let body = module.functions().next().and_then(|function| function.body.as_ref()).expect("one kernel");
    match &body[..] {
        [Statement::Instruction(instruction)] => instruction.clone(),
        other => panic!("`{text}` is {} statements", other.len()),
    }
}

/// A decoded instruction.
pub struct Loaded {
    text: String,
    op: AluOp,
    constants: Vec<Row>,
    /// Rows of the first and the second result.
    results: [Option<(usize, u32)>; 2],
}

pub fn try_load(text: &str) -> Option<Result<Loaded, AluError>> {
    let mut names = Registers::default();
    let instruction = parse(text);
    let result = decode(&instruction, &mut names)?;
    let row = |number: &str| {
        text.split(|c: char| !c.is_ascii_alphanumeric() && c != '%')
            .find(|word| word.starts_with('%') && word.trim_start_matches(|c: char| !c.is_ascii_digit()) == number)
            .and_then(register)
    };
    let results = [row("0"), row("9")];
    Some(result.map(|op| Loaded { text: text.into(), op, constants: names.constants, results }))
}

pub fn load(text: &str) -> Loaded {
    match try_load(text) {
        Some(Ok(loaded)) => loaded,
        Some(Err(error)) => panic!("{error}"),
        None => panic!("`{text}` is not arithmetic"),
    }
}

/// Result of one lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    pub first: u64,
    pub second: u64,
    pub carry: u64,
}

impl Loaded {
    /// Runs up to 32 cases with the lanes of `mask` and these initial carries (default 0).
    fn run_rows(&self, cases: &[Vec<u64>], carries: &[u64], mask: u32) -> Vec<Outcome> {
        let mut rows = vec![[POISON; 32]; ROWS];
        rows[CARRY] = [0; 32];
        for (lane, case) in cases.iter().enumerate() {
            rows[CARRY][lane] = carries.get(lane).copied().unwrap_or(0);
            for (index, &value) in case.iter().enumerate() {
                for (place, (_, bits)) in CLASSES.iter().enumerate() {
                    rows[place * NUMBERS + index + 1][lane] = value & u64::MAX >> (64 - bits);
                }
            }
        }
        let before = rows.clone();
        self.op.apply(&mut rows, &self.constants, mask);
        for (index, row) in rows.iter().enumerate() {
            for lane in 0..32 {
                let may_change = mask >> lane & 1 != 0 && self.op.destinations().contains(&(index as u32));
                assert!(
                    may_change || row[lane] == before[index][lane],
                    "`{}` touched row {index} lane {lane}",
                    self.text
                );
            }
        }
        for (row, bits) in self.results.into_iter().flatten() {
            for lane in (0..32).filter(|lane| mask >> lane & 1 != 0) {
                let beyond = rows[row][lane] & !(u64::MAX >> (64 - bits));
                assert_eq!(beyond, 0, "`{}` leaves bits above its {bits}-bit result", self.text);
            }
        }
        let value = |result: Option<(usize, u32)>, lane: usize| result.map_or(0, |(row, _)| rows[row][lane]);
        (0..cases.len())
            .map(|lane| Outcome {
                first: value(self.results[0], lane),
                second: value(self.results[1], lane),
                carry: rows[CARRY][lane],
            })
            .collect()
    }

    /// Outcomes of any number of cases.
    pub fn run(&self, cases: &[Vec<u64>]) -> Vec<Outcome> {
        self.run_with_carry(cases, &[])
    }

    pub fn run_with_carry(&self, cases: &[Vec<u64>], carries: &[u64]) -> Vec<Outcome> {
        let mut out = Vec::new();
        for (chunk, cases) in cases.chunks(32).enumerate() {
            let carries = carries.get(chunk * 32..).unwrap_or(&[]);
            let all = self.run_rows(cases, carries, u32::MAX);
            let even = self.run_rows(cases, carries, 0x5555_5555);
            for lane in (0..cases.len()).step_by(2) {
                assert_eq!(all[lane], even[lane], "`{}` depends on the mask", self.text);
            }
            out.extend(all);
        }
        out
    }

    pub fn one(&self, case: &[u64]) -> u64 {
        self.run(&[case.to_vec()])[0].first
    }
}

/// Checks the first result of every case.
#[track_caller]
pub fn table<const N: usize>(text: &str, cases: &[([u64; N], u64)]) {
    let loaded = load(text);
    let inputs: Vec<_> = cases.iter().map(|(inputs, _)| inputs.to_vec()).collect();
    for ((inputs, expected), found) in cases.iter().zip(loaded.run(&inputs)) {
        assert_eq!(found.first, *expected, "`{text}` of {inputs:#x?} gave {:#x}, not {expected:#x}", found.first);
    }
}

/// Checks both results of every case.
#[track_caller]
pub fn table2<const N: usize>(text: &str, cases: &[([u64; N], (u64, u64))]) {
    let loaded = load(text);
    let inputs: Vec<_> = cases.iter().map(|(inputs, _)| inputs.to_vec()).collect();
    for ((inputs, expected), found) in cases.iter().zip(loaded.run(&inputs)) {
        assert_eq!((found.first, found.second), *expected, "`{text}` of {inputs:#x?}");
    }
}

/// Bits of a signed number in a 32-bit lane.
pub fn s32(value: i64) -> u64 {
    u64::from(value as u32)
}
pub fn s16(value: i64) -> u64 {
    u64::from(value as u16)
}
pub fn s64(value: i64) -> u64 {
    value as u64
}
pub fn f(value: f32) -> u64 {
    u64::from(value.to_bits())
}
pub fn d(value: f64) -> u64 {
    value.to_bits()
}

pub const INF: u64 = 0x7f80_0000;
pub const NEG_INF: u64 = 0xff80_0000;
pub const NAN: u64 = 0x7fff_ffff;
pub const SNAN: u64 = 0x7f80_0001;
pub const NEG_ZERO: u64 = 0x8000_0000;
pub const D_INF: u64 = 0x7ff0_0000_0000_0000;
pub const D_NEG_INF: u64 = 0xfff0_0000_0000_0000;
pub const D_NAN: u64 = 0xfff8_0000_0000_0000;
pub const D_NEG_ZERO: u64 = 1 << 63;

/// Random words with many special values: small, near a power of two, near the limits.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        // SplitMix64 (Steele, Lea, Flood 2014)
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A random word of `bits` bits.
    pub fn word(&mut self, bits: u32) -> u64 {
        let mask = u64::MAX >> (64 - bits);
        let small = self.below(5).wrapping_sub(2);
        mask & match self.below(6) {
            0 => small,
            1 => (1u64 << self.below(u64::from(bits))).wrapping_add(small),
            2 => (mask >> 1).wrapping_add(small),
            3 => self.next() & self.next() & self.next(),
            _ => self.next(),
        }
    }
}
