//! Page views of users: the table `web_clickstreams`.
//!
//! ```text
//!   order n ─► four visitors, each 11 to 21 clicks at random times │ the buyer: 3 to 6 clicks, then one per line
//! ```
//!
//! Users    half of the visitors are unknown in all of their clicks; buyers are known.
//! Sales    only the clicks on bought lines contain the order; all of them occur in the second of the sale.

use super::calendar::sales_day;
use super::rows::Rows;
use super::sales::Channel;
use super::{DataSet, Table};
use crate::DataError;

const VISITOR: u64 = 100;
const VISITOR_CLICKS: u64 = 101;
const BUYER_CLICKS: u64 = 102;
/// Visitors per buyer.
const VISITORS: u64 = 4;
/// Stride of the click numbers of a visitor: number = visitor × stride + click.
const MOST_CLICKS: u64 = 32;

/// One click.
struct Click {
    date: i64,
    time: i64,
    sale: Option<i64>,
    item: i64,
    page: Option<i64>,
    user: Option<i64>,
}

impl Click {
    fn row(&self, rows: &mut Rows) -> Result<(), DataError> {
        rows.key(self.date);
        rows.key(self.time);
        rows.key_or_null(self.sale);
        rows.key(self.item);
        rows.key_or_null(self.page);
        rows.key_or_null(self.user);
        rows.end()
    }
}

impl DataSet {
    /// Number of units: the orders, followed by the planted clicks.
    pub(crate) fn num_click_units(&self) -> u64 {
        self.num_baskets(Channel::Web) + self.plants.clicks.len() as u64
    }

    /// The clicks of unit `number`, from 1.
    pub(crate) fn web_clickstreams_rows(&self, number: u64, rows: &mut Rows) -> Result<(), DataError> {
        if let Some(index) = number.checked_sub(self.num_baskets(Channel::Web) + 1) {
            let planted = self.plants.clicks[index as usize];
            let click = Click {
                date: planted.date,
                time: planted.time,
                sale: None,
                item: planted.item,
                page: Some(planted.page),
                user: Some(planted.user),
            };
            return click.row(rows);
        }
        if number <= self.sizes.orders {
            for visitor in VISITORS * (number - 1)..VISITORS * number {
                self.visitor_rows(visitor, rows)?;
            }
        }
        self.buyer_rows(number, rows)
    }

    fn visitor_rows(&self, visitor: u64, rows: &mut Rows) -> Result<(), DataError> {
        let draws = self.draws(Table::WebClickstreams, VISITOR, visitor);
        let date = sales_day(visitor, VISITORS * self.sizes.orders);
        let user = draws.chance(1, 0.5).then(|| self.any_customer(draws, 2));
        for click in 0..draws.int(0, 11, 21) as u64 {
            self.look(VISITOR_CLICKS, visitor * MOST_CLICKS + click, date, user).row(rows)?;
        }
        Ok(())
    }

    fn buyer_rows(&self, number: u64, rows: &mut Rows) -> Result<(), DataError> {
        let basket = self.basket(Channel::Web, number);
        let draws = self.draws(Table::WebClickstreams, BUYER_CLICKS, number * MOST_CLICKS);
        for click in 0..draws.int(0, 3, 6) as u64 {
            self.look(BUYER_CLICKS, number * MOST_CLICKS + 1 + click, basket.date, Some(basket.customer)).row(rows)?;
        }
        for line in 0..basket.num_lines {
            let click = Click {
                date: basket.date,
                time: basket.time,
                sale: Some(number as i64),
                item: self.line_item(Channel::Web, &basket, line),
                page: self.line_page_or_null(&basket, line),
                user: Some(basket.customer),
            };
            click.row(rows)?;
        }
        Ok(())
    }

    /// A click without a sale.
    fn look(&self, column: u64, row: u64, date: i64, user: Option<i64>) -> Click {
        let draws = self.draws(Table::WebClickstreams, column, row);
        Click {
            date,
            time: draws.int(0, 0, 86_399),
            sale: None,
            item: draws.int(1, 1, self.sizes.items as i64),
            page: Some(draws.int(2, 1, self.sizes.web_pages as i64)),
            user,
        }
    }
}
