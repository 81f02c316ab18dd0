//! Stores of files, found by their addresses.
//!
//!   's3://bucket/sales/*.parquet' ─► registered? ─ yes ─► that one
//!                                         └─ no ──► S3 · Google Cloud Storage · Azure · HTTP, from options and the environment; kept
//!
//! Features  without `object-stores` an address of one is an error that says how to build a Millpond that reads it.
//! Settings  `AWS_*`, `GOOGLE_*` and `AZURE_*` of the environment, as `object_store` names them; options come before these.
//! Plain     an http:// address is read without encryption; a store of another scheme only if its settings allow that.

use std::sync::Arc;

use datafusion::common::{not_impl_err, plan_datafusion_err};
use datafusion::error::Result;
use datafusion::execution::object_store::{DefaultObjectStoreRegistry, ObjectStoreRegistry};
use datafusion::object_store::ObjectStore;
use url::Url;

/// Addresses of stores that the feature reads.
const SCHEMES: [&str; 10] = ["s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https"];

/// The stores of a session.
#[derive(Debug, Default)]
pub struct ObjectStores {
    registered: DefaultObjectStoreRegistry,
    #[cfg(feature = "object-stores")]
    options: Vec<(String, String)>,
}

#[cfg(feature = "object-stores")]
impl ObjectStores {
    /// Stores with settings from the environment of the process.
    pub fn from_environment() -> Self {
        let prefixes = ["aws_", "google_", "azure_"];
        let is_setting = |name: &str| prefixes.iter().any(|prefix| name.to_ascii_lowercase().starts_with(prefix));
        Self::with_options(std::env::vars().filter(|(name, _)| is_setting(name)))
    }

    /// Stores with these settings: names of `object_store`, such as `aws_endpoint`. A store leaves out the names that it does not know.
    pub fn with_options(options: impl IntoIterator<Item = (String, String)>) -> Self {
        Self { registered: DefaultObjectStoreRegistry::default(), options: options.into_iter().collect() }
    }

    fn find(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        let plain = (url.scheme() == "http").then(|| ("allow_http".to_string(), "true".to_string()));
        let options = self.options.iter().cloned().chain(plain);
        let found = object_store::parse_url_opts(url, options);
        let (store, _) = found.map_err(|error| plan_datafusion_err!("{} cannot be opened: {error}", address(url)))?;
        Ok(Arc::from(store))
    }
}

#[cfg(not(feature = "object-stores"))]
impl ObjectStores {
    /// No stores but that of local files.
    pub fn from_environment() -> Self {
        Self::default()
    }

    fn find(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        Err(plan_datafusion_err!(
            "this Millpond reads local files alone: for {} build it with the cargo feature object-stores, or copy the files into a local folder",
            address(url)
        ))
    }
}

impl ObjectStoreRegistry for ObjectStores {
    fn register_store(&self, url: &Url, store: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        self.registered.register_store(url, store)
    }

    fn deregister_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        self.registered.deregister_store(url)
    }

    fn get_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        if let Ok(store) = self.registered.get_store(url) {
            return Ok(store);
        }
        if !SCHEMES.contains(&url.scheme()) {
            return not_impl_err!("no store for {}; addresses begin with {}", address(url), SCHEMES.join(", "));
        }
        let store = self.find(url)?;
        self.registered.register_store(url, Arc::clone(&store));
        Ok(store)
    }
}

/// The store of an address, without a path, a user or a password.
fn address(url: &Url) -> String {
    format!("{}://{}", url.scheme(), &url[url::Position::BeforeHost..url::Position::AfterPort])
}
