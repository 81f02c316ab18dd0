//! Seeds for tests: each commit has its own, so that runs differ; an environment variable repeats a seed.
//!
//! ```text
//!   environment variable ─► digits of the commit ─► 0x5eed if neither exists
//! ```
//!
//! Tests print their seed, so that a failure can be reproduced: `MILLPOND_FUZZ_SEED=1a2b3c4d cargo test …`.

/// The hexadecimal seed in environment variable `variable`; without it, the first eight digits of the commit.
///
/// # Panics
/// If the variable is not a hexadecimal number: another seed would not reproduce the failure.
pub fn of_commit(variable: &str) -> u64 {
    match std::env::var(variable) {
        Ok(named) => hexadecimal(&named).unwrap_or_else(|| panic!("{variable}={named} is no hexadecimal number")),
        Err(_) => commit().as_deref().and_then(hexadecimal).unwrap_or(0x5eed),
    }
}

fn hexadecimal(text: &str) -> Option<u64> {
    let text = text.trim();
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

/// First digits of the commit, from git.
fn commit() -> Option<String> {
    let mut git = std::process::Command::new("git");
    let output = git.args(["rev-parse", "--short=8", "HEAD"]).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    String::from_utf8(output.ok()?.stdout).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_written_with_or_without_its_prefix() {
        assert_eq!((hexadecimal("0x1f\n"), hexadecimal("1f"), hexadecimal("one")), (Some(0x1f), Some(0x1f), None));
    }

    #[test]
    fn without_the_variable_a_seed_stays_the_same_in_a_commit() {
        assert_eq!(of_commit("MILLPOND_NO_SUCH_SEED"), of_commit("MILLPOND_NO_SUCH_SEED"));
    }
}
