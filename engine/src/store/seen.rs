//! What a session sees of the stored columns, and may let go.
//!
//!   of files                     the engine's: every session sees them, and may let them go; they are read again where they are missed
//!   of tables in memory, made    those sessions' that have made or read the table; the others see how many bytes they take

use std::collections::BTreeMap;
use std::time::Duration;

use datafusion::execution::config::SessionConfig;

use crate::store::{Entry, Store, lock};

impl Store {
    /// The columns that a session sees, by table and name, and for each tier one entry for all others.
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

    /// Lets go of the columns that a session sees; gives what has gone. Those of made tables go to host memory.
    pub(super) fn clear_for(&self, session: &SessionConfig) -> Vec<Entry> {
        let (seen, _) = self.entries_by(session);
        self.made().iter().filter(|rows| rows.owners.have(session)).for_each(|rows| rows.leave());
        lock(&self.tables).iter().filter(|table| table.is_seen_by(session)).for_each(|table| table.clear());
        self.forget();
        seen
    }

    /// The columns that a session sees, and the others.
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
