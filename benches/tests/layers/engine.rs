//! Holds the arrows inside the engine: circles of files, what each room may import, what `program` may name, and how
//! much `Run` holds.
//!
//! ```text
//!   ground ← device, column ← expr ← program ← parquet ← store ← source ← result ← placement ← operator, report ←
//!   explain ← front
//! ```
//!
//! Numbers   are those of today and may only fall: a change that lowers one writes it here. `cargo layers --
//!           --nocapture` prints them all.
//! Lists     are those of today. An arrow or a name that has gone is struck out here, or a test fails.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use crate::imports::{File, Imports, largest_circle};

/// Files that import each other in one circle, apart from what a folder's own file imports of its files. 8 at most in
/// the end.
const LARGEST_CIRCLE: usize = 8;
/// The same with these.
const LARGEST_CIRCLE_WITH_CHILDREN: usize = 8;

/// Fields of `Run` and of the structs of `program` that are made only for it: 10 of the run and its tables, and 12 of
/// its results, which stood in another room before.
const FIELDS_OF_RUN: usize = 22;
/// Structs that only `Run` has a field of, and that are not made for it: what a plan becomes.
const NOT_MADE_FOR_RUN: [&str; 1] = ["Program"];

/// The rooms, by the beginnings of their files' paths; the first that fits holds.
const ROOMS: &[(&str, &str)] = &[
    // Errors, panics, reasons, and failures of a run.
    ("error/", "ground"),
    ("options/", "ground"),
    // What plans need, DataFusion's nodes and ours: levels, rewrites, subqueries, the simplifier.
    ("plan/", "ground"),
    // The store of local files, and caches that ask it.
    ("files/", "ground"),
    ("profile/", "profile"),
    ("device/", "device"),
    ("column/", "column"),
    ("expr/", "expr"),
    ("operator/", "operator"),
    ("parquet/", "parquet"),
    ("source/", "source"),
    ("store/", "store"),
    ("result/", "result"),
    ("placement/", "placement"),
    ("program/", "program"),
    ("session/report.rs", "report"),
    // What a plan that runs has done so far.
    ("session/progress.rs", "report"),
    ("explain/", "explain"),
    // The library's door, sessions, SQL, self-test.
    ("", "front"),
];

/// Each room, and those it may import.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("ground", &[]),
    ("profile", &[]),
    ("device", &["ground", "profile"]),
    ("column", &["ground"]),
    ("expr", &["ground", "column"]),
    ("program", &["ground", "profile", "device", "column", "expr"]),
    ("operator", &["ground", "column", "expr", "program", "source", "placement"]),
    ("parquet", &["ground", "profile", "device", "column", "program"]),
    ("store", &["ground", "profile", "device", "column", "program", "parquet"]),
    ("source", &["ground", "profile", "device", "column", "program", "parquet", "store"]),
    ("result", &["ground", "profile", "device", "column", "program", "source"]),
    ("placement", &["ground", "profile", "device", "column", "expr", "program", "source", "result"]),
    ("report", &["ground", "profile", "program", "source", "result", "placement"]),
    ("explain", &["ground", "profile", "device", "program", "source", "result", "placement", "report"]),
    (
        "front",
        &[
            "ground",
            "profile",
            "device",
            "column",
            "expr",
            "operator",
            "result",
            "placement",
            "report",
            "explain",
            "store",
        ],
    ),
];

fn imports() -> &'static Imports {
    static IMPORTS: OnceLock<Imports> = OnceLock::new();
    IMPORTS.get_or_init(|| Imports::of(&crate::root().join("engine/src")))
}

fn room(file: &str) -> &'static str {
    ROOMS.iter().find(|(begin, _)| file.starts_with(begin)).map_or("front", |(_, room)| room)
}

/// Imports from one room into another. None is an exception.
fn arrows() -> BTreeMap<(&'static str, &'static str), BTreeSet<(&'static File, &'static File)>> {
    let mut arrows: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (file, used) in &imports().uses {
        for other in used.iter().filter(|other| room(other) != room(file)) {
            arrows.entry((room(file), room(other))).or_default().insert((file, other));
        }
    }
    arrows
}

/// What files of `program` name of single operators: their nodes, and files of their folders.
fn program_names() -> BTreeSet<(String, String)> {
    let is_node = |word: &&String| word.starts_with("Device") && word.ends_with("Exec");
    let of_operator = |file: &&File| file.strip_prefix("operator/").is_some_and(|inside| inside.contains('/'));
    let mut names = BTreeSet::new();
    for (file, words) in imports().words.iter().filter(|(file, _)| room(file) == "program") {
        names.extend(words.iter().filter(is_node).map(|word| (file.clone(), word.clone())));
        names.extend(imports().uses[file].iter().filter(of_operator).map(|of| (file.clone(), of.clone())));
    }
    names
}

/// `Run`, and each struct of `program` that only structs of this set have as a field.
fn run_and_its_own() -> BTreeSet<&'static str> {
    let structs = &imports().structs;
    let mut own = BTreeSet::from(["Run"]);
    loop {
        let names = |of: &str, name: &str| structs[of].fields.iter().any(|(_, words)| words.contains(name));
        let next = structs.iter().find(|(name, found)| {
            room(&found.file) == "program"
                && !own.contains(name.as_str())
                && !NOT_MADE_FOR_RUN.contains(&name.as_str())
                && own.iter().any(|of| names(of, name))
                && structs.keys().all(|of| own.contains(of.as_str()) || of == *name || !names(of, name))
        });
        match next {
            Some((name, _)) => own.insert(name.as_str()),
            None => return own,
        };
    }
}

#[test]
fn files_import_each_other_in_small_circles() {
    for (what, uses, bound) in [
        ("a folder's file and its own files left out", &imports().uses_but_children, LARGEST_CIRCLE),
        ("all counted", &imports().uses, LARGEST_CIRCLE_WITH_CHILDREN),
    ] {
        let circle = largest_circle(uses);
        println!("{} of {} files in one circle, {what}: {circle:?}", circle.len(), uses.len());
        assert_eq!(circle.len(), bound, "{what}: the number goes down, here too; it does not go up\n{circle:?}");
    }
}

#[test]
fn rooms_import_what_they_may() {
    let arrows = arrows();
    let mut wrong = Vec::new();
    for ((from, to), files) in &arrows {
        let allowed = MAY_IMPORT.iter().find(|(room, _)| room == from).is_some_and(|(_, allowed)| allowed.contains(to));
        if !allowed {
            wrong.push(format!("{from} may not import {to}: {files:?}"));
        }
    }
    for (from, allowed) in MAY_IMPORT {
        let unused = allowed.iter().filter(|to| !arrows.contains_key(&(from, **to)));
        wrong.extend(unused.map(|to| format!("{from} no longer imports {to}: strike it out of MAY_IMPORT")));
    }
    for (begin, room) in ROOMS.iter().filter(|(begin, _)| !begin.is_empty()) {
        assert!(MAY_IMPORT.iter().any(|(known, _)| known == room), "{begin} lies in {room}, which MAY_IMPORT lacks");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn program_names_no_operator() {
    let names = program_names();
    assert!(names.is_empty(), "program names what belongs to one operator: {names:?}");
}

#[test]
fn run_holds_no_more_than_it_did() {
    let own = run_and_its_own();
    let fields = own.iter().map(|name| imports().structs[*name].fields.len()).sum::<usize>();
    let each: Vec<String> =
        own.iter().map(|name| format!("{name} {}", imports().structs[*name].fields.len())).collect();
    println!("Run and what is made only for it: {fields} fields ({})", each.join(", "));
    assert_eq!(fields, FIELDS_OF_RUN, "the number goes down, here too; it does not go up: {}", each.join(", "));
}
