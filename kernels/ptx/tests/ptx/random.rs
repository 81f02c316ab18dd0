//! Random modules: every form of the syntax tree, with names that the grammar allows.

use millpond_ptx::ast::*;
use proptest::{collection::vec, option, prelude::*};

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z][a-zA-Z0-9_$]{0,8}".prop_filter("`generic` opens an expression", |name| name != "generic"),
        "%[a-z]{1,3}[0-9]{1,3}",
        r"\$L_[0-9]{1,3}",
        "_[A-Za-z0-9_$]{1,6}",
    ]
}

fn register() -> impl Strategy<Value = String> {
    prop_oneof!["%[a-z]{1,3}[0-9]{1,3}", Just("%tid.x".to_string()), Just("%v1.w".to_string())]
}

fn ty() -> impl Strategy<Value = Type> {
    proptest::sample::select(Type::ALL.to_vec())
}

fn integer() -> impl Strategy<Value = i128> {
    prop_oneof![-9i128..10, -(1i128 << 63)..(1i128 << 64), Just(-(1i128 << 63)), Just((1i128 << 64) - 1)]
}

fn space() -> impl Strategy<Value = Space> {
    use Space::*;
    proptest::sample::select(vec![Reg, Shared, Const, Global, Local, Param])
}

fn init() -> impl Strategy<Value = Init> {
    let leaf = prop_oneof![
        integer().prop_map(Init::Integer),
        any::<u32>().prop_map(Init::F32),
        any::<u64>().prop_map(Init::F64),
        (name(), any::<i64>(), any::<bool>()).prop_map(|(name, offset, generic)| Init::Symbol {
            name,
            offset,
            generic
        }),
        (any::<u64>(), name(), any::<i64>(), any::<bool>()).prop_map(|(mask, name, offset, generic)| Init::Mask {
            mask,
            name,
            offset,
            generic
        }),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| vec(inner, 0..4).prop_map(Init::List))
}

prop_compose! {
    fn variable()(
        linkage in proptest::sample::select(vec![Linkage::Private, Linkage::Visible, Linkage::Extern, Linkage::Weak, Linkage::Common]),
        space in space(), align in option::of((0u32..10).prop_map(|n| 1 << n)), vector in option::of(prop_oneof![Just(2u8), Just(4)]),
        ty in ty(), name in name(), dims in vec(any::<u64>(), 0..3), count in option::of(any::<u32>()), init in option::of(init()),
    ) -> Variable {
        let count = if space == Space::Reg { count } else { None };
        Variable { linkage, align, vector, dims, count, init, ..Variable::new(space, ty, name) }
    }
}

prop_compose! {
    fn parameter()(
        align in option::of((0u32..10).prop_map(|n| 1 << n)), ty in ty(), name in name(), dims in vec(any::<u64>(), 0..2),
        pointer in option::of((
            option::of(proptest::sample::select(vec![Space::Global, Space::Const, Space::Local, Space::Shared])),
            option::of((0u32..10).prop_map(|n| 1 << n)),
        )),
    ) -> Variable {
        let pointer = pointer.map(|(space, align)| Pointer { space, align });
        Variable { align, dims, pointer, ..Variable::new(Space::Param, ty, name) }
    }
}

fn operand() -> impl Strategy<Value = Operand> {
    let leaf = prop_oneof![
        4 => register().prop_map(Operand::Name),
        2 => name().prop_map(Operand::Name),
        2 => integer().prop_map(Operand::Integer),
        1 => any::<u32>().prop_map(Operand::F32),
        1 => any::<u64>().prop_map(Operand::F64),
        2 => (prop_oneof![register(), name()], any::<i64>()).prop_map(|(base, offset)| Operand::address(base, offset)),
        1 => any::<u64>().prop_map(|at| Operand::Address { base: AddressBase::Absolute(at), offset: 0 }),
        1 => (name(), any::<i64>()).prop_map(|(name, offset)| Operand::SymbolOffset { name, offset }),
        1 => Just(Operand::Sink),
    ];
    let single = leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 1..5).prop_map(Operand::Vector),
            vec(inner.clone(), 0..4).prop_map(Operand::List),
            inner.prop_map(|operand| Operand::Not(Box::new(operand))),
        ]
    });
    prop_oneof![
        9 => single.clone(),
        1 => (single.clone(), single).prop_map(|(first, second)| Operand::Pair(Box::new(first), Box::new(second))),
    ]
}

prop_compose! {
    fn instruction()(
        guard in option::of((any::<bool>(), name()).prop_map(|(negated, register)| Guard { negated, register })),
        name in "[a-z][a-z0-9]{1,6}", modifiers in vec(prop_oneof!["[a-z][a-z0-9]{0,5}", Just("L2::128B".to_string())], 0..5),
        operands in vec(operand(), 0..5),
    ) -> Instruction {
        Instruction { guard, opcode: Opcode { name, modifiers }, operands, span: Span::NONE }
    }
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    vec("[a-z ]{0,8}", 1..3)
}

fn statement() -> impl Strategy<Value = Statement> {
    let leaf = prop_oneof![
        6 => instruction().prop_map(Statement::Instruction),
        2 => variable().prop_map(Statement::Variable),
        2 => name().prop_map(|name| Statement::Label { name, span: Span::NONE }),
        1 => texts().prop_map(Statement::Pragma),
        1 => (name(), vec(name(), 1..4)).prop_map(|(name, targets)| Statement::BranchTargets { name, targets, span: Span::NONE }),
        1 => (name(), vec(name(), 1..4)).prop_map(|(name, targets)| Statement::CallTargets { name, targets, span: Span::NONE }),
        1 => (name(), vec(parameter(), 0..2), vec(parameter(), 0..3), any::<bool>()).prop_map(
            |(name, returns, params, no_return)| Statement::CallPrototype { name, returns, params, no_return, span: Span::NONE }
        ),
    ];
    leaf.prop_recursive(3, 20, 5, |inner| vec(inner, 0..5).prop_map(Statement::Block))
}

fn directive() -> impl Strategy<Value = Directive> {
    prop_oneof![
        vec(any::<u32>(), 1..4).prop_map(Directive::MaxThreads),
        vec(any::<u32>(), 1..4).prop_map(Directive::RequiredThreads),
        any::<u32>().prop_map(Directive::MinBlocksPerSm),
        any::<u32>().prop_map(Directive::MaxBlocksPerSm),
        any::<u32>().prop_map(Directive::MaxRegisters),
        Just(Directive::NoReturn),
        texts().prop_map(Directive::Pragma),
    ]
}

prop_compose! {
    fn function()(
        linkage in proptest::sample::select(vec![Linkage::Private, Linkage::Visible, Linkage::Extern, Linkage::Weak]),
        entry in any::<bool>(), name in name(), returns in vec(parameter(), 0..2), params in vec(parameter(), 0..4),
        directives in vec(directive(), 0..3), body in option::of(vec(statement(), 0..10)),
    ) -> Function {
        let (kind, returns) = if entry { (FunctionKind::Entry, Vec::new()) } else { (FunctionKind::Func, returns) };
        Function { linkage, kind, name, returns, params, directives, body, span: Span::NONE }
    }
}

fn item() -> impl Strategy<Value = Item> {
    prop_oneof![
        3 => variable().prop_map(Item::Variable),
        3 => function().prop_map(Item::Function),
        1 => texts().prop_map(Item::Pragma),
        1 => (name(), name()).prop_map(|(name, target)| Item::Alias { name, target, span: Span::NONE }),
    ]
}

prop_compose! {
    pub fn module()(
        version in any::<(u32, u32)>(), target in vec("sm_[0-9]{2}", 1..3), address_size in any::<u32>(), items in vec(item(), 0..5),
    ) -> Module {
        Module { version, target, address_size, items }
    }
}
