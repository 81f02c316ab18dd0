//! Places of sale and storage, and advertising: `store`, `warehouse`, `web_page`, `promotion`.
//!
//! ```text
//!   store 10 is in Georgia · page k has type k mod 8 · pages 1 to 3 have medium length      queries rely on these
//! ```

use super::calendar::{FIRST_DAY, LAST_SALES_DAY, date_text};
use super::lexicon::store_name;
use super::names::{FIRST_NAMES, LAST_NAMES, Place, id16, pick, place};
use super::random::{Draws, Random};
use super::rows::Rows;
use super::{DataSet, NULL_SHARE, Table};
use crate::DataError;

const PLACE: u64 = 100;
const VALUES: u64 = 101;
const NULLS: u64 = 102;
const NAME: u64 = 103;
/// The store that queries name.
const GEORGIA_STORE: u64 = 10;

/// Names of all stores: distinct, except that one in twenty repeats an earlier name.
pub(crate) fn store_names(random: Random, count: u64) -> Vec<String> {
    let mut names: Vec<String> = Vec::with_capacity(count as usize);
    let mut fresh = 0;
    for store in 1..=count {
        let draws = random.column(Table::Store.id(), NAME).row(store);
        if !names.is_empty() && draws.chance(0, 0.05) {
            names.push(names[draws.index(1, names.len())].clone());
        } else {
            names.push(store_name(fresh));
            fresh += 1;
        }
    }
    names
}

pub(crate) fn person(draws: Draws, draw: u64) -> String {
    format!("{} {}", pick(&FIRST_NAMES, draws, draw), pick(&LAST_NAMES, draws, draw + 1))
}

/// The ten columns of an address, from street number to offset.
pub(crate) fn address_columns(place: &Place, rows: &mut Rows) {
    rows.text(&place.street_number);
    rows.text(place.street_name);
    rows.text(place.street_type);
    rows.text(&place.suite);
    rows.text(place.city);
    rows.text(&place.county);
    rows.text(place.state);
    rows.text(&place.zip);
    rows.text("United States");
    rows.money(100 * place.offset);
}

impl DataSet {
    /// Row `key` of `store`, from 1.
    pub(crate) fn store_row(&self, key: u64, rows: &mut Rows) -> Result<(), DataError> {
        let draws = self.draws(Table::Store, VALUES, key);
        rows.key(key as i64);
        rows.text(&id16(key));
        rows.text(&date_text(draws.int(0, FIRST_DAY - 1_000, FIRST_DAY - 1)));
        rows.text_or_null(None);
        rows.key(LAST_SALES_DAY + 1 + draws.int(1, 0, 364));
        rows.text(&self.store_names[key as usize - 1]);
        rows.int(draws.int(2, 200, 300));
        rows.int(draws.int(3, 5_000_000, 10_000_000));
        rows.text(pick(&["8AM-4PM", "8AM-8AM", "8AM-12AM"], draws, 4));
        rows.text(&person(draws, 5));
        rows.int(draws.int(7, 1, 10));
        rows.text("Unknown");
        rows.text(&format!("Market {}", draws.int(7, 1, 10)));
        rows.text(&person(draws, 8));
        rows.int(1);
        rows.text("Unknown");
        rows.int(1);
        rows.text("Unknown");
        address_columns(&place(self.draws(Table::Store, PLACE, key), key == GEORGIA_STORE), rows);
        rows.money(draws.hundredths(10, 0, 11));
        rows.end()
    }

    /// Row `key` of `warehouse`, from 1. Its name has 10 to 20 characters.
    pub(crate) fn warehouse_row(&self, key: u64, rows: &mut Rows) -> Result<(), DataError> {
        let draws = self.draws(Table::Warehouse, VALUES, key);
        let place = place(self.draws(Table::Warehouse, PLACE, key), false);
        rows.key(key as i64);
        rows.text(&id16(key));
        rows.text(&format!("{} Depot {key}", pick(&super::names::STREETS, draws, 0)));
        rows.int(draws.int(1, 50_000, 1_000_000));
        address_columns(&place, rows);
        rows.end()
    }

    /// Row `key` of `web_page`, from 1.
    pub(crate) fn web_page_row(&self, key: u64, rows: &mut Rows) -> Result<(), DataError> {
        const TYPES: [&str; 8] = ["general", "order", "welcome", "ad", "feedback", "protected", "dynamic", "review"];
        let draws = self.draws(Table::WebPage, VALUES, key);
        let created = draws.int(0, FIRST_DAY - 1_000, FIRST_DAY - 1);
        let links = draws.int(1, 2, 25);
        let images = draws.int(2, 1, 7);
        let characters = match key {
            1 => 5_200,
            2 => 5_500,
            3 => 5_800,
            _ => draws.int(3, 125 * links + 50 * images, 300 * links + 150 * images),
        };
        rows.key(key as i64);
        rows.text(&id16(key));
        rows.text(&date_text(created));
        rows.text_or_null(None);
        rows.key(created);
        rows.key(draws.int(4, created, LAST_SALES_DAY));
        rows.text(if draws.chance(5, 0.3) { "Y" } else { "N" });
        rows.key(self.any_customer(draws, 6));
        rows.text(&format!("http://shop.example/page/{key}"));
        rows.text(TYPES[(key - 1) as usize % TYPES.len()]);
        rows.int(characters);
        rows.int(links);
        rows.int(images);
        rows.int(draws.int(7, 0, 4));
        rows.end()
    }

    /// Row `key` of `promotion`, from 1.
    pub(crate) fn promotion_row(&self, key: u64, rows: &mut Rows) -> Result<(), DataError> {
        let draws = self.draws(Table::Promotion, VALUES, key);
        let nulls = self.draws(Table::Promotion, NULLS, key);
        let yes = |draw, share| if draws.chance(draw, share) { "Y" } else { "N" };
        let or_null = |draw, value| (!nulls.chance(draw, NULL_SHARE)).then_some(value);
        let start = draws.int(0, FIRST_DAY, LAST_SALES_DAY - 60);
        rows.key(key as i64);
        rows.text(&id16(key));
        rows.key(start);
        rows.key(start + draws.int(1, 1, 60));
        rows.key(draws.int(2, 1, self.sizes.items as i64));
        rows.money(draws.hundredths(3, 1_000, 100_000));
        rows.int(1);
        rows.text(self.text.made_up(draws.index(4, 1_000)));
        rows.text_or_null(or_null(0, yes(5, 0.5)));
        rows.text_or_null(or_null(1, yes(6, 0.1)));
        rows.text(yes(7, 0.1));
        rows.text_or_null(or_null(2, yes(8, 0.1)));
        rows.text(yes(9, 0.1));
        rows.text(yes(10, 0.1));
        rows.text(yes(11, 0.1));
        rows.text(yes(12, 0.1));
        rows.text(&format!(
            "{} {} {}",
            self.text.word(draws, 13),
            self.text.word(draws, 14),
            self.text.word(draws, 15)
        ));
        rows.text("Unknown");
        rows.text(yes(16, 0.5));
        rows.end()
    }
}
