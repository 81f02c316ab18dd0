//! Customers, their addresses and demographics: `customer`, `customer_address` and the two tables of demographics.
//!
//! ```text
//!   customer c ─► current demographics, household, address      sales copy the customer's three keys
//! ```
//!
//! NULL     a customer's key may be NULL in its own row and set in a sale, or the reverse: each column is drawn
//!          independently.

use super::calendar::{FIRST_DAY, SALES_DAYS, date_text};
use super::names::{COUNTRIES, FIRST_NAMES, LAST_NAMES, PROVIDERS, id16, pick, place};
use super::places::address_columns;
use super::rows::Rows;
use super::{DataSet, NULL_SHARE, Table};
use crate::DataError;

const KEYS: u64 = 100;
const VALUES: u64 = 101;
const NULLS: u64 = 102;
const LOGIN: u64 = 103;
/// Rows of `household_demographics`.
pub(crate) const NUM_HOUSEHOLDS: u64 = 7_200;

/// Current keys of a customer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CustomerKeys {
    pub(crate) demographics: i64,
    pub(crate) household: i64,
    pub(crate) address: i64,
}

impl DataSet {
    /// Current keys of a customer, even if its own row has NULL instead.
    pub(crate) fn customer_keys(&self, customer: i64) -> CustomerKeys {
        let draws = self.draws(Table::Customer, KEYS, customer as u64);
        CustomerKeys {
            demographics: draws.int(0, 1, self.sizes.customer_demographics as i64),
            household: draws.int(1, 1, NUM_HOUSEHOLDS as i64),
            address: draws.int(2, 1, self.sizes.addresses as i64),
        }
    }

    /// Row `key` of `customer`, from 1.
    pub(crate) fn customer_row(&self, key: u64, rows: &mut Rows) -> Result<(), DataError> {
        let draws = self.draws(Table::Customer, VALUES, key);
        let nulls = self.draws(Table::Customer, NULLS, key);
        let present = |draw| !nulls.chance(draw, NULL_SHARE);
        let keys = self.customer_keys(key as i64);
        let first_name = pick(&FIRST_NAMES, draws, 0);
        let last_name = pick(&LAST_NAMES, draws, 1);
        let first_sale = draws.int(2, FIRST_DAY - 3_650, FIRST_DAY - 31);
        rows.key(key as i64);
        rows.text(&id16(key));
        rows.key_or_null(present(0).then_some(keys.demographics));
        rows.key_or_null(present(1).then_some(keys.household));
        rows.key_or_null(present(2).then_some(keys.address));
        rows.key(first_sale + 30);
        rows.key(first_sale);
        rows.text(pick(&["Dr.", "Miss", "Mr.", "Mrs.", "Ms.", "Sir"], draws, 3));
        rows.text(first_name);
        rows.text(last_name);
        rows.text_or_null(present(3).then(|| if draws.chance(4, 0.5) { "Y" } else { "N" }));
        rows.int(draws.int(5, 1, 28));
        rows.int(draws.int(6, 1, 12));
        rows.int(draws.int(7, 1924, 1992));
        rows.text_or_null(present(4).then(|| pick(&COUNTRIES, draws, 8)));
        let letters = self.draws(Table::Customer, LOGIN, key);
        let login: String = (1..=letters.int(0, 1, 13) as u64)
            .map(|draw| char::from(b"abcdefghijklmnopqrstuvwxyz0123456789"[letters.index(draw, 36)]))
            .collect();
        rows.text_or_null(present(5).then_some(&login));
        let email = format!("{first_name}.{last_name}@{}", pick(&PROVIDERS, draws, 9));
        rows.text_or_null(present(6).then_some(&email));
        rows.text(&date_text(FIRST_DAY + draws.int(10, 0, SALES_DAYS as i64)));
        rows.end()
    }

    /// Row `key` of `customer_address`, from 1.
    pub(crate) fn customer_address_row(&self, key: u64, rows: &mut Rows) -> Result<(), DataError> {
        let draws = self.draws(Table::CustomerAddress, VALUES, key);
        let place = place(draws, false);
        rows.key(key as i64);
        rows.text(&id16(key));
        address_columns(&place, rows);
        rows.text(pick(&["apartment", "condo", "single family"], draws, 10));
        rows.end()
    }

    /// Row `key` of `customer_demographics`, from 1: independent draws.
    pub(crate) fn customer_demographics_row(&self, key: u64, rows: &mut Rows) -> Result<(), DataError> {
        const EDUCATION: [&str; 7] =
            ["Primary", "Secondary", "College", "2 yr Degree", "4 yr Degree", "Advanced Degree", "Unknown"];
        let draws = self.draws(Table::CustomerDemographics, VALUES, key);
        let nulls = self.draws(Table::CustomerDemographics, NULLS, key);
        let present = |draw| !nulls.chance(draw, NULL_SHARE);
        rows.key(key as i64);
        rows.text_or_null(present(0).then(|| pick(&["M", "F"], draws, 0)));
        rows.text_or_null(present(1).then(|| pick(&["M", "S", "D", "W", "U"], draws, 1)));
        rows.text_or_null(present(2).then(|| pick(&EDUCATION, draws, 2)));
        rows.int(500 * draws.int(3, 1, 20));
        rows.text(pick(&["Good", "High Risk", "Low Risk", "Unknown"], draws, 4));
        rows.int(draws.int(5, 0, 6));
        rows.int(draws.int(6, 0, 6));
        rows.int(draws.int(7, 0, 6));
        rows.end()
    }

    /// Row `key` of `household_demographics`, from 1.
    pub(crate) fn household_demographics_row(&self, key: u64, rows: &mut Rows) -> Result<(), DataError> {
        // Percentages of 0, 1, … dependents, and of -1, 0, … vehicles.
        const DEPENDENTS: [i64; 10] = [25, 25, 10, 10, 8, 8, 5, 5, 2, 2];
        const VEHICLES: [i64; 6] = [4, 17, 17, 35, 22, 5];
        let draws = self.draws(Table::HouseholdDemographics, VALUES, key);
        let nulls = self.draws(Table::HouseholdDemographics, NULLS, key);
        rows.key(key as i64);
        rows.key(draws.int(0, 1, super::small::NUM_INCOME_BANDS as i64));
        rows.text(pick(&["0-500", "501-1000", "1001-5000", "5001-10000", ">10000", "Unknown"], draws, 1));
        rows.int_or_null((!nulls.chance(0, NULL_SHARE)).then(|| weighted(&DEPENDENTS, draws.int(2, 0, 99))));
        rows.int(weighted(&VEHICLES, draws.int(3, 0, 99)) - 1);
        rows.end()
    }
}

/// First index whose cumulative weight exceeds `value`.
pub(crate) fn weighted(weights: &[i64], mut value: i64) -> i64 {
    for (place, weight) in weights.iter().enumerate() {
        if value < *weight {
            return place as i64;
        }
        value -= weight;
    }
    weights.len() as i64 - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_choose_their_share_of_the_values() {
        let mut counts = [0; 3];
        (0..10).for_each(|value| counts[weighted(&[2, 5, 3], value) as usize] += 1);
        assert_eq!(counts, [2, 5, 3]);
    }
}
