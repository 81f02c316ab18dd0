//! Recognition of company names in a sentence, by fixed rules.
//!
//! ```text
//!   I like Acme Corp , and Big Blue Sky Media too          tokens: split at blanks, then , ; : ! ? " ' ( ) trimmed
//!          ╰───┬───╯       ╰───────┬────────╯
//!          gazetteer       one to four capitalized tokens and a suffix
//! ```
//!
//! Order    left to right; the longest name at a position wins, and names do not overlap.
//! First    the first token of a sentence is always capitalized: it is part of a name only if the gazetteer has that
//!          name.

use std::collections::HashSet;

use millpond_data::gpu_bdb::lexicon;

use super::SentenceRule;

/// Maximum number of tokens before a suffix.
const MAX_RUN: usize = 4;
const STRIPPED: [char; 9] = [',', ';', ':', '!', '?', '"', '\'', '(', ')'];

/// A gazetteer and suffixes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Companies {
    names: HashSet<String>,
    /// Maximum number of tokens in a name.
    longest: usize,
    suffixes: HashSet<String>,
}

/// The lists of the workload.
impl Default for Companies {
    fn default() -> Self {
        Self::new(lexicon::COMPANIES, lexicon::COMPANY_SUFFIXES)
    }
}

impl Companies {
    /// A recognizer of `names`, with tokens separated by one blank, and of token runs that end in one of `suffixes`.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>, suffixes: impl IntoIterator<Item = &'a str>) -> Self {
        let names: HashSet<String> = names.into_iter().filter(|name| !name.is_empty()).map(str::to_string).collect();
        let longest = names.iter().map(|name| name.split(' ').count()).max().unwrap_or(0);
        Self { names, longest, suffixes: suffixes.into_iter().map(str::to_string).collect() }
    }

    /// The gazetteer, sorted.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// Calls `each` for every name in `sentence`, from left to right.
    ///
    /// ```
    /// let mut found = vec![];
    /// millpond_queries::functions::Companies::default().find("Then Some New Media called (Acme Corp)!", |name| {
    ///     found.push(name.to_string());
    /// });
    /// assert_eq!(found, ["Some New Media", "Acme Corp"]);
    /// ```
    pub fn find(&self, sentence: &str, mut each: impl FnMut(&str)) {
        let tokens: Vec<&str> =
            sentence.split(' ').filter(|run| !run.is_empty()).map(|run| run.trim_matches(STRIPPED)).collect();
        let mut start = 0;
        while start < tokens.len() {
            let length = self.listed(&tokens[start..]).max(self.suffixed(&tokens, start));
            if length > 0 {
                each(&tokens[start..start + length].join(" "));
            }
            start += length.max(1);
        }
    }

    /// Calls `each` for every name in `text`, with its sentence; sentences end at every full stop.
    pub fn mentions(&self, text: &str, mut each: impl FnMut(&str, &str)) {
        SentenceRule::Stop.sentences(text, |sentence| self.find(sentence, |name| each(name, sentence)));
    }

    /// Number of tokens in the longest gazetteer name at the head of `tokens`.
    fn listed(&self, tokens: &[&str]) -> usize {
        let most = self.longest.min(tokens.len());
        (1..=most).rev().find(|length| self.names.contains(&tokens[..*length].join(" "))).unwrap_or(0)
    }

    /// Number of tokens in the longest run from `start` that ends in a suffix.
    fn suffixed(&self, tokens: &[&str], start: usize) -> usize {
        if start == 0 {
            return 0;
        }
        let rest = &tokens[start..];
        let run = rest.iter().take(MAX_RUN).take_while(|token| token.starts_with(char::is_uppercase)).count();
        (1..=run)
            .rev()
            .find(|run| rest.get(*run).is_some_and(|next| self.suffixes.contains(*next)))
            .map_or(0, |run| run + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(sentence: &str) -> Vec<String> {
        let companies =
            Companies::new(["Acme Corp", "Initech", "Umbra Media", "Media House Plus"], ["Corp", "Media", "Group"]);
        let mut found = vec![];
        companies.find(sentence, |name| found.push(name.to_string()));
        found
    }

    #[test]
    fn the_gazetteer_counts_everywhere_and_in_its_own_case() {
        assert_eq!(found("Initech and Acme Corp"), ["Initech", "Acme Corp"]);
        assert_eq!(found("INITECH acme Corp"), [""; 0]);
        assert_eq!(found("(\"Initech\")! 'Acme  Corp';"), ["Initech", "Acme Corp"]);
    }

    #[test]
    fn a_suffix_makes_a_name_of_up_to_four_tokens_before_it() {
        assert_eq!(found("by New Corp"), ["New Corp"]);
        assert_eq!(found("by A B C D Corp"), ["A B C D Corp"]);
        assert_eq!(found("by A B C D E Corp"), ["B C D E Corp"]);
        assert_eq!(found("by new Corp or Corp"), [""; 0]);
    }

    #[test]
    fn the_first_token_counts_for_the_gazetteer_only() {
        assert_eq!(found("Great Corp"), [""; 0]);
        assert_eq!(found("Great Big Corp"), ["Big Corp"]);
        assert_eq!(found("Umbra Media"), ["Umbra Media"]);
    }

    #[test]
    fn the_longest_match_wins_and_nothing_overlaps() {
        assert_eq!(found("at Umbra Media Group"), ["Umbra Media Group"]);
        assert_eq!(found("at Umbra Media House Plus"), ["Umbra Media"]);
        assert_eq!(found("at Acme Corp Corp"), ["Acme Corp Corp"]);
    }

    #[test]
    fn marks_alone_part_names() {
        assert_eq!(found("by Acme \" Corp"), [""; 0]);
        assert_eq!(found(""), [""; 0]);
    }

    #[test]
    fn mentions_are_found_per_sentence() {
        let mut all = vec![];
        Companies::default().mentions("Buy Acme. Corp is bad. I like Acme Corp", |name, sentence| {
            all.push((name.to_string(), sentence.to_string()));
        });
        assert_eq!(all, [("Acme Corp".to_string(), " I like Acme Corp".to_string())]);
    }
}
