//! Values of options: what each may be set to, how it is read and printed.
//!
//! A value that cannot be read names what was expected; names suggest the nearest one.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use datafusion::common::config::ConfigOptions;
use millpond_memory::Strategy;
use millpond_memory::driver::sim::Shape;

use crate::options::{MillpondOptions, nearest};

/// Which device runs queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// CUDA when it is there, the CPU otherwise; never the simulated device.
    #[default]
    Auto,
    /// The CUDA device with this ordinal, or an error.
    Cuda(usize),
    /// The simulated device: the same kernels, interpreted and checked.
    Sim,
    /// No device: DataFusion alone.
    Cpu,
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cuda(0) => f.write_str("cuda"),
            Self::Cuda(n) => write!(f, "cuda:{n}"),
            Self::Sim => f.write_str("sim"),
            Self::Cpu => f.write_str("cpu"),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "auto, cuda, cuda:N, sim or cpu".to_string();
        match text.trim().to_ascii_lowercase().as_str() {
            "auto" => Ok(Self::Auto),
            "cuda" => Ok(Self::Cuda(0)),
            "sim" => Ok(Self::Sim),
            "cpu" => Ok(Self::Cpu),
            other => match other.strip_prefix("cuda:").map(str::parse) {
                Some(Ok(n)) => Ok(Self::Cuda(n)),
                _ => Err(expected()),
            },
        }
    }
}

/// What happens when part of a query cannot run on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fallback {
    /// It runs on the CPU; EXPLAIN and the report say why.
    #[default]
    Allow,
    /// It runs on the CPU, and every reason is logged as a warning.
    Warn,
    /// It is an error.
    Error,
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "allow",
            Self::Warn => "warn",
            Self::Error => "error",
        })
    }
}

impl FromStr for Fallback {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "allow" => Ok(Self::Allow),
            "warn" => Ok(Self::Warn),
            "error" => Ok(Self::Error),
            _ => Err("allow, warn or error".to_string()),
        }
    }
}

/// What becomes of whole numbers that leave their type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IntegerOverflow {
    /// The statement ends with an error.
    #[default]
    Error,
    /// The result is taken modulo 2^64, 2^32 and so on.
    Wrap,
}

impl IntegerOverflow {
    /// True where the configuration of a session makes overflow an error.
    pub(crate) fn is_error(config: &ConfigOptions) -> bool {
        config.extensions.get::<MillpondOptions>().is_some_and(|options| options.integer_overflow == Self::Error)
    }
}

impl fmt::Display for IntegerOverflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Wrap => "wrap",
        })
    }
}

impl FromStr for IntegerOverflow {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "error" => Ok(Self::Error),
            "wrap" => Ok(Self::Wrap),
            _ => Err("error or wrap".to_string()),
        }
    }
}

/// Whether columns of tables stay on the device between queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cache {
    /// What a query reads is loaded, if there is room, and stays for the next.
    #[default]
    Auto,
    /// Every query reads its tables anew.
    Off,
    /// What a query reads stays in pinned host memory, and is copied to the device for each run.
    Host,
}

impl Cache {
    /// Columns stay, wherever.
    pub fn stores(self) -> bool {
        self != Self::Off
    }
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::Host => "host",
        })
    }
}

impl FromStr for Cache {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            "host" => Ok(Self::Host),
            _ => Err("auto, off or host".to_string()),
        }
    }
}

/// Who decodes Parquet pages of columns that do not stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ParquetDecoder {
    /// The device, where it has kernels for them; the host on the simulated device, which is slow.
    #[default]
    Auto,
    /// The host.
    Host,
    /// The device, where it has kernels for them.
    Device,
}

impl fmt::Display for ParquetDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Host => "host",
            Self::Device => "device",
        })
    }
}

impl FromStr for ParquetDecoder {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "auto" => Ok(Self::Auto),
            "host" => Ok(Self::Host),
            "device" => Ok(Self::Device),
            _ => Err("auto, host or device".to_string()),
        }
    }
}

/// How long nothing may complete on the device while a query waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceTimeout {
    /// 600 seconds; no limit on the simulated device, whose time is not a GPU's.
    #[default]
    Default,
    /// So many seconds, on the simulated device too; 0 is no limit.
    Seconds(u64),
}

impl DeviceTimeout {
    const DEFAULT_SECONDS: u64 = 600;

    /// The limit, if there is one.
    pub fn limit(self, is_simulated: bool) -> Option<Duration> {
        match self {
            Self::Default if is_simulated => None,
            Self::Default => Some(Duration::from_secs(Self::DEFAULT_SECONDS)),
            Self::Seconds(0) => None,
            Self::Seconds(seconds) => Some(Duration::from_secs(seconds)),
        }
    }
}

impl fmt::Display for DeviceTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => Self::DEFAULT_SECONDS.fmt(f),
            Self::Seconds(seconds) => seconds.fmt(f),
        }
    }
}

/// Reads and prints one option's value.
pub(super) trait Value: Sized {
    fn read(text: &str) -> Result<Self, String>;
    fn print(&self) -> Option<String>;
}

impl Value for bool {
    fn read(text: &str) -> Result<Self, String> {
        text.trim().to_ascii_lowercase().parse().map_err(|_| "true or false".to_string())
    }
    fn print(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Value for usize {
    /// A whole number, with `_` between digits and a suffix K, M, G, T (1000) or Ki, Mi, Gi, Ti (1024), B ignored.
    fn read(text: &str) -> Result<Self, String> {
        let expected = || "a whole number such as 4096, 64MiB or 2G".to_string();
        let text = text.trim().replace('_', "");
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let number: u128 = text[..digits].parse().map_err(|_| expected())?;
        let suffix = text[digits..].trim().to_ascii_lowercase();
        let suffix = suffix.strip_suffix('b').unwrap_or(&suffix);
        let factor: u128 = match suffix {
            "" => 1,
            "k" => 1_000,
            "m" => 1_000_000,
            "g" => 1_000_000_000,
            "t" => 1_000_000_000_000,
            "ki" => 1 << 10,
            "mi" => 1 << 20,
            "gi" => 1 << 30,
            "ti" => 1 << 40,
            _ => return Err(expected()),
        };
        number.checked_mul(factor).and_then(|n| usize::try_from(n).ok()).ok_or_else(expected)
    }
    fn print(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Value for u32 {
    fn read(text: &str) -> Result<Self, String> {
        text.trim().parse().map_err(|_| "a whole number".to_string())
    }
    fn print(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Value for DeviceChoice {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }
    fn print(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Value for Cache {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }
    fn print(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Value for ParquetDecoder {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }
    fn print(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Value for Fallback {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }
    fn print(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Value for IntegerOverflow {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }
    fn print(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Value for DeviceTimeout {
    fn read(text: &str) -> Result<Self, String> {
        text.trim().parse().map(Self::Seconds).map_err(|_| "a whole number of seconds, or 0 for no limit".to_string())
    }
    fn print(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Value for Strategy {
    fn read(text: &str) -> Result<Self, String> {
        let text = text.trim().to_ascii_lowercase();
        text.parse().map_err(|_| {
            let names = Strategy::ALL.map(Strategy::name);
            let nearest = nearest(&text, &names).map(|name| format!("; did you mean {name}?"));
            let [most @ .., last] = names;
            format!("{} or {last}{}", most.join(", "), nearest.unwrap_or_default())
        })
    }
    fn print(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Value for Shape {
    fn read(text: &str) -> Result<Self, String> {
        Shape::named(&text.trim().to_ascii_lowercase()).ok_or_else(|| {
            let [most @ .., last] = Shape::ALL.map(Shape::name);
            format!("{} or {last}", most.join(", "))
        })
    }
    fn print(&self) -> Option<String> {
        Some(self.name())
    }
}

impl Value for String {
    fn read(text: &str) -> Result<Self, String> {
        Ok(text.to_string())
    }
    fn print(&self) -> Option<String> {
        Some(self.clone())
    }
}
