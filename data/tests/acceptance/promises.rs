//! Counts, keys, NULLs, dimensions, inventory and reviews.

use std::collections::{HashMap, HashSet};

use millpond_data::gpu_bdb::Table;

use super::files::{Folder, NULL};
use super::{Expected, Report};

/// Row counts that follow exactly from the formulas.
pub fn counts(folder: &Folder, expected: &Expected, report: &mut Report) -> Result<(), String> {
    for (table, count) in expected.counts {
        report.equal(&format!("rows of {table}"), folder.num_rows(table)?, count);
    }
    report.equal("rows of web_site", folder.num_rows("web_site")?, 30);
    Ok(())
}

/// Surrogate keys count from 1, those of the calendar from 0; every reference finds its row.
pub fn keys(folder: &Folder, report: &mut Report) -> Result<(), String> {
    let first = |table: Table| if matches!(table, Table::DateDim | Table::TimeDim) { 0 } else { 1 };
    for table in Table::ALL {
        let Some(key) = table.primary_key() else { continue };
        let values = folder.numbers(table.name(), key)?;
        let wrong = values.iter().enumerate().filter(|&(row, &value)| value != row as i64 + first(table)).count();
        report.none(&format!("{key} counts up from {}", first(table)), wrong);
    }
    for table in Table::ALL {
        for column in table.columns() {
            let Some(parent) = column.references else { continue };
            let last = folder.num_rows(parent.name())? as i64 + first(parent) - 1;
            let values = folder.numbers(table.name(), column.name)?;
            let lost = values.iter().filter(|&&value| value != NULL && !(first(parent)..=last).contains(&value));
            report.none(&format!("{} is found in {}", column.name, parent.name()), lost.count());
        }
    }
    Ok(())
}

/// Columns that are never NULL, and the share of NULLs in the others.
pub fn nulls(folder: &Folder, report: &mut Report) -> Result<(), String> {
    #[rustfmt::skip]
    const NULLABLE: [&str; 41] = [
        "ss_cdemo_sk", "ss_hdemo_sk", "ss_addr_sk", "ss_promo_sk", "ws_bill_cdemo_sk", "ws_bill_hdemo_sk",
        "ws_bill_addr_sk", "ws_ship_cdemo_sk", "ws_ship_addr_sk", "ws_ship_hdemo_sk", "ws_web_page_sk",
        "ws_web_site_sk", "ws_ship_mode_sk", "ws_promo_sk", "ws_warehouse_sk", "inv_quantity_on_hand", "i_item_desc",
        "imp_competitor_price", "imp_end_date", "c_current_cdemo_sk", "c_current_hdemo_sk", "c_current_addr_sk",
        "c_preferred_cust_flag", "c_birth_country", "c_login", "c_email_address", "cd_gender", "cd_marital_status",
        "cd_education_status", "hd_dep_count", "p_channel_dmail", "p_channel_email", "p_channel_tv",
        // These have a NULL share of their own, checked in other functions.
        "wcs_sales_sk", "wcs_user_sk", "wcs_web_page_sk", "t_meal_time", "i_rec_end_date", "s_rec_end_date",
        "wp_rec_end_date", "web_rec_end_date",
    ];
    for table in Table::ALL {
        for column in folder.columns(table.name())? {
            let (nulls, rows) = folder.nulls(table.name(), &column)?;
            let share = nulls as f64 / rows as f64;
            match NULLABLE.iter().position(|name| *name == column) {
                None => report.none(&format!("{column} is never NULL"), nulls),
                Some(place) if place < 33 => {
                    // 0.0001 to 0.0005, and five standard deviations more if few NULLs are expected.
                    let spread = 5.0 * (0.000_25 / rows as f64).sqrt();
                    let low = (0.000_25 - spread).clamp(0.0, 0.000_1);
                    report.within(&format!("NULLs of {column}"), share, low, (0.000_25 + spread).max(0.000_5));
                }
                Some(_) if column.ends_with("rec_end_date") => report.equal(&format!("{column} is NULL"), nulls, rows),
                Some(_) => (),
            }
        }
    }
    // Breakfast, lunch and dinner take 10 of 24 hours.
    report.equal("seconds without a meal", folder.nulls("time_dim", "t_meal_time")?.0, 14 * 3_600);
    Ok(())
}

/// Properties of small tables that queries rely on.
pub fn dimensions(folder: &Folder, expected: &Expected, report: &mut Report) -> Result<(), String> {
    let categories = folder.texts("item", "i_category")?;
    let category_ids = folder.numbers("item", "i_category_id")?;
    let classes = folder.numbers("item", "i_class_id")?;
    let found = [10_000, 10_001, 10_002, 10_003].map(|item: usize| categories[item - 1].as_str());
    report.equal("categories of 10000 to 10003", found.join(", "), "Books, Music, Books, Movies & TV".to_string());
    let shares = [2.77, 45.20, 29.98, 3.63, 3.96, 2.21, 2.14, 7.52, 2.60];
    let num_classes = [6, 16, 5, 11, 8, 7, 14, 2, 10];
    for (index, share) in shares.into_iter().enumerate() {
        let id = index as i64 + 1;
        let count = category_ids.iter().filter(|&&category| category == id).count() as f64;
        let share = share / 100.0;
        let spread = 5.0 * (share * (1.0 - share) / expected.items as f64).sqrt();
        report.within(
            &format!("share of category {id}"),
            count / expected.items as f64,
            share - spread,
            share + spread,
        );
        let seen: HashSet<i64> =
            classes.iter().zip(&category_ids).filter(|pair| *pair.1 == id).map(|pair| *pair.0).collect();
        let all = (1..=num_classes[index]).collect::<HashSet<i64>>();
        report.none(&format!("classes of category {id}"), seen.symmetric_difference(&all).count());
    }
    let distinct = |table: &str, column: &str| -> Result<usize, String> {
        Ok(folder.texts(table, column)?.into_iter().collect::<HashSet<_>>().len())
    };
    report.equal("distinct i_item_id", distinct("item", "i_item_id")? as i64, expected.items);
    report.equal("distinct w_warehouse_name", distinct("warehouse", "w_warehouse_name")?, 5);
    report.equal("types of pages", distinct("web_page", "wp_type")?, 8);
    report.equal("type of page 8", folder.texts("web_page", "wp_type")?[7].as_str(), "review");
    let characters = folder.numbers("web_page", "wp_char_count")?;
    report.equal("length of pages 1 to 3", format!("{:?}", &characters[..3]), "[5200, 5500, 5800]".to_string());
    report.equal("state of store 10", folder.texts("store", "s_state")?[9].as_str(), "GA");
    report.equal("offset of store 10", folder.numbers("store", "s_gmt_offset")?[9], -500);
    let short = folder.texts("store", "s_store_name")?.iter().filter(|name| name.len() < 5).count();
    report.none("store names of five letters", short);
    let prices = folder.numbers("item", "i_current_price")?;
    let planted = (140..=153).map(|item: i64| 9_500 + 10 * (item - 140)).eq(prices[139..153].iter().copied())
        && (160..=164).map(|item: i64| 100 + 10 * (item - 160)).eq(prices[159..164].iter().copied());
    report.add(planted, "prices of the planted items".to_string());
    report.none("prices from 0.09 to 99.99", prices.iter().filter(|&&price| !(9..=9_999).contains(&price)).count());

    let mut competitors = vec![0; expected.items as usize + 1];
    folder.numbers("item_marketprices", "imp_item_sk")?.iter().for_each(|&item| competitors[item as usize] += 1);
    report.none("items with two competitors", competitors[1..].iter().filter(|&&count| count < 2).count());
    let starts = folder.numbers("item_marketprices", "imp_start_date")?;
    let ends = folder.numbers("item_marketprices", "imp_end_date")?;
    let count = starts.len() as i64;
    let wrong = starts.iter().enumerate().filter(|&(row, &start)| start != 36_890 + row as i64 * 1_826 / count).count();
    report.none("start of a price", wrong);
    let late = starts.iter().zip(&ends).filter(|pair| *pair.1 != NULL && pair.1 < pair.0).count();
    report.none("a price ends after its start", late);

    // Days and weeks of the calendar.
    let days = folder.texts("date_dim", "d_date")?;
    let weeks = folder.numbers("date_dim", "d_week_seq")?;
    for (key, date) in [(0, "1900-01-01"), (36_890, "2001-01-01"), (37_134, "2001-09-02"), (109_572, "2199-12-31")] {
        report.equal(&format!("day {key}"), days[key].as_str(), date);
    }
    let wrong = weeks.iter().enumerate().filter(|&(day, &week)| week != day as i64 / 7 + 1).count();
    report.none("weeks start on Mondays", wrong);
    Ok(())
}

/// Weeks, items and warehouses nested in this order, and the plants of blocks G and H.
pub fn inventory(folder: &Folder, report: &mut Report) -> Result<(), String> {
    let dates = folder.numbers("inventory", "inv_date_sk")?;
    let items = folder.numbers("inventory", "inv_item_sk")?;
    let warehouses = folder.numbers("inventory", "inv_warehouse_sk")?;
    let stock = folder.numbers("inventory", "inv_quantity_on_hand")?;
    let per_week = dates.len() / 261;
    let nested = (0..dates.len()).filter(|&row| {
        let first = row % per_week == 0;
        let up = first || (items[row - 1], warehouses[row - 1]) < (items[row], warehouses[row]);
        dates[row] != 36_890 + 7 * (row / per_week) as i64 || !up
    });
    report.none("inventory by week, item and warehouse", nested.count());
    report.none(
        "warehouses of an item in turn",
        (0..items.len()).filter(|row| warehouses[*row] != (*row % 5) as i64 + 1).count(),
    );
    let steady =
        (0..items.len()).filter(|&row| (160..=164).contains(&items[row]) && !(400..=700).contains(&stock[row]));
    report.none("steady stock of items 160 to 164", steady.count());
    let erratic = (0..items.len()).filter(|&row| {
        let k = items[row] - 166;
        let week = (dates[row] - 36_890) / 7;
        let value = match week {
            2 => 900 - k,
            6 => 800 - k,
            _ => 0,
        };
        (0..=5).contains(&k) && warehouses[row] == 1 + k % 5 && week < 9 && stock[row] != value
    });
    report.none("erratic stock of items 166 to 171", erratic.count());
    let known: Vec<i64> = stock.into_iter().filter(|&value| value != NULL).collect();
    report.none("stock from 0 to 1000", known.iter().filter(|value| !(0..=1_000).contains(*value)).count());
    let mean = known.iter().sum::<i64>() as f64 / known.len() as f64;
    report.within("mean stock", mean, 490.0, 510.0);
    Ok(())
}

/// Ratings, length, letters and companies, and the plants of block I.
pub fn reviews(folder: &Folder, expected: &Expected, report: &mut Report) -> Result<(), String> {
    let ratings = folder.numbers("product_reviews", "pr_review_rating")?;
    let texts = folder.texts("product_reviews", "pr_review_content")?;
    let items = folder.numbers("product_reviews", "pr_item_sk")?;
    let orders = folder.numbers("product_reviews", "pr_order_sk")?;
    let users = folder.numbers("product_reviews", "pr_user_sk")?;
    let dates = folder.texts("product_reviews", "pr_review_date")?;
    let count = texts.len() as f64;
    for (rating, share) in [0.0705, 0.0483, 0.0812, 0.1903, 0.6097].into_iter().enumerate() {
        let found = ratings.iter().filter(|&&value| value == rating as i64 + 1).count() as f64 / count;
        let spread = 5.0 * (share * (1.0 - share) / count).sqrt();
        report.within(&format!("share of rating {}", rating + 1), found, share - spread, share + spread);
    }
    let mean = texts.iter().map(String::len).sum::<usize>() as f64 / count;
    report.within("mean length of a review", mean, 640.0, 690.0);
    report.none("no è and no line break", texts.iter().filter(|text| text.contains(['è', '\n', '\r'])).count());
    // The first eight companies and the rest of the list; queries only see the text.
    let companies = millpond_data::gpu_bdb::lexicon::COMPANIES;
    let named = texts.iter().filter(|text| companies.iter().any(|name| text.contains(name))).count() as f64;
    report.within("reviews that name a company", named / count, 0.14, 0.18);
    let early = dates.iter().filter(|date| !("2001-01-01".."2006-01-02").contains(&date.as_str())).count();
    report.none("days of reviews", early);

    // Every review is for an item of its order, except those that block I assigns to item 10002.
    let order_numbers = folder.numbers("web_sales", "ws_order_number")?;
    let order_items = folder.numbers("web_sales", "ws_item_sk")?;
    let receivers = folder.numbers("web_sales", "ws_ship_customer_sk")?;
    let lines: HashSet<(i64, i64)> = order_numbers.iter().copied().zip(order_items).collect();
    let receiver: HashMap<i64, i64> = order_numbers.into_iter().zip(receivers).collect();
    let foreign: Vec<usize> = (0..items.len()).filter(|&row| !lines.contains(&(orders[row], items[row]))).collect();
    report.add(
        foreign.len() <= 30 && foreign.iter().all(|&row| items[row] == 10_002),
        format!("reviews of items that were not ordered: {}, at most 30, all of item 10002", foreign.len()),
    );
    let others = (0..items.len()).filter(|&row| receiver.get(&orders[row]) != Some(&users[row])).count();
    report.none("a review is by the receiver of its order", others);
    let reviewed: HashSet<i64> = orders.iter().copied().collect();
    let planted = expected.orders + 1..=expected.orders + expected.planted.1;
    report.none("planted orders have a review", planted.clone().filter(|order| !reviewed.contains(order)).count());
    let silent = (0..items.len()).filter(|&row| {
        let second = texts[row].split(['.', '!', '?']).nth(1).unwrap_or_default();
        planted.contains(&orders[row]) && !second.contains("terrible")
    });
    report.none("reviews of planted orders say terrible", silent.count());
    Ok(())
}
