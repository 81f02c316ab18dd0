//! Compares every instruction form with the results in `vectors/recorded.bin`, recorded on a GPU.

use millpond_memory::Device;
use millpond_memory::checks::CheckError;

use crate::vectors;

/// Maximum number of differing vectors that an error lists.
const NAMED: usize = 5;

pub(super) fn instructions_give_the_recorded_values(device: &Device) -> Result<(), CheckError> {
    let recording =
        vectors::recorded().map_err(|reason| CheckError::Refused(format!("the recorded vectors: {reason}")))?;
    let found = vectors::differences(device, &recording)?;
    if found.is_empty() {
        return Ok(());
    }
    let (many, of, first) = (found.len(), recording.vectors(), found[..found.len().min(NAMED)].join("; "));
    Err(CheckError::Wrong(format!("{many} of {of} vectors of {} differ: {first}", recording.device)))
}
