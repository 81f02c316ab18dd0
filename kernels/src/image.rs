//! The compiled kernels: PTX made from `cuda/*.cu`, embedded, and loaded on a device at first use.
//!
//!   cuda/sort.cu ──cargo images──► images/sort.ptx ──embedded──► Images::kernel("sort_tile") ──first use──► Module
//!
//! Stale      each image begins with the hash of its sources; a test compares the hashes, so that no image is out of
//!            date.
//! Sizes      sizes shared by host and device are Rust constants and reach the sources as `-D` (see [`DEFINES`]).
//! Threads    two threads may request an image at once: it is loaded once.
//! Licence    images contain compiled parts of NVIDIA's headers: see NOTICE.

use std::sync::{Mutex, PoisonError};

use millpond_memory::{Device, Kernel, Module, Result};

use crate::tune;

/// One compiled CUDA source.
#[derive(Debug, Clone, Copy)]
pub struct Image {
    /// Name of the source `cuda/NAME.cu`; its kernels are called `NAME` or `NAME_…`.
    pub name: &'static str,
    /// PTX.
    pub text: &'static str,
}

macro_rules! images {
    ($($name:literal)*) => { &[$(Image { name: $name, text: include_str!(concat!("../images/", $name, ".ptx")) }),*] };
}

/// Every image, by name.
pub const IMAGES: &[Image] = images! {
    "bayes" "bivariate" "clicks" "concat" "distinct" "join" "learn" "lists" "math" "parquet_decompress" "parquet_facts" "parquet_prepare" "parquet_texts" "parquet_values" "percentile" "radix" "reduce" "scan" "sentences" "sort" "store" "text" "top" "window"
};

/// Options of the compiler, in addition to [`DEFINES`].
pub const OPTIONS: &[&str] = &[
    "--gpu-architecture=compute_70",
    "-std=c++17",
    "-default-device",
    "--device-int128",
    "--relocatable-device-code=true",
];

/// Sizes shared by host and device, under the names that the sources use.
pub const DEFINES: &[(&str, u32)] = &[
    ("BAYES_SLOTS", tune::BAYES_SLOTS),
    ("BAYES_THREADS", tune::BAYES_THREADS),
    ("JOIN_THREADS", tune::JOIN_THREADS),
    ("LEARN_CHUNK_ROWS", tune::LEARN_CHUNK_ROWS),
    ("LEARN_THREADS", tune::LEARN_THREADS),
    ("LISTS_THREADS", tune::LISTS_THREADS),
    ("PARQUET_PAGE_THREADS", tune::PARQUET_PAGE_THREADS),
    ("PARQUET_THREADS", tune::PARQUET_THREADS),
    ("RADIX_THREADS", tune::RADIX_THREADS),
    ("RADIX_TILE_ROWS", tune::RADIX_TILE_ROWS),
    ("REDUCE_THREADS", tune::REDUCE_THREADS),
    ("SCAN_THREADS", tune::SCAN_THREADS),
    ("SORT_FEW_KEYS", tune::SORT_FEW_KEYS),
    ("SORT_THREADS", tune::SORT_THREADS),
    ("SORT_TILE_ROWS", tune::SORT_TILE_ROWS),
    ("STORE_THREADS", tune::STORE_THREADS),
    ("TOP_MAX_ROWS", tune::TOP_MAX_ROWS),
    ("WINDOW_FANOUT", tune::WINDOW_FANOUT),
    ("WINDOW_LEVELS", tune::WINDOW_LEVELS),
    ("WINDOW_THREADS", tune::WINDOW_THREADS),
];

impl Image {
    /// Reads the source hash from the header line `// sources HASH`.
    pub fn source_hash(&self) -> Option<&'static str> {
        self.text.lines().find_map(|line| line.strip_prefix("// sources "))
    }

    /// Names of the kernels, in the order of the text. The other functions of the text are called by generated kernels.
    pub fn kernels(&self) -> impl Iterator<Item = &'static str> {
        self.text.lines().filter_map(|line| line.strip_prefix(".visible .entry ")?.split('(').next())
    }
}

/// Images of one device. Each is loaded when one of its kernels is first requested.
#[derive(Debug)]
pub struct Images {
    device: Device,
    modules: Vec<Mutex<Option<Module>>>,
    blocking: Blocking,
}

/// Wraps work that may block the thread: assembling an image, or waiting until another thread has assembled it.
pub type Blocking = fn(&mut dyn FnMut());

impl Images {
    /// Creates the set without loading an image.
    pub fn new(device: &Device) -> Images {
        Self::blocking_by(device, |work| work())
    }

    /// Like [`Images::new`], but every call that may block runs inside `blocking`.
    pub fn blocking_by(device: &Device, blocking: Blocking) -> Images {
        Images { device: device.clone(), modules: IMAGES.iter().map(|_| Mutex::new(None)).collect(), blocking }
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Loads an image from the disk cache of assembled code unless it is loaded already; true if it is loaded
    /// afterwards. Called from a background thread; a thread that requests the image meanwhile waits.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn load_kept(&self, image: &Image) -> Result<bool> {
        let Some(at) = IMAGES.iter().position(|known| known.name == image.name) else { return Ok(false) };
        let mut module = self.modules[at].lock().unwrap_or_else(PoisonError::into_inner);
        if module.is_none() {
            *module = self.device.load_kept_module(IMAGES[at].text)?;
        }
        Ok(module.is_some())
    }

    /// Returns kernel `name` of image `image`. Both names are constants of this crate, so an unknown name is a bug.
    ///
    /// # Errors
    /// Errors of the driver while it loads the image or finds the kernel.
    pub fn kernel(&self, image: &str, name: &str) -> Result<Kernel> {
        let at = IMAGES.iter().position(|known| known.name == image).expect("an image of this crate");
        if let Ok(module) = self.modules[at].try_lock()
            && let Some(loaded) = &*module
        {
            return loaded.kernel(name);
        }
        let mut kernel = None;
        (self.blocking)(&mut || {
            let mut module = self.modules[at].lock().unwrap_or_else(PoisonError::into_inner);
            let loaded = match &mut *module {
                Some(loaded) => Ok(loaded),
                empty => self.device.load_module(IMAGES[at].text).map(|module| empty.insert(module)),
            };
            kernel = Some(loaded.and_then(|module| module.kernel(name)));
        });
        kernel.expect("the work was done")
    }
}
