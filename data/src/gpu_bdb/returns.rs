//! Returned goods: the tables `store_returns` and `web_returns`.
//!
//! ```text
//!   ticket n returned? ─ one in ten ─► k of its lines, each at most once ─► day, quantity, amounts
//! ```
//!
//! Days    a ticket is returned on one day, up to 715 days after the sale; lines of an order up to 715 days after each
//!         was sent.

use super::random::Draws;
use super::rows::Rows;
use super::sales::{Basket, Channel, MOST_LINES, Prices, share};
use super::{DataSet, Table};
use crate::DataError;

const RETURNED: u64 = 100;
const LINES: u64 = 101;
const AMOUNTS: u64 = 102;
/// Maximum days between sale or shipment and return.
const MOST_DAYS: i64 = 715;

/// Returned lines of a basket, one bit per line.
fn returned_lines(basket: &Basket, returned: Draws, lines: Draws) -> u64 {
    if basket.plant.is_some_and(|plant| plant.returned.is_some()) {
        return 1;
    }
    if basket.plant.is_some() || !returned.chance(0, 0.1) {
        return 0;
    }
    let count = basket.num_lines;
    let wanted = returned.int(1, 1, count as i64) as u64;
    // The beginning of a shuffle: each position is swapped with a later one, or stays.
    let mut order: [u8; MOST_LINES as usize] = std::array::from_fn(|line| line as u8);
    let mut chosen = 0;
    for place in 0..wanted {
        let other = lines.int(place, place as i64, count as i64 - 1);
        order.swap(place as usize, other as usize);
        chosen |= 1 << order[place as usize];
    }
    chosen
}

/// Amounts of a returned line, in hundredths.
struct Amounts {
    amount: i64,
    tax: i64,
    fee: i64,
    shipping: i64,
    cash: i64,
    reversed: i64,
    credit: i64,
}

impl Amounts {
    fn new(prices: &Prices, quantity: i64, draws: Draws) -> Self {
        let amount = prices.sales * quantity;
        let cash = share(amount, draws.hundredths(2, 0, 100));
        let reversed = share(amount - cash, draws.hundredths(3, 0, 100));
        Self {
            amount,
            tax: share(amount, draws.hundredths(4, 0, 9)),
            fee: draws.hundredths(5, 50, 10_000),
            shipping: share(prices.list * quantity, draws.hundredths(6, 0, 50)),
            cash,
            reversed,
            credit: amount - cash - reversed,
        }
    }

    /// Appends nine columns from the returned amount to the net loss, equal in both channels.
    fn columns(&self, rows: &mut Rows) {
        rows.money(self.amount);
        rows.money(self.tax);
        rows.money(self.amount + self.tax);
        rows.money(self.fee);
        rows.money(self.shipping);
        rows.money(self.cash);
        rows.money(self.reversed);
        rows.money(self.credit);
        rows.money(self.tax + self.fee + self.shipping);
    }
}

impl DataSet {
    /// The returned lines of ticket `number` as rows of `store_returns`.
    pub(crate) fn store_returns_rows(&self, number: u64, rows: &mut Rows) -> Result<(), DataError> {
        let table = Table::StoreReturns;
        let basket = self.basket(Channel::Store, number);
        let returned = self.draws(table, RETURNED, number);
        let lines = returned_lines(&basket, returned, self.draws(table, LINES, number));
        let planted = basket.plant.and_then(|plant| plant.returned);
        let date = planted.map_or_else(|| basket.date + returned.int(2, 0, MOST_DAYS), |(date, _)| date);
        let by_buyer = planted.is_some() || returned.chance(3, 0.9);
        let customer = if by_buyer { basket.customer } else { self.any_customer(returned, 4) };
        let keys = self.customer_keys(customer);
        for line in (0..basket.num_lines).filter(|line| lines >> line & 1 == 1) {
            let draws = self.draws(table, AMOUNTS, number * MOST_LINES + line);
            let sold = self.line_quantity(Channel::Store, &basket, line);
            let quantity = planted.map_or_else(|| draws.int(0, 1, sold), |(_, quantity)| quantity);
            let prices = self.line_prices(Channel::Store, &basket, line, sold);
            rows.key(date);
            rows.key(returned.int(5, 0, 86_399));
            rows.key(self.line_item(Channel::Store, &basket, line));
            rows.key(customer);
            rows.key(keys.demographics);
            rows.key(keys.household);
            rows.key(keys.address);
            rows.key(basket.store);
            rows.key(draws.int(1, 1, self.sizes.reasons as i64));
            rows.key(number as i64);
            rows.int(quantity);
            Amounts::new(&prices, quantity, draws).columns(rows);
            rows.end()?;
        }
        Ok(())
    }

    /// The returned lines of order `number` as rows of `web_returns`.
    pub(crate) fn web_returns_rows(&self, number: u64, rows: &mut Rows) -> Result<(), DataError> {
        let table = Table::WebReturns;
        let basket = self.basket(Channel::Web, number);
        let returned = self.draws(table, RETURNED, number);
        let lines = returned_lines(&basket, returned, self.draws(table, LINES, number));
        let planted = basket.plant.and_then(|plant| plant.returned);
        for line in (0..basket.num_lines).filter(|line| lines >> line & 1 == 1) {
            let draws = self.draws(table, AMOUNTS, number * MOST_LINES + line);
            let sold = self.line_quantity(Channel::Web, &basket, line);
            let quantity = planted.map_or_else(|| draws.int(0, 1, sold), |(_, quantity)| quantity);
            let prices = self.line_prices(Channel::Web, &basket, line, sold);
            let sent = self.line_ship_date(&basket, line);
            let who = |draw| {
                let receiver = planted.is_some() || draws.chance(draw, 0.93);
                if receiver { basket.receiver } else { self.any_customer(draws, draw + 1) }
            };
            rows.key(planted.map_or_else(|| sent + draws.int(7, 0, MOST_DAYS), |(date, _)| date));
            rows.key(draws.int(8, 0, 86_399));
            rows.key(self.line_item(Channel::Web, &basket, line));
            for customer in [who(9), who(11)] {
                let keys = self.customer_keys(customer);
                rows.key(customer);
                rows.key(keys.demographics);
                rows.key(keys.household);
                rows.key(keys.address);
            }
            rows.key(self.line_page(&basket, line));
            rows.key(draws.int(1, 1, self.sizes.reasons as i64));
            rows.key(number as i64);
            rows.int(quantity);
            Amounts::new(&prices, quantity, draws).columns(rows);
            rows.end()?;
        }
        Ok(())
    }
}
