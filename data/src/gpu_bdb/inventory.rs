//! Stock of the warehouses on Mondays: the table `inventory`.
//!
//! ```text
//!   row r ─► week (slowest), item, warehouse (fastest)          261 weeks from 2001-01-01
//! ```

use super::calendar::FIRST_DAY;
use super::rows::Rows;
use super::{DataSet, NULL_SHARE, Table};
use crate::DataError;

const STOCK: u64 = 100;

impl DataSet {
    /// Row `row` of `inventory`, from 0.
    pub(crate) fn inventory_row(&self, row: u64, rows: &mut Rows) -> Result<(), DataError> {
        let warehouses = self.sizes.warehouses;
        let warehouse = (row % warehouses) as i64 + 1;
        let items = self.num_inventory_items();
        let place = row / warehouses % items;
        let week = row / warehouses / items;
        let item = self.inventory_items.as_ref().map_or(place as i64 + 1, |listed| listed[place as usize] as i64);
        let draws = self.draws(Table::Inventory, STOCK, row);
        let drawn = (!draws.chance(1, NULL_SHARE)).then(|| draws.int(0, 0, 1_000));
        rows.key(FIRST_DAY + 7 * week as i64);
        rows.key(item);
        rows.key(warehouse);
        rows.int_or_null(self.plants.stock(week, item, warehouse, drawn));
        rows.end()
    }

    pub(crate) fn num_inventory_items(&self) -> u64 {
        self.inventory_items.as_ref().map_or(self.sizes.items, |listed| listed.len() as u64)
    }
}
