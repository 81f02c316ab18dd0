//! Tables for files and folders named in a query: `FROM 'sales/*.parquet'`.
//!
//!   name ─► a file, a folder or a pattern ─► `tables` infers format, keys and columns ─► a table
//!                                                                    └─ failed ─► a pipe? then an error that says so

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::{DynamicFileCatalog, TableProvider, UrlTableFactory};
use datafusion::common::plan_err;
use datafusion::datasource::dynamic_file::DynamicListTableFactory;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::context::{SessionContext, SessionState};

use crate::files::address;
use crate::{files, tables};

/// Adds tables for file names to a session.
pub fn enable(context: SessionContext) -> SessionContext {
    let factory = Arc::new(UrlTables::default());
    let known = Arc::clone(context.state_ref().read().catalog_list());
    let catalogs = Arc::new(DynamicFileCatalog::new(known, Arc::clone(&factory) as _));
    let session_id = context.session_id();
    let state = context.into_state_builder().with_session_id(session_id).with_catalog_list(catalogs);
    let context = SessionContext::new_with_state(state.build());
    factory.session.session_store().with_state(context.state_weak_ref());
    context
}

/// True for a session with such tables.
pub(super) fn are_enabled(context: &SessionContext) -> bool {
    let state = context.state_ref();
    let catalogs = Arc::clone(state.read().catalog_list());
    catalogs.downcast_ref::<DynamicFileCatalog>().is_some()
}

/// Factory of tables for file names.
#[derive(Debug, Default)]
struct UrlTables {
    /// Provides the session, whose type DataFusion does not export; creates no table itself.
    session: DynamicListTableFactory,
}

impl UrlTables {
    fn state(&self) -> Option<SessionState> {
        let session = self.session.session_store().get_session().upgrade()?;
        let session = session.read();
        session.as_any().downcast_ref::<SessionState>().cloned()
    }
}

#[async_trait]
impl UrlTableFactory for UrlTables {
    async fn try_new(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let Some(state) = self.state() else { return plan_err!("the session of '{name}' has ended") };
        if let Some(table) = tables::named(&state, name).await? {
            return Ok(Some(Arc::new(table)));
        }
        let url = ListingTableUrl::parse(address::of_source(name)).ok();
        url.map_or(Ok(()), |url| refuse_special(&url)).map(|()| None)
    }
}

/// Reports special files, for which DataFusion's error is "not found".
///
/// # Errors
/// For a pipe, a socket or a device.
fn refuse_special(url: &ListingTableUrl) -> Result<()> {
    let path = if url.scheme() == "file" { url.get_url().to_file_path().ok() } else { None };
    let Some((path, kind)) = path.and_then(|path| {
        let kind = files::kind_of_special(&std::fs::metadata(&path).ok()?)?;
        Some((path, kind))
    }) else {
        return Ok(());
    };
    if files::is_name_of_stream(&path) {
        let path = path.display();
        return plan_err!(
            "'{path}' has no ending that says its format: CREATE EXTERNAL TABLE … STORED AS CSV LOCATION '{path}' does"
        );
    }
    Err(DataFusionError::ObjectStore(Box::new(files::refusal(&path, kind))))
}
