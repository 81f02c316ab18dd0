//! Files of DataFusion's own tables in folders of remote stores, listed afresh when a query is planned.
//!
//!   plan ─► list ── as DataFusion remembers it? ── yes ─► planned
//!                                               └─ no ──► remembered anew ─► planned
//!
//! Why    DataFusion lists a folder once and keeps the list: a file that was added would not be seen, and one that has gone be missed.
//! Empty  a list without files is forgotten: DataFusion's cache takes none, and would keep the one before.
//! Local  lists are not remembered at all (`files`), and for tables of ours (`tables`) no lists of any store.
//! When   columns stay on the device; otherwise a session is as DataFusion's.

use datafusion::catalog::Session;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::listing::{ListingTable, ListingTableUrl};
use datafusion::datasource::source_as_provider;
use datafusion::error::Result;
use datafusion::logical_expr::LogicalPlan;

use crate::store::checks::Checks;

/// Lists the folders of a plan's tables, and puts right what DataFusion remembers of them.
pub(crate) async fn look(plan: &LogicalPlan, session: &dyn Session) -> Result<()> {
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

/// Lists those of these addresses that are folders, and puts right what DataFusion remembers of them.
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
            // One that cannot be listed stays as it is remembered: DataFusion has no more.
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
