//! Object stores, found by URL.
//!
//!   's3://bucket/sales/*.parquet' ─► registered? ─ yes ─► that store
//!                                         └─ no ──► S3 · Google Cloud Storage · Azure · HTTP, by options, environment
//!
//! Key       of a store: everything before the path, for `abfss://container@account/` including the container.
//!
//! Features  without `object-stores` such a URL is an error that says how to build Millpond with it.
//! Settings  `AWS_*`, `GOOGLE_*` and `AZURE_*` of the environment, as named by `object_store`; options override them.
//! Plain     an http:// URL is read without encryption; a store of another scheme only if its settings allow that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::common::{not_impl_err, plan_datafusion_err};
use datafusion::error::Result;
use datafusion::execution::object_store::{DefaultObjectStoreRegistry, ObjectStoreRegistry};
use datafusion::object_store::ObjectStore;
#[cfg(feature = "object-stores")]
use object_store::{ClientConfigKey, http::HttpBuilder};
use url::{Position, Url};

/// URL schemes that the feature reads.
const SCHEMES: [&str; 10] = ["s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https"];

/// Object stores of a session.
#[derive(Debug, Default)]
pub struct ObjectStores {
    registered: DefaultObjectStoreRegistry,
    /// Stores opened so far, by key.
    found: Mutex<HashMap<String, Arc<dyn ObjectStore>>>,
    #[cfg(feature = "object-stores")]
    options: Vec<(String, String)>,
}

#[cfg(feature = "object-stores")]
impl ObjectStores {
    /// Stores with settings from the environment of the process.
    pub fn from_environment() -> Self {
        let prefixes = ["aws_", "google_", "azure_"];
        let is_setting = |name: &str| prefixes.iter().any(|prefix| name.to_ascii_lowercase().starts_with(prefix));
        // A variable that is not valid text is ignored.
        let texts =
            std::env::vars_os().filter_map(|(name, value)| name.into_string().ok().zip(value.into_string().ok()));
        Self::with_options(texts.filter(|(name, _)| is_setting(name)))
    }

    /// Stores with these settings, named as in `object_store`, such as `aws_endpoint`. A store ignores names that it
    /// does not know.
    pub fn with_options(options: impl IntoIterator<Item = (String, String)>) -> Self {
        Self { options: options.into_iter().collect(), ..Self::default() }
    }

    fn find(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        let refused = |error| plan_datafusion_err!("{} cannot be opened: {error}", address(url));
        if matches!(url.scheme(), "http" | "https") {
            // Any server, including one whose name `object_store` would treat as a cloud's: here the path contains no
            // bucket.
            let builder = HttpBuilder::new().with_url(&url[..Position::BeforePath]);
            let plain = (url.scheme() == "http").to_string();
            let store = builder.with_config(ClientConfigKey::AllowHttp, plain).build().map_err(refused)?;
            return Ok(Arc::new(store));
        }
        let (store, _) = object_store::parse_url_opts(url, self.options.iter().cloned()).map_err(refused)?;
        Ok(Arc::from(store))
    }
}

#[cfg(not(feature = "object-stores"))]
impl ObjectStores {
    /// Only the store of local files.
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

impl ObjectStores {
    fn found(&self) -> MutexGuard<'_, HashMap<String, Arc<dyn ObjectStore>>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ObjectStoreRegistry for ObjectStores {
    fn register_store(&self, url: &Url, store: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        self.registered.register_store(url, store)
    }

    fn deregister_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        match self.found().remove(&key(url)) {
            Some(store) => Ok(store),
            None => self.registered.deregister_store(url),
        }
    }

    fn get_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        if let Ok(store) = self.registered.get_store(url) {
            return Ok(store);
        }
        if !SCHEMES.contains(&url.scheme()) {
            return not_impl_err!("no store for {}; addresses begin with {}", address(url), SCHEMES.join(", "));
        }
        if let Some(store) = self.found().get(&key(url)) {
            return Ok(Arc::clone(store));
        }
        let store = self.find(url)?;
        self.found().insert(key(url), Arc::clone(&store));
        Ok(store)
    }
}

/// Key of a store.
fn key(url: &Url) -> String {
    url[..Position::BeforePath].to_string()
}

/// URL of a store, without path, user and password.
fn address(url: &Url) -> String {
    format!("{}://{}", url.scheme(), &url[Position::BeforeHost..Position::AfterPort])
}
