//! The compiled kernels: PTX made from `cuda/*.cu`, embedded, and loaded on a device when first asked for.
//!
//!   cuda/sort.cu ──cargo images──► images/sort.ptx ──embedded──► Images::kernel("sort_tile") ──first use──► Module on the device
//!
//! Stale      each image begins with the hash of its sources; a test compares, so a changed source cannot be forgotten.
//! Sizes      that host and device share are constants here in Rust and reach the sources as `-D` (see [`DEFINES`]).
//! Threads    two threads may ask for the same image at once: it is loaded once.
//! Licence    images contain compiled parts of NVIDIA's headers: see NOTICE.

use std::sync::{Mutex, PoisonError};

use millpond_memory::{Device, Kernel, Module, Result};

use crate::tune;

/// One compiled source.
#[derive(Debug, Clone, Copy)]
pub struct Image {
    /// Of the source `cuda/NAME.cu`; kernels are called `NAME` or `NAME_…`.
    pub name: &'static str,
    /// PTX.
    pub text: &'static str,
}

macro_rules! images {
    ($($name:literal)*) => { &[$(Image { name: $name, text: include_str!(concat!("../images/", $name, ".ptx")) }),*] };
}

/// Every image, by name.
pub const IMAGES: &[Image] = images! {
    "bayes" "clicks" "distinct" "join" "joined" "learn" "lists" "math" "pairs" "parquet_decompress" "parquet_facts" "parquet_prepare" "parquet_texts" "parquet_values" "percentile" "radix" "reduce" "scan" "sentences" "sort" "store" "text" "top" "window"
};

/// What the compiler is told, besides [`DEFINES`].
pub const OPTIONS: &[&str] = &[
    "--gpu-architecture=compute_70",
    "-std=c++17",
    "-default-device",
    "--device-int128",
    "--relocatable-device-code=true",
];

/// Sizes that host and device share, by the name that the sources know them under.
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
    /// The hash in the header, as the line `// sources HASH`.
    pub fn source_hash(&self) -> Option<&'static str> {
        self.text.lines().find_map(|line| line.strip_prefix("// sources "))
    }

    /// The names of its kernels, in the text's order. What else is in it are functions that generated kernels call.
    pub fn kernels(&self) -> impl Iterator<Item = &'static str> {
        self.text.lines().filter_map(|line| line.strip_prefix(".visible .entry ")?.split('(').next())
    }
}

/// The images of one device, each loaded when one of its kernels is first asked for.
#[derive(Debug)]
pub struct Images {
    device: Device,
    modules: Vec<Mutex<Option<Module>>>,
    blocking: Blocking,
}

/// Runs work that may block the thread for long: it assembles an image, or waits until another thread has.
pub type Blocking = fn(&mut dyn FnMut());

impl Images {
    /// Loads nothing yet.
    pub fn new(device: &Device) -> Images {
        Self::blocking_by(device, |work| work())
    }

    /// The same for threads that must know when they are about to be blocked.
    pub fn blocking_by(device: &Device, blocking: Blocking) -> Images {
        Images { device: device.clone(), modules: IMAGES.iter().map(|_| Mutex::new(None)).collect(), blocking }
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Loads an image whose assembled code is on disk, if nobody has yet; true if it is loaded then. For a thread beside those that
    /// ask for kernels: who asks meanwhile waits.
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

    /// The kernel `name` of image `image`; both are names in this crate, so a wrong one is a defect.
    ///
    /// # Errors
    /// What the driver says about loading the image or finding the kernel.
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
