//! Options of the C interface, read from environment variables: strategy and limit.
//!
//!   MILLPOND_MEMORY_RESOURCE=caching MILLPOND_MEMORY_LIMIT_BYTES=4294967296 python train.py

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::error::{MemoryError, Result};
use crate::resource::Strategy;
use crate::units::ByteSize;

pub(super) const RESOURCE: &str = "MILLPOND_MEMORY_RESOURCE";
pub(super) const LIMIT: &str = "MILLPOND_MEMORY_LIMIT_BYTES";

#[derive(Debug, Default)]
pub(super) struct Options {
    pub(super) strategy: Strategy,
    /// Maximum bytes handed out on a device; 0 is three quarters of the initially free memory, `None` all memory.
    pub(super) limit: Option<u64>,
    /// Memory fractions requested for devices before their first use.
    pub(super) fractions: Mutex<HashMap<u32, f64>>,
}

impl Options {
    pub(super) fn from_environment() -> Result<Self> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self::parse(variable(RESOURCE).as_deref(), variable(LIMIT).as_deref())
    }

    fn parse(resource: Option<&str>, limit: Option<&str>) -> Result<Self> {
        let strategy = match resource {
            Some(name) => name.parse()?,
            None => Strategy::default(),
        };
        let limit = match limit {
            Some(text) => Some(text.parse::<u64>().map_err(|_| MemoryError::Call {
                function: LIMIT,
                reason: format!("\"{text}\" is not a number of bytes; 0 is three quarters of what is free").into(),
            })?),
            None => None,
        };
        Ok(Options { strategy, limit, fractions: Mutex::default() })
    }

    /// `None` is the pool's own default.
    pub(super) fn limit_of(&self, device: u32, total: ByteSize) -> Option<ByteSize> {
        let fractions = self.fractions.lock().unwrap_or_else(PoisonError::into_inner);
        match (fractions.get(&device), self.limit) {
            (Some(fraction), _) => Some(ByteSize((total.as_u64() as f64 * fraction) as u64)),
            (None, None) => Some(total),
            (None, Some(0)) => None,
            (None, Some(bytes)) => Some(ByteSize(bytes)),
        }
    }

    pub(super) fn set_fraction(&self, device: u32, fraction: f64) {
        self.fractions.lock().unwrap_or_else(PoisonError::into_inner).insert(device, fraction);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_chooses_strategy_and_limit() {
        let total = ByteSize::gib(10);
        let plain = Options::parse(None, None).unwrap();
        assert_eq!((plain.strategy, plain.limit_of(0, total)), (Strategy::CudaAsync, Some(total)));
        let chosen = Options::parse(Some("caching"), Some("4096")).unwrap();
        assert_eq!((chosen.strategy, chosen.limit_of(0, total)), (Strategy::Caching, Some(ByteSize(4096))));
        assert_eq!(Options::parse(None, Some("0")).unwrap().limit_of(0, total), None);
        plain.set_fraction(1, 0.5);
        assert_eq!((plain.limit_of(0, total), plain.limit_of(1, total)), (Some(total), Some(ByteSize::gib(5))));
    }

    #[test]
    fn what_the_environment_cannot_mean_is_told() {
        let wrong = Options::parse(Some("pool"), None).unwrap_err().to_string();
        assert!(wrong.contains("`pool`; choose cuda,"), "{wrong}");
        let wrong = Options::parse(None, Some("4G")).unwrap_err().to_string();
        assert_eq!(
            wrong,
            "MILLPOND_MEMORY_LIMIT_BYTES: \"4G\" is not a number of bytes; 0 is three quarters of what is free"
        );
    }
}
