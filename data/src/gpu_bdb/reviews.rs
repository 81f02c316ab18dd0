//! Product reviews by buyers: the table `product_reviews`.
//!
//! ```text
//!   review r ─► order π(r mod T) ─► one of its items, its receiver ─► rating ─► text
//! ```
//!
//! Days     uniform over the five years, so reviews do not follow the calendar as the facts do.
//! Plants   the planted reviews are the last of the table: one per planted order, then those of one item. Without
//!          plants the table has the same length.

use super::calendar::{FIRST_DAY, SALES_DAYS, date_text, time_text};
use super::lexicon::NEGATIVE;
use super::plants::NAMED_ITEM;
use super::rows::Rows;
use super::sales::Channel;
use super::text::Subject;
use super::{DataSet, Table};
use crate::DataError;

const REVIEW: u64 = 100;
const TEXT: u64 = 101;
/// Cumulative probabilities of the ratings 1 to 4; the remainder is for 5.
const RATINGS: [f64; 4] = [0.0705, 0.1188, 0.2000, 0.3903];
/// Word in the reviews of planted orders.
const PLANTED_WORD: &str = NEGATIVE[2];

impl DataSet {
    /// Row `row` of `product_reviews`, from 0.
    pub(crate) fn product_reviews_row(&self, row: u64, text: &mut String, rows: &mut Rows) -> Result<(), DataError> {
        let draws = self.draws(Table::ProductReviews, REVIEW, row);
        let planted = row.checked_sub(self.sizes.reviews - self.plants.num_reviews());
        let planted_order = planted.filter(|&index| index < self.plants.orders.len() as u64);
        let order = match planted_order {
            Some(index) => self.sizes.orders + 1 + index,
            None => self.reviewed_orders.at(row % self.sizes.orders) + 1,
        };
        let basket = self.basket(Channel::Web, order);
        let item = match planted {
            Some(_) if planted_order.is_none() => NAMED_ITEM,
            _ => self.line_item(Channel::Web, &basket, draws.index(0, basket.num_lines as usize) as u64),
        };
        let rating = if planted_order.is_some() {
            1
        } else {
            let real = draws.real(1);
            1 + RATINGS.iter().filter(|&&share| real >= share).count() as i64
        };
        let names_store = (200.0 / self.sizes.reviews as f64).max(0.001);
        let subject = Subject {
            rating,
            company: if item == NAMED_ITEM { 0.06 } else { 0.02 },
            store: draws
                .chance(2, names_store)
                .then(|| self.store_names[draws.index(3, self.store_names.len())].as_str()),
            must_say: planted_order.is_some().then_some(PLANTED_WORD),
        };
        self.text.review(subject, self.draws(Table::ProductReviews, TEXT, row), text);
        rows.key(row as i64 + 1);
        rows.text(&date_text(FIRST_DAY + draws.int(4, 0, SALES_DAYS as i64)));
        rows.text(&time_text(draws.int(5, 0, 86_399)));
        rows.int(rating);
        rows.key(item);
        rows.key(basket.receiver);
        rows.key(order as i64);
        rows.text(text);
        rows.end()
    }
}
