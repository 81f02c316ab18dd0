//! NVIDIA's driver: never a panic, always a reason.

use millpond_memory::driver::{CudaDriver, Driver};
use millpond_memory::{DriverUnavailable, MemoryError};

#[test]
fn opening_gives_a_driver_or_a_reason() {
    match CudaDriver::open() {
        Ok(driver) => {
            assert!(driver.version().0 >= 12020);
            assert!(driver.device_count().unwrap() > 0);
        }
        Err(reason) => {
            let known = match &reason {
                DriverUnavailable::NoLibrary => "not loadable",
                DriverUnavailable::TooOld { .. } => "older than the minimum",
                DriverUnavailable::MissingSymbol { .. } => "lacks",
                DriverUnavailable::NoDevice { .. } => "no device visible",
                _ => "does not start",
            };
            assert!(reason.to_string().contains(known), "{reason}");
            assert!(MemoryError::from(reason).is_unavailable());
        }
    }
}

#[test]
fn opening_again_says_the_same() {
    let words = || CudaDriver::open().map(|_| ()).map_err(|reason| reason.to_string());
    assert_eq!(words(), words());
}
