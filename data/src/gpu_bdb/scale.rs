//! Table sizes as a function of the scale factor.
//!
//! ```text
//!   customers, items   grow with √scale          tickets, orders   grow linearly, from 90,000
//!   stores             with √scale               warehouses, pages, promotions   with its logarithm
//! ```
//!
//! Below 1   the logarithms would be negative: the small tables keep their size at 1, tickets shrink linearly, and
//! 12,000 items remain because queries name items 10000 to 10003.
//! After     the row counts published for the workload at 100, 300, 600 and 1,000 (docs/gpu-bdb-data.md)

use super::math::{ln, round};
use crate::DataError;

/// Range of scales that can be generated.
pub const LEAST_SCALE: f64 = 0.01;
pub const MOST_SCALE: f64 = 100_000.0;

/// Tickets per unit of scale.
const TICKETS: f64 = 90_000.0;
/// Weeks of inventory, from 2001-01-01.
pub(crate) const INVENTORY_WEEKS: u64 = 261;
/// Items named by queries and planted rows; at small scales the inventory contains few others.
const PLANTED_INVENTORY_ITEMS: std::ops::RangeInclusive<u64> = 160..=171;

/// Sizes of one data set, without planted rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sizes {
    pub scale: f64,
    pub customers: u64,
    pub addresses: u64,
    pub items: u64,
    pub market_prices: u64,
    /// Number of store tickets, and of web orders.
    pub orders: u64,
    pub reviews: u64,
    pub stores: u64,
    pub warehouses: u64,
    pub promotions: u64,
    pub web_pages: u64,
    pub reasons: u64,
    pub customer_demographics: u64,
    /// Step between the items of the inventory.
    pub inventory_step: u64,
    /// Standard deviations of the distributions of favourite items and customers.
    pub hot_items: f64,
    pub hot_customers: f64,
}

impl Sizes {
    /// Sizes at `scale`.
    ///
    /// # Errors
    /// [`DataError::ScaleRange`] for a scale that is not finite, below [`LEAST_SCALE`] or above [`MOST_SCALE`].
    pub fn new(scale: f64) -> Result<Self, DataError> {
        if !(scale.is_finite() && (LEAST_SCALE..=MOST_SCALE).contains(&scale)) {
            return Err(DataError::ScaleRange { scale, least: LEAST_SCALE, most: MOST_SCALE });
        }
        let root = scale.sqrt();
        let small = scale < 1.0;
        let log = |base: f64| if small { 1.0 } else { ln(scale) / ln(base) + 1.0 };
        let (log5, log15) = (log(5.0), log(1.5));
        let natural_items = round(18_000.0 * root) as u64;
        let customers = round(100_000.0 * root) as u64;
        let customers = if small { customers.max(2_000) } else { customers };
        let items = if small { natural_items.max(12_000) } else { natural_items };
        let orders =
            if small { round(TICKETS * scale) } else { round(TICKETS * scale * (2.0 - log5 * root / scale)) } as u64;
        let shrink = if small { root } else { 1.0 };
        Ok(Self {
            scale,
            customers,
            addresses: customers.div_ceil(2),
            items,
            market_prices: 5 * items,
            orders,
            reviews: 5 * natural_items + round(0.01 * orders as f64) as u64,
            stores: if small { 12 } else { round(12.0 * root) as u64 },
            warehouses: round(5.0 * log5) as u64,
            promotions: round(300.0 * log15) as u64,
            web_pages: round(60.0 * log15) as u64,
            reasons: round(35.0 * log15) as u64,
            customer_demographics: if scale < 0.1 { 19_208 } else { 1_920_800 },
            inventory_step: if small { round(1.0 / scale) as u64 } else { 1 },
            hot_items: 60.0 * log5 * shrink,
            hot_customers: 400.0 * log5 * shrink,
        })
    }

    /// Items of the inventory, in order.
    pub fn inventory_items(&self) -> impl Iterator<Item = u64> + '_ {
        (1..=self.items)
            .filter(|item| item.is_multiple_of(self.inventory_step) || PLANTED_INVENTORY_ITEMS.contains(item))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(scale: f64) -> Sizes {
        Sizes::new(scale).expect("a scale in range")
    }

    /// Published, or derived by hand from the formulas of docs/gpu-bdb-data.md: customers, addresses, items, prices,
    /// stores, warehouses, promotions, pages, orders, reviews.
    #[test]
    fn row_counts_of_the_specification() {
        let expected: [(f64, [u64; 10]); 8] = [
            (1.0, [100_000, 50_000, 18_000, 90_000, 12, 5, 300, 60, 90_000, 90_900]),
            (10.0, [316_228, 158_114, 56_921, 284_605, 38, 12, 2_004, 401, 1_108_217, 295_687]),
            (30.0, [547_723, 273_862, 98_590, 492_950, 66, 16, 2_817, 563, 3_865_306, 531_603]),
            (100.0, [1_000_000, 500_000, 180_000, 900_000, 120, 19, 3_707, 741, 14_524_782, 1_045_248]),
            (300.0, [1_732_051, 866_026, 311_769, 1_558_845, 208, 23, 4_520, 904, 46_916_668, 2_028_012]),
            (1000.0, [3_162_278, 1_581_139, 569_210, 2_846_050, 379, 26, 5_411, 1_082, 164_938_620, 4_495_436]),
            (3000.0, [5_477_226, 2_738_613, 985_901, 4_929_505, 657, 30, 6_224, 1_245, 510_548_014, 10_034_985]),
            (
                10_000.0,
                [10_000_000, 5_000_000, 1_800_000, 9_000_000, 1_200, 34, 7_115, 1_423, 1_739_495_644, 26_394_956],
            ),
        ];
        for (scale, counts) in expected {
            let sizes = at(scale);
            let found = [
                sizes.customers,
                sizes.addresses,
                sizes.items,
                sizes.market_prices,
                sizes.stores,
                sizes.warehouses,
                sizes.promotions,
                sizes.web_pages,
                sizes.orders,
                sizes.reviews,
            ];
            assert_eq!(found, counts, "scale {scale}");
        }
        assert_eq!((at(600.0).warehouses, at(600.0).stores, at(600.0).web_pages), (25, 294, 1_007));
        assert_eq!(INVENTORY_WEEKS * at(1000.0).items * at(1000.0).warehouses, 3_862_659_060);
    }

    #[test]
    fn sub_scales_keep_what_queries_name() {
        let hundredth = at(0.01);
        assert_eq!((hundredth.customers, hundredth.addresses, hundredth.items), (10_000, 5_000, 12_000));
        assert_eq!((hundredth.orders, hundredth.reviews, hundredth.customer_demographics), (900, 9_009, 19_208));
        assert_eq!((hundredth.stores, hundredth.warehouses, hundredth.reasons), (12, 5, 35));
        assert_eq!(hundredth.inventory_items().count(), 120 + 12);
        assert!((hundredth.hot_items - 6.0).abs() < 1e-12 && (hundredth.hot_customers - 40.0).abs() < 1e-12);
        let tenth = at(0.1);
        assert_eq!((tenth.customers, tenth.addresses, tenth.orders, tenth.reviews), (31_623, 15_812, 9_000, 28_550));
        assert_eq!(tenth.customer_demographics, 1_920_800);
        // Items 160 and 170 are multiples of ten already.
        assert_eq!(tenth.inventory_items().count(), 1_200 + 12 - 2);
        assert_eq!(at(1.0).inventory_items().count(), 18_000);
    }

    #[test]
    fn scales_out_of_range_are_refused_with_the_range() {
        for scale in [0.0, -1.0, 0.009_999, 100_001.0, f64::NAN, f64::INFINITY] {
            let error = Sizes::new(scale).expect_err("refused").to_string();
            assert!(error.contains(&format!("{scale}")) && error.contains("0.01"), "{error}");
        }
    }
}
