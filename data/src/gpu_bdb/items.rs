//! Items, and competitors' prices for them: the tables `item` and `item_marketprices`.
//!
//! ```text
//!   item i ─► category by share ─► class        static items 10000 to 10003 have fixed categories: queries name them
//! ```

use super::calendar::{FIRST_DAY, LAST_SALES_DAY, SALES_DAYS, date_text};
use super::names::{BOOK_CLASSES, BOOKS, CATEGORIES, CLASS_WORDS, COLORS, id16, pick};
use super::people::weighted;
use super::rows::Rows;
use super::{DataSet, NULL_SHARE, Table};
use crate::DataError;

const VALUES: u64 = 100;
const NULLS: u64 = 101;
const DESCRIPTION: u64 = 102;
/// Categories of the static items, from 10000: Books, Music, Books, Movies & TV.
const STATIC_CATEGORIES: [i64; 4] = [3, 2, 3, 8];
/// Number of competitors with prices.
const NUM_COMPETITORS: i64 = 1_000;

impl DataSet {
    /// Category and class of an item, both from 1.
    fn item_class(&self, item: i64) -> (i64, i64) {
        let draws = self.draws(Table::Item, VALUES, item as u64);
        let shares = CATEGORIES.map(|category| category.1);
        let category = match super::sales::STATIC_ITEMS.contains(&item) {
            true => STATIC_CATEGORIES[(item - super::sales::STATIC_ITEMS.start()) as usize],
            false => 1 + weighted(&shares, draws.int(0, 0, shares.iter().sum::<i64>() - 1)),
        };
        let class = if category == BOOKS {
            1 + weighted(&BOOK_CLASSES, draws.int(1, 0, 999))
        } else {
            draws.int(1, 1, CATEGORIES[category as usize - 1].2)
        };
        (category, class)
    }

    /// Row `key` of `item`, from 1.
    pub(crate) fn item_row(&self, key: u64, text: &mut String, rows: &mut Rows) -> Result<(), DataError> {
        let draws = self.draws(Table::Item, VALUES, key);
        let nulls = self.draws(Table::Item, NULLS, key);
        let (category, class) = self.item_class(key as i64);
        let category_name = CATEGORIES[category as usize - 1].0;
        self.text.description(self.draws(Table::Item, DESCRIPTION, key), text);
        let brand = 1_001_001 + (draws.real(4) * (10_016_017 - 1_001_001 + 1) as f64) as i64;
        let manufacturer = draws.int(5, 1, 1_000);
        let maker = self.text.made_up(1_000 + manufacturer as usize);
        rows.key(key as i64);
        rows.text(&id16(key));
        rows.text(&date_text(draws.int(6, FIRST_DAY - 1_000, FIRST_DAY - 1)));
        rows.text_or_null(None);
        rows.text_or_null((!nulls.chance(0, NULL_SHARE)).then_some(text));
        rows.money(self.plants.item_price(key as i64).unwrap_or_else(|| draws.hundredths(2, 9, 9_999)));
        rows.money(draws.hundredths(3, 2, 8_736));
        rows.int(brand);
        rows.text(&format!("brand {}", brand % 1_000));
        rows.int(class);
        rows.text(CLASS_WORDS[class as usize - 1]);
        rows.int(category);
        rows.text(category_name);
        rows.int(manufacturer);
        rows.text(maker);
        rows.text(pick(&["petite", "small", "medium", "large", "extra large", "economy", "N/A"], draws, 7));
        rows.text(&format!("{:04}", draws.int(8, 0, 9_999)));
        rows.text(pick(&COLORS, draws, 9));
        rows.text(pick(&["Each", "Dozen", "Case", "Pair", "Pound", "Ounce", "Box"], draws, 10));
        rows.text("Unknown");
        rows.int(draws.int(11, 1, 100));
        rows.text(&format!("{} {}", pick(&COLORS, draws, 9), self.text.word(draws, 12)));
        rows.end()
    }

    /// Row `key` of `item_marketprices`, from 1: two rows per item, then random items.
    pub(crate) fn item_marketprices_row(&self, key: u64, rows: &mut Rows) -> Result<(), DataError> {
        let draws = self.draws(Table::ItemMarketprices, VALUES, key);
        let nulls = self.draws(Table::ItemMarketprices, NULLS, key);
        let items = self.sizes.items;
        let item = match (key - 1) / items {
            round @ 0..=1 => self.priced_items[round as usize].at((key - 1) % items) as i64 + 1,
            _ => draws.int(0, 1, items as i64),
        };
        let start = FIRST_DAY + ((key - 1) * SALES_DAYS / self.sizes.market_prices) as i64;
        let competitor = self.text.made_up(draws.int(1, 0, NUM_COMPETITORS - 1) as usize);
        let end = draws.int(2, start, LAST_SALES_DAY);
        rows.key(key as i64);
        rows.key(item);
        rows.text(&format!("{}{} Trading", competitor[..1].to_uppercase(), &competitor[1..]));
        rows.money_or_null((!nulls.chance(0, NULL_SHARE)).then(|| draws.hundredths(3, 9, 9_999)));
        rows.key(start);
        rows.key_or_null((!nulls.chance(1, NULL_SHARE)).then_some(end));
        rows.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_items_have_the_categories_of_the_specification() {
        let data = DataSet::new(0.01, 99, true).expect("data");
        let names: Vec<_> = (10_000..=10_003).map(|item| CATEGORIES[data.item_class(item).0 as usize - 1].0).collect();
        assert_eq!(names, ["Books", "Music", "Books", "Movies & TV"]);
    }
}
