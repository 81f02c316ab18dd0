//! Tables that no query reads; other tables refer to their keys: `income_band`, `reason`, `ship_mode`, `web_site`.
//!
//! ```text
//!   20 income bands of 10,000 each · 20 ways to ship · 30 sites · reasons by scale
//! ```

use super::calendar::{FIRST_DAY, LAST_SALES_DAY, date_text};
use super::names::{id16, place};
use super::places::{address_columns, person};
use super::rows::Rows;
use super::{DataSet, Table};
use crate::DataError;

pub(crate) const NUM_INCOME_BANDS: u64 = 20;
pub(crate) const NUM_SHIP_MODES: u64 = 20;
pub(crate) const NUM_WEB_SITES: u64 = 30;

const VALUES: u64 = 100;
const PLACE: u64 = 101;

impl DataSet {
    /// Row `key` of `income_band`, from 1.
    pub(crate) fn income_band_row(&self, key: u64, rows: &mut Rows) -> Result<(), DataError> {
        let low = 10_000 * (key as i64 - 1);
        rows.key(key as i64);
        rows.int(if key == 1 { 0 } else { low + 1 });
        rows.int(low + 10_000);
        rows.end()
    }

    /// Row `key` of `reason`, from 1.
    pub(crate) fn reason_row(&self, key: u64, rows: &mut Rows) -> Result<(), DataError> {
        const WHY: [&str; 6] =
            ["Did not fit", "Arrived late", "Not as shown", "Bought twice", "Found it for less", "Changed my mind"];
        rows.key(key as i64);
        rows.text(&id16(key));
        rows.text(&format!("{} ({key})", WHY[key as usize % WHY.len()]));
        rows.end()
    }

    /// Row `key` of `ship_mode`, from 1.
    pub(crate) fn ship_mode_row(&self, key: u64, rows: &mut Rows) -> Result<(), DataError> {
        let index = key as usize - 1;
        rows.key(key as i64);
        rows.text(&id16(key));
        rows.text(["Regular", "Express", "Overnight", "Two Days", "Pick Up"][index % 5]);
        rows.text(["Air", "Road", "Rail", "Sea"][index / 5 % 4]);
        rows.text(&format!("Carrier {key}"));
        rows.text(&format!("Contract {key:04}"));
        rows.end()
    }

    /// Row `key` of `web_site`, from 1.
    pub(crate) fn web_site_row(&self, key: u64, rows: &mut Rows) -> Result<(), DataError> {
        let draws = self.draws(Table::WebSite, VALUES, key);
        let opened = draws.int(0, FIRST_DAY - 1_000, FIRST_DAY - 1);
        rows.key(key as i64);
        rows.text(&id16(key));
        rows.text(&date_text(opened));
        rows.text_or_null(None);
        rows.text(&format!("site_{}", key - 1));
        rows.key(opened);
        rows.key(LAST_SALES_DAY + 1 + draws.int(1, 0, 364));
        rows.text("Unknown");
        rows.text(&person(draws, 2));
        let market = draws.int(4, 1, 6);
        rows.int(market);
        rows.text("Unknown");
        rows.text(&format!("Market {market}"));
        rows.text(&person(draws, 5));
        let company = draws.int(7, 1, 6);
        rows.int(company);
        rows.text(&format!("Company {company}"));
        address_columns(&place(self.draws(Table::WebSite, PLACE, key), false), rows);
        rows.money(draws.hundredths(8, 0, 12));
        rows.end()
    }
}
