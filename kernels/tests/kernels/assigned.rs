//! Compiled code only reads assigned registers, except where the compiler knows that the result is unused.
//!
//! Generated code has no exceptions: `ModuleBuilder` refuses it.

use millpond_kernels::image::IMAGES;
use millpond_ptx::{check_assigned, parse};

/// Functions with a path that reads an unassigned register, and the reason why it is harmless.
const EXCEPTIONS: [(&str, &str); 5] = [
    ("parquet_decompress_lz4", "the place of the parser, which only the warp that parses has; the other one copies"),
    ("parquet_decompress_snappy", "the same"),
    (
        "parquet_prepare",
        "whether texts are equal, found by two loops of which one at least has a turn: a text has a byte",
    ),
    ("parquet_values_codes", "codes of rows that are not there, which are kept from turn to turn and never used"),
    ("any", "the upper half of a number that does not fit its type, which goes back beside a flag that says so"),
];

/// True if `mangled` is the mangled name of function `name`: `_ZN…3anyEPKhjjjjj` is `any`.
fn is_called(mangled: &str, name: &str) -> bool {
    mangled == name || mangled.contains(&format!("{}{name}E", name.len()))
}

#[test]
fn images_read_what_they_have_assigned() {
    let mut unused = EXCEPTIONS.map(|(name, _)| name).to_vec();
    for image in IMAGES {
        let module = parse(image.text).unwrap();
        for function in module.functions() {
            let Err(error) = check_assigned(function) else { continue };
            let known = EXCEPTIONS.iter().find(|(name, _)| is_called(&function.name, name));
            assert!(known.is_some(), "{}: {error}", image.name);
            unused.retain(|name| !is_called(&function.name, name));
        }
    }
    assert!(unused.is_empty(), "these are exceptions no more: {unused:?}");
}
