//! Reads of registers that are rejected because some path leaves the register unassigned.
//!
//! Each line is the body of a kernel in which `%p0`, `%p1`, `%r0` and `%d0` are assigned.

use millpond_ptx::ast::Module;
use millpond_ptx::{PtxError, check, check_assigned, parse};

fn module(functions: &str, body: &str) -> Module {
    let text = format!(
        ".version 8.2\n.target sm_70\n.address_size 64\n{functions}\n.visible .entry k(.param .u64 a, .param .u32 b)\n{{
.reg .pred %p<9>; .reg .b32 %r<9>; .reg .b64 %d<9>;
ld.param.u64 %d0, [a]; ld.param.u32 %r0, [b]; setp.eq.u32 %p0, %r0, 1; setp.eq.u32 %p1, %r0, 2;
{body}\nret;\n}}\n"
    );
    let module = parse(&text).unwrap_or_else(|error| panic!("{error}\n{body}"));
    check(&module).unwrap_or_else(|error| panic!("{error}\n{body}"));
    module
}

fn checked(body: &str) -> Result<(), PtxError> {
    check_assigned(module("", body).function("k").expect("it is there"))
}

#[track_caller]
fn fine(bodies: &[&str]) {
    for body in bodies {
        checked(body).unwrap_or_else(|error| panic!("{error}\n{body}"));
    }
}

#[track_caller]
fn refused(bodies: &[(&str, &str)]) {
    for (body, what) in bodies {
        let error = checked(body).err().unwrap_or_else(|| panic!("this passes: {body}")).to_string();
        assert!(error.contains(what), "{error}\ndoes not say: {what}");
    }
}

/// A flag is set after many tests: registers not written by the last test were assigned before it.
#[test]
fn a_flag_tells_of_what_was_assigned_before_the_last_test() {
    let nested = |tests: usize, read: &str| {
        let tests: String = (0..tests)
            .map(|test| format!("setp.eq.u32 %p{}, %r0, {test}; @!%p{} bra out; ", test % 4 + 2, test % 4 + 2))
            .collect();
        format!(
            "setp.ne.u32 %p6, 0, 0; {tests} mov.u32 %r1, 7; setp.eq.u32 %p8, %r0, 3; @!%p8 bra out;
             setp.eq.u32 %p6, 0, 0; out: and.pred %p7, %p6, %p1; @!%p7 bra end; {read} end:"
        )
    };
    for tests in [0, 1, 2, 7, 30] {
        fine(&[&nested(tests, "st.u32 [%d0], %r1;")]);
        refused(&[(&nested(tests, "st.u32 [%d0], %r2;"), "%r2")]);
    }
}

#[test]
fn straight_lines_assign_before_they_read() {
    fine(&[
        "mov.u32 %r1, 1; add.u32 %r2, %r1, %r0; st.u32 [%d0], %r2;",
        "mov.b64 {%r1, %r2}, %d0; add.u32 %r3, %r1, %r2;",
        "add.cc.u32 %r1, %r0, 1; addc.u32 %r2, %r0, 0;",
        "mov.u32 %r1, %tid.x; shfl.sync.up.b32 %r2|%p2, %r1, 1, 0, -1; @%p2 st.u32 [%d0], %r2;",
    ]);
    refused(&[
        ("add.u32 %r2, %r1, %r0;", "%r1 is read and never assigned"),
        ("add.u32 %r1, %r1, 1;", "k: %r1 is not assigned on every way"),
        ("st.u32 [%d1], %r0;", "it is read by `st.u32 [%d1], %r0`"),
        ("st.v2.u32 [%d0], {%r0, %r1};", "%r1"),
        ("@%p2 st.u32 [%d0], %r0;", "%p2"),
        ("addc.u32 %r1, %r0, 0;", "the carry flag"),
        ("red.global.add.u32 [%d0], %r1;", "%r1"),
        ("bar.sync %r1;", "%r1"),
        ("@%p2 bra end; end:", "%p2"),
    ]);
}

#[test]
fn what_is_assigned_under_a_guard_is_read_under_it() {
    fine(&[
        "@%p0 mov.u32 %r1, 1; @%p0 st.u32 [%d0], %r1;",
        "@!%p0 mov.u32 %r1, 1; @!%p0 st.u32 [%d0], %r1;",
        "@%p0 mov.u32 %r1, 1; @!%p0 mov.u32 %r1, 2; st.u32 [%d0], %r1;",
        "mov.u32 %r1, 0; @%p0 ld.u32 %r1, [%d0]; st.u32 [%d0], %r1;",
        "@%p0 mov.u32 %r1, 1; selp.b32 %r2, %r1, 0, %p0; st.u32 [%d0], %r2;",
        "@!%p0 mov.u32 %r1, 1; selp.b32 %r2, 0, %r1, %p0; st.u32 [%d0], %r2;",
    ]);
    refused(&[
        ("@%p0 mov.u32 %r1, 1; st.u32 [%d0], %r1;", "%r1 is assigned only where %p0 holds"),
        ("@!%p0 mov.u32 %r1, 1; st.u32 [%d0], %r1;", "only where %p0 does not hold"),
        ("@%p0 mov.u32 %r1, 1; st.u32 [%d0], %r1;", "assign it before that, or read it under @%p0"),
        ("@%p0 mov.u32 %r1, 1; @!%p0 st.u32 [%d0], %r1;", "%r1"),
        ("@%p0 mov.u32 %r1, 1; @%p1 st.u32 [%d0], %r1;", "%r1"),
        ("@%p0 mov.u32 %r1, 1; selp.b32 %r2, 0, %r1, %p0;", "%r1"),
        // The same instruction also changes its own guard.
        ("@%p0 setp.eq.u32 %p0|%p2, %r0, 5; @%p0 add.u32 %r0, %r0, 1; @%p2 st.u32 [%d0], %r0;", "%p2"),
        ("@%p0 setp.eq.u32 %p0|%p2, %r0, 5; and.pred %p3, %p0, %p2;", "%p2"),
        // The predicate has changed by then.
        ("@%p0 mov.u32 %r1, 1; setp.eq.u32 %p0, %r0, 5; @%p0 st.u32 [%d0], %r1;", "%r1"),
    ]);
}

#[test]
fn masked_predicates_may_be_anything() {
    fine(&[
        "@%p0 setp.eq.u32 %p2, %r0, 7; and.pred %p3, %p0, %p2; @%p3 st.u32 [%d0], %r0;",
        "@%p0 setp.eq.u32 %p2, %r0, 7; and.pred %p3, %p2, %p0; @%p3 st.u32 [%d0], %r0;",
        "@!%p0 setp.eq.u32 %p2, %r0, 7; or.pred %p3, %p0, %p2; @%p3 st.u32 [%d0], %r0;",
        "@%p0 setp.eq.u32 %p2, %r0, 7; not.pred %p3, %p0; or.pred %p4, %p3, %p2; @%p4 st.u32 [%d0], %r0;",
        "@%p0 ld.u32 %r1, [%d0]; setp.eq.and.u32 %p2, %r1, 7, %p0; @%p2 st.u32 [%d0], %r0;",
        "@!%p0 ld.u32 %r1, [%d0]; setp.eq.or.u32 %p2, %r1, 7, %p0; @%p2 st.u32 [%d0], %r0;",
        "@!%p0 ld.u32 %r1, [%d0]; setp.eq.and.u32 %p2, %r1, 7, !%p0; @%p2 st.u32 [%d0], %r0;",
    ]);
    refused(&[
        ("@%p0 setp.eq.u32 %p2, %r0, 7; or.pred %p3, %p0, %p2;", "%p2 is assigned only where %p0 holds"),
        ("@!%p0 setp.eq.u32 %p2, %r0, 7; and.pred %p3, %p0, %p2;", "%p2"),
        ("@%p0 setp.eq.u32 %p2, %r0, 7; xor.pred %p3, %p0, %p2;", "%p2"),
        ("@%p0 ld.u32 %r1, [%d0]; setp.eq.xor.u32 %p2, %r1, 7, %p0;", "%r1"),
        // Two operands that mask each other, both unassigned.
        ("@%p0 setp.eq.u32 %p2, %r0, 7; @%p0 setp.eq.u32 %p3, %r0, 7; and.pred %p4, %p2, %p3;", "%p2"),
    ]);
}

#[test]
fn a_copy_is_assigned_where_its_original_is() {
    fine(&[
        "@%p0 setp.eq.u32 %p2, %r0, 7; not.pred %p3, %p2; and.pred %p4, %p0, %p3; @%p4 st.u32 [%d0], %r0;",
        "@%p0 setp.eq.u32 %p2, %r0, 7; not.pred %p3, %p2; @%p0 bra yes; bra end; yes: @%p3 st.u32 [%d0], %r0; end:",
        // The result is not read.
        "not.pred %p3, %p2;",
    ]);
    refused(&[
        ("@%p0 setp.eq.u32 %p2, %r0, 7; not.pred %p3, %p2; and.pred %p4, %p1, %p3;", "%p3 is assigned only where %p0"),
        ("@%p0 setp.eq.u32 %p2, %r0, 7; not.pred %p3, %p2; @%p3 st.u32 [%d0], %r0;", "%p3"),
        ("not.pred %p3, %p2; not.pred %p4, %p3; @%p4 st.u32 [%d0], %r0;", "%p4"),
        // The predicate had another value before.
        ("mov.pred %p3, %p0; not.pred %p3, %p2; @%p3 st.u32 [%d0], %r0;", "%p3"),
    ]);
}

#[test]
fn predicates_imply_what_they_are_made_of() {
    fine(&[
        "@%p0 mov.u32 %r1, 1; and.pred %p2, %p0, %p1; @%p2 st.u32 [%d0], %r1;",
        "@%p0 mov.u32 %r1, 1; and.pred %p2, %p1, %p0; and.pred %p3, %p2, %p1; @%p3 st.u32 [%d0], %r1;",
        "@%p0 mov.u32 %r1, 1; or.pred %p2, %p1, %p0; not.pred %p3, %p0; @%p2 mov.u32 %r2, 5; @!%p3 st.u32 [%d0], %r1;",
        "@!%p0 mov.u32 %r1, 1; or.pred %p2, %p1, %p0; @!%p2 st.u32 [%d0], %r1;",
        "@%p0 mov.u32 %r1, 1; setp.eq.and.u32 %p2, %r0, 9, %p0; @%p2 st.u32 [%d0], %r1;",
        "and.pred %p2, %p0, %p1; @%p2 mov.u32 %r1, 1; @!%p0 bra end; @!%p1 bra end; st.u32 [%d0], %r1; end:",
    ]);
    refused(&[
        ("@%p0 mov.u32 %r1, 1; or.pred %p2, %p1, %p0; @%p2 st.u32 [%d0], %r1;", "%r1"),
        ("and.pred %p2, %p0, %p1; @%p2 mov.u32 %r1, 1; @%p0 st.u32 [%d0], %r1;", "%r1"),
        // The operands of the formula have changed since.
        (
            "and.pred %p2, %p0, %p1; setp.eq.u32 %p0, %r0, 9; @%p0 mov.u32 %r1, 1; @%p2 st.u32 [%d0], %r1;",
            "%r1 is assigned only where %p0 holds",
        ),
    ]);
}

#[test]
fn ways_meet_with_what_both_know() {
    fine(&[
        "@%p0 bra yes; mov.u32 %r1, 1; bra end; yes: mov.u32 %r1, 2; end: st.u32 [%d0], %r1;",
        "@!%p0 bra end; mov.u32 %r1, 1; end: @%p0 st.u32 [%d0], %r1;",
        "@!%p0 bra end; mov.u32 %r1, 1; end: @!%p0 bra out; st.u32 [%d0], %r1; out:",
        "@!%p0 bra end; setp.eq.u32 %p2, %r0, 3; end: and.pred %p3, %p0, %p2; @%p3 st.u32 [%d0], %r0;",
        "@%p0 mov.u32 %r1, 1; @!%p0 bra end; st.u32 [%d0], %r1; end:",
        "@%p0 ret; mov.u32 %r1, 1; st.u32 [%d0], %r1;",
        "@%p0 mov.u32 %r1, 1; @!%p0 exit; st.u32 [%d0], %r1;",
        // A flag records the path taken.
        "mov.pred %p2, 0; @!%p0 bra end; mov.u32 %r1, 1; @%p1 bra end; setp.eq.u32 %p2, 0, 0; end: @%p2 st.u32 [%d0], %r1;",
        "setp.ne.u32 %p2, 0, 0; @!%p0 bra end; mov.u32 %r1, 1; mov.pred %p2, 1; end: and.pred %p3, %p1, %p2; @!%p3 bra out;
 st.u32 [%d0], %r1; out:",
        // Unreachable code.
        "bra end; st.u32 [%d0], %r1; end:",
        "ts: .branchtargets one, two; brx.idx %r0, ts; one: mov.u32 %r1, 1; bra end; two: mov.u32 %r1, 2; end: st.u32 [%d0], %r1;",
    ]);
    refused(&[
        ("@%p0 bra end; mov.u32 %r1, 1; end: st.u32 [%d0], %r1;", "%r1"),
        ("@%p0 bra end; mov.u32 %r1, 1; end: @%p0 st.u32 [%d0], %r1;", "%r1"),
        ("@!%p0 bra end; mov.u32 %r1, 1; end: @%p1 st.u32 [%d0], %r1;", "%r1"),
        ("mov.pred %p2, 1; @!%p0 bra end; mov.u32 %r1, 1; mov.pred %p2, 1; end: @%p2 st.u32 [%d0], %r1;", "%r1"),
        (
            "mov.pred %p2, 0; @!%p0 bra end; mov.pred %p2, 1; @%p1 bra end; mov.u32 %r1, 1; end: @%p2 st.u32 [%d0], %r1;",
            "%r1",
        ),
        (
            "ts: .branchtargets one, two; brx.idx %r0, ts; one: mov.u32 %r1, 1; bra end; two: end: st.u32 [%d0], %r1;",
            "%r1",
        ),
    ]);
}

#[test]
fn loops_are_walked_until_nothing_changes() {
    fine(&[
        "mov.u32 %r1, 0; again: add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 9; @%p2 bra again;",
        // Assigned in the first iteration, read in the next one.
        "mov.u32 %r2, 0; again: setp.eq.u32 %p2, %r2, 0; @!%p2 bra later; mov.u32 %r1, 1; later: @%p2 st.u32 [%d0], %r1;
 add.u32 %r2, %r2, 1; setp.lt.u32 %p3, %r2, 9; @%p3 bra again;",
        "again: @%p0 ld.u32 %r1, [%d0]; @%p0 st.u32 [%d0], %r1; bra again;",
        "again: setp.eq.u32 %p2, %r0, 5; @%p2 ld.u32 %r1, [%d0]; and.pred %p3, %p2, %p0; @%p3 st.u32 [%d0], %r1; bra again;",
    ]);
    refused(&[
        ("again: @%p0 bra end; add.u32 %r1, %r1, 1; bra again; end:", "%r1"),
        ("mov.u32 %r2, 0; again: @%p0 st.u32 [%d0], %r1; mov.u32 %r1, 5; bra again;", "%r1"),
        ("again: and.pred %p2, %p2, %p0; @!%p2 bra end; bra again; end:", "%p2 is not assigned on every way"),
        // Under the predicate of the previous iteration.
        (
            "mov.pred %p2, 1; again: @%p2 st.u32 [%d0], %r1; setp.eq.u32 %p2, %r0, 5; @%p2 mov.u32 %r1, 1; bra again;",
            "%r1",
        ),
    ]);
}

#[test]
fn calls_read_arguments_and_write_results() {
    let twice = ".func (.reg .b32 r) twice(.reg .b32 a) { add.u32 r, a, a; ret; }";
    let called = |body: &str| check_assigned(module(twice, body).function("k").expect("it is there"));
    called("call (%r1), twice, (%r0); st.u32 [%d0], %r1;").unwrap();
    assert!(called("call (%r1), twice, (%r2);").unwrap_err().to_string().contains("%r2"));
    assert!(called("@%p0 call (%r1), twice, (%r0); st.u32 [%d0], %r1;").is_err());
    // A function's parameters are assigned; it must assign its results before `ret`.
    let function = |text: &str| check_assigned(module(text, "").function("f").expect("it is there"));
    function(".func (.reg .b32 r) f(.reg .b32 a) { mov.u32 r, a; ret; }").unwrap();
    let error =
        function(".func (.reg .b32 r) f(.reg .b32 a) { .reg .pred %p; setp.eq.u32 %p, a, 0; @%p mov.u32 r, a; ret; }");
    assert!(error.unwrap_err().to_string().contains("r is assigned only where %p holds"));
}

#[test]
fn inner_scopes_have_registers_of_their_own() {
    fine(&["mov.u32 %r1, 1; { .reg .b32 %r<2>; mov.u32 %r1, 2; st.u32 [%d0], %r1; } st.u32 [%d0], %r1;"]);
    refused(&[("mov.u32 %r1, 1; { .reg .b32 %r<2>; st.u32 [%d0], %r1; }", "%r1")]);
    refused(&[("{ .reg .b32 %r<2>; mov.u32 %r1, 2; } st.u32 [%d0], %r1;", "%r1")]);
}

#[test]
fn the_place_is_a_line() {
    let error = checked("mov.u32 %r1, 1;\nadd.u32 %r1, %r2, 1;").unwrap_err();
    assert_eq!(error.span().line, 10, "{error}");
}
