//! Build information: `millpond --version`, and the first lines of `millpond info`.

use std::sync::LazyLock;

use millpond::datafusion::DATAFUSION_VERSION;

/// Millpond's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit, or `unknown`.
pub const COMMIT: &str = env!("BUILD_COMMIT");
/// Minimum versions that published packages need.
pub const GLIBC_FLOOR: &str = "2.28";
pub const DRIVER_FLOOR: &str = "535";
pub const COMPUTE_FLOOR: &str = "7.0";

/// Features that are compiled in.
pub fn features() -> Vec<&'static str> {
    if cfg!(feature = "object-stores") { vec!["object-stores"] } else { vec![] }
}

/// The features in words.
fn features_in_words() -> String {
    match features().as_slice() {
        [] => "none".to_string(),
        features => features.join(", "),
    }
}

/// `0.1.0 (commit 3dab2ef9a, DataFusion 55.2.0, features: none)`.
pub fn line() -> &'static str {
    static LINE: LazyLock<String> = LazyLock::new(|| {
        format!("{VERSION} (commit {COMMIT}, DataFusion {DATAFUSION_VERSION}, features: {})", features_in_words())
    });
    &LINE
}
