//! Days and seconds: the calendar's keys, and the tables `date_dim` and `time_dim`.
//!
//! ```text
//!   d_date_sk   days since 1900-01-01, a Monday      36,890 = 2001-01-01, the first day of every fact
//!   t_time_sk   second of the day
//! ```

use super::names::id16;
use super::rows::Rows;
use crate::DataError;

/// Rows of `date_dim`: 1900-01-01 to 2199-12-31.
pub(crate) const NUM_DAYS: u64 = 109_573;
/// Rows of `time_dim`.
pub(crate) const NUM_SECONDS: u64 = 86_400;
/// Key of 2001-01-01.
pub(crate) const FIRST_DAY: i64 = 36_890;
/// Number of days over which sales are spread.
pub(crate) const SALES_DAYS: u64 = 1_826;
/// Key of 2005-12-31, the last day with sales.
pub(crate) const LAST_SALES_DAY: i64 = FIRST_DAY + SALES_DAYS as i64 - 1;

/// Day of item `index` of `count`: days never decrease, and all days have equal shares.
pub(crate) fn sales_day(index: u64, count: u64) -> i64 {
    FIRST_DAY + (u128::from(index) * u128::from(SALES_DAYS) / u128::from(count)) as i64
}

/// A day of the Gregorian calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Date {
    pub(crate) year: i64,
    pub(crate) month: i64,
    pub(crate) day: i64,
}

/// Key of a day. After Howard Hinnant's "chrono-compatible low-level date algorithms" (years that begin in March).
pub(crate) const fn day_key(year: i64, month: i64, day: i64) -> i64 {
    let shifted = if month <= 2 { year - 1 } else { year };
    let era = shifted.div_euclid(400);
    let year_of_era = shifted.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    // There are 693,901 days from 0000-03-01 to 1900-01-01.
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 693_901
}

/// Date of a key.
pub(crate) const fn date_of(key: i64) -> Date {
    let days = key + 693_901;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + if month <= 2 { 1 } else { 0 };
    Date { year, month, day }
}

fn days_in_month(year: i64, month: i64) -> i64 {
    let (next_year, next_month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    day_key(next_year, next_month, 1) - day_key(year, month, 1)
}

/// `YYYY-MM-DD`.
pub(crate) fn date_text(key: i64) -> String {
    let Date { year, month, day } = date_of(key);
    format!("{year:04}-{month:02}-{day:02}")
}

/// `HH:MM:SS`.
pub(crate) fn time_text(second: i64) -> String {
    format!("{:02}:{:02}:{:02}", second / 3_600, second / 60 % 60, second % 60)
}

const DAY_NAMES: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

fn is_holiday(key: i64) -> bool {
    let Date { month, day, .. } = date_of(key);
    matches!((month, day), (1, 1) | (7, 4) | (12, 25))
}

fn flag(yes: bool) -> &'static str {
    if yes { "Y" } else { "N" }
}

/// The date `months` earlier, clamped to that month's last day.
fn months_earlier(key: i64, months: i64) -> i64 {
    let Date { year, month, day } = date_of(key);
    let index = year * 12 + month - 1 - months;
    let (year, month) = (index.div_euclid(12), index.rem_euclid(12) + 1);
    day_key(year, month, day.min(days_in_month(year, month)))
}

/// Row of day `key` of `date_dim`. The fiscal year is the calendar year; the current day is the first day without
/// sales.
pub(crate) fn date_row(key: u64, rows: &mut Rows) -> Result<(), DataError> {
    let key = key as i64;
    let Date { year, month, day } = date_of(key);
    let quarter = (month - 1) / 3 + 1;
    let quarter_seq = (year - 1900) * 4 + quarter;
    let week_seq = key / 7 + 1;
    let weekday = key % 7;
    rows.key(key);
    rows.text(&id16(key as u64));
    rows.text(&date_text(key));
    rows.int((year - 1900) * 12 + month - 1);
    rows.int(week_seq);
    rows.int(quarter_seq);
    rows.int(year);
    rows.int((weekday + 1) % 7);
    rows.int(month);
    rows.int(day);
    rows.int(quarter);
    rows.int(year);
    rows.int(quarter_seq);
    rows.int(week_seq);
    rows.text(DAY_NAMES[weekday as usize]);
    rows.text(&format!("{year}Q{quarter}"));
    rows.text(flag(is_holiday(key)));
    rows.text(flag(weekday >= 5));
    rows.text(flag(is_holiday(key - 1)));
    rows.int(day_key(year, month, 1));
    rows.int(day_key(year, month, days_in_month(year, month)));
    rows.int(months_earlier(key, 12));
    rows.int(months_earlier(key, 3));
    let today = LAST_SALES_DAY + 1;
    let now = date_of(today);
    rows.text(flag(key == today));
    rows.text(flag(week_seq == today / 7 + 1));
    rows.text(flag((year, month) == (now.year, now.month)));
    rows.text(flag((year, quarter) == (now.year, (now.month - 1) / 3 + 1)));
    rows.text(flag(year == now.year));
    rows.end()
}

/// Row of second `key` of `time_dim`.
pub(crate) fn time_row(key: u64, rows: &mut Rows) -> Result<(), DataError> {
    let key = key as i64;
    let hour = key / 3_600;
    rows.key(key);
    rows.text(&id16(key as u64));
    rows.int(key);
    rows.int(hour);
    rows.int(key / 60 % 60);
    rows.int(key % 60);
    rows.text(if hour < 12 { "AM" } else { "PM" });
    rows.text(match hour {
        7..=14 => "first",
        15..=22 => "second",
        _ => "third",
    });
    rows.text(match hour {
        0..=5 => "night",
        6..=11 => "morning",
        12..=16 => "afternoon",
        _ => "evening",
    });
    rows.text_or_null(match hour {
        6..=9 => Some("breakfast"),
        12..=14 => Some("lunch"),
        17..=19 => Some("dinner"),
        _ => None,
    });
    rows.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_the_specification() {
        // Days named in the queries, with their published keys.
        for (text, key) in [
            ("1900-01-01", 0),
            ("2001-01-01", 36_890),
            ("2001-03-16", 36_964),
            ("2001-05-08", 37_017),
            ("2001-09-02", 37_134),
            ("2002-01-02", 37_256),
            ("2003-01-02", 37_621),
            ("2004-03-08", 38_052),
            ("2004-12-20", 38_339),
            ("2005-12-31", 38_715),
            ("2199-12-31", 109_572),
        ] {
            assert_eq!(date_text(key), text);
            let Date { year, month, day } = date_of(key);
            assert_eq!(day_key(year, month, day), key);
        }
        assert_eq!(NUM_DAYS as i64, day_key(2200, 1, 1));
        assert_eq!(DAY_NAMES[36_890 % 7], "Monday");
        assert_eq!(DAY_NAMES[37_256 % 7], "Wednesday");
        assert_eq!(DAY_NAMES[38_715 % 7], "Saturday");
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut last = date_of(-1);
        for key in 0..NUM_DAYS as i64 {
            let date = date_of(key);
            let follows = if date.day > 1 {
                (date.year, date.month, date.day) == (last.year, last.month, last.day + 1)
            } else {
                last.day == days_in_month(last.year, last.month)
            };
            assert!(follows, "{date:?} after {last:?}");
            last = date;
        }
    }

    #[test]
    fn months_earlier_keep_the_day_or_take_the_last() {
        assert_eq!(months_earlier(day_key(2004, 2, 29), 12), day_key(2003, 2, 28));
        assert_eq!(months_earlier(day_key(2004, 1, 15), 3), day_key(2003, 10, 15));
    }

    #[test]
    fn sales_days_run_from_the_first_to_the_last() {
        assert_eq!((sales_day(0, 900), sales_day(899, 900)), (36_890, 38_713));
        assert_eq!(sales_day(89_999, 90_000), LAST_SALES_DAY);
    }
}
