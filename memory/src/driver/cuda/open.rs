//! Finds libcuda, and says in words why it cannot be used.

use super::*;

/// CUDA 12.2, which driver 535 brings.
const MIN_VERSION: u32 = 12020;

/// The driver's version and, where the system tells, its release: "NVIDIA driver 470.82 (CUDA 11.4)".
fn release() -> Option<String> {
    let text = std::fs::read_to_string("/sys/module/nvidia/version").ok()?;
    Some(text.trim().to_string()).filter(|release| !release.is_empty())
}

impl CudaDriver {
    /// Opens NVIDIA's driver.
    ///
    /// # Errors
    /// Why there is none to use: no library, too old, a function missing, no device visible.
    pub fn open() -> Result<Arc<CudaDriver>, DriverUnavailable> {
        let _inside = leaving::enter("cuInit").map_err(DriverUnavailable::Refused)?;
        // SAFETY: looks whether the library can be loaded, and runs its initialisers, which are NVIDIA's.
        if !unsafe { sys::is_culib_present() } {
            return Err(DriverUnavailable::NoLibrary);
        }
        // Its version first: that an old driver lacks functions is not its user's news.
        // SAFETY: the library can be opened.
        let library = unsafe { sys::culib() };
        Step::Loaded.over();
        // SAFETY: the signature is the one in cuda.h.
        let get_version = unsafe { library.get::<unsafe extern "C" fn(*mut c_int) -> c_uint>(b"cuDriverGetVersion\0") };
        let missing = |symbol, found| DriverUnavailable::MissingSymbol { symbol, found, release: release() };
        let get_version = get_version.map_err(|_| missing("cuDriverGetVersion", 0))?;
        let mut found = 0;
        // SAFETY: writes one integer.
        let code = unsafe { get_version(&mut found) };
        if code != 0 {
            let error = DriverError::new("cuDriverGetVersion", DriverCode(code));
            return Err(DriverUnavailable::Refused(error));
        }
        let found = found.max(0) as u32;
        if found < MIN_VERSION {
            return Err(DriverUnavailable::TooOld { found, release: release() });
        }
        let functions = Functions::find().map_err(|symbol| missing(symbol, found))?;
        let driver = CudaDriver {
            functions,
            version: DriverVersion(found),
            open: Mutex::default(),
            contexts: (0..HOST.0).map(|_| AtomicUsize::new(0)).collect(),
            blocks: Mutex::default(),
        };
        let no_device = || {
            let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
            DriverUnavailable::NoDevice { found, release: release(), visible }
        };
        let started = call!(driver, cuInit(0));
        Step::Started.over();
        match started {
            Err(error) if error.code == DriverCode::NO_DEVICE => return Err(no_device()),
            other => other.map_err(DriverUnavailable::Refused)?,
        }
        match driver.device_count() {
            Ok(0) => Err(no_device()),
            Ok(_) => Ok(Arc::new(driver)),
            Err(error) if error.code == DriverCode::NO_DEVICE => Err(no_device()),
            Err(error) => Err(DriverUnavailable::Refused(error)),
        }
    }
}
