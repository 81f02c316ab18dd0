//! The builder: its modules pass the checker, print, parse and run; ill-typed code is rejected with its location.

use millpond_ptx::ast::{Init, Module, Space, Type, Variable};
use millpond_ptx::build::{Atomic, Compare, FunctionBuilder, ModuleBuilder, Reg, Value, risky_predicates};
use millpond_ptx::interpret::{Fill, Heap, Image, Launch, Options, run};
use millpond_ptx::{PtxError, check, check_assigned, parse};

use crate::NVRTC;

const DATA: u64 = 0x7f00_0000_0000;

/// Builds a kernel `k(data)`, prints, parses and checks it, and runs one block of 64 threads on 64 words.
fn words(build: impl FnOnce(&mut ModuleBuilder, &mut FunctionBuilder, Reg)) -> Vec<u32> {
    let mut module = ModuleBuilder::new();
    let mut f = FunctionBuilder::kernel("k");
    let data = f.param("data", Type::U64);
    let data = f.load_param(&data);
    build(&mut module, &mut f, data);
    module.add(f);
    execute(&module.finish().expect("well-typed"))
}

fn execute(module: &Module) -> Vec<u32> {
    check(module).expect("keeps PTX's rules");
    let text = module.to_string();
    assert_eq!(&parse(&text).expect("PTX"), module);
    let image = Image::load(module).expect("known instructions");
    let mut heap = Heap::new();
    heap.allocate(DATA, 256, Fill::Initialised(0)).expect("free");
    let (params, globals) = (DATA.to_le_bytes(), place_globals(&image, &mut heap));
    let launch = Launch {
        kernel: "k",
        grid: [1, 1, 1],
        block: [64, 1, 1],
        dynamic_shared_bytes: 0,
        params: &params,
        globals: &globals,
    };
    run(&image, &launch, &mut heap, &Options::default()).unwrap_or_else(|fault| panic!("{fault}\n{text}"));
    let bytes = heap.bytes(DATA, 256).expect("there");
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes"))).collect()
}

fn place_globals(image: &Image, heap: &mut Heap) -> Vec<u64> {
    let mut addresses = Vec::new();
    for (index, global) in image.globals().iter().enumerate() {
        let address = DATA + 0x10_0000 * (index as u64 + 1);
        heap.allocate(address, global.size.max(1), Fill::Initialised(0)).expect("free");
        addresses.push(address);
    }
    for index in 0..addresses.len() {
        heap.write(addresses[index], &image.initial_bytes(index, &addresses)).expect("there");
    }
    addresses
}

/// Writes one word per thread.
fn store(f: &mut FunctionBuilder, data: Reg, value: Reg) {
    let thread = f.thread_index();
    let at = f.element(data, thread, 4);
    f.store(Space::Global, Type::U32, at, value);
}

fn each(f: impl Fn(u32) -> u32) -> Vec<u32> {
    (0..64).map(f).collect()
}

#[test]
fn branches_nest() {
    let got = words(|_, f, data| {
        let thread = f.thread_index();
        let result = f.copy(Type::U32, 7);
        let small = f.setp(Compare::Lt, thread, 40);
        f.if_else(
            small,
            |f| {
                let bit = f.and(thread, 1);
                let odd = f.setp(Compare::Ne, bit, 0);
                f.if_(odd, |f| f.assign(result, 1));
                f.unless(odd, |f| f.assign(result, thread));
            },
            |f| {
                let double = f.mul(thread, 2);
                f.assign(result, double);
            },
        );
        store(f, data, result);
    });
    assert_eq!(
        got,
        each(|t| match (t < 40, t % 2) {
            (true, 1) => 1,
            (true, _) => t,
            _ => 2 * t,
        })
    );
}

#[test]
fn loops_end_break_and_continue() {
    let got = words(|_, f, data| {
        let thread = f.thread_index();
        // The sum of the odd numbers below the thread number, limited to 100.
        let sum = f.copy(Type::U32, 0);
        f.for_(0_u32, thread, 1_u32, |f, n| {
            let bit = f.and(n, 1);
            let odd = f.setp(Compare::Ne, bit, 0);
            f.if_(odd, |f| {
                let next = f.add(sum, n);
                f.assign(sum, next);
            });
            let enough = f.setp(Compare::Gt, sum, 100);
            f.break_if(enough);
        });
        // Counts down with `while` and `continue_if`.
        let left = f.copy(Type::U32, thread);
        let turns = f.copy(Type::U32, 0);
        f.while_(
            |f| f.setp(Compare::Gt, left, 0),
            |f| {
                let less = f.sub(left, 1);
                f.assign(left, less);
                let bit = f.and(left, 1);
                let odd = f.setp(Compare::Ne, bit, 0);
                f.continue_if(odd);
                let more = f.add(turns, 1);
                f.assign(turns, more);
            },
        );
        let high = f.shl(turns, 16);
        let both = f.or(sum, high);
        store(f, data, both);
    });
    assert_eq!(
        got,
        each(|t| {
            let mut sum = 0;
            for n in 0..t {
                sum += if n % 2 == 1 { n } else { 0 };
                if sum > 100 {
                    break;
                }
            }
            sum | t.div_ceil(2) << 16
        })
    );
}

#[test]
fn grid_strides_reach_every_row() {
    let got = words(|_, f, data| {
        let rows = f.copy(Type::U64, 60);
        f.grid_stride(rows, |f, row| {
            let at = f.element(data, row, 4);
            let old = f.load(Space::Global, Type::U32, at);
            let new = f.add(old, 5);
            f.store(Space::Global, Type::U32, at, new);
        });
    });
    assert_eq!(got, each(|t| if t < 60 { 5 } else { 0 }));
}

#[test]
fn guards_select_single_instructions() {
    let got = words(|_, f, data| {
        let thread = f.thread_index();
        let small = f.setp(Compare::Lt, thread, 10);
        let result = f.copy(Type::U32, 1);
        f.guarded(small, true, |f| f.assign(result, 2));
        f.guarded(small, false, |f| f.assign(result, 3));
        store(f, data, result);
    });
    assert_eq!(got, each(|t| if t < 10 { 2 } else { 3 }));
}

#[test]
fn narrow_values_live_in_32_bits() {
    let got = words(|_, f, data| {
        let thread = f.thread_index();
        let at = f.element(data, thread, 4);
        let value = f.add(thread, 200);
        f.store(Space::Global, Type::U8, at, value);
        let signed = f.load(Space::Global, Type::S8, at);
        let unsigned = f.load(Space::Global, Type::U8, at);
        let difference = f.sub(unsigned, signed.view(Type::U32));
        let kept = f.extend(Type::S8, value);
        let same = f.setp(Compare::Eq, kept, signed);
        let one = f.copy(Type::U32, 1);
        let same = f.select(same, one, 0);
        let result = f.add(difference, same);
        f.store(Space::Global, Type::U32, at, result);
    });
    // 200 + t as a byte is negative from 128 to 255: a difference of 256.
    assert_eq!(got, each(|t| if (200 + t) % 256 >= 128 { 257 } else { 1 }));
}

#[test]
fn shared_memory_shuffles_votes_and_atomics() {
    let got = words(|module, f, data| {
        let counter = module.variable(Space::Shared, Type::U32, "counter", 1);
        let thread = f.thread_index();
        let first = f.setp(Compare::Eq, thread, 0);
        f.if_(first, |f| f.store(Space::Shared, Type::U32, &counter, 0));
        f.barrier();
        f.reduce(Atomic::Add, Space::Shared, Type::U32, &counter, thread);
        f.barrier();
        let total = f.load(Space::Shared, Type::U32, &counter);
        let wide = f.convert(Type::U64, thread);
        let neighbour = f.shuffle64("bfly", wide, 1, 31);
        let neighbour = f.convert(Type::U32, neighbour);
        let bit = f.and(thread, 1);
        let odd = f.setp(Compare::Ne, bit, 0);
        let votes = f.ballot(odd);
        let votes = f.popc(votes);
        let sum = f.add(total, neighbour);
        let sum = f.add(sum, votes);
        store(f, data, sum);
    });
    assert_eq!(got, each(|t| 63 * 64 / 2 + (t ^ 1) + 16));
}

/// A module with a function `triple` that reads a table, and a variable whose name also occurs in another module.
fn image(factor: i128) -> Module {
    let mut module = ModuleBuilder::new();
    let mut table = Variable::new(Space::Const, Type::U32, "table");
    table.dims = vec![1];
    table.init = Some(Init::List(vec![Init::Integer(factor)]));
    let table = module.declare(table);
    let mut inner = FunctionBuilder::function("inner");
    let x = inner.param("x", Type::B64);
    let result = inner.return_bytes(8, 8);
    let x = inner.load_param(&x).view(Type::U64);
    let times = inner.load(Space::Const, Type::U32, &table);
    let times = inner.convert(Type::U64, times);
    let product = inner.mul(x, times);
    inner.store(Space::Param, Type::B64, &result, product);
    let inner = module.add(inner);
    let mut outer = FunctionBuilder::function("times");
    let x = outer.param("x", Type::B64);
    let result = outer.return_bytes(8, 8);
    let x = outer.load_param(&x);
    let product = outer.call(&inner, &[x.into()])[0];
    let more = outer.add(product.view(Type::U64), 1);
    outer.store(Space::Param, Type::B64, &result, more);
    module.add(outer);
    module.finish().expect("well-typed")
}

#[test]
fn pasted_helpers_keep_apart() {
    let (three, five) = (image(3), image(5));
    let got = words(|module, f, data| {
        let by_three = module.paste(&three, "times").expect("a body");
        let by_five = module.paste(&five, "times").expect("a body");
        assert_ne!(by_three.name(), by_five.name());
        assert_eq!(module.paste(&three, "times").expect("a body"), by_three, "merged once");
        let thread = f.thread_index();
        let wide = f.convert(Type::U64, thread);
        let a = f.call(&by_three, &[wide.into()])[0];
        let b = f.call(&by_five, &[a.into()])[0];
        let result = f.convert(Type::U32, b.view(Type::U64));
        store(f, data, result);
    });
    assert_eq!(got, each(|t| (3 * t + 1) * 5 + 1));
}

#[test]
fn functions_of_a_compiler_can_be_pasted() {
    let compiled = parse(NVRTC).expect("PTX");
    let mut pasted = 0;
    for function in compiled.functions().filter(|function| function.body.is_some()) {
        let mut module = ModuleBuilder::new();
        module.variable(Space::Global, Type::U32, &function.name, 1);
        let Ok(callee) = module.paste(&compiled, &function.name) else { continue };
        assert_ne!(callee.name(), function.name, "the name was taken");
        let module = module.finish().expect("well-typed");
        check(&module).expect("keeps PTX's rules");
        pasted += 1;
    }
    assert!(pasted > 0);
}

#[test]
fn a_missing_helper_is_named() {
    let error = ModuleBuilder::new().paste(&image(1), "absent").expect_err("there is none");
    assert!(error.to_string().contains("absent"), "{error}");
}

/// Builds an invalid kernel and returns the error.
fn refused(build: impl FnOnce(&mut FunctionBuilder)) -> String {
    let mut module = ModuleBuilder::new();
    let mut f = FunctionBuilder::kernel("wrong");
    build(&mut f);
    module.add(f);
    let error: PtxError = module.finish().expect_err("ill-typed");
    let text = error.to_string();
    assert!(text.contains("wrong"), "names the function: {text}");
    text
}

#[test]
fn registers_that_some_way_leaves_unassigned_are_refused() {
    let mut f = FunctionBuilder::kernel("wrong");
    let thread = f.thread_index();
    let low = f.setp(Compare::Lt, thread, 7u32);
    let sum = f.register(Type::U32);
    f.if_(low, |f| f.assign(sum, 1u32));
    let both = f.add(sum, thread);
    f.store(Space::Shared, Type::U32, both, both);
    let mut module = ModuleBuilder::new();
    module.add(f);
    let finished = module.finish();
    // Release builds do not run the check: callers run it explicitly.
    assert_eq!(finished.is_err(), cfg!(debug_assertions));
    let checked = finished.and_then(|module| module.functions().try_for_each(check_assigned));
    let error = checked.expect_err("a register is not assigned").to_string();
    assert!(error.contains("wrong: %r1 is assigned only where %p0 holds"), "{error}");
}

#[test]
fn ill_typed_instructions_are_refused() {
    let regs = |f: &mut FunctionBuilder| {
        (
            f.register(Type::U32),
            f.register(Type::U64),
            f.register(Type::F32),
            f.register(Type::Pred),
            f.register(Type::S32),
        )
    };
    type Build = fn(&mut FunctionBuilder, (Reg, Reg, Reg, Reg, Reg));
    let wrong: [(&str, Build); 18] = [
        ("u32 and u64 do not agree", |f, r| {
            f.add(r.0, r.1);
        }),
        ("u32 and f32 do not agree", |f, r| {
            f.add(r.0, r.2);
        }),
        ("u32 and s32 do not agree", |f, r| {
            f.div(r.0, r.4);
        }),
        ("add takes no pred", |f, r| {
            f.add(r.3, r.3);
        }),
        ("rem takes no f32", |f, r| {
            f.rem(r.2, r.2);
        }),
        ("neg takes no u32", |f, r| {
            f.neg(r.0);
        }),
        ("mul.wide takes u32 or s32", |f, r| {
            f.mul_wide(r.1, r.1);
        }),
        ("no operand has a type", |f, _| {
            f.add(1, 2);
        }),
        ("4294967296 is no u32", |f, r| {
            f.add(r.0, 1_u64 << 32);
        }),
        ("the f64 1 is no f32", |f, r| f.assign(r.2, 1.0_f64)),
        ("where b64 is wanted", |f, r| {
            f.load(Space::Global, Type::U32, r.0);
        }),
        ("where pred is wanted", |f, r| f.if_(r.0, |_| ())),
        ("setp takes no pred", |f, r| {
            f.setp(Compare::Lt, r.3, r.3);
        }),
        ("setp takes no b32", |f, r| {
            f.setp(Compare::Lt, r.0.view(Type::B32), 1);
        }),
        ("read as u64", |f, r| {
            f.add(r.0.view(Type::U64), r.1);
        }),
        ("break_if outside a loop", |f, r| f.break_if(r.3)),
        ("control flow inside a guard", |f, r| f.guarded(r.3, true, |f| f.if_(r.3, |_| ()))),
        ("atom.global.and.u32 does not exist", |f, r| {
            f.atomic(Atomic::And, Space::Global, Type::U32, r.1, r.0);
        }),
    ];
    for (message, build) in wrong {
        let text = refused(|f| {
            let registers = regs(f);
            build(f, registers);
        });
        assert!(text.contains(message), "{text:?} should say {message:?}");
    }
}

#[test]
fn calls_count_their_arguments() {
    let mut module = ModuleBuilder::new();
    let mut helper = FunctionBuilder::function("helper");
    helper.param("x", Type::B64);
    let helper = module.add(helper);
    let mut f = FunctionBuilder::kernel("wrong");
    f.call(&helper, &[]);
    module.add(f);
    assert!(module.finish().expect_err("no argument").to_string().contains("too few arguments"));

    let mut module = ModuleBuilder::new();
    let mut f = FunctionBuilder::kernel("wrong");
    let x: Value = f.register(Type::B64).into();
    f.call(&helper, &[x, x]);
    module.add(f);
    assert!(module.finish().expect_err("two arguments").to_string().contains("too many arguments"));
}

#[test]
fn names_of_functions_are_unique() {
    let mut module = ModuleBuilder::new();
    module.add(FunctionBuilder::kernel("same"));
    module.add(FunctionBuilder::kernel("same"));
    assert!(module.finish().expect_err("twice").to_string().contains("there already"));
}

#[test]
fn predicates_are_selected_as_their_truth_table_says() {
    let got = words(|_, f, data| {
        let thread = f.thread_index();
        let [c, a, b] = [1, 2, 4].map(|bit| {
            let own = f.and(thread, bit);
            f.setp(Compare::Ne, own, 0)
        });
        let (either, both) = (f.or(c, a), f.and(c, a));
        let (yes, no) = (f.not(c), f.not(a));
        let mut result = f.copy(Type::U32, 0);
        let choices = [(c, a, b), (c, b, a), (c, a, either), (either, both, b), (c, a, a), (yes, a, no)];
        for (number, (condition, x, y)) in choices.into_iter().enumerate() {
            let truth = f.select(condition, x, y);
            let bit = f.copy(Type::U32, 1 << number);
            let bit = f.select(truth, bit, 0);
            result = f.or(result, bit).view(Type::U32);
        }
        store(f, data, result);
        f.tidy();
    });
    let choose = |condition: bool, x: bool, y: bool| if condition { x } else { y };
    assert_eq!(
        got,
        each(|t| {
            let (c, a, b) = (t & 1 != 0, t & 2 != 0, t & 4 != 0);
            let choices =
                [choose(c, a, b), choose(c, b, a), choose(c, a, c | a), choose(c | a, c & a, b), a, choose(!c, a, !a)];
            choices.iter().enumerate().map(|(number, truth)| u32::from(*truth) << number).sum()
        })
    );
}

/// Logic on the predicates `%p1`, `%p2` and `%p3` in a kernel that stores `%p9`.
fn logic(lines: &str) -> Module {
    let inputs = (1..4).map(|i| format!("setp.eq.u32 %p{i}, %r0, {i};\n")).collect::<String>();
    parse(&format!(
        ".version 8.2\n.target sm_70\n.address_size 64\n.visible .entry k(.param .u64 to)\n{{\n.reg .pred %p<10>;\n\
         .reg .b32 %r<4>;\n.reg .b64 %rd<2>;\nld.param.u64 %rd0, [to];\nmov.u32 %r0, %tid.x;\n{inputs}{lines}\n\
         selp.b32 %r1, 1, 0, %p9;\nst.global.u32 [%rd0], %r1;\nret;\n}}\n"
    ))
    .expect("the text parses")
}

#[test]
fn forms_that_assemblers_get_wrong_are_found() {
    // Former code of CASE: its wrong machine code is described in decision 012.
    let case = logic(
        "or.pred %p4, %p1, %p2; and.pred %p5, %p1, %p2; not.pred %p6, %p1; and.pred %p7, %p6, %p4; or.pred %p9, %p5, %p7;",
    );
    let choice = logic("and.pred %p4, %p1, %p2; not.pred %p5, %p1; and.pred %p6, %p3, %p5; or.pred %p9, %p6, %p4;");
    let absorbed = logic("or.pred %p4, %p1, %p2; and.pred %p9, %p4, %p2;");
    let opposed = logic("and.pred %p4, %p1, %p2; not.pred %p5, %p4; or.pred %p6, %p1, %p2; and.pred %p9, %p5, %p6;");
    for module in [&case, &choice, &absorbed, &opposed] {
        let found = risky_predicates(module);
        assert!(found.iter().any(|what| what.contains("%p9")), "{found:?}\n{module}");
    }
    let plain = logic("and.pred %p4, %p1, %p2; not.pred %p5, %p4; or.pred %p9, %p5, %p3;");
    assert_eq!(risky_predicates(&plain), Vec::<String>::new());
}

#[test]
fn tidy_functions_have_none_of_them() {
    let mut f = FunctionBuilder::kernel("k");
    let to = f.param("to", Type::U64);
    let to = f.load_param(&to);
    let thread = f.thread_index();
    let [c, a, b] = [1, 2, 3].map(|number| f.setp(Compare::Eq, thread, number));
    let no = f.not(c);
    let (either, both) = (f.or(c, a), f.and(c, a));
    let mut results = vec![f.and(either, a), f.or(both, no), f.xor(either, both)];
    let (left, right) = (f.and(c, b), f.and(no, either));
    results.push(f.or(left, right));
    let (left, right) = (f.and(c, a), f.and(b, no));
    results.push(f.or(left, right));
    for (number, truth) in results.into_iter().enumerate() {
        let one = f.copy(Type::U32, 1);
        let word = f.select(truth, one, 0);
        f.store(Space::Global, Type::U32, to.at(4 * number as i64), word);
    }
    f.tidy();
    let mut module = ModuleBuilder::new();
    module.add(f);
    let module = module.finish().expect("well-typed");
    check(&module).expect("keeps PTX's rules");
    assert_eq!(risky_predicates(&module), Vec::<String>::new(), "{module}");
}
