//! Deterministic data generators to Arrow and Parquet, at any scale.
