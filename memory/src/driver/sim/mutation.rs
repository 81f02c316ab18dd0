//! One thing of a correct program that is left out on order: then a check must fire, or an answer must be wrong.
//!
//! ```text
//!   Wait { nth: 3 }                                       the third wait of a stream for an event does nothing
//!   Text { from: "st.release.", to: "st.relaxed.", .. }   modules that are loaded from now on are another text
//! ```
//!
//! Counts   begin with the order. Waits that nothing would miss, since another order implies them, are not counted and
//!          never left out.
//! Worth    a mutation that no test detects removes an order that no test needs: the order is unnecessary, or a
//!          test is missing.

use super::state::State;
use super::{SimDriver, clock::Moment};
use std::backtrace::Backtrace;

/// What is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// A wait of a stream for an event, counted from 1.
    Wait { nth: u64 },
    /// A place in the text of modules, counted from 1 over all that are loaded; 0 is every place.
    Text { from: &'static str, to: &'static str, nth: u64 },
}

/// What came of a mutation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mutated {
    /// Waits that nothing implied, and places where the text stood, since the order was given.
    pub waits: u64,
    pub places: u64,
    /// Who asked for the wait that was left out: lines of files of ours, the innermost first.
    pub asked_by: Option<Vec<String>>,
}

#[derive(Debug, Default)]
pub(super) struct Mutations {
    ordered: Option<Mutation>,
    mutated: Mutated,
}

impl Mutations {
    /// The text that a module has instead of `ptx`.
    pub(super) fn of_text(&mut self, ptx: &str) -> Option<String> {
        let Some(Mutation::Text { from, to, nth }) = self.ordered else { return None };
        let mut parts = ptx.split(from);
        let mut text = parts.next().unwrap_or_default().to_string();
        for part in parts {
            self.mutated.places += 1;
            text += if nth == 0 || nth == self.mutated.places { to } else { from };
            text += part;
        }
        Some(text)
    }

    /// Counts a wait, and says whether it is left out.
    fn leaves_out(&mut self) -> bool {
        self.mutated.waits += 1;
        let left_out = self.ordered == Some(Mutation::Wait { nth: self.mutated.waits });
        if left_out {
            self.mutated.asked_by = Some(callers());
        }
        left_out
    }
}

/// Lines of source below this workspace that the current call came through, without the simulated device's own.
fn callers() -> Vec<String> {
    let trace = Backtrace::force_capture().to_string();
    let places = trace.lines().filter_map(|line| line.trim().strip_prefix("at "));
    let ours = places.filter(|place| place.contains("/src/") && !place.contains("/driver/"));
    let foreign = ["/rustc/", "/registry/", "/rustlib/"];
    let ours = ours.filter(|place| !foreign.iter().any(|part| place.contains(part)));
    ours.map(|place| place.trim_start_matches("./").to_string()).collect()
}

impl State {
    /// Whether a wait of `lane` for `recorded` is left out. One that other waits imply never is.
    pub(super) fn wait_is_left_out(&mut self, lane: u32, recorded: Option<&Moment>) -> bool {
        let is_news = recorded.is_some_and(|recorded| self.queues.is_news(lane, recorded));
        is_news && self.mutations.leaves_out()
    }
}

impl SimDriver {
    /// Orders a mutation, or takes it back. Returns what came of the one before.
    pub fn mutate(&self, mutation: Option<Mutation>) -> Mutated {
        let mut state = self.state();
        state.mutations.ordered = mutation;
        std::mem::take(&mut state.mutations.mutated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(mutation: Mutation) -> Mutations {
        Mutations { ordered: Some(mutation), ..Mutations::default() }
    }

    #[test]
    fn one_place_of_all_texts_is_another_or_every_place_is() {
        let texts = ["a.x b.x", "c", "d.x"];
        let mutated = |nth| {
            let mut mutations = with(Mutation::Text { from: ".x", to: "", nth });
            let texts = texts.map(|text| mutations.of_text(text).expect("an order"));
            (texts, mutations.mutated.places)
        };
        assert_eq!(mutated(2), (["a.x b", "c", "d.x"].map(String::from), 3));
        assert_eq!(mutated(3), (["a.x b.x", "c", "d"].map(String::from), 3));
        assert_eq!(mutated(0), (["a b", "c", "d"].map(String::from), 3));
        assert_eq!(mutated(4), (texts.map(String::from), 3));
        assert_eq!(Mutations::default().of_text("a.x"), None);
    }

    #[test]
    fn one_wait_is_left_out() {
        let mut mutations = with(Mutation::Wait { nth: 2 });
        assert_eq!([(); 3].map(|()| mutations.leaves_out()), [false, true, false]);
        assert_eq!((mutations.mutated.waits, mutations.mutated.asked_by.is_some()), (3, true));
    }
}
