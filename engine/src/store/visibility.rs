//! Visibility of stored columns: what a session may list and drop.
//!
//!   of files                       shared by the engine: every session may list and drop them
//!   of in-memory and kept tables   owned by the sessions that created or read them; others see only total bytes

use std::collections::BTreeMap;
use std::time::Duration;

use datafusion::execution::config::SessionConfig;

use crate::store::{Entry, Store, lock};

impl Store {
    /// Columns that a session may see, by table and name, and one entry per tier for all others.
    pub(super) fn entries_for(&self, session: &SessionConfig) -> Vec<Entry> {
        let (mut seen, others) = self.entries_by(session);
        let mut tiers = BTreeMap::<&'static str, Vec<Entry>>::new();
        for entry in others {
            tiers.entry(entry.tier).or_default().push(entry);
        }
        seen.extend(tiers.into_iter().map(|(tier, entries)| Entry {
            table: "(other sessions)".to_string(),
            column: format!("({} columns)", entries.len()),
            tier,
            bytes: entries.iter().map(|entry| entry.bytes).sum(),
            width: None,
            facts: String::new(),
            hits: 0,
            age: entries.iter().map(|entry| entry.age).max().unwrap_or(Duration::ZERO),
        }));
        seen
    }

    /// Drops the columns that a session may see, and returns their descriptions. Those of kept tables are spilled to
    /// host memory.
    pub(super) fn clear_for(&self, session: &SessionConfig) -> Vec<Entry> {
        let (seen, _) = self.entries_by(session);
        self.made().iter().filter(|rows| rows.owners.have(session)).for_each(|rows| rows.leave());
        lock(&self.tables).iter().filter(|table| table.is_seen_by(session)).for_each(|table| table.clear());
        self.forget();
        seen
    }

    /// Columns that a session may see, and the others.
    fn entries_by(&self, session: &SessionConfig) -> (Vec<Entry>, Vec<Entry>) {
        let (mut seen, mut others) = (Vec::new(), Vec::new());
        let tables = lock(&self.tables).clone();
        for table in tables {
            let to = if table.is_seen_by(session) { &mut seen } else { &mut others };
            to.extend(table.entries(&|_| true));
        }
        for rows in self.made() {
            let to = if rows.owners.have(session) { &mut seen } else { &mut others };
            to.extend(rows.entries(|_| true));
        }
        seen.sort_by(|a, b| (&a.table, &a.column).cmp(&(&b.table, &b.column)));
        (seen, others)
    }
}
