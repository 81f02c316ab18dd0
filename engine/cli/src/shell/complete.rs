//! Tab completion: files, commands of the shell, columns, tables, functions, keywords.
//!
//! ```text
//!   FROM 'data/sa▮      in quotes          ─► files
//!   \o an▮              after \i, \o       ─► files
//!   \ti▮                a command          ─► commands
//!   s.pr▮               after a dot        ─► columns of s: a table, or an alias of one
//!   SELECT pri▮ … FROM t                   ─► columns of the statement's tables, tables, functions, keywords
//! ```
//!
//! The columns of a file are read on their first completion.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

use millpond::datafusion::common::TableReference;
use millpond::datafusion::execution::context::SessionContext;
use millpond::datafusion::logical_expr::registry::FunctionRegistry;
use millpond::datafusion::sql::sqlparser::dialect::GenericDialect;
use millpond::datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};
use rustyline::completion::{FilenameCompleter, Pair};
use tokio::runtime::Handle;

use super::commands;
use super::words::{KEYWORDS, is_keyword};

/// Completions for one session.
pub struct Completions {
    context: SessionContext,
    files: FilenameCompleter,
    /// Columns by the name of their relation in the statement.
    columns: RefCell<HashMap<String, Vec<String>>>,
}

impl Completions {
    pub fn new(context: SessionContext) -> Self {
        Self { context, files: FilenameCompleter::new(), columns: RefCell::default() }
    }

    /// Drops cached columns, because a statement may have changed tables.
    pub fn forget(&self) {
        self.columns.borrow_mut().clear();
    }

    /// Completions of the word before `pos`, and the word's start.
    pub fn at(&self, line: &str, pos: usize) -> rustyline::Result<(usize, Vec<Pair>)> {
        let before = &line[..pos];
        if commands::is_command(line) {
            return match before.split_once(char::is_whitespace) {
                None => Ok((before.len() - before.trim_start().len(), command_names(before.trim_start()))),
                Some((name, argument)) if matches!(name.trim(), "\\d" | ".schema") && !argument.contains('\'') => {
                    let (start, word) = last_word(before);
                    Ok((start, pairs(word, self.tables())))
                }
                Some(_) => self.files.complete_path(line, pos),
            };
        }
        if quotes(before) % 2 == 1 {
            return self.files.complete_path(line, pos);
        }
        let (start, word) = last_word(before);
        let relations = relations(line);
        if let Some((relation, column)) = word.rsplit_once('.') {
            let named = relations.iter().find(|(_, alias)| alias.eq_ignore_ascii_case(relation));
            let table = named.map_or(relation, |(table, _)| table.as_str());
            return Ok((start + relation.len() + 1, pairs(column, self.columns_of(table))));
        }
        let mut names: BTreeSet<String> = BTreeSet::new();
        for (table, alias) in &relations {
            names.extend(self.columns_of(table));
            names.insert(alias.clone());
        }
        names.extend(self.tables());
        if !word.is_empty() {
            names.extend(self.functions());
            let lower = word.chars().all(|letter| !letter.is_ascii_uppercase());
            names.extend(KEYWORDS.iter().map(|word| if lower { word.to_ascii_lowercase() } else { word.to_string() }));
        }
        // The word being typed may itself have been parsed as a relation.
        names.remove(word);
        Ok((start, pairs(word, names)))
    }

    /// Tables and views, except those of information_schema.
    fn tables(&self) -> Vec<String> {
        let mut names = Vec::new();
        for catalog in self.context.catalog_names() {
            let Some(catalog) = self.context.catalog(&catalog) else { continue };
            for schema in catalog.schema_names().into_iter().filter(|name| name != "information_schema") {
                names.extend(catalog.schema(&schema).into_iter().flat_map(|schema| schema.table_names()));
            }
        }
        names.sort();
        names.dedup();
        names.into_iter().map(quoted_if_needed).collect()
    }

    fn columns_of(&self, table: &str) -> Vec<String> {
        if let Some(known) = self.columns.borrow().get(table) {
            return known.clone();
        }
        // An unknown relation has no columns; the statement's own error will name it.
        let provider = Handle::current().block_on(self.context.table_provider(reference(table)));
        let columns: Vec<String> = provider.map_or_else(
            |_| vec![],
            |table| table.schema().fields().iter().map(|field| quoted_if_needed(field.name().clone())).collect(),
        );
        self.columns.borrow_mut().insert(table.to_string(), columns.clone());
        columns
    }

    fn functions(&self) -> Vec<String> {
        let state = self.context.state();
        let names = state.udfs().into_iter().chain(state.udafs()).chain(state.udwfs());
        names.filter(|name| name.chars().next().is_some_and(char::is_alphabetic)).map(|name| name + "(").collect()
    }
}

/// A name parsed as in SQL: a quoted file is one name, even with dots.
fn reference(name: &str) -> TableReference {
    match name.contains(['/', '.']) && !name.contains('"') {
        true => TableReference::bare(name.to_string()),
        false => TableReference::parse_str(name),
    }
}

fn quoted_if_needed(name: String) -> String {
    let is_plain = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !is_keyword(&name);
    if is_plain { name } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// Names that begin with `word`, ignoring case.
fn pairs(word: &str, names: impl IntoIterator<Item = String>) -> Vec<Pair> {
    let wanted = word.trim_start_matches('"').to_lowercase();
    let begins = |name: &String| name.trim_start_matches('"').to_lowercase().starts_with(&wanted);
    names.into_iter().filter(begins).map(|name| Pair { display: name.clone(), replacement: name }).collect()
}

fn command_names(word: &str) -> Vec<Pair> {
    let names = commands::ALL.iter().map(|entry| if word.starts_with('.') { entry.twin } else { entry.name });
    let names = names.filter(|name| name.starts_with(word)).map(str::to_string);
    names.map(|name| Pair { display: name.clone(), replacement: name }).collect()
}

/// Number of single quotes in a text, except those in names and comments.
fn quotes(text: &str) -> usize {
    let mut in_name = false;
    let mut count = 0;
    for letter in text.chars() {
        match letter {
            '"' if count % 2 == 0 => in_name = !in_name,
            '\'' if !in_name => count += 1,
            _ => {}
        }
    }
    count
}

/// The last word of a text, including dots, and its start.
fn last_word(text: &str) -> (usize, &str) {
    let is_part = |letter: char| letter.is_alphanumeric() || "_.\"".contains(letter);
    let start =
        text.char_indices().rev().take_while(|(_, letter)| is_part(*letter)).last().map_or(text.len(), |(at, _)| at);
    (start, &text[start..])
}

/// The relations after FROM and JOIN, with their aliases.
fn relations(line: &str) -> Vec<(String, String)> {
    // An open string ends with the line.
    let tokens = Tokenizer::new(&GenericDialect {}, line).tokenize();
    let tokens = tokens.or_else(|_| Tokenizer::new(&GenericDialect {}, &format!("{line}'")).tokenize());
    let tokens: Vec<Token> =
        tokens.unwrap_or_default().into_iter().filter(|token| !matches!(token, Token::Whitespace(_))).collect();
    let word = |at: usize| match tokens.get(at) {
        Some(Token::Word(word)) => Some(word.value.clone()),
        _ => None,
    };
    let mut relations = Vec::new();
    for at in 0..tokens.len() {
        let begins = word(at)
            .is_some_and(|word| ["from", "join", "into", "update"].iter().any(|w| word.eq_ignore_ascii_case(w)));
        if !begins {
            continue;
        }
        let (table, mut next) = match (tokens.get(at + 1), word(at + 1)) {
            (Some(Token::SingleQuotedString(file)), _) => (file.clone(), at + 2),
            (_, Some(name)) if !is_keyword(&name) => (name, at + 2),
            _ => continue,
        };
        if word(next).is_some_and(|word| word.eq_ignore_ascii_case("as")) {
            next += 1;
        }
        let alias = word(next).filter(|word| !is_keyword(word)).unwrap_or_else(|| table.clone());
        relations.push((table, alias));
    }
    relations
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use millpond::datafusion::prelude::SessionConfig;

    use super::*;

    fn found(completions: &Completions, line: &str) -> Vec<String> {
        let (start, pairs) = completions.at(line, line.len()).expect("candidates");
        assert!(line.is_char_boundary(start));
        pairs.into_iter().map(|pair| pair.replacement).collect()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn words_are_completed_by_where_they_stand() {
        let context = SessionContext::new_with_config(SessionConfig::new().with_information_schema(true));
        let create = "CREATE TABLE sales (price BIGINT, product TEXT, \"Q x\" INT)";
        context.sql(create).await.expect("a table").collect().await.expect("made");
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("answer.csv"), "n\n1\n").expect("a file");
        let path = Path::new(folder.path()).join("ans").display().to_string();
        let completions = Completions::new(context);
        tokio::task::block_in_place(|| {
            let of = |line: &str| found(&completions, line);
            assert_eq!(of("SEL"), ["SELECT"]);
            assert_eq!(of("sel"), ["select"]);
            assert_eq!(of("SELECT * FROM sal"), ["sales"]);
            assert_eq!(of("SELECT s.pr FROM sales s WHERE s.pr"), ["price", "product"]);
            assert_eq!(of("SELECT sales.\"q"), ["\"Q x\""]);
            assert!(of("SELECT sum(1), pri FROM sales WHERE pri").contains(&"price".to_string()));
            assert!(of("SELECT array_agg FROM sales WHERE coun").contains(&"count(".to_string()));
            assert_eq!(of("\\tim"), ["\\timing"]);
            assert_eq!(of(".tab"), [".tables"]);
            assert_eq!(of("\\d sa"), ["sales"]);
            assert!(of(&format!("SELECT * FROM '{path}"))[0].ends_with("answer.csv"));
            assert!(of(&format!("\\o {path}"))[0].ends_with("answer.csv"));
        });
    }

    #[test]
    fn relations_have_their_aliases() {
        let of =
            |line| relations(line).into_iter().map(|(table, alias)| format!("{table} {alias}")).collect::<Vec<_>>();
        assert_eq!(of("SELECT * FROM t AS a JOIN 'x/y.parquet' b ON a.k = b.k"), ["t a", "x/y.parquet b"]);
        assert_eq!(of("SELECT * FROM t WHERE 'open"), ["t t"]);
        assert_eq!(of("SELECT 1"), Vec::<String>::new());
    }
}
