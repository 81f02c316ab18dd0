//! Statements that differ in their constants alone: each has its own answer, whatever was kept of the other.
//!
//!   date '1994-01-01' … < 24     first run, again ─┐
//!   date '1994-01-03' … < 26     first run, again ─┴─ in turn, by both doors ─► DataFusion's answers

use millpond::datafusion::physical_plan::{collect, displayable};
use millpond::{DeviceChoice, Fallback};

use crate::answers::Answer;
use crate::tpch::{config, data, parquet_session, queries};

/// `sql` with dates `by` days later and whole numbers of two digits and more greater by it.
fn varied(sql: &str, by: u32) -> String {
    let mut varied = String::new();
    for (index, part) in
        sql.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n").split('\'').enumerate()
    {
        let is_string = index % 2 == 1;
        if index > 0 {
            varied.push('\'');
        }
        match part.rsplit_once('-') {
            Some((month, day)) if is_string && part.len() == 10 => {
                let day = day.parse::<u32>().expect("a date of TPC-H");
                varied.push_str(&format!("{month}-{:02}", (day + by - 1) % 28 + 1));
            }
            _ if is_string => varied.push_str(part),
            _ => varied.push_str(&greater(part, by)),
        }
    }
    varied
}

/// The same text, its whole numbers of two digits and more greater.
fn greater(text: &str, by: u32) -> String {
    let (mut words, mut limits) = (String::new(), false);
    for word in text.split_inclusive(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.')) {
        let digits = word.trim_end_matches(|c: char| !c.is_alphanumeric());
        match digits.parse::<u32>() {
            // Another limit is another statement.
            Ok(number) if digits.len() > 1 && !limits => {
                words.push_str(&word.replacen(digits, &(number + by).to_string(), 1))
            }
            _ => words.push_str(word),
        }
        limits = digits == "LIMIT";
    }
    words
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_that_differ_in_constants_have_their_own_answers() {
    let files = data("0.001");
    let cpu = parquet_session(DeviceChoice::Cpu, Fallback::Allow, config(2), &files).await;
    let sim = parquet_session(DeviceChoice::Sim, Fallback::Error, config(2), &files).await;
    let mut different = 0;
    let mut without = vec![];
    for (number, sql) in queries() {
        let before = sim.plans_found().by_template;
        let ordered = sql.to_lowercase().contains("order by");
        let mut statements = vec![];
        for by in [0, 2, 9] {
            let sql = varied(&sql, by);
            let result = cpu.execute(&sql).await.unwrap_or_else(|error| panic!("q{number:02}: {error}\n{sql}"));
            statements.push((sql, Answer::new(&result.schema, &result.batches)));
        }
        let differs = |of: &(String, Answer)| statements[0].1.difference(&of.1, ordered).is_some();
        different += u32::from(statements.iter().any(differs));
        for run in 0..3 {
            for (sql, expected) in &statements {
                let result = sim.execute(sql).await.unwrap_or_else(|error| panic!("q{number:02}: {error}\n{sql}"));
                let answer = Answer::new(&result.schema, &result.batches);
                assert_eq!(expected.difference(&answer, ordered), None, "run {run}\n{sql}");
                assert_eq!(result.report.findings, Vec::<String>::new(), "run {run}\n{sql}");
            }
        }
        // The first is planned, the others are by what it became.
        match sim.plans_found().by_template - before {
            0 if statements[0].0 != statements[1].0 => without.push(number),
            0 => {}
            some => assert_eq!(some, 2, "q{number:02}"),
        }
        for _ in 0..2 {
            for (sql, expected) in &statements {
                let plan = sim.context().sql(sql).await.expect("a plan").create_physical_plan().await.expect("a plan");
                let (schema, context) = (plan.schema(), sim.context().task_ctx());
                let batches =
                    collect(plan, context).await.unwrap_or_else(|error| panic!("q{number:02}: {error}\n{sql}"));
                assert_eq!(expected.difference(&Answer::new(&schema, &batches), ordered), None, "through sql()\n{sql}");
            }
        }
    }
    assert_eq!(without, Vec::<usize>::new());
    // With so few rows, many queries have an empty answer.
    assert!(different >= 8, "{different} of 22 queries have other answers for other constants");
}

/// Queries whose template plan differs from their own, because DataFusion did not know the constants: sides of joins
/// (10, 14), columns that are passed on (1), repeated conditions (4, 12), lists (16), common parts of conditions (19).
const PLANNED_OTHERWISE: [usize; 7] = [1, 4, 10, 12, 14, 16, 19];

/// A plan by a template equals the statement's own plan, including what is pushed down to its scans.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_by_templates_are_those_of_statements_alone() {
    let files = data("0.001");
    let session = async || parquet_session(DeviceChoice::Sim, Fallback::Error, config(2), &files).await;
    let (alone, by_template) = (session().await, session().await);
    let mut differ = vec![];
    for (number, sql) in queries() {
        let (first, second) = (varied(&sql, 0), varied(&sql, 3));
        by_template.plan(&first).await.expect("a plan");
        let before = by_template.plans_found().by_template;
        let plans = [alone.plan(&second).await.expect("a plan"), by_template.plan(&second).await.expect("a plan")];
        assert_eq!(by_template.plans_found().by_template - before, u64::from(first != second), "q{number:02}");
        let [expected, actual] = plans.map(|plan| displayable(plan.as_ref()).indent(false).to_string());
        if expected != actual {
            differ.push(number);
        }
    }
    assert_eq!(differ, PLANNED_OTHERWISE);
}
