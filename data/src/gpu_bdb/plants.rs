//! Planted rows, so that every query of the workload has a result at small scales.
//!
//! ```text
//!   tickets 1 … T  by the formulas  │  T+1 …  planted: their dates start again, in the last row group only
//!   web orders and single clicks likewise; items, inventory and reviews get changed values instead of additional rows
//! ```
//!
//! Blocks   A to I, in this order below; `--no-plants` omits them. Guarantees of the small tables
//!          (docs/gpu-bdb-data.md) remain.
//! Lines    quantity 60, sold at 0.9 of the list price, no coupon; not returned, unless the block says so.

use super::calendar::day_key;
use super::scale::Sizes;

/// Quantity of every planted line.
pub(crate) const QUANTITY: i64 = 60;
/// Number of reviews of item [`NAMED_ITEM`] at the end of the table.
pub(crate) const NAMED_REVIEWS: u64 = 30;
/// The item whose reviews name companies more frequently.
pub(crate) const NAMED_ITEM: i64 = 10_002;

/// A planted ticket or order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plant {
    pub(crate) date: i64,
    pub(crate) customer: i64,
    /// The store of a ticket; random if `None`.
    pub(crate) store: Option<i64>,
    pub(crate) items: Vec<i64>,
    /// Day and quantity of its return.
    pub(crate) returned: Option<(i64, i64)>,
}

/// A planted click without a sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlantedClick {
    pub(crate) date: i64,
    pub(crate) time: i64,
    pub(crate) item: i64,
    pub(crate) page: i64,
    pub(crate) user: i64,
}

/// All plants of one data set.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plants {
    pub(crate) tickets: Vec<Plant>,
    pub(crate) orders: Vec<Plant>,
    pub(crate) clicks: Vec<PlantedClick>,
    present: bool,
    warehouses: i64,
}

impl Plants {
    /// No plants.
    pub(crate) fn none() -> Self {
        Self::default()
    }

    /// Plants for a data set of these sizes.
    pub(crate) fn new(sizes: &Sizes) -> Self {
        let mut plants = Plants { present: true, warehouses: sizes.warehouses as i64, ..Plants::default() };
        let stores = sizes.stores as i64;
        let plain = |date, customer, store, items| Plant { date, customer, store, items, returned: None };
        if sizes.scale < 1.0 {
            for k in 0..64 {
                let items = vec![10_000, 10_001, 10_002];
                plants.tickets.push(plain(day_key(2001, 3, 5) + k, 200 + k, Some(10), items));
            }
        }
        for k in 0..12 {
            plants.tickets.push(Plant {
                returned: Some((day_key(2003, 3, 3) + k, 5)),
                ..plain(day_key(2003, 1, 6) + k, 300 + k, Some(1 + k % stores), vec![100 + k])
            });
            plants.orders.push(plain(day_key(2003, 9, 1) + k, 300 + k, None, vec![100 + k]));
        }
        for k in 0..6 {
            let store_days = [(3, 9), (8, 4), (11, 17), (12, 22)];
            let web_days = [(3, 10), (8, 5), (11, 18), (12, 23)];
            let day = |days: [(i64, i64); 4]| {
                let (month, day) = days[k as usize % 4];
                day_key(2004, month, day)
            };
            let sold = plain(day_key(2004, 2, 2) + k, 320 + k, None, vec![120 + k]);
            plants.tickets.push(Plant { returned: Some((day(store_days), 20)), ..sold.clone() });
            plants.orders.push(Plant { returned: Some((day(web_days), 20 + k % 2)), ..sold });
        }
        for k in 0..4 {
            plants.tickets.push(plain(day_key(2004, 7, 6) + k, 340 + k, Some(2 + k), (140..=153).collect()));
        }
        for k in 0..5 {
            plants.tickets.push(plain(day_key(2001, 5, 1) + k, 360 + k, None, vec![200, 201]));
            plants.tickets.push(plain(day_key(2002, 5, 1) + k, 360 + k, None, vec![200]));
            plants.orders.push(plain(day_key(2001, 6, 1) + k, 360 + k, None, vec![202]));
            plants.orders.push(plain(day_key(2002, 6, 1) + k, 360 + k, None, vec![202, 203, 204]));
        }
        for k in 0..5 {
            plants.tickets.push(plain(day_key(2001, 11, 5) + k, 370 + k, Some(4), vec![10_000]));
            plants.clicks.push(PlantedClick {
                date: day_key(2001, 9, 10) + k,
                time: 36_000,
                item: 10_000,
                page: 1,
                user: 370 + k,
            });
        }
        plants
    }

    /// Price of an item in hundredths, if a block fixes it.
    pub(crate) fn item_price(&self, item: i64) -> Option<i64> {
        match item {
            140..=153 if self.present => Some(9_500 + 10 * (item - 140)),
            160..=164 if self.present => Some(100 + 10 * (item - 160)),
            _ => None,
        }
    }

    /// Stock of an item: that of a block, or the drawn value.
    pub(crate) fn stock(&self, week: u64, item: i64, warehouse: i64, drawn: Option<i64>) -> Option<i64> {
        if !self.present {
            return drawn;
        }
        match item {
            160..=164 => Some(drawn.unwrap_or(0).clamp(400, 700)),
            166..=171 if warehouse == 1 + (item - 166) % self.warehouses && week < 9 => Some(match week {
                2 => 900 - (item - 166),
                6 => 800 - (item - 166),
                _ => 0,
            }),
            _ => drawn,
        }
    }

    /// Number of reviews at the end of the table that belong to planted orders or to [`NAMED_ITEM`].
    pub(crate) fn num_reviews(&self) -> u64 {
        if self.present { self.orders.len() as u64 + NAMED_REVIEWS } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_the_specification_lists() {
        // Tickets: A 64, B 12, C 6, D 4, E 10, F 5. Orders: B 12, C 6, E 10.
        let small = Plants::new(&Sizes::new(0.01).expect("scale"));
        assert_eq!((small.tickets.len(), small.orders.len(), small.clicks.len()), (64 + 37, 28, 5));
        let one = Plants::new(&Sizes::new(1.0).expect("scale"));
        assert_eq!((one.tickets.len(), one.orders.len(), one.num_reviews()), (37, 28, 58));
        assert_eq!(Plants::none().num_reviews(), 0);
    }

    #[test]
    fn erratic_stock_has_the_coefficients_of_the_specification() {
        let plants = Plants::new(&Sizes::new(0.01).expect("scale"));
        let coefficient = |weeks: std::ops::Range<u64>| {
            let stock: Vec<f64> =
                weeks.map(|week| plants.stock(week, 168, 3, Some(5)).expect("planted") as f64).collect();
            let mean = stock.iter().sum::<f64>() / stock.len() as f64;
            let squares: f64 = stock.iter().map(|value| (value - mean) * (value - mean)).sum();
            (squares / (stock.len() - 1) as f64).sqrt() / mean
        };
        assert!((coefficient(0..5) - 2.236).abs() < 0.001);
        assert!((coefficient(5..9) - 2.0).abs() < 0.001);
        assert_eq!(plants.stock(9, 168, 3, Some(5)), Some(5));
        assert_eq!(plants.stock(0, 168, 2, None), None);
    }
}
