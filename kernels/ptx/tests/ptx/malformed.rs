//! Text that is not PTX gives an error with its position; it never causes a panic or exhausts the stack.

use crate::{NVRTC, random};
use millpond_ptx::{PtxError, parse};
use proptest::prelude::*;

const HEADER: &str = ".version 8.2\n.target sm_70\n.address_size 64\n";

/// The error's position is inside the text.
fn check_place(text: &str, error: &PtxError) {
    let span = error.span();
    assert!(span.line >= 1 && span.column >= 1, "{error}");
    assert!(span.line as usize <= text.matches('\n').count() + 1, "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn mutated_text_never_panics(
        module in random::module(),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>(), 0u8..4), 1..6),
    ) {
        let mut bytes = module.to_string().into_bytes();
        for (at, byte, kind) in changes {
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => { bytes.remove(at); }
                2 => bytes.insert(at, byte),
                _ => bytes.insert(at, b"{}()[];:,.@!|+-<>_%$\"/*=09xfdeU"[usize::from(byte) % 31]),
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        if let Err(error) = parse(&text) {
            check_place(&text, &error);
        }
    }

    #[test]
    fn any_characters_never_panic(text in "\\PC{0,80}") {
        for text in [text.clone(), format!("{HEADER}{text}"), format!("{HEADER}.func f() {{ {text}")] {
            if let Err(error) = parse(&text) {
                check_place(&text, &error);
            }
        }
    }

    #[test]
    fn truncated_compiled_module_is_refused(at in any::<proptest::sample::Index>()) {
        let text = &NVRTC[..at.index(NVRTC.len())];
        if let Err(error) = parse(text) {
            check_place(text, &error);
        }
    }
}

#[test]
fn error_names_line_column_and_what_was_expected() {
    let cases = [
        ("", "PTX line 1, column 1: expected `.version` at the start, found the end of the text"),
        (".version x", "PTX line 1, column 10: expected a version such as 8.2, found `x`"),
        (
            ".version 8.2\n.address_size 64",
            "PTX line 2, column 1: expected `.target` after `.version`, found `.address_size`",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(parse(text).unwrap_err().to_string(), message);
    }
    let body = [
        ("mov.u32 %r1 %r2;", "PTX line 4, column 24: expected `;`, found `%r2`"),
        ("mov.u32 %r1, ;", "PTX line 4, column 25: expected an operand, found `;`"),
        ("MOV.u32 %r1;", "PTX line 4, column 12: expected an instruction, found `MOV`"),
        ("ld.u32 %r1, [%r2;", "PTX line 4, column 28: expected `]`, found `;`"),
        ("mov.f32 %f1, 0f12;", "PTX line 4, column 25: a binary32 literal is `0f` and eight hexadecimal digits"),
        ("mov.u64 %r1, 18446744073709551616;", "PTX line 4, column 25: this integer exceeds 64 bits"),
        ("mov.u64 %r1, -9223372036854775809;", "PTX line 4, column 26: this integer is below -2^63"),
        (".reg .b33 %r1;", "PTX line 4, column 17: expected a type, found `.b33`"),
        (".reg .align 3 .b32 %r1;", "PTX line 4, column 24: an alignment is a power of two, not 3"),
        ("/* open", "PTX line 4, column 12: this comment is not closed"),
        (".pragma \"open;", "PTX line 4, column 20: this string is not closed on its line"),
        ("mov.u32 %r1, é;", "PTX line 4, column 25: PTX has no character `\\u{e9}` here"),
        ("ret;", "PTX line 4, column 16: expected `}`, found the end of the text"),
    ];
    for (statement, message) in body {
        let text = format!("{HEADER}.func f() {{{statement}");
        assert_eq!(parse(&text).unwrap_err().to_string(), message, "{statement}");
    }
}

#[test]
fn deep_nesting_is_refused() {
    let deep = 1_000_000;
    let opening = [
        format!("{HEADER}.func f() {}", "{".repeat(deep)),
        format!("{HEADER}.func f() {{ mov.b32 {}", "{".repeat(deep)),
        format!("{HEADER}.func f() {{ call {}", "(".repeat(deep)),
        format!("{HEADER}.func f() {{ not.pred %p1, {}%p2;", "!".repeat(deep)),
        format!("{HEADER}.global .b8 x[] = {}", "{".repeat(deep)),
        format!("{HEADER}.global .b8 x{}", "[1]".repeat(deep)),
    ];
    for text in opening {
        let error = parse(&text).unwrap_err();
        assert!(error.message().contains("more than 64"), "{error}");
    }
}
