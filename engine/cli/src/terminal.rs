//! The terminal as the program found it, for an end in the middle of an edited line.

use std::io;
use std::sync::OnceLock;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// The settings from before the first prompt.
static FOUND: OnceLock<Termios> = OnceLock::new();

/// Remembers the settings of standard input.
pub fn remember() {
    if let Ok(found) = tcgetattr(io::stdin()) {
        let _ = FOUND.set(found);
    }
}

/// Gives the terminal back as it was, if it was remembered.
pub fn restore() {
    if let Some(found) = FOUND.get() {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, found);
    }
}

/// Colours are wanted on this terminal: NO_COLOR is unset or empty, and TERM names one that is not `dumb`.
pub fn has_colours() -> bool {
    let is_unset = |name| std::env::var_os(name).is_none_or(|value| value.is_empty());
    is_unset("NO_COLOR") && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}
