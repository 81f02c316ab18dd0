//! Checks a folder of gpu-bdb tables against docs/gpu-bdb-data.md, the specification of the workload's data.
//!
//! ```text
//!   DIR, read from its files   ──►   one finding per promise: actual value, expected value, kept or not
//! ```
//!
//! Expected   numbers of the specification, repeated here; only the names of the columns are taken from the generator.
//! Scales     0.01, 0.1 and 1: those with published counts. Tolerances are for scale 1, and wider by √scale below.

mod files;
mod promises;
mod sales;

pub use files::Folder;

/// Numbers of the specification at one scale.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    pub scale: f64,
    pub counts: [(&'static str, u64); 17],
    /// Number of tickets and orders by the formula, without planted ones.
    pub orders: i64,
    /// Number of planted tickets, and of planted orders.
    pub planted: (i64, i64),
    pub items: i64,
}

const fn expected(
    scale: f64,
    planted_tickets: i64,
    [customers, addresses, items, prices, orders, reviews, demographics, inventory]: [u64; 8],
) -> Expected {
    Expected {
        scale,
        counts: [
            ("customer", customers),
            ("customer_address", addresses),
            ("item", items),
            ("item_marketprices", prices),
            ("product_reviews", reviews),
            ("customer_demographics", demographics),
            ("inventory", inventory),
            ("store", 12),
            ("warehouse", 5),
            ("promotion", 300),
            ("web_page", 60),
            ("reason", 35),
            ("date_dim", 109_573),
            ("time_dim", 86_400),
            ("household_demographics", 7_200),
            ("income_band", 20),
            ("ship_mode", 20),
        ],
        orders: orders as i64,
        planted: (planted_tickets, 28),
        items: items as i64,
    }
}

/// Inventory: 261 weeks, 5 warehouses, and below scale 1 every 100th or 10th of 12,000 items and the items 160 to 171.
pub const SCALES: [Expected; 3] = [
    expected(0.01, 101, [10_000, 5_000, 12_000, 60_000, 900, 9_009, 19_208, 261 * 5 * (120 + 12)]),
    expected(0.1, 101, [31_623, 15_812, 12_000, 60_000, 9_000, 28_550, 1_920_800, 261 * 5 * (1_200 + 10)]),
    expected(1.0, 37, [100_000, 50_000, 18_000, 90_000, 90_000, 90_900, 1_920_800, 23_490_000]),
];

/// One promise, and whether it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub kept: bool,
    pub text: String,
}

/// The findings so far.
#[derive(Debug, Default)]
pub struct Report {
    pub findings: Vec<Finding>,
}

impl Report {
    fn add(&mut self, kept: bool, text: String) {
        self.findings.push(Finding { kept, text });
    }

    fn equal<T: PartialEq + std::fmt::Display>(&mut self, what: &str, found: T, expected: T) {
        let kept = found == expected;
        self.add(kept, format!("{what}: {found}, expected {expected}"));
    }

    fn within(&mut self, what: &str, found: f64, low: f64, high: f64) {
        self.add((low..=high).contains(&found), format!("{what}: {found:.5}, expected {low:.5} to {high:.5}"));
    }

    fn none(&mut self, what: &str, violations: usize) {
        self.add(violations == 0, format!("{what}: {violations} violations"));
    }
}

/// Checks every promise; only an unreadable file stops it.
///
/// # Errors
/// If the scale is unknown, or a file is missing or not Parquet.
pub fn check(folder: &Folder) -> Result<Report, String> {
    let scale = folder.scale()?;
    let expected = SCALES
        .iter()
        .find(|known| known.scale == scale)
        .ok_or_else(|| format!("the files are of scale {scale}; known are 0.01, 0.1 and 1"))?;
    let mut report = Report::default();
    promises::counts(folder, expected, &mut report)?;
    promises::keys(folder, &mut report)?;
    promises::nulls(folder, &mut report)?;
    promises::dimensions(folder, expected, &mut report)?;
    sales::sales(folder, expected, &mut report)?;
    sales::returns(folder, expected, &mut report)?;
    sales::clicks(folder, expected, &mut report)?;
    promises::inventory(folder, &mut report)?;
    promises::reviews(folder, expected, &mut report)?;
    Ok(report)
}
