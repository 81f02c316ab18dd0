//! Manual findings about the records: files that are left out, records that differ, and why operators stay on the CPU.

/// Files that are left out, and why.
pub const SKIPPED: [(&str, &str); 6] = [
    ("spark/", "functions of another dialect, which are not part of DataFusion's default session"),
    ("avro", "Avro is not built in"),
    ("encrypted_parquet", "encrypted Parquet is not built in"),
    ("explain", "plans"),
    ("information_schema", "what an engine says of itself"),
    ("set_variable", "settings"),
];

/// Records that differ for a known reason: position and reason.
pub const KNOWN: [(&str, &str); 19] = [
    ("join_disable_repartition_joins.slt:64", "rows that tie in ORDER BY under a LIMIT"),
    ("limit.slt:691", "rows that tie in ORDER BY under a LIMIT"),
    ("limit.slt:718", "rows that tie in ORDER BY under a LIMIT"),
    ("window.slt:4450", "rows that tie in ORDER BY under a LIMIT"),
    ("window.slt:4469", "rows that tie in ORDER BY under a LIMIT"),
    ("clickbench_extended.slt:45", "rows that tie in ORDER BY"),
    ("group_by.slt:5190", "rows that tie in ORDER BY"),
    ("group_by.slt:3065", "rows that tie in the order of LAST_VALUE"),
    ("aggregate.slt:6985", "a LIMIT without ORDER BY"),
    ("limit.slt:765", "a LIMIT without ORDER BY"),
    ("select.slt:1130", "a LIMIT without ORDER BY"),
    ("window.slt:1350", "a LIMIT without ORDER BY"),
    ("window.slt:1397", "a LIMIT without ORDER BY"),
    ("window.slt:1414", "a LIMIT without ORDER BY"),
    ("window.slt:1453", "a LIMIT without ORDER BY"),
    ("window.slt:1792", "a LIMIT without ORDER BY"),
    ("pwmj.slt:141", "the file has rows that are not in the order of ORDER BY"),
    ("pwmj.slt:232", "the file has rows that are not in the order of ORDER BY"),
    (
        "ordered_aggregate_spill.slt:69",
        "DataFusion exceeds the session's memory there, as the file says; the device does not",
    ),
];

/// Records whose answer is DataFusion's mistake, or a statement that is refused: where they stand, and what
/// docs/upstream.md says of them.
pub const OVERRULED: [(&str, &str); 51] = [
    ("array/array_has.slt:760", ANYS),
    ("array/array_has.slt:765", ANYS),
    ("array/array_has.slt:770", ANYS),
    ("array/array_has.slt:775", ANYS),
    ("array/array_has.slt:806", ANYS),
    ("array/array_has.slt:812", ANYS),
    ("array/array_has.slt:817", ANYS),
    ("array/array_has.slt:822", ANYS),
    ("array/array_has.slt:827", ANYS),
    ("array/array_has.slt:832", ANYS),
    ("copy.slt:95", KEYS),
    ("dynamic_file.slt:69", KEYS),
    ("dynamic_file.slt:97", KEYS),
    ("dynamic_file.slt:153", KEYS),
    ("dynamic_file.slt:181", KEYS),
    ("dynamic_file.slt:111", ARROW),
    ("dynamic_file.slt:118", ARROW),
    ("dynamic_file.slt:125", ARROW),
    ("insert_to_external.slt:191", KEYS),
    ("listing_table_partitions.slt:34", KEYS),
    ("listing_table_partitions.slt:55", KEYS),
    ("listing_table_partitions.slt:118", KEYS),
    ("listing_table_partitions.slt:126", KEYS),
    ("listing_table_partitions.slt:138", KEYS),
    ("merge_into.slt:224", "another sentence: PARTITION behind a table is refused wherever it stands"),
    ("null_aware_anti_join.slt:174", "NOT IN of NULL beside OR: the row of NULL is no answer"),
    ("order.slt:1870", OVERFLOW),
    ("parquet.slt:304", FOLDERS),
    ("parquet.slt:319", FOLDERS),
    ("parquet.slt:343", FOLDERS),
    ("parquet.slt:695", "INT96 is microseconds: the year 290,000 is no wrapped one, and has no text"),
    ("parquet.slt:873", KEYS),
    ("parquet.slt:878", KEYS),
    ("parquet.slt:883", KEYS),
    ("parquet.slt:888", KEYS),
    ("predicates.slt:1004", "NOT IN of a subquery without rows is an answer, not an error"),
    ("strings.slt:75", SIMILAR),
    ("strings.slt:86", SIMILAR),
    ("type_coercion.slt:336", SIMILAR),
    ("type_coercion.slt:342", SIMILAR),
    ("type_coercion.slt:349", SIMILAR),
    ("type_coercion.slt:355", SIMILAR),
    ("type_coercion.slt:360", SIMILAR),
    ("type_coercion.slt:365", SIMILAR),
    ("type_coercion.slt:370", SIMILAR),
    ("type_coercion.slt:384", SIMILAR),
    ("type_coercion.slt:399", SIMILAR),
    ("type_coercion.slt:403", SIMILAR),
    ("window.slt:1843", "a LIMIT without ORDER BY, above windows whose + is checked"),
    ("window.slt:4227", "a LIMIT without ORDER BY, above windows whose + is checked"),
    ("window.slt:6002", "a sliding sum of DISTINCT BIGINT UNSIGNED is an answer, not an error"),
];

const ANYS: &str = "a comparison with ANY of a list that has NULL is NULL where no other item decides";
const KEYS: &str = "keys of folders are BIGINT where all are whole numbers";
const ARROW: &str = "partitions of Arrow files whose key may be NULL are refused";
const OVERFLOW: &str = "whole numbers that overflow are an error";
const FOLDERS: &str = "a folder is all below it, but for hidden names";
const SIMILAR: &str = "SIMILAR TO has SQL's patterns, which are constants";

/// Number of queries from which a reason needs a sentence in [`WHY`].
pub const OFTEN: usize = 10;

/// Words of frequent reasons, and why they remain.
pub const WHY: [(&str, &str); 8] = [
    ("of more than 86 values its answer depends on DataFusion's batches", DIGESTS),
    ("DataFusion's own answer depends on its batches", DIGESTS),
    ("the centroids of DataFusion's digest have weights of their own", DIGESTS),
    (
        "its pattern is no constant",
        "A pattern becomes an automaton on the host, once for a query. One that comes with each row would have to be compiled for each row.",
    ),
    (
        "lists and structures that are made of rows leave the device",
        "They are places in a column of items, which the host puts together; nothing on the device looks into them (decisions/020).",
    ),
    (
        "column of type Dictionary(Int32, Dictionary(UInt32, Int32))",
        "These records make a dictionary of dictionaries by `arrow_cast`; the device's dictionaries are of plain values.",
    ),
    (
        "the distinct values of a frame are no rows in a row",
        "A frame's list is a range of the sorted rows, without a copy; in frames that slide, what is there once is no range.",
    ),
    (
        "this kind of expression is not lowered",
        "These are functions with a lambda that reads another column than the list (`array_filter(list, v -> v > number)`), or a list that is \
         constructed. A function of one column is evaluated on its dictionary, lambda and all; a lambda has no form in PTX.",
    ),
];

/// Approximate percentiles.
const DIGESTS: &str = "A t-digest merges rows as they come: from 87 values of a group on, the answer depends on how DataFusion's batches fell, and any \
     other way to cut the rows gives another (decisions/025). Up to 86 it is that of the sorted values, on the device. What is known beforehand \
     stays; what a run finds out the CPU takes over, which counts as a fallback. `percentile_cont` and `median` are on the device in every group.";

/// The sentence for a reason.
pub fn why(reason: &str) -> Option<&'static str> {
    WHY.iter().find(|(words, _)| reason.contains(words)).map(|(_, why)| *why)
}
