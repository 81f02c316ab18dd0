//! Limits the memory that the C library keeps after the driver's compiler has freed it.
//!
//!   thread ─► module ─► the driver's compiler ─► malloc: an arena for nearly every thread, each at its peak size
//!
//! Why    on one H100, 100 threads that compile kept 1.1 GiB more than with 4 arenas, and went on growing for minutes.

/// Has the C library's `malloc` share `most` arenas among all threads of this process, from now on. For a program whose
/// own memory comes from another allocator, before its first thread; a library leaves it to its program. False where
/// the C library has no such limit.
///
/// Source: mallopt(3), `M_ARENA_MAX`.
pub fn limit_malloc_arenas(most: u16) -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: it changes a number inside the C library, under that library's lock.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, most.max(1).into()) == 1 }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    {
        let _ = most;
        false
    }
}

/// The version of the C library that this process runs with, such as `2.36`; `None` for another library than glibc.
///
/// Source: gnu_get_libc_version(3).
pub fn glibc_version() -> Option<String> {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: the function has no arguments, and returns a static text that ends with 0.
        let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
        version.to_str().ok().map(str::to_string)
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{glibc_version, limit_malloc_arenas};

    #[test]
    fn the_c_library_has_a_version() {
        let is_number = |version: &str| version.starts_with("2.") && version[2..].parse::<u32>().is_ok();
        let is_glibc = cfg!(all(target_os = "linux", target_env = "gnu"));
        assert_eq!(glibc_version().is_some_and(|version| is_number(&version)), is_glibc);
    }

    #[test]
    fn the_c_library_takes_the_limit() {
        assert_eq!(limit_malloc_arenas(4), cfg!(all(target_os = "linux", target_env = "gnu")));
    }
}
