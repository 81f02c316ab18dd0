//! What a person has found out about the records: files that are left out, records that differ, and why operators stay on the CPU.

/// Files that are left out, and why.
pub const SKIPPED: [(&str, &str); 6] = [
    ("spark/", "functions of another dialect, which are not part of DataFusion's default session"),
    ("avro", "Avro is not built in"),
    ("encrypted_parquet", "encrypted Parquet is not built in"),
    ("explain", "plans"),
    ("information_schema", "what an engine says of itself"),
    ("set_variable", "settings"),
];

/// Records that differ for a reason that a person has looked at: where they stand, and why.
pub const KNOWN: [(&str, &str); 14] = [
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
    ("pwmj.slt:141", "the file has rows that are not in the order of ORDER BY"),
    ("pwmj.slt:232", "the file has rows that are not in the order of ORDER BY"),
    (
        "ordered_aggregate_spill.slt:69",
        "DataFusion exceeds the session's memory there, as the file says; the device does not",
    ),
];

/// A reason that so many queries have needs a sentence in [`WHY`].
pub const OFTEN: usize = 10;

/// Words of frequent reasons, and why they remain.
pub const WHY: [(&str, &str); 10] = [
    (
        "depends on the order in which DataFusion's digest",
        "A t-digest merges rows as they come: from 87 rows of a group on, the answer depends on how DataFusion's batches fell. Below, it is \
         that of the sorted rows, which is not built; `percentile_cont` and `median` look at all rows in order, and are on the device.",
    ),
    (
        "its pattern is no constant",
        "A pattern becomes an automaton on the host, once for a query. One that comes with each row would have to be compiled for each row.",
    ),
    ("make_array is evaluated on the dictionary of one column", NEW_LISTS),
    ("array_intersect is evaluated on the dictionary of one column", NEW_LISTS),
    ("function named_struct is not lowered", NEW_LISTS),
    ("function generate_series is not lowered", NEW_LISTS),
    (
        "lists that an aggregate makes leave the device",
        "They are places in a column of items, which the host puts together; nothing on the device looks into them (decisions/020).",
    ),
    (
        "column of type Dictionary(Int32, Dictionary(UInt32, Int32))",
        "These records make a dictionary of dictionaries by `arrow_cast`; the device's dictionaries are of plain values.",
    ),
    (
        "the device does not find percentiles of frames",
        "Each frame's rows would have to be in the order of their values: a structure beside the tree of states (decisions/019), not built.",
    ),
    (
        "the distinct values of a frame are no rows in a row",
        "A frame's list is a range of the sorted rows, without a copy; what is there once is no range.",
    ),
];

/// Lists and structures of several columns.
const NEW_LISTS: &str = "Nested values are codes of a dictionary (decisions/020). One that is made of several columns of a row is in no dictionary: \
     the launches that would write its items are not built.";

/// The sentence for a reason.
pub fn why(reason: &str) -> Option<&'static str> {
    WHY.iter().find(|(words, _)| reason.contains(words)).map(|(_, why)| *why)
}
