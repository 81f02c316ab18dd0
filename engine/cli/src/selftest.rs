//! `millpond selftest`: one line per check of a device, and a total.
//!
//! ```text
//!   ok     memory/copies         bytes go up and come home, whatever their number
//!   FAILED kernels/sort          rows are sorted by several keys, …: the order of 33 rows is …
//!   29 checks on simulated device: 28 passed, 1 failed
//! ```

use millpond::Millpond;

use crate::args::SessionArgs;
use crate::error::{CliError, Exit};
use crate::session;

/// Runs the checks; `Ok` carries exit 1 when one failed.
///
/// # Errors
/// Exit 3 when there is no device to test, and what a session's opening gives.
pub async fn run(args: &SessionArgs) -> Result<Exit, CliError> {
    let session: Millpond = session::open(args, None).await?;
    let Some(engine) = session.engine() else {
        let reason = session.device_note().unwrap_or("the CPU needs no test").trim_end_matches('.');
        let message = format!("there is no device to test: {reason}; use --device sim for the simulated device");
        return Err(CliError { exit: Exit::Device, message });
    };
    let outcomes = millpond::selftest(&session, |outcome| match &outcome.result {
        Ok(()) => println!("ok     {:26} {}", outcome.name, outcome.claim),
        Err(why) => println!("FAILED {:26} {}: {why}", outcome.name, outcome.claim),
    })
    .await?;
    let failed = outcomes.iter().filter(|outcome| outcome.result.is_err()).count();
    let passed = outcomes.len() - failed;
    println!("{} checks on {}: {passed} passed, {failed} failed", outcomes.len(), engine.name());
    Ok(if failed == 0 { Exit::Ok } else { Exit::Sql })
}
