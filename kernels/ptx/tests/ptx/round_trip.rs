//! Printed modules parse to equal modules.

use crate::{NVRTC, random};
use millpond_ptx::{ast::*, parse};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn printed_module_reads_back(module in random::module()) {
        let text = module.to_string();
        let again = parse(&text).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        prop_assert_eq!(&again, &module, "{}", text);
    }
}

#[test]
fn compiled_module_reads_back() {
    let module = parse(NVRTC).unwrap();
    assert_eq!(parse(&module.to_string()).unwrap(), module);
}

/// Counts words in the compiler's text, which is independent of our printer.
#[test]
fn nothing_of_a_compiled_module_is_lost() {
    fn instructions(list: &[Statement]) -> usize {
        list.iter()
            .map(|statement| match statement {
                Statement::Instruction(_) => 1,
                Statement::Block(inner) => instructions(inner),
                _ => 0,
            })
            .sum()
    }
    let module = parse(NVRTC).unwrap();
    let parsed: usize = module.functions().filter_map(|f| f.body.as_deref()).map(instructions).sum();
    // Every semicolon outside comments ends an instruction or a statement that starts with a directive.
    let code: String = NVRTC.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n");
    let is_instruction = |piece: &&str| {
        let start = piece.rsplit("{\n").next().unwrap_or(piece).trim_start_matches(['{', '}', ' ', '\t', '\n']);
        !start.is_empty() && !start.starts_with('.') && !start.contains(": .") && !start.contains(":\n\t.")
    };
    assert_eq!(parsed, code.split(';').filter(is_instruction).count());
    assert!(parsed > 900);
}

#[test]
fn literals_keep_their_values() {
    let text = ".version 7.0 .target sm_70, debug .address_size 64 .func f() { mov.b64 %r1, 0xFFFFFFFFFFFFFFFFU; \
                mov.b64 %r1, -9223372036854775808; mov.b32 %r2, 017; mov.b32 %r2, 0b101; mov.f64 %f1, 1.5e-3; \
                mov.f32 %f2, 0f3fC00000; mov.f64 %f1, 0d3FF8000000000000; mov.f64 %f1, -2.5; mov.u32 %r2, 0; }";
    let module = parse(text).unwrap();
    assert_eq!(module.version, (7, 0));
    assert_eq!(module.target, ["sm_70", "debug"]);
    let body = module.function("f").unwrap().body.as_ref().unwrap();
    let values: Vec<_> = body
        .iter()
        .map(|statement| match statement {
            Statement::Instruction(instruction) => instruction.operands[1].clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        Operand::Integer(u64::MAX.into()),
        Operand::Integer(i64::MIN.into()),
        Operand::Integer(15),
        Operand::Integer(5),
        Operand::F64(0.0015f64.to_bits()),
        Operand::F32(1.5f32.to_bits()),
        Operand::F64(1.5f64.to_bits()),
        Operand::F64((-2.5f64).to_bits()),
        Operand::Integer(0),
    ];
    assert_eq!(values, expected);
}

#[test]
fn instruction_prints_on_one_line_as_written() {
    for line in [
        "@!%p1 ld.global.v2.u32 {%r1, %r2}, [%rd1+8]",
        "setp.lt.and.s32 %p1|%p2, %r1, -5, !%p3",
        "shfl.sync.down.b32 %r1|%p1, %r2, 1, 31, -1",
        "call.uni (retval0), vprintf, (param0, param1)",
        "call (retval0), %rd1, (param0), prototype_0",
        "st.local.f64 [__local_depot0+-16], 0d3FF0000000000000",
        "atom.global.add.u32 _, [%rd1], 1",
        "mov.u64 %rd1, table+8",
        "mov.u32 %r1, %tid.x",
        "brx.idx %r1, $L_brx_0",
        "ld.global.L1::no_allocate.L2::128B.u64 %rd1, [16]",
        "ret",
    ] {
        let text = format!(".version 8.2 .target sm_70 .address_size 64 .func f() {{ {line}; }}");
        let module = parse(&text).unwrap();
        let body = module.function("f").unwrap().body.as_ref().unwrap();
        let [Statement::Instruction(instruction)] = body.as_slice() else { panic!("{body:?}") };
        assert_eq!(instruction.to_string(), line);
    }
}

#[test]
fn debugging_information_is_skipped() {
    let text = ".version 8.2\n.target sm_70\n.address_size 64\n.file 1 \"a.cu\", 1, 2\n.func f()\n{\n.loc 1 2 3\nret;\n\
                .loc 1 4 5, function_name $L__info_string0, inlined_at 1 7 9\nret;\n}\n\
                .section .debug_str { $L__info_string0: .b8 104,105,0\n}\n";
    let module = parse(text).unwrap();
    assert_eq!(module.items.len(), 1);
    assert_eq!(module.function("f").unwrap().body.as_ref().unwrap().len(), 2);
}

#[test]
fn spans_point_at_the_text() {
    let text = ".version 8.2\n.target sm_70\n.address_size 64\n.func f()\n{\n\t@%p1 ret;\n}\n";
    let module = parse(text).unwrap();
    let body = module.function("f").unwrap().body.as_ref().unwrap();
    let Statement::Instruction(instruction) = &body[0] else { panic!() };
    assert_eq!((instruction.span.line, instruction.span.column), (6, 7));
}

#[test]
fn call_is_seen_in_its_parts() {
    let text = ".version 8.2 .target sm_70 .func f() { call (r), g, (a, b), p; call h; call k, (); }";
    let module = parse(text).unwrap();
    let calls: Vec<_> = module.function("f").unwrap().body.as_ref().unwrap().iter().collect();
    let parts: Vec<_> = calls
        .iter()
        .map(|statement| {
            let Statement::Instruction(instruction) = statement else { panic!() };
            let call = instruction.call().unwrap();
            (call.returns.len(), call.target, call.arguments.len(), call.prototype)
        })
        .collect();
    assert_eq!(parts, [(1, "g", 2, Some("p")), (0, "h", 0, None), (0, "k", 0, None)]);
}
