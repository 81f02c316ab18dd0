//! The terminal's original settings, restored if the program ends while a line is edited.

use std::io;
use std::sync::OnceLock;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// The settings before the first prompt.
static FOUND: OnceLock<Termios> = OnceLock::new();

/// Saves the settings of standard input.
pub fn remember() {
    if let Ok(found) = tcgetattr(io::stdin()) {
        let _ = FOUND.set(found);
    }
}

/// Restores the saved settings, if any.
pub fn restore() {
    if let Some(found) = FOUND.get() {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, found);
    }
}

/// True if colors are wanted on this terminal: NO_COLOR is unset or empty, and TERM is set and not `dumb`.
pub fn has_colours() -> bool {
    let is_unset = |name| std::env::var_os(name).is_none_or(|value| value.is_empty());
    is_unset("NO_COLOR") && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}
