//! The devices that queries are compared on: a simulated one for each session, or some that all sessions share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millpond::datafusion::error::{DataFusionError, Result};
use millpond::device::Engine;
use millpond::store::Store;
use millpond::{DeviceChoice, Fallback, MillpondOptions};

use super::lab::outside;
use super::variant::{VARIANTS, Variant};

/// The devices of a run.
pub struct Devices {
    choice: DeviceChoice,
    /// By the memory and the dictionaries' size of a variant, since a device remembers which columns have no
    /// dictionary. Empty: each session opens one.
    shared: BTreeMap<(usize, usize), Arc<Engine>>,
}

impl Devices {
    /// Simulated devices, one for each session, or `choice` for all sessions together.
    ///
    /// # Errors
    /// When it is not there, or the CPU.
    pub fn open(choice: DeviceChoice) -> Result<Devices> {
        let devices = Devices { choice, shared: BTreeMap::new() };
        if choice == DeviceChoice::Sim { Ok(devices) } else { devices.share() }
    }

    /// `engine`, for all sessions together but those whose variant wants less memory or small dictionaries: these share
    /// another one on the same device.
    ///
    /// # Errors
    /// When the other ones cannot be opened.
    pub fn around(engine: Arc<Engine>) -> Result<Devices> {
        let choice = match engine.is_simulated() {
            true => DeviceChoice::Sim,
            false => DeviceChoice::Cuda(engine.device().id().0 as usize),
        };
        Devices { choice, shared: BTreeMap::from([((0, 0), engine)]) }.share()
    }

    /// Opens the shared devices that the variants need and that are not open yet.
    fn share(mut self) -> Result<Devices> {
        for variant in VARIANTS {
            let key = (variant.limits.memory, variant.limits.dictionary_values);
            if !self.shared.contains_key(&key) {
                let opened = Engine::open(&self.options(&variant)).map_err(outside)?;
                let missing = || DataFusionError::Configuration(format!("{} is no device to compare", self.choice));
                self.shared.insert(key, opened.engine.ok_or_else(missing)?);
            }
        }
        Ok(self)
    }

    pub(super) fn options(&self, variant: &Variant) -> MillpondOptions {
        let mut options = MillpondOptions::default();
        options.device = self.choice;
        options.fallback = Fallback::Allow;
        options.min_rows = 0;
        // The tables' files have just been written, and stay as they are.
        options.cache_settle_seconds = 0;
        options.batch_rows = variant.batch_rows;
        options.partitions = variant.partitions;
        options.debug_sim_seed = variant.sim_seed;
        options.memory_limit_bytes = variant.limits.memory;
        options.memory_resource = variant.memory_resource;
        options.deterministic_floats = variant.deterministic_floats;
        options.integer_overflow = variant.integer_overflow;
        options.debug_dictionary_values = variant.limits.dictionary_values;
        options.debug_groups_at_first = variant.limits.groups_at_first;
        options.cache = variant.cache;
        options.cache_bytes = variant.limits.cache_bytes;
        options.debug_surprises = variant.surprises;
        options.debug_cache_rows = variant.limits.cache_rows;
        options.debug_cache_text_bytes = variant.limits.cache_text_bytes;
        options
    }

    /// The device that sessions of the variant share, if any.
    pub(super) fn shared(&self, variant: &Variant) -> Option<&Arc<Engine>> {
        self.shared.get(&(variant.limits.memory, variant.limits.dictionary_values))
    }

    /// Value of the device option.
    pub fn choice(&self) -> DeviceChoice {
        self.choice
    }

    /// True when sessions share a device.
    pub fn is_shared(&self) -> bool {
        !self.shared.is_empty()
    }

    /// The device's name.
    pub fn name(&self) -> String {
        self.shared.values().next().map_or_else(|| "simulated device".to_string(), |engine| engine.name().to_string())
    }

    /// Defects of shared devices after all queries have ended.
    pub async fn left(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for engine in self.shared.values() {
            if engine.device().is_lost() {
                wrong.push(format!("{} was lost", engine.name()));
            }
            Store::of(engine).clear();
            let used = || engine.pool().used_bytes().as_u64();
            for _ in 0..500 {
                if used() == 0 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            if used() > 0 {
                wrong.push(format!("{} bytes of the pool of {} stay in use", used(), engine.name()));
            }
        }
        wrong
    }
}
