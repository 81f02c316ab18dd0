//! The names by which strategies are chosen: `millpond.memory_resource`, `--allocator`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::{
    ArenaMemoryResource, ArenaOptions, BinningMemoryResource, BinningOptions, CachingMemoryResource, CachingOptions,
    CudaAsyncMemoryResource, CudaMemoryResource, DeviceMemoryResource,
};
use crate::device::Device;
use crate::error::{MemoryError, Result};
use crate::pool::{ReleaseThreshold, ReusePolicy};

/// How device memory is allocated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Strategy {
    /// `cuMemAlloc` and `cuMemFree`.
    Cuda,
    /// A pool of the driver as it comes: release threshold 0.
    CudaAsyncDefault,
    /// A pool of the driver, tuned.
    #[default]
    CudaAsync,
    /// Free lists per stream.
    Caching,
    /// A bump per stream.
    Arena,
    /// Slabs for small sizes, a pool of the driver for the rest.
    Binning,
}

impl Strategy {
    pub const ALL: [Strategy; 6] = [
        Strategy::Cuda,
        Strategy::CudaAsyncDefault,
        Strategy::CudaAsync,
        Strategy::Caching,
        Strategy::Arena,
        Strategy::Binning,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Strategy::Cuda => "cuda",
            Strategy::CudaAsyncDefault => "cuda_async_default",
            Strategy::CudaAsync => "cuda_async",
            Strategy::Caching => "caching",
            Strategy::Arena => "arena",
            Strategy::Binning => "binning",
        }
    }

    /// A resource of this strategy, with the options it comes with.
    pub fn create(self, device: &Device) -> Result<Arc<dyn DeviceMemoryResource>> {
        let pool = || CudaAsyncMemoryResource::new(device, None, ReleaseThreshold::Max, ReusePolicy::default());
        Ok(match self {
            Strategy::Cuda => Arc::new(CudaMemoryResource::new(device)),
            Strategy::CudaAsyncDefault => Arc::new(CudaAsyncMemoryResource::untuned(device)?),
            Strategy::CudaAsync => Arc::new(pool()?),
            Strategy::Caching => {
                let upstream = Arc::new(CudaMemoryResource::new(device));
                Arc::new(CachingMemoryResource::new(upstream, CachingOptions::default()))
            }
            Strategy::Arena => Arc::new(ArenaMemoryResource::new(Arc::new(pool()?), ArenaOptions::default())),
            Strategy::Binning => Arc::new(BinningMemoryResource::new(Arc::new(pool()?), BinningOptions::default())),
        })
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Strategy {
    type Err = MemoryError;

    fn from_str(name: &str) -> Result<Self> {
        let found = Strategy::ALL.into_iter().find(|strategy| strategy.name() == name);
        found.ok_or_else(|| MemoryError::UnknownStrategy {
            name: name.into(),
            known: Strategy::ALL.map(Strategy::name).to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways_and_a_wrong_one_lists_them() {
        for strategy in Strategy::ALL {
            assert_eq!(strategy.to_string().parse::<Strategy>().unwrap(), strategy);
        }
        assert_eq!(Strategy::default().name(), "cuda_async");
        assert_eq!(
            "pool".parse::<Strategy>().unwrap_err().to_string(),
            "there is no memory resource `pool`; choose cuda, cuda_async_default, cuda_async, caching, arena or binning"
        );
    }
}
