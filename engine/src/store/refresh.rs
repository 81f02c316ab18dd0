//! Listings of DataFusion's own tables in folders of remote stores, refreshed when a query is planned.
//!
//!   plan ─► list ── as in DataFusion's cache? ── yes ─► planned
//!                                            └─ no ──► cache updated ─► planned
//!
//! Why    DataFusion lists a folder once and keeps the listing: an added file would not be read, and a deleted one
//!        would be missing.
//! Empty  listings are removed from the cache: DataFusion's cache does not accept them, and would keep the previous
//!        listing.
//! Local  listings are not cached at all (`files`), nor are those of our own tables (`tables`) in any store.
//! When   columns are stored on the device; otherwise sessions behave like DataFusion's.

use datafusion::catalog::Session;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::listing::{ListingTable, ListingTableUrl};
use datafusion::datasource::source_as_provider;
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;

use crate::store::checks::Checks;

/// Lists the folders of a plan's tables, and updates DataFusion's cache of listings.
pub(crate) async fn refresh_listings(plan: &LogicalPlan, session: &dyn Session) -> Result<()> {
    let mut folders = Vec::new();
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && let Ok(provider) = source_as_provider(&scan.source)
            && let Some(table) = provider.downcast_ref::<ListingTable>()
        {
            folders.extend(table.table_paths().iter().cloned());
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    refresh(folders, session).await
}

/// Lists the folders among these URLs, and updates DataFusion's cache of listings.
async fn refresh(mut folders: Vec<ListingTableUrl>, session: &dyn Session) -> Result<()> {
    let runtime = session.runtime_env();
    folders.retain(ListingTableUrl::is_collection);
    let remembered = runtime.cache_manager.get_list_files_cache().filter(|cache| !cache.is_empty());
    let Some(remembered) = remembered.filter(|_| !folders.is_empty()) else { return Ok(()) };
    let entries = remembered.list_entries();
    let checks = Checks::of(session.config());
    for url in folders {
        let of = entries.iter().filter(|(key, _)| key.path == *url.prefix());
        for (key, entry) in of {
            let store = runtime.object_store(&url)?;
            // A folder that cannot be listed keeps its cached listing: DataFusion could not list it either.
            let Ok(now) = checks.list(&url.object_store(), &store, url.prefix()).await else { continue };
            let mut then = entry.value.files.as_ref().clone();
            then.sort_by(|a, b| a.location.cmp(&b.location));
            if now.is_empty() {
                remembered.remove(key);
            } else if *now != then {
                remembered.put(key, now.to_vec().into());
            }
        }
    }
    Ok(())
}
