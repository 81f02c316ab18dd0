//! NVIDIA's driver: opening it never panics, and a failure always has a reason.

use millpond_memory::checks::skipped;
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

/// Prints the result of opening the driver, in a child process started by `told_with`.
#[test]
fn tell() {
    if std::env::var_os("MILLPOND_TEST_TELL").is_some() {
        match CudaDriver::open() {
            Ok(_) => println!("told: opened"),
            Err(reason) => println!("told: {reason}"),
        }
    }
}

/// Opens the driver in a child process that finds `library` (any shared library) under libcuda's names.
#[cfg(target_os = "linux")]
fn told_with(library: &std::path::Path) -> String {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("millpond-cuda-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::fs::copy(library, folder.join(name)).unwrap();
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cuda::tell", "--nocapture"])
        .env("MILLPOND_TEST_TELL", "1")
        .env("LD_LIBRARY_PATH", &folder)
        .output()
        .unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let output = String::from_utf8_lossy(&child.stdout).into_owned();
    assert!(child.status.success(), "{output}{}", String::from_utf8_lossy(&child.stderr));
    let told = output.lines().find_map(|line| line.split_once("told: ")).expect("the child tells").1;
    told.to_string()
}

/// A libcuda without the functions: no panic, and the missing function is named.
#[test]
#[cfg(target_os = "linux")]
fn a_library_without_the_functions_is_a_reason() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.lines().filter_map(|line| line.split_whitespace().last()).find(|path| path.contains("/libc.so"));
    let Some(libc) = libc else {
        skipped("needs a dynamic libc to pass off as libcuda");
        return;
    };
    let told = told_with(std::path::Path::new(libc));
    assert!(told.contains("lacks cuDriverGetVersion"), "{told}");
}

/// A file that is not a library counts as a missing one.
#[test]
#[cfg(target_os = "linux")]
fn a_broken_library_is_a_reason() {
    if CudaDriver::open().is_ok() {
        skipped("needs a machine without an NVIDIA driver");
        return;
    }
    let told = told_with(std::path::Path::new("/proc/self/cmdline"));
    assert_eq!(told, "no NVIDIA driver found (libcuda.so.1 not loadable)");
}
