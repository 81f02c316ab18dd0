//! Tables by the names that people give them.
//!
//! ```text
//!   MyTable      FROM MyTable, FROM mytable, FROM "MyTable"      SQL folds what is not quoted to lower case
//! ```

use millpond::datafusion::common::TableReference;
use millpond::datafusion::error::Result;
use millpond::datafusion::execution::context::SessionContext;

/// Registers tables under their names in lower case, too, where no other table has that name.
///
/// # Errors
/// DataFusion's, for a table that is not there.
pub async fn also_in_lower_case(context: &SessionContext, tables: &[TableReference]) -> Result<()> {
    for table in tables {
        let name = table.table();
        let is_plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        let folded = name.to_ascii_lowercase();
        if !is_plain || folded == name {
            continue;
        }
        let folded = match table.clone() {
            TableReference::Bare { .. } => TableReference::bare(folded),
            TableReference::Partial { schema, .. } => TableReference::partial(schema, folded),
            TableReference::Full { catalog, schema, .. } => TableReference::full(catalog, schema, folded),
        };
        if !context.table_exist(folded.clone())? {
            context.register_table(folded, context.table_provider(table.clone()).await?)?;
        }
    }
    Ok(())
}
