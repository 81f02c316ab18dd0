//! CREATE EXTERNAL TABLE: replaces DataFusion's factory of file tables, with our handling of paths, partition keys and
//! files.
//!
//! Left   to DataFusion: unbounded tables, and formats whose factory an application registers.
//! After  `ListingTableFactory` of DataFusion 55.2, with the same steps and messages.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::FieldRef;
use datafusion::catalog::{Session, TableProvider, TableProviderFactory};
use datafusion::common::{ToDFSchema, config_datafusion_err, internal_datafusion_err, plan_err};
use datafusion::datasource::listing::{ListingOptions, ListingTableConfig};
use datafusion::error::Result;
use datafusion::execution::context::SessionState;
use datafusion::logical_expr::CreateExternalTable;

use crate::plan::missing::Missing;
use crate::tables::FileTable;
use crate::tables::infer::{Found, columns, keys_of, names_and_types, without_keys};
use crate::tables::place::Place;

/// File formats handled by our tables; Avro is added if DataFusion supports it.
const FORMATS: [&str; 5] = ["PARQUET", "CSV", "JSON", "NDJSON", "ARROW"];

/// Table factories by format.
type Factories = HashMap<String, Arc<dyn TableProviderFactory>>;

/// A session's factories, with those of file tables wrapped by ours.
pub(crate) fn factories(mut factories: Factories, missing: &mut Missing) -> Factories {
    for format in FORMATS.into_iter().chain(["AVRO"]) {
        match factories.get_mut(format) {
            Some(factory) => *factory = Arc::new(FileTables { given: Arc::clone(factory) }),
            None if FORMATS.contains(&format) => missing.note(format),
            None => {}
        }
    }
    factories
}

/// Creates tables for CREATE EXTERNAL TABLE.
#[derive(Debug)]
struct FileTables {
    given: Arc<dyn TableProviderFactory>,
}

#[async_trait]
impl TableProviderFactory for FileTables {
    async fn create(&self, session: &dyn Session, create: &CreateExternalTable) -> Result<Arc<dyn TableProvider>> {
        let is_unbounded = |(name, value): (&String, &String)| {
            name.eq_ignore_ascii_case("unbounded") && value.eq_ignore_ascii_case("true")
        };
        if create.unbounded || create.options.iter().any(is_unbounded) {
            return self.given.create(session, create).await;
        }
        let state = session.as_any().downcast_ref::<SessionState>();
        let state = state.ok_or_else(|| internal_datafusion_err!("a table of files needs a SessionState"))?;
        let table = table(state, create).await?;
        if state.config().collect_statistics()
            && let Err(error) = table.warm(state).await
        {
            tracing::warn!("statistics of {} are not known yet: {error}", create.name);
        }
        Ok(Arc::new(table))
    }
}

async fn table(state: &SessionState, create: &CreateExternalTable) -> Result<FileTable> {
    let format = state.get_file_format_factory(&create.file_type).ok_or_else(|| {
        config_datafusion_err!("Unable to create table with format {}! Could not find FileFormat.", create.file_type)
    })?;
    let format = format.create(state, &create.options)?;
    let mut places = places(create)?;
    let ending = match (&create.locations[..], places[0].url().is_collection()) {
        ([location], false) => ending_of(location),
        _ => String::new(),
    };
    let mut options = ListingOptions::new(format).with_file_extension(ending.clone());
    places = places.into_iter().map(|place| place.with_ending(&ending)).collect();

    let is_declared = !create.schema.fields().is_empty();
    if is_declared {
        for name in &create.table_partition_cols {
            create.schema.as_arrow().field_with_name(name)?;
        }
    }
    if !is_declared {
        let kind = kind_of(&options, create);
        let of_kind = |place: Place| match place.is_folder() && place.url().scheme() == "file" {
            true => place.with_ending(format!(".{kind}")),
            false => place,
        };
        places = places.into_iter().map(of_kind).collect();
    }
    let names = &create.table_partition_cols;
    if !names.is_empty() && places.iter().any(|place| !place.url().is_collection()) {
        return plan_err!(
            "Can't create a partitioned table backed by a single file, perhaps the URL is missing a trailing slash?"
        );
    }
    let mut found = Vec::with_capacity(places.len());
    for place in places {
        // Files of a table with declared columns may be created later, and elsewhere.
        let is_looked_at = !is_declared || !names.is_empty();
        found.push(match is_looked_at {
            true => Found::look(place, state).await?,
            false => Found { place, files: vec![] },
        });
    }
    let infers = state.config_options().execution.listing_table_factory_infer_partitions;
    let keys: Vec<FieldRef> = match (names.is_empty(), is_declared) {
        (true, true) => vec![],
        (true, false) if !infers => vec![],
        (true, false) => keys_of(&found, None)?,
        (false, false) => keys_of(&found, Some(names))?,
        (false, true) => {
            keys_of(&found, Some(names))?;
            let declared = |name: &String| Ok(Arc::new(create.schema.as_arrow().field_with_name(name)?.clone()));
            names.iter().map(declared).collect::<Result<_>>()?
        }
    };
    let of_files = match is_declared {
        true => {
            let fields = create.schema.fields().iter().enumerate();
            let kept: Vec<usize> =
                fields.filter(|(_, field)| !names.contains(field.name())).map(|(index, _)| index).collect();
            Arc::new(create.schema.as_arrow().project(&kept)?)
        }
        false => {
            let of_files = columns(state, &found[0], &options).await?;
            for more in &found[1..] {
                let other = columns(state, more, &options).await?;
                let parts = |field: &FieldRef| (field.name().clone(), field.data_type().clone(), field.is_nullable());
                if !of_files.fields().iter().map(parts).eq(other.fields().iter().map(parts)) {
                    return plan_err!(
                        "All locations of a CREATE EXTERNAL TABLE must have the same schema, but schema inferred from '{}' differs \
                         from schema inferred from '{}'",
                        more.place.url(),
                        found[0].place.url()
                    );
                }
            }
            let known = Arc::clone(&of_files).to_dfschema()?;
            let ordered = create.order_exprs.iter().flatten().flat_map(|sort| sort.expr.column_refs());
            for column in ordered {
                if !known.has_column(column) {
                    return plan_err!("Column {column} is not in schema");
                }
            }
            without_keys(of_files, &keys)?
        }
    };
    options =
        options.with_table_partition_cols(names_and_types(&keys)).with_file_sort_order(create.order_exprs.clone());
    let places: Vec<Place> = found.into_iter().map(|found| found.place).collect();
    let urls = places.iter().map(|place| place.url().clone()).collect();
    let config = ListingTableConfig::new_with_multi_paths(urls).with_listing_options(options);
    let config = config.with_schema(Arc::clone(&of_files));
    let statistics = state.runtime_env().cache_manager.get_file_statistic_cache();
    Ok(FileTable::try_new(config, places, of_files, keys, statistics)?.defined(|listing| {
        listing
            .with_definition(create.definition.clone())
            .with_constraints(create.constraints.clone())
            .with_column_defaults(create.column_defaults.clone())
    }))
}

/// Locations of a definition; at least one.
fn places(create: &CreateExternalTable) -> Result<Vec<Place>> {
    let place = |location: &String| Ok(Place::parse(location)?.of_table(create.name.clone()));
    let places = create.locations.iter().map(place).collect::<Result<Vec<_>>>()?;
    let Some(first) = places.first() else {
        return plan_err!("CREATE EXTERNAL TABLE requires at least one location");
    };
    if let Some((_, twice)) = places.iter().enumerate().find(|(index, place)| places[..*index].contains(place)) {
        return plan_err!("Duplicate location '{}' in CREATE EXTERNAL TABLE", twice.url().as_str());
    }
    let store = first.url().object_store();
    if let Some(other) = places.iter().map(|place| place.url().object_store()).find(|other| *other != store) {
        return plan_err!(
            "All locations of a CREATE EXTERNAL TABLE must be on the same object store, but found '{}' and '{}'",
            store.as_str(),
            other.as_str()
        );
    }
    Ok(places)
}

/// Extension of a folder's files.
fn kind_of(options: &ListingOptions, create: &CreateExternalTable) -> String {
    let plain = || create.file_type.to_lowercase();
    match options.format.compression_type() {
        Some(how) => options.format.get_ext_with_compression(&how).unwrap_or_else(|_| plain()),
        None => plain(),
    }
}

fn ending_of(location: &str) -> String {
    let ending = Path::new(location).extension().and_then(|ending| ending.to_str());
    ending.map(|ending| format!(".{ending}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_without_a_factory_is_named() {
        let mut missing = Missing::default();
        assert!(factories(HashMap::new(), &mut missing).is_empty());
        assert_eq!(missing.names(), FORMATS);
    }
}
