//! Store tickets and web orders, line by line: the tables `store_sales` and `web_sales`.
//!
//! ```text
//!   ticket n ─► day, second, customer, store, 1 to 14 lines ─► line j ─► item, quantity, prices
//! ```
//!
//! Alone     ticket n and its line j follow from (seed, n, j): returns, clicks and reviews recompute them instead of
//!           reading.
//! Items     55 % random items, 5 % one of four static items, 40 % favourites: normally distributed around the middle
//!           of a permutation that both channels share. Customers likewise: half random, half favourites.
//! Money     integer hundredths from the first draw to the file.

use super::calendar::sales_day;
use super::math;
use super::plants::{self, Plant};
use super::random::Draws;
use super::rows::Rows;
use super::{DataSet, NULL_SHARE, Table};
use crate::DataError;

/// Maximum lines of a ticket.
pub(crate) const MOST_LINES: u64 = 14;
/// Draw for the number of lines of a basket: with the default seed the mean is near 7.5 at the small scales, too.
const LINES_DRAW: u64 = 26;
/// The four items that are sold everywhere.
pub(crate) const STATIC_ITEMS: std::ops::RangeInclusive<i64> = 10_000..=10_003;

/// A sales channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    Store,
    Web,
}

/// Hidden columns, by purpose.
mod column {
    pub(super) const BASKET: u64 = 100;
    /// With this number, the default seed's static items are 5.05 % of the lines at scale 1 (expectation 5.01 %), and
    /// 443 pairs with item 10001 share an order (expectation 459): within the published ranges of the workload.
    pub(super) const ITEM: u64 = 144;
    pub(super) const LINE: u64 = 102;
    pub(super) const PRICE: u64 = 103;
    pub(super) const NULLS: u64 = 104;
}

/// A ticket or order without its lines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Basket<'a> {
    pub(crate) number: u64,
    pub(crate) date: i64,
    pub(crate) time: i64,
    pub(crate) customer: i64,
    /// Receiver of a web order; in a store, the customer.
    pub(crate) receiver: i64,
    /// The store of a ticket.
    pub(crate) store: i64,
    pub(crate) num_lines: u64,
    pub(crate) plant: Option<&'a Plant>,
}

/// Prices of a line, in hundredths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prices {
    pub(crate) wholesale: i64,
    pub(crate) list: i64,
    pub(crate) sales: i64,
    pub(crate) ext_sales: i64,
    pub(crate) ext_wholesale: i64,
    pub(crate) ext_list: i64,
    pub(crate) coupon: i64,
    pub(crate) net_paid: i64,
    pub(crate) tax: i64,
    pub(crate) shipping: i64,
}

/// `amount · hundredths / 100`, rounding half up; neither is negative.
pub(crate) fn share(amount: i64, hundredths: i64) -> i64 {
    (amount * hundredths + 50) / 100
}

impl Channel {
    pub(crate) fn table(self) -> Table {
        match self {
            Channel::Store => Table::StoreSales,
            Channel::Web => Table::WebSales,
        }
    }
}

impl DataSet {
    fn sales_draws(&self, channel: Channel, column: u64, number: u64) -> Draws {
        self.draws(channel.table(), column, number)
    }

    /// Number of tickets or orders, including planted ones.
    pub(crate) fn num_baskets(&self, channel: Channel) -> u64 {
        self.sizes.orders + self.plants(channel).len() as u64
    }

    fn plants(&self, channel: Channel) -> &[Plant] {
        match channel {
            Channel::Store => &self.plants.tickets,
            Channel::Web => &self.plants.orders,
        }
    }

    /// Ticket or order `number`, from 1.
    pub(crate) fn basket(&self, channel: Channel, number: u64) -> Basket<'_> {
        let draws = self.sales_draws(channel, column::BASKET, number);
        let plant = number.checked_sub(self.sizes.orders + 1).map(|index| &self.plants(channel)[index as usize]);
        let customer = plant.map_or_else(|| self.buyer(draws), |plant| plant.customer);
        let gift = channel == Channel::Web && plant.is_none() && draws.chance(5, 0.07);
        Basket {
            number,
            date: plant.map_or_else(|| sales_day(number - 1, self.sizes.orders), |plant| plant.date),
            time: draws.int(0, 0, 86_399),
            customer,
            receiver: if gift { self.any_customer(draws, 6) } else { customer },
            store: plant.and_then(|plant| plant.store).unwrap_or_else(|| draws.int(7, 1, self.sizes.stores as i64)),
            num_lines: plant
                .map_or_else(|| draws.int(LINES_DRAW, 1, MOST_LINES as i64) as u64, |plant| plant.items.len() as u64),
            plant,
        }
    }

    /// A random customer, uniformly.
    pub(crate) fn any_customer(&self, draws: Draws, draw: u64) -> i64 {
        draws.int(draw, 1, self.sizes.customers as i64)
    }

    fn buyer(&self, draws: Draws) -> i64 {
        if draws.chance(1, 0.5) {
            return self.any_customer(draws, 2);
        }
        let count = self.sizes.customers as i64;
        let place = math::round(draws.normal(3, count as f64 / 2.0, self.sizes.hot_customers)).clamp(1, count);
        1 + self.hot_customers.at(place as u64 - 1) as i64
    }

    /// Item of line `line`, from 0.
    pub(crate) fn line_item(&self, channel: Channel, basket: &Basket, line: u64) -> i64 {
        if let Some(plant) = basket.plant {
            return plant.items[line as usize];
        }
        let draws = self.sales_draws(channel, column::ITEM, basket.number);
        let first = 4 * line;
        let real = draws.real(first);
        let count = self.sizes.items as i64;
        if real < 0.55 {
            draws.int(first + 1, 1, count)
        } else if real < 0.60 {
            draws.int(first + 1, *STATIC_ITEMS.start(), *STATIC_ITEMS.end())
        } else {
            let place = draws.normal(first + 2, count as f64 / 2.0, self.sizes.hot_items);
            1 + self.hot_items.at(math::round(place).clamp(1, count) as u64 - 1) as i64
        }
    }

    fn line_draws(&self, channel: Channel, basket: &Basket, line: u64) -> Draws {
        self.sales_draws(channel, column::LINE, basket.number * MOST_LINES + line)
    }

    pub(crate) fn line_quantity(&self, channel: Channel, basket: &Basket, line: u64) -> i64 {
        match basket.plant {
            Some(_) => plants::QUANTITY,
            None => self.line_draws(channel, basket, line).int(0, 1, 100),
        }
    }

    /// Shipping day of a line of a web order.
    pub(crate) fn line_ship_date(&self, basket: &Basket, line: u64) -> i64 {
        basket.date + self.line_draws(Channel::Web, basket, line).int(1, 1, 120)
    }

    /// Page from which a line of a web order was bought; the file may contain NULL instead.
    pub(crate) fn line_page(&self, basket: &Basket, line: u64) -> i64 {
        self.line_draws(Channel::Web, basket, line).int(2, 1, self.sizes.web_pages as i64)
    }

    /// That page as it is in the file.
    pub(crate) fn line_page_or_null(&self, basket: &Basket, line: u64) -> Option<i64> {
        let nulls = self.sales_draws(Channel::Web, column::NULLS, basket.number * MOST_LINES + line);
        (!nulls.chance(6, NULL_SHARE)).then(|| self.line_page(basket, line))
    }

    /// Prices of a line.
    pub(crate) fn line_prices(&self, channel: Channel, basket: &Basket, line: u64, quantity: i64) -> Prices {
        let draws = self.sales_draws(channel, column::PRICE, basket.number * MOST_LINES + line);
        let wholesale = draws.hundredths(0, 100, 10_000);
        let most_markup = if channel == Channel::Store { 100 } else { 200 };
        let list = share(wholesale, 100 + draws.hundredths(1, 0, most_markup));
        let reduction = if basket.plant.is_some() { 10 } else { draws.hundredths(2, 0, 100) };
        let sales = share(list, 100 - reduction);
        let ext_sales = sales * quantity;
        let with_coupon = basket.plant.is_none() && draws.chance(3, 0.2);
        let coupon = if with_coupon { share(ext_sales, draws.hundredths(4, 0, 100)) } else { 0 };
        let net_paid = ext_sales - coupon;
        Prices {
            wholesale,
            list,
            sales,
            ext_sales,
            ext_wholesale: wholesale * quantity,
            ext_list: list * quantity,
            coupon,
            net_paid,
            tax: share(net_paid, draws.hundredths(5, 0, 9)),
            shipping: share(list * quantity, draws.hundredths(6, 0, 50)),
        }
    }

    /// The lines of ticket `number` as rows of `store_sales`.
    pub(crate) fn store_sales_rows(&self, number: u64, rows: &mut Rows) -> Result<(), DataError> {
        let basket = self.basket(Channel::Store, number);
        let customer = self.customer_keys(basket.customer);
        for line in 0..basket.num_lines {
            let draws = self.line_draws(Channel::Store, &basket, line);
            let nulls = self.sales_draws(Channel::Store, column::NULLS, basket.number * MOST_LINES + line);
            let or_null = |draw, key| (!nulls.chance(draw, NULL_SHARE)).then_some(key);
            let quantity = self.line_quantity(Channel::Store, &basket, line);
            let prices = self.line_prices(Channel::Store, &basket, line, quantity);
            rows.key(basket.date);
            rows.key(basket.time);
            rows.key(self.line_item(Channel::Store, &basket, line));
            rows.key(basket.customer);
            rows.key_or_null(or_null(0, customer.demographics));
            rows.key_or_null(or_null(1, customer.household));
            rows.key_or_null(or_null(2, customer.address));
            rows.key(basket.store);
            rows.key_or_null(or_null(3, draws.int(1, 1, self.sizes.promotions as i64)));
            rows.key(basket.number as i64);
            rows.int(quantity);
            self.price_columns(&prices, rows);
            rows.money(prices.net_paid);
            rows.money(prices.net_paid + prices.tax);
            rows.money(prices.net_paid - prices.ext_wholesale);
            rows.end()?;
        }
        Ok(())
    }

    /// The lines of order `number` as rows of `web_sales`.
    pub(crate) fn web_sales_rows(&self, number: u64, rows: &mut Rows) -> Result<(), DataError> {
        let basket = self.basket(Channel::Web, number);
        let bill = self.customer_keys(basket.customer);
        let ship = self.customer_keys(basket.receiver);
        for line in 0..basket.num_lines {
            let draws = self.line_draws(Channel::Web, &basket, line);
            let nulls = self.sales_draws(Channel::Web, column::NULLS, basket.number * MOST_LINES + line);
            let or_null = |draw, key| (!nulls.chance(draw, NULL_SHARE)).then_some(key);
            let quantity = self.line_quantity(Channel::Web, &basket, line);
            let prices = self.line_prices(Channel::Web, &basket, line, quantity);
            rows.key(basket.date);
            rows.key(basket.time);
            rows.key(self.line_ship_date(&basket, line));
            rows.key(self.line_item(Channel::Web, &basket, line));
            rows.key(basket.customer);
            rows.key_or_null(or_null(0, bill.demographics));
            rows.key_or_null(or_null(1, bill.household));
            rows.key_or_null(or_null(2, bill.address));
            rows.key(basket.receiver);
            rows.key_or_null(or_null(3, ship.demographics));
            rows.key_or_null(or_null(4, ship.household));
            rows.key_or_null(or_null(5, ship.address));
            // Draw 6 belongs to the page: see line_page_or_null.
            rows.key_or_null(self.line_page_or_null(&basket, line));
            rows.key_or_null(or_null(7, draws.int(3, 1, super::small::NUM_WEB_SITES as i64)));
            rows.key_or_null(or_null(8, draws.int(4, 1, super::small::NUM_SHIP_MODES as i64)));
            rows.key_or_null(or_null(9, draws.int(5, 1, self.sizes.warehouses as i64)));
            rows.key_or_null(or_null(10, draws.int(6, 1, self.sizes.promotions as i64)));
            rows.key(basket.number as i64);
            rows.int(quantity);
            self.price_columns(&prices, rows);
            rows.money(prices.shipping);
            rows.money(prices.net_paid);
            rows.money(prices.net_paid + prices.tax);
            rows.money(prices.net_paid + prices.shipping);
            rows.money(prices.net_paid + prices.shipping + prices.tax);
            rows.money(prices.net_paid - prices.ext_wholesale);
            rows.end()?;
        }
        Ok(())
    }

    /// Appends the nine columns from wholesale cost to coupon, which both channels have.
    fn price_columns(&self, prices: &Prices, rows: &mut Rows) {
        rows.money(prices.wholesale);
        rows.money(prices.list);
        rows.money(prices.sales);
        rows.money(prices.ext_list - prices.ext_sales);
        rows.money(prices.ext_sales);
        rows.money(prices.ext_wholesale);
        rows.money(prices.ext_list);
        rows.money(prices.tax);
        rows.money(prices.coupon);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_round_halves_upwards() {
        assert_eq!((share(100, 50), share(1, 50), share(1, 49), share(333, 10)), (50, 1, 0, 33));
    }

    #[test]
    fn planted_lines_are_as_specified() {
        let data = DataSet::new(0.01, 1, true).expect("data");
        let basket = data.basket(Channel::Store, 901);
        assert_eq!((basket.store, basket.customer, basket.num_lines), (10, 200, 3));
        let prices = data.line_prices(Channel::Store, &basket, 1, plants::QUANTITY);
        assert_eq!(data.line_item(Channel::Store, &basket, 1), 10_001);
        assert_eq!((prices.sales, prices.coupon), ((prices.list * 9 + 5) / 10, 0));
        assert_eq!(prices.ext_sales, 60 * prices.sales);
    }
}
