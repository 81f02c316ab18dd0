//! The pages are correct: the README shows its command's real output, and names on pages exist.

use std::path::PathBuf;

use millpond::datafusion::config::{ConfigEntry, ExtensionOptions};
use millpond::{EngineError, MillpondOptions};

use crate::{millpond, root};

fn read(page: &str) -> String {
    std::fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// The first block of the README in this language.
fn readme_block(language: &str) -> String {
    let readme = read("README.md");
    let (_, block) = readme.split_once(&format!("```{language}\n")).expect("a block");
    block.split_once("```").expect("its end").0.to_string()
}

#[test]
fn the_readme_shows_what_its_first_command_prints() {
    let command = readme_block("sh");
    let sql = command.split('"').nth(1).expect("SQL in quotes");
    let is_table = |line: &&str| line.starts_with(['+', '|']);
    let shown: Vec<String> = readme_block("text").lines().filter(is_table).map(String::from).collect();
    for device in ["cpu", "sim"] {
        let ended = millpond(&["-q", "--device", device, "--format", "table", "-c", sql]);
        assert_eq!(ended.stdout.lines().collect::<Vec<_>>(), shown, "{device}: {}", ended.stderr);
    }
}

/// The pages of the workspace, except the changelog, which names old things.
fn pages() -> Vec<String> {
    let mut pages = vec!["README.md".to_string(), "ARCHITECTURE.md".into(), "CONTRIBUTING.md".into()];
    for folder in ["docs", "docs/adding"] {
        for entry in std::fs::read_dir(root().join(folder)).expect("a folder") {
            let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
            if name.ends_with(".md") {
                pages.push(format!("{folder}/{name}"));
            }
        }
    }
    pages
}

#[test]
fn links_of_pages_lead_somewhere() {
    for page in pages() {
        let folder: PathBuf = root().join(&page).parent().expect("a folder").into();
        for link in read(&page).split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = link.split('#').next().unwrap_or_default();
            let leads = link.contains("://") || path.is_empty() || folder.join(path).exists();
            assert!(leads, "{page} links to {link}");
        }
    }
}

#[test]
fn paths_in_pages_are_there() {
    // `memory/limit` and `kernels/parquet_damage` are self-test checks, not paths.
    const ROOMS: [&str; 13] = [
        "engine/",
        "kernels/cuda/",
        "kernels/images/",
        "kernels/ptx/",
        "kernels/src/",
        "kernels/tests/",
        "memory/src/",
        "memory/examples/",
        "queries/",
        "benches/",
        "data/src/",
        "docs/",
        ".ci/",
    ];
    let (mut named, mut missing) = (0, Vec::new());
    // `docs/moved.md` names paths of the past.
    for page in pages().into_iter().filter(|page| page != "docs/moved.md") {
        for word in read(&page).split(|c: char| c.is_whitespace() || "`()[],;:|'\"".contains(c)) {
            let path = word.split('#').next().unwrap_or_default().trim_end_matches(['.', '/']);
            // Skip patterns and placeholders.
            if !ROOMS.iter().any(|room| path.starts_with(room))
                || path.contains(['*', '<', '…', '{', '$'])
                || path.contains("NN")
                || path.contains("NAME")
            {
                continue;
            }
            named += 1;
            if !root().join(path).exists() {
                missing.push(format!("{page} names {path}"));
            }
        }
    }
    assert_eq!(missing, Vec::<String>::new(), "are not there");
    assert!(named > 40, "only {named} paths were found");
}

/// The README is short, and the index links every other page.
#[test]
fn the_readme_is_short_and_the_index_complete() {
    let lines = read("README.md").lines().count();
    assert!(lines <= 120, "README.md has {lines} lines");
    let index = read("docs/README.md");
    for page in pages() {
        if let Some(name) = page.strip_prefix("docs/").filter(|name| *name != "README.md" && !name.contains('/')) {
            assert!(index.contains(&format!("]({name})")), "docs/README.md lacks {name}");
        }
    }
}

/// The accepted values of an option, from the error messages for a non-number and for a number out of range.
fn values(name: &str) -> String {
    let refused = |value| match MillpondOptions::default().try_set(name, value) {
        Err(EngineError::OptionValue { expected, .. }) => Some(expected),
        Err(error) => panic!("{name}: {error}"),
        Ok(()) => None,
    };
    let kind = refused("\u{1}").unwrap_or_else(|| "text".to_string());
    let bounds = ["0", "1", "18446744073709551615"].into_iter().filter_map(refused).find(|bounds| *bounds != kind);
    bounds.unwrap_or(kind)
}

/// The table of options.
fn options_table(options: &[ConfigEntry]) -> String {
    let mut table =
        "| option | default | values | environment | means |\n| --- | --- | --- | --- | --- |\n".to_string();
    for option in options {
        let name = option.key.strip_prefix("millpond.").expect("the prefix");
        let default = match option.value.as_deref() {
            None | Some("") => "empty".to_string(),
            Some(value) => format!("`{value}`"),
        };
        let cell = |text: &str| text.replace('|', "\\|");
        table += &format!(
            "| `{}` | {default} | {} | `MILLPOND_{}` | {} |\n",
            option.key,
            cell(&values(name)),
            name.to_ascii_uppercase(),
            cell(option.description)
        );
    }
    table
}

/// Replaces the text of a page between `<!-- name -->` and `<!-- end -->`.
fn between_marks(page: &str, name: &str, text: &str) -> String {
    let mark = format!("<!-- {name} -->\n");
    let (before, rest) = page.split_once(&mark).unwrap_or_else(|| panic!("there is no {mark}"));
    let (_, after) = rest.split_once("<!-- end -->").expect("an end");
    format!("{before}{mark}{text}<!-- end -->{after}")
}

#[test]
fn the_page_of_options_is_that_of_the_program() {
    const PAGE: &str = "docs/options.md";
    let (tests, options): (Vec<_>, Vec<_>) =
        MillpondOptions::default().entries().into_iter().partition(|entry| entry.key.starts_with("millpond.debug_"));
    assert!(options.len() > 15 && tests.len() > 10, "{} options, {} for tests", options.len(), tests.len());
    let page = read(PAGE);
    let written = between_marks(&page, "options", &options_table(&options));
    let written = between_marks(&written, "debug options", &options_table(&tests));
    if std::env::var_os("MILLPOND_DOCS_WRITE").is_some() {
        std::fs::write(root().join(PAGE), written).expect("written");
        return;
    }
    assert!(page == written, "{PAGE} is not what the options say; MILLPOND_DOCS_WRITE=1 writes it");
}
