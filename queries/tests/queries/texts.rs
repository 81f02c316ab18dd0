//! Text functions compared with the plain SQL of the specification, run by DataFusion without our functions.
//!
//! ```text
//!   random reviews ─┬─ unnest(string_to_array(replace(lower(…)))) …   plain DataFusion ──┐
//!                   └─ unnest(sentiment_hits(…))                      our functions ─────┴─► equal rows
//! ```

use std::sync::Arc;

use millpond::Millpond;
use millpond::datafusion::arrow::array::{
    ArrayRef, BinaryArray, DictionaryArray, Int64Array, LargeStringArray, StringArray, StringViewArray,
};
use millpond::datafusion::arrow::datatypes::Int32Type;
use millpond::datafusion::prelude::SessionContext;
use millpond_queries::functions::{Companies, Lexicon, Registration};

use crate::support::{Numbers, query, refusal, rows, session, table};

/// Reviews from parts with special roles: separators, deleted marks, lexicon words in any case, blanks, tabs, non-ASCII
/// letters.
fn reviews(count: usize) -> Vec<Option<String>> {
    const PIECES: [&str; 38] = [
        "good",
        "bad",
        "Good",
        "sick",
        "crazy",
        "terrible",
        "the",
        "shoe",
        "well-made",
        "b,ad",
        "go\"od\"",
        "'good'",
        "(bad)",
        ".",
        ". ",
        "!",
        "! ",
        "? ",
        "?",
        "..",
        ",",
        ";",
        " - ",
        "\"",
        " ",
        "  ",
        " ",
        " ",
        " ",
        "è",
        "È",
        "é",
        "ß",
        "İ",
        "\t",
        "\n",
        "love\t",
        "Σας",
    ];
    let mut numbers = Numbers(3);
    let mut reviews: Vec<Option<String>> = (0..count)
        .map(|_| {
            let pieces = numbers.below(40);
            let text = (0..pieces).map(|_| PIECES[numbers.below(PIECES.len() as u64) as usize]).collect::<String>();
            (numbers.below(15) > 0).then_some(text)
        })
        .collect();
    reviews.extend(["", " ", ".", "a", "good.", ". good", "è", "good! "].map(|text| Some(text.to_string())));
    reviews
}

fn register(context: &SessionContext, reviews: &[Option<String>]) {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new((0..reviews.len() as i64).map(Some).collect::<Int64Array>())),
        ("content", Arc::new(reviews.iter().map(Option::as_deref).collect::<StringArray>())),
    ];
    table(context, "reviews", 2, columns);
}

/// One of our sessions, and a plain one with only the word lists as tables.
async fn both() -> (Millpond, SessionContext) {
    let (session, plain) = (session(), SessionContext::new());
    let reviews = reviews(600);
    register(session.context(), &reviews);
    register(&plain, &reviews);
    let lexicon = Lexicon::default();
    let (words, codes): (Vec<&str>, Vec<&str>) = lexicon.rows().into_iter().map(|(word, s)| (word, s.code())).unzip();
    let columns: Vec<(&str, ArrayRef)> =
        vec![("word", Arc::new(StringArray::from(words))), ("sentiment", Arc::new(StringArray::from(codes)))];
    table(&plain, "sentiment_words", 1, columns);
    let companies = Companies::default();
    let names: Vec<(&str, ArrayRef)> = vec![("name", Arc::new(StringArray::from(companies.names())))];
    table(&plain, "companies", 1, names);
    (session, plain)
}

async fn plain_rows(plain: &SessionContext, sql: &str) -> Vec<Vec<String>> {
    rows(&plain.sql(sql).await.expect("plans").collect().await.expect("runs"), false)
}

const ANY_LOWER: &str = "string_to_array(replace(replace(replace(lower(content), '.', 'è'), '?', 'è'), '!', 'è'), 'è')";
const SPACED: &str = "string_to_array(replace(replace(replace(content, '. ', 'è'), '? ', 'è'), '! ', 'è'), 'è')";
const STOP: &str = "string_to_array(content, '.')";
const WORDS: &str = "string_to_array(btrim(replace(replace(replace(replace(replace(sentence, '.', ''), ',', ''), ';', ''), '-', ''), '\"', '')), ' ')";

#[tokio::test]
async fn sentences_and_words_are_those_of_the_specification_in_sql() {
    let (session, plain) = both().await;
    for (rule, sql) in [("any_lower", ANY_LOWER), ("spaced", SPACED), ("stop", STOP)] {
        let expected = plain_rows(
            &plain,
            &format!(
                "WITH sent AS (SELECT id, UNNEST({sql}) AS sentence FROM reviews WHERE content IS NOT NULL),
                 wordt AS (SELECT id, sentence, UNNEST({WORDS}) AS word FROM sent WHERE sentence <> '')
                 SELECT * FROM wordt WHERE word <> '' UNION ALL SELECT id, sentence, NULL FROM sent WHERE sentence <> ''"
            ),
        )
        .await;
        let found = query(
            &session,
            &format!(
                "WITH sent AS (SELECT id, UNNEST(sentences(content, '{rule}')) AS sentence FROM reviews)
                 SELECT id, sentence, UNNEST(words(sentence)) AS word FROM sent UNION ALL SELECT id, sentence, NULL FROM sent"
            ),
        )
        .await;
        assert!(expected.len() > 2_000);
        assert_eq!(found, expected, "{rule}");
    }
}

#[tokio::test]
async fn sentiment_hits_are_those_of_the_specification_in_sql() {
    let (session, plain) = both().await;
    for (rule, sql) in [("any_lower", ANY_LOWER), ("spaced", SPACED)] {
        let expected = plain_rows(
            &plain,
            &format!(
                "WITH sent AS (SELECT id, UNNEST({sql}) AS sentence FROM reviews WHERE content IS NOT NULL),
                 wordt AS (SELECT id, sentence, UNNEST({WORDS}) AS word FROM sent WHERE sentence <> '')
                 SELECT id, sentence, sentiment, wordt.word FROM wordt JOIN sentiment_words l ON l.word = wordt.word"
            ),
        )
        .await;
        let hits = format!("SELECT id, UNNEST(sentiment_hits(content, '{rule}')) AS hit FROM reviews");
        let found =
            query(&session, &format!("SELECT id, hit['sentence'], hit['sentiment'], hit['word'] FROM ({hits})")).await;
        assert!(expected.len() > 100);
        assert_eq!(found, expected, "{rule}");
        let negative = format!("SELECT id, UNNEST(sentiment_hits(content, '{rule}', 'NEG')) AS hit FROM reviews");
        let found =
            query(&session, &format!("SELECT id, hit['sentence'], hit['sentiment'], hit['word'] FROM ({negative})"))
                .await;
        assert_eq!(found, expected.iter().filter(|row| row[2] == "NEG").cloned().collect::<Vec<_>>());
        // The query in three steps.
        let steps = format!(
            "WITH sent AS (SELECT id, UNNEST(sentences(content, '{rule}')) AS sentence FROM reviews),
             wordt AS (SELECT id, sentence, UNNEST(words(sentence)) AS word FROM sent)
             SELECT id, sentence, UNNEST(sentiments(word)) AS sentiment, word FROM wordt"
        );
        assert_eq!(query(&session, &steps).await, expected);
        let joined = format!(
            "WITH sent AS (SELECT id, UNNEST(sentences(content, '{rule}')) AS sentence FROM reviews),
             wordt AS (SELECT id, sentence, UNNEST(words(sentence)) AS word FROM sent)
             SELECT id, sentence, sentiment, wordt.word FROM wordt JOIN sentiment_words() l ON l.word = wordt.word"
        );
        assert_eq!(query(&session, &joined).await, expected);
    }
}

#[tokio::test]
async fn names_of_the_gazetteer_are_found_where_sql_finds_them() {
    // Names between lower-case words, once per sentence: here the rules agree with a plain text search.
    let (session, plain) = (session(), both().await.1);
    let companies = Companies::default();
    let mut numbers = Numbers(8);
    let texts: Vec<Option<String>> = (0..300)
        .map(|_| {
            let sentence = |numbers: &mut Numbers| match numbers.below(2) {
                0 => "we like it".to_string(),
                _ => {
                    let names = companies.names();
                    format!("we like {} better", names[numbers.below(names.len() as u64) as usize])
                }
            };
            Some((0..numbers.below(5)).map(|_| sentence(&mut numbers)).collect::<Vec<_>>().join(". "))
        })
        .collect();
    plain.deregister_table("reviews").expect("it was there");
    register(&plain, &texts);
    register(session.context(), &texts);
    let expected = plain_rows(
        &plain,
        "WITH sent AS (SELECT id, UNNEST(string_to_array(content, '.')) AS sentence FROM reviews)
         SELECT id, c.name, sentence FROM sent JOIN companies c ON strpos(sentence, c.name) > 0 WHERE sentence <> ''",
    )
    .await;
    let hits = "SELECT id, UNNEST(company_mentions(content)) AS hit FROM reviews";
    let found = query(&session, &format!("SELECT id, hit['company'], hit['sentence'] FROM ({hits})")).await;
    assert!(found.len() > 200);
    assert_eq!(found, expected);
    let steps = "SELECT id, UNNEST(companies_in(sentence)), sentence FROM (SELECT id, UNNEST(sentences(content, 'stop')) AS sentence FROM reviews)";
    assert_eq!(query(&session, steps).await, expected);
    assert_eq!(query(&session, "SELECT name FROM companies()").await.len(), 40);
}

#[tokio::test]
async fn every_layout_of_text_is_taken_and_null_stays_null() {
    let session = session();
    let values = [Some("Good. Bad"), None, Some("")];
    let layouts: [ArrayRef; 4] = [
        Arc::new(StringArray::from(values.to_vec())),
        Arc::new(LargeStringArray::from(values.to_vec())),
        Arc::new(StringViewArray::from(values.to_vec())),
        Arc::new(values.into_iter().collect::<DictionaryArray<Int32Type>>()),
    ];
    for (index, layout) in layouts.into_iter().enumerate() {
        let name = format!("t{index}");
        table(session.context(), &name, 1, vec![("c", layout)]);
        let sql = format!(
            "SELECT sentences(c), words(c), sentiment_hits(c, 'any_lower', 'NEG'), company_mentions(c), murmur3_32(c),
                    array_length(hashed_ngrams(c)) FROM {name}"
        );
        let found = query(&session, &sql).await;
        assert_eq!(found[0], ["NULL"; 6].map(str::to_string), "{name}");
        assert_eq!(found[1][..5], ["[]", "[]", "[]", "[]", "0"].map(str::to_string), "{name}");
        let hits = "[{sentence:  bad, sentiment: NEG, word: bad}]";
        assert_eq!(found[2][..4], ["[good,  bad]", "[Good, Bad]", hits, "[]"].map(str::to_string), "{name}");
        assert_eq!(found[2][5], "3", "{name}");
    }
}

#[tokio::test]
async fn hashes_take_bytes_and_seeds() {
    let session = session();
    table(session.context(), "t", 1, vec![("b", Arc::new(BinaryArray::from(vec![&[0xff_u8, 0xff, 0xff, 0xff][..]])))]);
    let sql = "SELECT murmur3_32(b), murmur3_32('Hello, world!', 2538058380), murmur3_32('', 1) FROM t";
    let expected = [0x7629_3b50_u32, 0x2488_4cba, 0x514e_28b7].map(|hash| hash.to_string()).to_vec();
    assert_eq!(query(&session, sql).await, [expected]);
    let few = "SELECT array_max(hashed_ngrams('a b c d e f g', 3)) < 3, array_length(hashed_ngrams('A  b', 1))";
    assert_eq!(query(&session, few).await, [["true", "3"].map(str::to_string).to_vec()]);
}

#[tokio::test]
async fn wrong_arguments_are_named() {
    let session = session();
    for (sql, parts) in [
        ("sentences('a', 'words')", ["sentences: rule is", "'any_lower', 'any', 'spaced' or 'stop'"]),
        ("sentences(5)", ["sentences: its first argument is Int64", "CAST it to VARCHAR"]),
        ("sentences('a', 5)", ["sentences: rule is Int64", "a string"]),
        ("sentences()", ["sentences takes 1 to 2 arguments", "sentences(text [, rule])"]),
        ("words('a', 'b')", ["words takes one argument; 2 are given", "words(text)"]),
        ("sentiment_hits('a', 'any', 'pos')", ["sentiment_hits: sentiment is", "'POS' or 'NEG'"]),
        ("sentiment_hits('a', column1)", ["rule is a column or an expression", "a constant"]),
        ("murmur3_32('a', -1)", ["murmur3_32: seed is", "an integer from 0 to 4294967295"]),
        ("hashed_ngrams('a', 0)", ["hashed_ngrams: buckets is", "an integer from 1 to 1073741824"]),
        ("hashed_ngrams('a', 1.5)", ["buckets is Float64", "an integer"]),
    ] {
        let error = refusal(&session, &format!("SELECT {sql} FROM (VALUES ('any'))")).await;
        assert!(parts.iter().all(|part| error.contains(part)), "{sql}: {error}");
    }
}

#[tokio::test]
async fn a_session_may_have_its_own_words() {
    let session = session();
    let registration = Registration {
        lexicon: Lexicon::new(["prima"], ["mies"]),
        companies: Companies::new(["Muster"], ["KG"]),
        ..Registration::default()
    };
    registration.register(session.context()).expect("registered again");
    let sql = "SELECT sentiments('prima'), sentiments('good'), companies_in('bei Muster und Otto KG')";
    assert_eq!(query(&session, sql).await, [["[POS]", "[]", "[Muster, Otto KG]"].map(str::to_string).to_vec()]);
    assert_eq!(query(&session, "SELECT * FROM sentiment_words()").await.len(), 2);
}

#[tokio::test]
async fn slopes_are_those_of_the_specification_in_sql() {
    let session = session();
    let mut numbers = Numbers(4);
    let data: Vec<(i64, i64, f64)> =
        (0..400).map(|i| (i % 7, 37_134 + numbers.below(365) as i64, numbers.below(100_000) as f64 / 100.0)).collect();
    let mut data: Vec<(i64, i64, f64)> = data.into_iter().filter(|(group, _, _)| *group > 0).collect();
    // A group with one day has no slope, nor does one with two rows of one day.
    data.extend([(10, 37_200, 5.0), (11, 37_200, 5.0), (11, 37_200, 7.5)]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("g", Arc::new(data.iter().map(|row| Some(row.0)).collect::<Int64Array>())),
        ("x", Arc::new(data.iter().map(|row| Some(row.1)).collect::<Int64Array>())),
        (
            "y",
            Arc::new(data.iter().map(|row| Some(row.2)).collect::<millpond::datafusion::arrow::array::Float64Array>()),
        ),
    ];
    table(session.context(), "daily", 3, columns);
    let far = "
        WITH shifted AS (SELECT g, CAST(x - 37000 AS DOUBLE) AS x, y FROM daily),
        fit AS (SELECT g, COUNT(*) AS n, SUM(x) AS sx, SUM(y) AS sy, SUM(x * y) AS sxy, SUM(x * x) AS sxx FROM shifted GROUP BY g),
        line AS (SELECT *, (n * sxy - sx * sy) / NULLIF(n * sxx - sx * sx, 0) AS slope FROM fit),
        ours AS (SELECT g, regr_slope(y, x) AS s, regr_intercept(y, x) AS i FROM daily GROUP BY g)
        SELECT g, CASE WHEN slope IS NULL THEN s IS NOT NULL OR i IS NOT NULL
                       ELSE ABS(s - slope) > 1e-9 * ABS(slope) OR ABS(i - ((sy - slope * sx) / n - slope * 37000)) > 1e-7 * ABS(i) END AS off,
               slope IS NULL AS none
        FROM line JOIN ours USING (g)";
    let found = query(&session, far).await;
    assert_eq!(found.len(), 8);
    assert!(found.iter().all(|row| row[1] == "false"), "{found:?}");
    assert_eq!(found.iter().filter(|row| row[2] == "true").count(), 2);
}
