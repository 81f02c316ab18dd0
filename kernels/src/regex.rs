//! Regular expressions as automata: tables that a kernel walks byte by byte. Device side: `cuda/regex.cuh`.
//!
//! ```text
//!   a|b+   ──►  classes   a → 0, b → 1, others → 2          next   state · class → state
//!               forward   finds the end of the first match  back   from there to its start, if places are requested
//! ```
//!
//! Same     syntax, Unicode and match preference are those of the `regex` crate: its parser and compiler build the
//!          automata.
//! Refused  invalid expressions; automata of more than [`MOST_BYTES`] per direction.
//! Unknown  word boundaries in texts with non-ASCII bytes: the automaton quits at such a byte and has no answer.
//! After    R. Cox, "Regular expression matching in the wild" (2010); BurntSushi's regex-automata

use std::collections::HashMap;
use std::error::Error;

use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson::{self, NFA, WhichCaptures};
use regex_automata::util::primitives::StateID;
use regex_automata::util::start;
use regex_automata::{Anchored, MatchKind};

/// Maximum bytes of an automaton in one direction.
pub const MOST_BYTES: usize = 256 << 10;

/// Maximum bytes of an expression's NFA in the `regex` crate, which rejects larger ones.
const MOST_NFA_BYTES: usize = 10 << 20;
/// Maximum bytes of an automaton under construction: a state has four bytes per class, and the classes are rounded up.
const MOST_MADE_BYTES: usize = 8 * MOST_BYTES;
/// Maximum bytes of the state sets during determinization; an expression that needs more exceeds [`MOST_BYTES`] anyway.
const MOST_FOUND_BYTES: usize = 16 * MOST_BYTES;

/// States of every automaton: no match can follow, and quit (the automaton cannot decide).
const NOTHING_FOLLOWS: u16 = 0;
const CANNOT_SAY: u16 = 1;
const HEAD_BYTES: usize = 5 * 4 + 256 + 258 * 2;
/// Index of the start state without a preceding byte.
const NO_BYTE: usize = 256;

type Dfa = dense::DFA<Vec<u32>>;

/// Automata of one expression, in the kernels' format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Automata {
    pub bytes: Vec<u8>,
    /// True if the automata cannot decide some texts.
    pub quits: bool,
}

/// Builds the automata of a regular expression: forward, and backward if `places` of matches are requested.
///
/// # Errors
/// A sentence with the reason.
pub fn automata(pattern: &str, places: bool) -> Result<Automata, String> {
    let refused = |error: thompson::BuildError| match error.size_limit() {
        Some(_) => "it is too large".to_string(),
        // The last line holds the message; the lines before it show the position.
        None => {
            let said = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            said.lines().last().unwrap_or_default().trim_start_matches("error: ").to_string()
        }
    };
    let config = thompson::Config::new().nfa_size_limit(Some(MOST_NFA_BYTES));
    let compile =
        |config: thompson::Config| thompson::Compiler::new().configure(config).build(pattern).map_err(refused);
    let forward = compile(config.clone())?;
    let (mut bytes, mut quits) = table(&forward, MatchKind::LeftmostFirst, StartKind::Unanchored)?;
    if places {
        let back = compile(config.which_captures(WhichCaptures::None).reverse(true))?;
        let (back, unsure) = table(&back, MatchKind::All, StartKind::Anchored)?;
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let at = bytes.len() as u32;
        bytes[16..20].copy_from_slice(&at.to_le_bytes());
        bytes.extend(back);
        quits |= unsure;
    }
    Ok(Automata { bytes, quits })
}

/// Builds the table of one automaton; the flag is true if it quits on some bytes.
fn table(nfa: &NFA, kind: MatchKind, starts: StartKind) -> Result<(Vec<u8>, bool), String> {
    let too_large = || format!("its automaton has more than {} KiB", MOST_BYTES >> 10);
    let config = dense::Config::new()
        .accelerate(false)
        .match_kind(kind)
        .start_kind(starts)
        .unicode_word_boundary(true)
        .dfa_size_limit(Some(MOST_MADE_BYTES))
        .determinize_size_limit(Some(MOST_FOUND_BYTES));
    let dfa = dense::Builder::new().configure(config).build_from_nfa(nfa);
    let dfa = dfa.map_err(|error| if error.is_size_limit_exceeded() { too_large() } else { error.to_string() })?;

    let classes = Classes::of(&dfa);
    let anchored = if starts == StartKind::Anchored { Anchored::Yes } else { Anchored::No };
    let begin = |before: Option<u8>| {
        // A start state is missing only after a byte on which the automaton quits.
        dfa.start_state(&start::Config::new().look_behind(before).anchored(anchored)).ok()
    };
    let begins: Vec<Option<StateID>> = (0..=u8::MAX).map(Some).chain([None]).map(begin).collect();
    let states = States::of(&dfa, &classes, begins.iter().flatten().copied());
    let (width, count) = (classes.of_each.len(), states.ids.len() + 2);
    let size = HEAD_BYTES + count * 2 + count * width * 2;
    if size > MOST_BYTES || count > usize::from(u16::MAX) {
        return Err(too_large());
    }

    let splits = dfa.has_empty() && dfa.is_utf8();
    let mut bytes = Vec::with_capacity(size);
    for word in [width, count, states.matches, usize::from(splits), 0] {
        bytes.extend((word as u32).to_le_bytes());
    }
    bytes.extend(classes.class_of);
    let number = |id: &Option<StateID>| id.map_or(CANNOT_SAY, |id| states.number(&dfa, id));
    debug_assert_eq!(begins.len(), NO_BYTE + 1);
    let begins: Vec<u16> = begins.iter().map(number).chain([0]).collect();
    // Of the two fixed states neither matches at the end of the text, and each only leads to itself.
    let ends = states.ids.iter().map(|id| u16::from(dfa.is_match_state(dfa.next_eoi_state(*id))));
    let ends: Vec<u16> = [0, 0].into_iter().chain(ends).collect();
    let next = |id: &StateID| -> Vec<u16> {
        classes.of_each.iter().map(|byte| states.number(&dfa, dfa.next_state(*id, *byte))).collect()
    };
    let stay = [NOTHING_FOLLOWS, CANNOT_SAY].into_iter().flat_map(|state| vec![state; width]);
    let next: Vec<u16> = stay.chain(states.ids.iter().flat_map(next)).collect();
    let quits = begins.contains(&CANNOT_SAY) || next[2 * width..].contains(&CANNOT_SAY);
    bytes.extend(begins.into_iter().chain(ends).chain(next).flat_map(u16::to_le_bytes));
    debug_assert_eq!(bytes.len(), size);
    Ok((bytes, quits))
}

/// Classes of bytes that no state distinguishes.
struct Classes {
    class_of: [u8; 256],
    /// One byte of each class.
    of_each: Vec<u8>,
}

impl Classes {
    fn of(dfa: &Dfa) -> Classes {
        let (mut class_of, mut of_each) = ([0; 256], Vec::new());
        let mut known: HashMap<u8, u8> = HashMap::new();
        for byte in 0..=u8::MAX {
            let class = *known.entry(dfa.byte_classes().get(byte)).or_insert_with(|| {
                of_each.push(byte);
                (of_each.len() - 1) as u8
            });
            class_of[usize::from(byte)] = class;
        }
        Classes { class_of, of_each }
    }
}

/// Reachable states, match states first.
struct States {
    ids: Vec<StateID>,
    numbers: HashMap<StateID, u16>,
    matches: usize,
}

impl States {
    fn of(dfa: &Dfa, classes: &Classes, begins: impl Iterator<Item = StateID>) -> States {
        let ordinary = |id: &StateID| !dfa.is_dead_state(*id) && !dfa.is_quit_state(*id);
        let mut ids: Vec<StateID> = Vec::new();
        let mut known: HashMap<StateID, u16> = HashMap::new();
        let mut open: Vec<StateID> = begins.collect();
        while let Some(id) = open.pop() {
            if ordinary(&id) && known.insert(id, 0).is_none() {
                ids.push(id);
                open.extend(classes.of_each.iter().map(|byte| dfa.next_state(id, *byte)));
            }
        }
        // Sorted, so that an expression always gives the same automaton.
        ids.sort_unstable_by_key(|id| (!dfa.is_match_state(*id), *id));
        let matches = ids.iter().take_while(|id| dfa.is_match_state(**id)).count();
        // Numbers that overflow belong to an automaton that is refused.
        let numbers = ids.iter().enumerate().map(|(at, id)| (*id, (at + 2).min(usize::from(u16::MAX)) as u16));
        States { numbers: numbers.collect(), ids, matches }
    }

    fn number(&self, dfa: &Dfa, id: StateID) -> u16 {
        match self.numbers.get(&id) {
            Some(number) => *number,
            None if dfa.is_quit_state(id) => CANNOT_SAY,
            None => NOTHING_FOLLOWS,
        }
    }
}
