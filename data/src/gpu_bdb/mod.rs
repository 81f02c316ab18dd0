//! Tables of the gpu-bdb workload: own generator, own words, with the statistics of the workload's published data.
//!
//! ```text
//!   (seed, scale) ─► DataSet ─► any range of any table's units ─► record batches ─► DIR/TABLE/part-00000.parquet …
//!                                unit: a ticket, an order, a row
//! ```
//!
//! Same     a row depends only on seed, scale, plants, table and its own number, not on threads, parts or machine.
//!          Numbers are computed by IEEE operations that every machine rounds equally; no system library computes
//!          logarithms.
//! Memory   one batch, and the encoded columns of one row group, per thread.
//! Note     an unofficial workload derived from gpu-bdb: results are not TPC results and not comparable with any.
//! After    the formulas and distributions published for the workload; `random.rs` describes how numbers are drawn

mod calendar;
mod clicks;
pub mod digest;
mod inventory;
mod items;
pub mod lexicon;
mod math;
mod names;
mod people;
mod places;
mod plants;
mod random;
mod returns;
mod reviews;
mod rows;
mod sales;
mod scale;
mod schema;
mod small;
mod text;
mod write;

use std::ops::Range;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use crate::DataError;
use plants::Plants;
use random::{Draws, Permutation, Random};
use rows::Rows;
use sales::Channel;
use text::TextModel;

pub use scale::{LEAST_SCALE, MOST_SCALE, Sizes};
pub use schema::{Column, Keys, Kind, Money, Table};
pub use write::{Options, generate};

/// Default seed.
pub const DEFAULT_SEED: u64 = 20_240_607;
/// Version of the generator; increases when a seed gives different rows.
pub const GENERATOR_VERSION: u32 = 1;
/// Share of NULLs in nullable columns.
const NULL_SHARE: f64 = 0.000_25;

/// Types of the columns that have a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Format {
    pub money: Money,
    pub keys: Keys,
}

/// All tables of one seed and scale; rows are generated on demand.
#[derive(Debug)]
pub struct DataSet {
    sizes: Sizes,
    random: Random,
    plants: Plants,
    text: TextModel,
    hot_items: Permutation,
    hot_customers: Permutation,
    reviewed_orders: Permutation,
    priced_items: [Permutation; 2],
    store_names: Vec<String>,
    /// Items of the inventory; `None` if it contains all items.
    inventory_items: Option<Vec<u64>>,
}

impl DataSet {
    /// The data set of a scale and a seed, with or without planted rows.
    ///
    /// # Errors
    /// [`DataError::ScaleRange`] for a scale that is not between [`LEAST_SCALE`] and [`MOST_SCALE`].
    pub fn new(scale: f64, seed: u64, planted: bool) -> Result<Self, DataError> {
        let sizes = Sizes::new(scale)?;
        let random = Random::new(seed);
        // Both channels share the permutations of favourites.
        let permutation = |length, column| Permutation::new(length, random.column(PERMUTATIONS, column));
        Ok(Self {
            sizes,
            random,
            plants: if planted { Plants::new(&sizes) } else { Plants::none() },
            text: TextModel::new(),
            hot_items: permutation(sizes.items, 0),
            hot_customers: permutation(sizes.customers, 1),
            reviewed_orders: permutation(sizes.orders, 2),
            priced_items: [permutation(sizes.items, 3), permutation(sizes.items, 4)],
            store_names: places::store_names(random, sizes.stores),
            inventory_items: (sizes.inventory_step > 1).then(|| sizes.inventory_items().collect()),
        })
    }

    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Number of units of a table: tickets, orders or rows. Parts are ranges of units.
    pub fn num_units(&self, table: Table) -> u64 {
        match table {
            Table::DateDim => calendar::NUM_DAYS,
            Table::TimeDim => calendar::NUM_SECONDS,
            Table::IncomeBand => small::NUM_INCOME_BANDS,
            Table::ShipMode => small::NUM_SHIP_MODES,
            Table::WebSite => small::NUM_WEB_SITES,
            Table::Reason => self.sizes.reasons,
            Table::Warehouse => self.sizes.warehouses,
            Table::Store => self.sizes.stores,
            Table::WebPage => self.sizes.web_pages,
            Table::Promotion => self.sizes.promotions,
            Table::HouseholdDemographics => people::NUM_HOUSEHOLDS,
            Table::CustomerDemographics => self.sizes.customer_demographics,
            Table::CustomerAddress => self.sizes.addresses,
            Table::Customer => self.sizes.customers,
            Table::Item => self.sizes.items,
            Table::ItemMarketprices => self.sizes.market_prices,
            Table::StoreSales | Table::StoreReturns => self.num_baskets(Channel::Store),
            Table::WebSales | Table::WebReturns => self.num_baskets(Channel::Web),
            Table::WebClickstreams => self.num_click_units(),
            Table::Inventory => scale::INVENTORY_WEEKS * self.num_inventory_items() * self.sizes.warehouses,
            Table::ProductReviews => self.sizes.reviews,
        }
    }

    /// Rows of a table: exact if a unit is a row, otherwise estimated from the average per unit.
    pub fn approximate_rows(&self, table: Table) -> u64 {
        let per_unit = match table {
            Table::StoreSales | Table::WebSales => 7.5,
            Table::StoreReturns | Table::WebReturns => 0.425,
            Table::WebClickstreams => 76.0,
            _ => 1.0,
        };
        (self.num_units(table) as f64 * per_unit) as u64
    }

    /// Schema of a table's batches.
    pub fn schema(&self, table: Table, format: Format) -> SchemaRef {
        let most = self.num_baskets(Channel::Store).max(self.num_baskets(Channel::Web));
        table.schema(format.money, format.keys, i32::try_from(most).is_err())
    }

    /// Generates the rows of `units` (from 0) and passes them to `emit` in batches.
    ///
    /// # Errors
    /// Errors of `emit`; [`DataError::Arrow`] if rows do not fit their schema.
    pub fn rows(
        &self,
        table: Table,
        units: Range<u64>,
        format: Format,
        emit: &mut dyn FnMut(RecordBatch) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let units = units.start..units.end.min(self.num_units(table));
        let mut rows = Rows::new(table.name(), self.schema(table, format), emit);
        let mut text = String::new();
        for unit in units {
            let number = unit + 1;
            match table {
                Table::DateDim => calendar::date_row(unit, &mut rows)?,
                Table::TimeDim => calendar::time_row(unit, &mut rows)?,
                Table::IncomeBand => self.income_band_row(number, &mut rows)?,
                Table::ShipMode => self.ship_mode_row(number, &mut rows)?,
                Table::WebSite => self.web_site_row(number, &mut rows)?,
                Table::Reason => self.reason_row(number, &mut rows)?,
                Table::Warehouse => self.warehouse_row(number, &mut rows)?,
                Table::Store => self.store_row(number, &mut rows)?,
                Table::WebPage => self.web_page_row(number, &mut rows)?,
                Table::Promotion => self.promotion_row(number, &mut rows)?,
                Table::HouseholdDemographics => self.household_demographics_row(number, &mut rows)?,
                Table::CustomerDemographics => self.customer_demographics_row(number, &mut rows)?,
                Table::CustomerAddress => self.customer_address_row(number, &mut rows)?,
                Table::Customer => self.customer_row(number, &mut rows)?,
                Table::Item => self.item_row(number, &mut text, &mut rows)?,
                Table::ItemMarketprices => self.item_marketprices_row(number, &mut rows)?,
                Table::StoreSales => self.store_sales_rows(number, &mut rows)?,
                Table::StoreReturns => self.store_returns_rows(number, &mut rows)?,
                Table::WebSales => self.web_sales_rows(number, &mut rows)?,
                Table::WebReturns => self.web_returns_rows(number, &mut rows)?,
                Table::WebClickstreams => self.web_clickstreams_rows(number, &mut rows)?,
                Table::Inventory => self.inventory_row(unit, &mut rows)?,
                Table::ProductReviews => self.product_reviews_row(unit, &mut text, &mut rows)?,
            }
        }
        rows.finish()
    }

    /// Random numbers of one value; a column that several tables use belongs to one of them.
    fn draws(&self, table: Table, column: u64, row: u64) -> Draws {
        self.random.column(table.id(), column).row(row)
    }
}

/// Table number of the permutations' random numbers; no table uses it.
const PERMUTATIONS: u64 = 1_000;
