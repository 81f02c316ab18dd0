//! Files of the shell, by the XDG Base Directory Specification.
//!
//! | file | where |
//! | --- | --- |
//! | history | `millpond/history` in `$XDG_STATE_HOME`, else `~/.local/state` |
//! | statements and commands at the start | `millpond/rc.sql` in `$XDG_CONFIG_HOME`, else `~/.config` |

use std::path::PathBuf;

/// The history file.
pub fn history() -> Option<PathBuf> {
    of_user("XDG_STATE_HOME", ".local/state").map(|folder| folder.join("millpond/history"))
}

/// The startup file.
pub fn rc() -> Option<PathBuf> {
    of_user("XDG_CONFIG_HOME", ".config").map(|folder| folder.join("millpond/rc.sql"))
}

/// The folder in an environment variable if it is absolute, as the specification requires, else a folder below the home
/// folder.
fn of_user(variable: &str, below_home: &str) -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(below_home)))
}
