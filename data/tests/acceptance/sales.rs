//! Tickets, orders, returns and clicks.

use std::collections::HashMap;

use super::files::{Folder, NULL};
use super::{Expected, Report};

/// Lines of a channel, column by column.
struct Lines {
    date: Vec<i64>,
    time: Vec<i64>,
    item: Vec<i64>,
    customer: Vec<i64>,
    number: Vec<i64>,
    quantity: Vec<i64>,
}

impl Lines {
    fn read(folder: &Folder, table: &str, columns: [&str; 6]) -> Result<Self, String> {
        let [date, time, item, customer, number, quantity] =
            columns.map(|column| folder.numbers(table, column).map_err(|error| format!("{table}: {error}")));
        Ok(Self { date: date?, time: time?, item: item?, customer: customer?, number: number?, quantity: quantity? })
    }

    fn store(folder: &Folder) -> Result<Self, String> {
        let columns = ["ss_sold_date_sk", "ss_sold_time_sk", "ss_item_sk", "ss_customer_sk", "ss_ticket_number"];
        let [date, time, item, customer, number] = columns;
        Self::read(folder, "store_sales", [date, time, item, customer, number, "ss_quantity"])
    }

    fn web(folder: &Folder) -> Result<Self, String> {
        let columns = ["ws_sold_date_sk", "ws_sold_time_sk", "ws_item_sk", "ws_bill_customer_sk", "ws_order_number"];
        let [date, time, item, customer, number] = columns;
        Self::read(folder, "web_sales", [date, time, item, customer, number, "ws_quantity"])
    }
}

/// Widens a tolerance of scale 1 for smaller data.
fn wider(tolerance: f64, expected: &Expected) -> f64 {
    tolerance / expected.scale.sqrt()
}

/// Days, lines, items and money of both channels.
pub fn sales(folder: &Folder, expected: &Expected, report: &mut Report) -> Result<(), String> {
    let mut mix = (0, 0, HashMap::<i64, u64>::new());
    for (channel, lines, planted) in
        [("store", Lines::store(folder)?, expected.planted.0), ("web", Lines::web(folder)?, expected.planted.1)]
    {
        let last = lines.number.last().copied().unwrap_or_default();
        report.equal(&format!("{channel} tickets and planted ones"), last, expected.orders + planted);
        let regular = lines.number.iter().take_while(|&&number| number <= expected.orders).count();
        // Day 36890 + floor((n - 1) · 1826 / T).
        let days = (0..regular)
            .filter(|&row| lines.date[row] != 36_890 + (lines.number[row] - 1) * 1_826 / expected.orders)
            .count();
        report.none(&format!("{channel} days follow the numbers"), days);
        report.none(
            &format!("{channel} dates do not decrease"),
            (1..regular).filter(|&row| lines.date[row - 1] > lines.date[row]).count(),
        );
        let counts = lines.number.chunk_by(|one, other| one == other).map(<[i64]>::len);
        let odd = counts.clone().filter(|count| !(1..=14).contains(count)).count();
        report.none(&format!("{channel} tickets have 1 to 14 lines"), odd);
        report.equal(&format!("{channel} tickets in order"), counts.count() as i64, last);
        let mean = regular as f64 / expected.orders as f64;
        let spread = wider(0.02, expected);
        report.within(&format!("{channel} lines of a ticket"), mean, 7.5 - spread, 7.5 + spread);
        let apart = (1..lines.date.len()).filter(|&row| {
            lines.number[row - 1] == lines.number[row]
                && (lines.date[row - 1], lines.time[row - 1], lines.customer[row - 1])
                    != (lines.date[row], lines.time[row], lines.customer[row])
        });
        report.none(&format!("{channel} day, second and customer are the ticket's"), apart.count());
        let quantity = lines.quantity[..regular].iter().sum::<i64>() as f64 / regular as f64;
        let spread = wider(0.2, expected);
        report.within(&format!("{channel} mean quantity"), quantity, 50.5 - spread, 50.5 + spread);
        for &item in &lines.item[..regular] {
            mix.0 += 1;
            if (10_000..=10_003).contains(&item) {
                mix.1 += 1;
            } else {
                *mix.2.entry(item).or_default() += 1;
            }
        }
    }
    // 5.0 to 5.2 % at scale 1, without the planted lines that raise the share at smaller scales.
    let total = mix.0 as f64;
    let spread = wider(0.001, expected);
    report.within("static items", mix.1 as f64 / total, 0.051 - spread, 0.051 + spread);
    let mut others: Vec<u64> = mix.2.into_values().collect();
    others.sort_unstable_by(|one, other| other.cmp(one));
    let best = others.iter().take(300).sum::<u64>() as f64 / total;
    let high = if expected.scale < 1.0 { 0.55 } else { 0.42 };
    report.within("the 300 best other items", best, 0.39, high);
    money(folder, report, "store_sales", "ss", 100)?;
    money(folder, report, "web_sales", "ws", 200)
}

/// Relations between the amounts of a line, in hundredths.
fn money(folder: &Folder, report: &mut Report, table: &str, prefix: &str, markup: i64) -> Result<(), String> {
    let column = |name: &str| folder.numbers(table, &format!("{prefix}_{name}"));
    let (quantity, wholesale, list, sales) =
        (column("quantity")?, column("wholesale_cost")?, column("list_price")?, column("sales_price")?);
    let (discount, ext_sales, ext_wholesale, ext_list) = (
        column("ext_discount_amt")?,
        column("ext_sales_price")?,
        column("ext_wholesale_cost")?,
        column("ext_list_price")?,
    );
    let (tax, coupon, paid, with_tax, profit) = (
        column("ext_tax")?,
        column("coupon_amt")?,
        column("net_paid")?,
        column("net_paid_inc_tax")?,
        column("net_profit")?,
    );
    let rows = 0..quantity.len();
    let count = |wrong: &dyn Fn(usize) -> bool| rows.clone().filter(|&row| wrong(row)).count();
    report.none(&format!("{prefix}_quantity from 1 to 100"), count(&|row| !(1..=100).contains(&quantity[row])));
    report.none(&format!("{prefix} wholesale 1 to 100"), count(&|row| !(100..=10_000).contains(&wholesale[row])));
    let most = |row: usize| (wholesale[row] * (100 + markup) + 50) / 100;
    report.none(
        &format!("{prefix} list price above cost"),
        count(&|row| !(wholesale[row]..=most(row)).contains(&list[row])),
    );
    report.none(&format!("{prefix} sold at or below list"), count(&|row| !(0..=list[row]).contains(&sales[row])));
    report.none(
        &format!("{prefix} extended amounts"),
        count(&|row| {
            let times = quantity[row];
            [ext_sales[row], ext_wholesale[row], ext_list[row]]
                != [sales[row], wholesale[row], list[row]].map(|one| one * times)
        }),
    );
    report.none(&format!("{prefix} discount"), count(&|row| discount[row] != ext_list[row] - ext_sales[row]));
    report.none(&format!("{prefix} net paid"), count(&|row| paid[row] != ext_sales[row] - coupon[row]));
    report.none(&format!("{prefix} profit"), count(&|row| profit[row] != paid[row] - ext_wholesale[row]));
    report.none(&format!("{prefix} with tax"), count(&|row| with_tax[row] != paid[row] + tax[row]));
    report.none(&format!("{prefix} tax up to 9 %"), count(&|row| tax[row] * 100 > paid[row] * 9 + 100));
    let without = count(&|row| coupon[row] == 0) as f64 / quantity.len() as f64;
    report.within(&format!("{prefix} lines without a coupon"), without, 0.78, 0.84);
    if prefix == "ws" {
        let (ship, with_ship, all) =
            (column("ext_ship_cost")?, column("net_paid_inc_ship")?, column("net_paid_inc_ship_tax")?);
        let wrong = |row: usize| {
            with_ship[row] != paid[row] + ship[row]
                || all[row] != with_ship[row] + tax[row]
                || ship[row] * 2 > ext_list[row] + 1
        };
        report.none("ws shipping", count(&wrong));
        let (sold, sent) = (column("sold_date_sk")?, column("ship_date_sk")?);
        report.none("ws sent within 120 days", count(&|row| !(1..=120).contains(&(sent[row] - sold[row]))));
        let (bill, receiver) = (column("bill_customer_sk")?, column("ship_customer_sk")?);
        let gifts = count(&|row| bill[row] != receiver[row]) as f64 / quantity.len() as f64;
        report.within("ws gifts", gifts, 0.05, 0.09);
    }
    Ok(())
}

/// One ticket in ten is returned: distinct lines of it, within 715 days.
pub fn returns(folder: &Folder, expected: &Expected, report: &mut Report) -> Result<(), String> {
    for (channel, sold, table, prefix, number, planted) in [
        ("store", Lines::store(folder)?, "store_returns", "sr", "sr_ticket_number", 18),
        ("web", Lines::web(folder)?, "web_returns", "wr", "wr_order_number", 6),
    ] {
        let column = |name: &str| folder.numbers(table, &format!("{prefix}_{name}"));
        let numbers = folder.numbers(table, number)?;
        let (items, days, quantities) = (column("item_sk")?, column("returned_date_sk")?, column("return_quantity")?);
        let regular = numbers.iter().take_while(|&&number| number <= expected.orders).count();
        report.equal(&format!("{channel} planted returns"), numbers.len() - regular, planted);
        let tickets = numbers[..regular].chunk_by(|one, other| one == other).count() as f64;
        let spread = wider(0.004, expected);
        let share = tickets / expected.orders as f64;
        report.within(&format!("{channel} tickets returned"), share, 0.1 - spread, 0.1 + spread);
        let spread = wider(0.08, expected);
        let lines = regular as f64 / tickets;
        report.within(&format!("{channel} lines of a return"), lines, 4.25 - spread, 4.25 + spread);
        report.none(
            &format!("{channel} returns in order"),
            (1..numbers.len()).filter(|&row| numbers[row - 1] > numbers[row]).count(),
        );

        // Lines of a ticket by item: number of sales, day, greatest quantity.
        let mut bought: HashMap<(i64, i64), (i64, i64, i64)> = HashMap::new();
        for row in 0..sold.number.len() {
            let entry = bought.entry((sold.number[row], sold.item[row])).or_default();
            *entry = (entry.0 + 1, sold.date[row], entry.2.max(sold.quantity[row]));
        }
        let (mut unsold, mut late, mut many) = (0, 0, 0);
        let latest = if channel == "store" { 715 } else { 120 + 715 };
        for row in 0..numbers.len() {
            let Some(line) = bought.get_mut(&(numbers[row], items[row])).filter(|line| line.0 > 0) else {
                unsold += 1;
                continue;
            };
            line.0 -= 1;
            late += usize::from(!(0..=latest).contains(&(days[row] - line.1)));
            many += usize::from(!(1..=line.2).contains(&quantities[row]));
        }
        report.none(&format!("{channel} returned lines were sold, each once"), unsold);
        report.none(&format!("{channel} returns are in time"), late);
        report.none(&format!("{channel} returned quantities were sold"), many);
        if channel == "store" {
            let buyer: HashMap<i64, i64> = sold.number.iter().copied().zip(sold.customer.iter().copied()).collect();
            let customers = column("customer_sk")?;
            let same = (0..regular).filter(|&row| buyer[&numbers[row]] == customers[row]).count() as f64;
            let spread = wider(0.02, expected);
            report.within("returns by the buyer", same / regular as f64, 0.9 - spread, 0.9 + spread);
        } else {
            let (cash, amount) = (column("refunded_cash")?, column("return_amt")?);
            report.none("refunds up to the amount", (0..cash.len()).filter(|&row| cash[row] > amount[row]).count());
        }
    }
    Ok(())
}

/// Visitors and buyers.
pub fn clicks(folder: &Folder, expected: &Expected, report: &mut Report) -> Result<(), String> {
    let table = "web_clickstreams";
    let [date, time, sale, item, page, user] =
        ["click_date_sk", "click_time_sk", "sales_sk", "item_sk", "web_page_sk", "user_sk"]
            .map(|column| folder.numbers(table, &format!("wcs_{column}")));
    let (date, time, sale, item, page, user) = (date?, time?, sale?, item?, page?, user?);
    let count = date.len() as f64;
    let mean = count / (expected.orders + expected.planted.1) as f64;
    // The 28 planted orders have buyers but no visitors.
    let low = 76.0 * expected.orders as f64 / (expected.orders + expected.planted.1) as f64;
    let spread = wider(0.2, expected);
    report.within("clicks of an order", mean, low - spread, 76.0 + spread);
    let share = |column: &[i64]| column.iter().filter(|&&value| value == NULL).count() as f64 / count;
    let spread = wider(0.003, expected);
    report.within("clicks without a user", share(&user), 0.422 - spread, 0.422 + spread);
    report.within("clicks without a sale", share(&sale), 0.901 - spread, 0.901 + spread);
    report.within("clicks without a page", share(&page), 0.0, 0.000_1 + wider(0.000_05, expected));
    let unsold = (0..date.len()).filter(|&row| sale[row] == NULL && page[row] == NULL).count();
    report.none("clicks that buy nothing have a page", unsold);

    // The clicks with a sale are the lines of the orders, in order.
    let lines = Lines::web(folder)?;
    let pages = folder.numbers("web_sales", "ws_web_page_sk")?;
    let bought: Vec<usize> = (0..date.len()).filter(|&row| sale[row] != NULL).collect();
    report.equal("clicks that buy", bought.len(), lines.number.len());
    let other = bought.iter().enumerate().filter(|&(line, &row)| {
        line >= lines.number.len()
            || [sale[row], date[row], time[row], item[row], page[row], user[row]]
                != [
                    lines.number[line],
                    lines.date[line],
                    lines.time[line],
                    lines.item[line],
                    pages[line],
                    lines.customer[line],
                ]
    });
    report.none("every line has its click, in the second of the sale", other.count());
    let planted: Vec<_> = (date.len() - 5..date.len())
        .map(|row| (date[row], time[row], sale[row], item[row], page[row], user[row]))
        .collect();
    // Block F: 2001-09-10 is day 37142.
    let expected: Vec<_> = (0..5).map(|k| (37_142 + k, 36_000, NULL, 10_000, 1, 370 + k)).collect();
    report.add(planted == expected, "planted clicks at the end".to_string());
    Ok(())
}
