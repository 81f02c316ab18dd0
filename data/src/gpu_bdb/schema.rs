//! Tables and columns: names, kinds, nullability, and the table that a column refers to.
//!
//! ```text
//!   "ss_cdemo_sk key? >customer_demographics"     name, kind, ? if nullable, > and the table referred to
//! ```
//!
//! Kinds    key and order: INT64, or INT32 with [`Keys::Int32`] if every value fits · int: INT32
//!          · money (also prices, shares, hours): DOUBLE or DECIMAL(7, 2) · text, prose: UTF8, prose without dictionary
//! Names    those of the TPC schema from which the workload descends, so that published queries run unchanged.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use crate::DataError;

/// A table of gpu-bdb. Append new tables at the end: a table's position is part of its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    DateDim,
    TimeDim,
    IncomeBand,
    ShipMode,
    WebSite,
    Reason,
    Warehouse,
    Store,
    WebPage,
    Promotion,
    HouseholdDemographics,
    CustomerDemographics,
    CustomerAddress,
    Customer,
    Item,
    ItemMarketprices,
    StoreSales,
    StoreReturns,
    WebSales,
    WebReturns,
    WebClickstreams,
    Inventory,
    ProductReviews,
}

/// Kind of a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A surrogate key.
    Key,
    /// A ticket or order number.
    Order,
    /// A small integer.
    Int,
    /// A number with two decimals: an amount of money, a price, a share, an offset in hours.
    Money,
    /// Text with few distinct values.
    Text,
    /// Text with nearly all values distinct.
    Prose,
}

/// A column of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    pub kind: Kind,
    pub nullable: bool,
    /// The table whose key this column holds.
    pub references: Option<Table>,
}

/// Type of money columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Money {
    /// DOUBLE, nearest to the decimal value.
    #[default]
    Double,
    /// DECIMAL(7, 2): sums are exact.
    Decimal,
}

/// Type of key columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Keys {
    #[default]
    Int64,
    /// INT32 for every key, and for ticket and order numbers if all of them fit.
    Int32,
}

impl Table {
    /// Every table, small ones first.
    pub const ALL: [Table; 23] = [
        Table::DateDim,
        Table::TimeDim,
        Table::IncomeBand,
        Table::ShipMode,
        Table::WebSite,
        Table::Reason,
        Table::Warehouse,
        Table::Store,
        Table::WebPage,
        Table::Promotion,
        Table::HouseholdDemographics,
        Table::CustomerDemographics,
        Table::CustomerAddress,
        Table::Customer,
        Table::Item,
        Table::ItemMarketprices,
        Table::StoreSales,
        Table::StoreReturns,
        Table::WebSales,
        Table::WebReturns,
        Table::WebClickstreams,
        Table::Inventory,
        Table::ProductReviews,
    ];

    /// Name in SQL, and of the folder.
    pub fn name(self) -> &'static str {
        match self {
            Table::DateDim => "date_dim",
            Table::TimeDim => "time_dim",
            Table::IncomeBand => "income_band",
            Table::ShipMode => "ship_mode",
            Table::WebSite => "web_site",
            Table::Reason => "reason",
            Table::Warehouse => "warehouse",
            Table::Store => "store",
            Table::WebPage => "web_page",
            Table::Promotion => "promotion",
            Table::HouseholdDemographics => "household_demographics",
            Table::CustomerDemographics => "customer_demographics",
            Table::CustomerAddress => "customer_address",
            Table::Customer => "customer",
            Table::Item => "item",
            Table::ItemMarketprices => "item_marketprices",
            Table::StoreSales => "store_sales",
            Table::StoreReturns => "store_returns",
            Table::WebSales => "web_sales",
            Table::WebReturns => "web_returns",
            Table::WebClickstreams => "web_clickstreams",
            Table::Inventory => "inventory",
            Table::ProductReviews => "product_reviews",
        }
    }

    /// Number of the table's random numbers: part of the data, so it never changes.
    pub(crate) fn id(self) -> u64 {
        self as u64 + 1
    }

    /// The table of that name.
    ///
    /// # Errors
    /// [`DataError::UnknownTable`] with the names that exist.
    pub fn from_name(name: &str) -> Result<Table, DataError> {
        Table::ALL.into_iter().find(|table| table.name() == name).ok_or_else(|| DataError::UnknownTable {
            name: name.to_string(),
            known: Table::ALL.map(Table::name).join(", "),
        })
    }

    /// Columns, in file order.
    pub fn columns(self) -> Vec<Column> {
        self.text().split(',').map(|column| Column::parse(column.trim())).collect()
    }

    /// The column that identifies a row, if there is one.
    pub fn primary_key(self) -> Option<&'static str> {
        match self {
            Table::StoreSales
            | Table::StoreReturns
            | Table::WebSales
            | Table::WebReturns
            | Table::WebClickstreams
            | Table::Inventory => None,
            _ => self.text().split_whitespace().next(),
        }
    }

    /// Schema of the files; with `wide_orders`, ticket and order numbers have 64 bits whatever `keys` says.
    pub(crate) fn schema(self, money: Money, keys: Keys, wide_orders: bool) -> SchemaRef {
        let integer = |narrow| if narrow { DataType::Int32 } else { DataType::Int64 };
        let fields = self.columns().into_iter().map(|column| {
            let data_type = match column.kind {
                Kind::Key => integer(keys == Keys::Int32),
                Kind::Order => integer(keys == Keys::Int32 && !wide_orders),
                Kind::Int => DataType::Int32,
                Kind::Money if money == Money::Decimal => DataType::Decimal128(7, 2),
                Kind::Money => DataType::Float64,
                Kind::Text | Kind::Prose => DataType::Utf8,
            };
            Field::new(column.name, data_type, column.nullable)
        });
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }

    fn text(self) -> &'static str {
        let (_, text) = COLUMNS.iter().find(|(table, _)| *table == self).expect("every table has its columns");
        text
    }
}

/// The columns of each table: name, kind (`?`: may be NULL), and the table that a key refers to.
const COLUMNS: [(Table, &str); 23] = [
    (
        Table::DateDim,
        "d_date_sk key, d_date_id prose, d_date prose, d_month_seq int, d_week_seq int, d_quarter_seq int, \
         d_year int, d_dow int, d_moy int, d_dom int, d_qoy int, d_fy_year int, d_fy_quarter_seq int, \
         d_fy_week_seq int, d_day_name text, d_quarter_name text, d_holiday text, d_weekend text, \
         d_following_holiday text, d_first_dom int, d_last_dom int, d_same_day_ly int, d_same_day_lq int, \
         d_current_day text, d_current_week text, d_current_month text, d_current_quarter text, \
         d_current_year text",
    ),
    (
        Table::TimeDim,
        "t_time_sk key, t_time_id prose, t_time int, t_hour int, t_minute int, t_second int, t_am_pm text, \
         t_shift text, t_sub_shift text, t_meal_time text?",
    ),
    (Table::IncomeBand, "ib_income_band_sk key, ib_lower_bound int, ib_upper_bound int"),
    (
        Table::ShipMode,
        "sm_ship_mode_sk key, sm_ship_mode_id text, sm_type text, sm_code text, sm_carrier text, \
         sm_contract text",
    ),
    (
        Table::WebSite,
        "web_site_sk key, web_site_id text, web_rec_start_date text, web_rec_end_date text?, web_name text, \
         web_open_date_sk key >date_dim, web_close_date_sk key >date_dim, web_class text, web_manager text, \
         web_mkt_id int, web_mkt_class text, web_mkt_desc text, web_market_manager text, web_company_id int, \
         web_company_name text, web_street_number text, web_street_name text, web_street_type text, \
         web_suite_number text, web_city text, web_county text, web_state text, web_zip text, \
         web_country text, web_gmt_offset money, web_tax_percentage money",
    ),
    (Table::Reason, "r_reason_sk key, r_reason_id text, r_reason_desc text"),
    (
        Table::Warehouse,
        "w_warehouse_sk key, w_warehouse_id text, w_warehouse_name text, w_warehouse_sq_ft int, \
         w_street_number text, w_street_name text, w_street_type text, w_suite_number text, w_city text, \
         w_county text, w_state text, w_zip text, w_country text, w_gmt_offset money",
    ),
    (
        Table::Store,
        "s_store_sk key, s_store_id text, s_rec_start_date text, s_rec_end_date text?, \
         s_closed_date_sk key >date_dim, s_store_name text, s_number_employees int, s_floor_space int, \
         s_hours text, s_manager text, s_market_id int, s_geography_class text, s_market_desc text, \
         s_market_manager text, s_division_id int, s_division_name text, s_company_id int, \
         s_company_name text, s_street_number text, s_street_name text, s_street_type text, \
         s_suite_number text, s_city text, s_county text, s_state text, s_zip text, s_country text, \
         s_gmt_offset money, s_tax_precentage money",
    ),
    (
        Table::WebPage,
        "wp_web_page_sk key, wp_web_page_id text, wp_rec_start_date text, wp_rec_end_date text?, \
         wp_creation_date_sk key >date_dim, wp_access_date_sk key >date_dim, wp_autogen_flag text, \
         wp_customer_sk key >customer, wp_url text, wp_type text, wp_char_count int, wp_link_count int, \
         wp_image_count int, wp_max_ad_count int",
    ),
    (
        Table::Promotion,
        "p_promo_sk key, p_promo_id text, p_start_date_sk key >date_dim, p_end_date_sk key >date_dim, \
         p_item_sk key >item, p_cost money, p_response_target int, p_promo_name text, p_channel_dmail text?, \
         p_channel_email text?, p_channel_catalog text, p_channel_tv text?, p_channel_radio text, \
         p_channel_press text, p_channel_event text, p_channel_demo text, p_channel_details text, \
         p_purpose text, p_discount_active text",
    ),
    (
        Table::HouseholdDemographics,
        "hd_demo_sk key, hd_income_band_sk key >income_band, hd_buy_potential text, hd_dep_count int?, \
         hd_vehicle_count int",
    ),
    (
        Table::CustomerDemographics,
        "cd_demo_sk key, cd_gender text?, cd_marital_status text?, cd_education_status text?, \
         cd_purchase_estimate int, cd_credit_rating text, cd_dep_count int, cd_dep_employed_count int, \
         cd_dep_college_count int",
    ),
    (
        Table::CustomerAddress,
        "ca_address_sk key, ca_address_id prose, ca_street_number text, ca_street_name text, \
         ca_street_type text, ca_suite_number text, ca_city text, ca_county text, ca_state text, \
         ca_zip text, ca_country text, ca_gmt_offset money, ca_location_type text",
    ),
    (
        Table::Customer,
        "c_customer_sk key, c_customer_id prose, c_current_cdemo_sk key? >customer_demographics, \
         c_current_hdemo_sk key? >household_demographics, c_current_addr_sk key? >customer_address, \
         c_first_shipto_date_sk key >date_dim, c_first_sales_date_sk key >date_dim, c_salutation text, \
         c_first_name text, c_last_name text, c_preferred_cust_flag text?, c_birth_day int, \
         c_birth_month int, c_birth_year int, c_birth_country text?, c_login prose?, \
         c_email_address prose?, c_last_review_date text",
    ),
    (
        Table::Item,
        "i_item_sk key, i_item_id prose, i_rec_start_date text, i_rec_end_date text?, i_item_desc prose?, \
         i_current_price money, i_wholesale_cost money, i_brand_id int, i_brand text, i_class_id int, \
         i_class text, i_category_id int, i_category text, i_manufact_id int, i_manufact text, i_size text, \
         i_formulation text, i_color text, i_units text, i_container text, i_manager_id int, \
         i_product_name text",
    ),
    (
        Table::ItemMarketprices,
        "imp_sk key, imp_item_sk key >item, imp_competitor text, imp_competitor_price money?, \
         imp_start_date key >date_dim, imp_end_date key? >date_dim",
    ),
    (
        Table::StoreSales,
        "ss_sold_date_sk key >date_dim, ss_sold_time_sk key >time_dim, ss_item_sk key >item, \
         ss_customer_sk key >customer, ss_cdemo_sk key? >customer_demographics, \
         ss_hdemo_sk key? >household_demographics, ss_addr_sk key? >customer_address, \
         ss_store_sk key >store, ss_promo_sk key? >promotion, ss_ticket_number order, ss_quantity int, \
         ss_wholesale_cost money, ss_list_price money, ss_sales_price money, ss_ext_discount_amt money, \
         ss_ext_sales_price money, ss_ext_wholesale_cost money, ss_ext_list_price money, ss_ext_tax money, \
         ss_coupon_amt money, ss_net_paid money, ss_net_paid_inc_tax money, ss_net_profit money",
    ),
    (
        Table::StoreReturns,
        "sr_returned_date_sk key >date_dim, sr_return_time_sk key >time_dim, sr_item_sk key >item, \
         sr_customer_sk key >customer, sr_cdemo_sk key >customer_demographics, \
         sr_hdemo_sk key >household_demographics, sr_addr_sk key >customer_address, sr_store_sk key >store, \
         sr_reason_sk key >reason, sr_ticket_number order, sr_return_quantity int, sr_return_amt money, \
         sr_return_tax money, sr_return_amt_inc_tax money, sr_fee money, sr_return_ship_cost money, \
         sr_refunded_cash money, sr_reversed_charge money, sr_store_credit money, sr_net_loss money",
    ),
    (
        Table::WebSales,
        "ws_sold_date_sk key >date_dim, ws_sold_time_sk key >time_dim, ws_ship_date_sk key >date_dim, \
         ws_item_sk key >item, ws_bill_customer_sk key >customer, \
         ws_bill_cdemo_sk key? >customer_demographics, ws_bill_hdemo_sk key? >household_demographics, \
         ws_bill_addr_sk key? >customer_address, ws_ship_customer_sk key >customer, \
         ws_ship_cdemo_sk key? >customer_demographics, ws_ship_hdemo_sk key? >household_demographics, \
         ws_ship_addr_sk key? >customer_address, ws_web_page_sk key? >web_page, \
         ws_web_site_sk key? >web_site, ws_ship_mode_sk key? >ship_mode, ws_warehouse_sk key? >warehouse, \
         ws_promo_sk key? >promotion, ws_order_number order, ws_quantity int, ws_wholesale_cost money, \
         ws_list_price money, ws_sales_price money, ws_ext_discount_amt money, ws_ext_sales_price money, \
         ws_ext_wholesale_cost money, ws_ext_list_price money, ws_ext_tax money, ws_coupon_amt money, \
         ws_ext_ship_cost money, ws_net_paid money, ws_net_paid_inc_tax money, ws_net_paid_inc_ship money, \
         ws_net_paid_inc_ship_tax money, ws_net_profit money",
    ),
    (
        Table::WebReturns,
        "wr_returned_date_sk key >date_dim, wr_returned_time_sk key >time_dim, wr_item_sk key >item, \
         wr_refunded_customer_sk key >customer, wr_refunded_cdemo_sk key >customer_demographics, \
         wr_refunded_hdemo_sk key >household_demographics, wr_refunded_addr_sk key >customer_address, \
         wr_returning_customer_sk key >customer, wr_returning_cdemo_sk key >customer_demographics, \
         wr_returning_hdemo_sk key >household_demographics, wr_returning_addr_sk key >customer_address, \
         wr_web_page_sk key >web_page, wr_reason_sk key >reason, wr_order_number order, \
         wr_return_quantity int, wr_return_amt money, wr_return_tax money, wr_return_amt_inc_tax money, \
         wr_fee money, wr_return_ship_cost money, wr_refunded_cash money, wr_reversed_charge money, \
         wr_account_credit money, wr_net_loss money",
    ),
    (
        Table::WebClickstreams,
        "wcs_click_date_sk key >date_dim, wcs_click_time_sk key >time_dim, wcs_sales_sk order?, \
         wcs_item_sk key >item, wcs_web_page_sk key? >web_page, wcs_user_sk key? >customer",
    ),
    (
        Table::Inventory,
        "inv_date_sk key >date_dim, inv_item_sk key >item, inv_warehouse_sk key >warehouse, \
         inv_quantity_on_hand int?",
    ),
    (
        Table::ProductReviews,
        "pr_review_sk key, pr_review_date text, pr_review_time text, pr_review_rating int, \
         pr_item_sk key >item, pr_user_sk key >customer, pr_order_sk order, pr_review_content prose",
    ),
];

impl Column {
    fn parse(text: &'static str) -> Column {
        let mut words = text.split_whitespace();
        let name = words.next().expect("a column has a name");
        let kind = words.next().expect("a column has a kind");
        let references = words.next().map(|word| {
            Table::from_name(word.trim_start_matches('>')).expect("a column refers to a table of this schema")
        });
        let kind_name = kind.trim_end_matches('?');
        let parsed = match kind_name {
            "key" => Kind::Key,
            "order" => Kind::Order,
            "int" => Kind::Int,
            "money" => Kind::Money,
            "text" => Kind::Text,
            "prose" => Kind::Prose,
            other => panic!("column {name} has the kind '{other}', which the schema does not know"),
        };
        Column { name, kind: parsed, nullable: kind_name.len() < kind.len(), references }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_the_columns_of_the_specification() {
        // Names and column counts as listed by the workload.
        let expected = [
            ("store_sales", 23),
            ("web_sales", 34),
            ("store_returns", 20),
            ("web_returns", 24),
            ("web_clickstreams", 6),
            ("inventory", 4),
            ("product_reviews", 8),
            ("item", 22),
            ("item_marketprices", 6),
            ("customer", 18),
            ("customer_address", 13),
            ("customer_demographics", 9),
            ("household_demographics", 5),
            ("date_dim", 28),
            ("time_dim", 10),
            ("store", 29),
            ("warehouse", 14),
            ("web_page", 14),
            ("promotion", 19),
            ("income_band", 3),
            ("reason", 3),
            ("ship_mode", 6),
            ("web_site", 26),
        ];
        assert_eq!(expected.len(), Table::ALL.len());
        for (name, num_columns) in expected {
            let columns = Table::from_name(name).expect("a table").columns();
            assert_eq!(columns.len(), num_columns, "{name}");
            let names: std::collections::HashSet<_> = columns.iter().map(|column| column.name).collect();
            assert_eq!(names.len(), num_columns, "{name} repeats a column");
        }
    }

    #[test]
    fn options_choose_the_types() {
        let fields = |money, keys, wide| {
            let schema = Table::StoreSales.schema(money, keys, wide);
            ["ss_item_sk", "ss_ticket_number", "ss_quantity", "ss_net_paid"]
                .map(|name| schema.field_with_name(name).expect("a column").data_type().clone())
        };
        use DataType::{Decimal128, Float64, Int32, Int64};
        assert_eq!(fields(Money::Double, Keys::Int64, false), [Int64, Int64, Int32, Float64]);
        assert_eq!(fields(Money::Decimal, Keys::Int32, false), [Int32, Int32, Int32, Decimal128(7, 2)]);
        assert_eq!(fields(Money::Double, Keys::Int32, true), [Int32, Int64, Int32, Float64]);
    }

    #[test]
    fn unknown_tables_are_refused_with_the_known_ones() {
        let error = Table::from_name("store_sale").expect_err("refused").to_string();
        assert!(error.contains("'store_sale'") && error.contains("store_sales, store_returns"), "{error}");
    }
}
