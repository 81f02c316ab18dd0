//! `millpond selftest`: one line per check of a device, and a total.
//!
//! ```text
//!   ok     memory/copies         bytes go up and come home, whatever their number
//!   skip   ipc/two_processes     a pool and an allocation reach another process: needs a second process
//!   FAILED kernels/sort          rows are sorted by several keys, …: the order of 33 rows is …
//!   90 checks on simulated device: 88 passed, 1 failed, 1 skipped
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
    let outcomes = millpond::selftest(&session, |outcome| match (&outcome.result, outcome.skipped) {
        (Ok(()), None) => println!("ok     {:34} {}", outcome.name, outcome.claim),
        (Ok(()), Some(why)) => println!("skip   {:34} {}: {why}", outcome.name, outcome.claim),
        (Err(why), _) => println!("FAILED {:34} {}: {why}", outcome.name, outcome.claim),
    })
    .await?;
    let failed = outcomes.iter().filter(|outcome| outcome.result.is_err()).count();
    let skipped = outcomes.iter().filter(|outcome| outcome.result.is_ok() && outcome.skipped.is_some()).count();
    let passed = outcomes.len() - failed - skipped;
    let total = outcomes.len();
    println!("{total} checks on {}: {passed} passed, {failed} failed, {skipped} skipped", engine.name());
    Ok(if failed == 0 { Exit::Ok } else { Exit::Sql })
}
