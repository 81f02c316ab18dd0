//! Damaged PTX never panics: it is rejected, stopped by a fault, or runs.

use crate::device::*;
use millpond_ptx::interpret::{Heap, Image, Launch, Options, run};
use proptest::prelude::*;

/// Texts with many constructs: the compiler's module, and a kernel with lanes, barriers, calls and atomics.
fn texts() -> Vec<String> {
    let ours = format!(
        "{HEADER}.global .align 8 .u64 links[2] = {{f, table}};\n.global .align 4 .u32 table[4] = {{1, 2, 3, 4}};\n\
.func (.param .align 8 .b8 out[16]) f(.param .b64 a, .reg .b32 b) {{\n.reg .b64 %rd<4>;\nld.param.u64 %rd1, [a];\ncvt.u64.u32 %rd2, b;\n\
st.param.v2.b64 [out], {{%rd1, %rd2}};\nret;\n}}\n{}",
        kernel(
            1,
            ".shared .align 8 .b8 s[256];
.local .align 8 .b8 depot[32];
ld.param.u64 %rd1, [p0];
mov.u32 %r1, %tid.x;
mov.u32 %r2, s;
shl.b32 %r3, %r1, 2;
add.u32 %r2, %r2, %r3;
st.shared.u32 [%r2], %r1;
bar.sync 0;
shfl.sync.bfly.b32 %r4|%p1, %r1, 1, 31, -1;
vote.sync.ballot.b32 %r5, %p1, -1;
match.any.sync.b32 %r6, %r4, -1;
bar.warp.sync -1;
{ .param .b64 x0; .param .align 8 .b8 r0[16];
st.param.b64 [x0], %rd1;
call (r0), f, (x0, %r1);
ld.param.v2.b64 {%rd5, %rd6}, [r0]; }
mov.u64 %rd7, depot;
st.local.u64 [%rd7+8], %rd5;
cvta.local.u64 %rd8, %rd7;
ld.u64 %rd9, [%rd8+8];
and.b32 %r7, %r1, 3;
list: .branchtargets a, b, a, b;
brx.idx %r7, list;
a: atom.global.add.u32 %r8, [%rd1], 1;
membar.gl;
bra c;
b: red.release.gpu.global.max.u32 [%rd1+4], %r1;
c: setp.lt.u32 %p2, %r8, 60;
@%p2 bra c2;
ld.acquire.gpu.global.u32 %r9, [%rd1+4];
c2: st.volatile.global.u32 [%rd1+8], %r9;
bar.red.popc.u32 %r10, 1, %p2;",
        )
    );
    vec![ours, include_str!("../ptx/nvrtc.ptx").to_string()]
}

/// One change of a text: an operation on a line, or on a word of it.
#[derive(Debug, Clone)]
enum Change {
    Drop(usize),
    Repeat(usize, usize),
    Word(usize, usize, usize),
}

const WORDS: [&str; 34] = [
    "0",
    "1",
    "-1",
    "31",
    "32",
    "4294967296",
    "18446744073709551615",
    "%r1",
    "%rd1",
    "%p1",
    "s",
    "f",
    "table",
    "depot",
    "p0",
    "a",
    ".align 3",
    ".align 4096",
    "[1048576]",
    "<100000000>",
    "[%rd1]",
    "[%rd1+-8]",
    "[s+252]",
    "[0]",
    "{%r1, %r2}",
    "_",
    "u8",
    "s64",
    "f32",
    "pred",
    "shared",
    "local",
    "v4",
    "acquire",
];

fn apply(text: &str, changes: &[Change]) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
    for change in changes {
        // Header lines are unchanged: without them every text is rejected at once.
        let rest = lines.len() - 3;
        let place = |n: usize| 3 + n % rest;
        match *change {
            Change::Drop(at) => {
                lines.remove(place(at));
            }
            Change::Repeat(from, to) => {
                let line = lines[place(from)].clone();
                let to = place(to);
                lines.insert(to, line);
            }
            Change::Word(at, word, new) => {
                let line = &mut lines[place(at)];
                let ends = |c: char| !c.is_ascii_alphanumeric() && !matches!(c, '%' | '_');
                let words: Vec<(usize, usize)> = line
                    .split(ends)
                    .map(|part| (part.as_ptr() as usize - line.as_ptr() as usize, part.len()))
                    .filter(|(_, len)| *len > 0)
                    .collect();
                if let Some(&(start, len)) = words.get(word % words.len().max(1)) {
                    line.replace_range(start..start + len, WORDS[new % WORDS.len()]);
                }
            }
        }
    }
    lines.join("\n")
}

fn change() -> impl Strategy<Value = Change> {
    let n = 0..10_000_usize;
    prop_oneof![
        n.clone().prop_map(Change::Drop),
        (n.clone(), n.clone()).prop_map(|(a, b)| Change::Repeat(a, b)),
        (n.clone(), n.clone(), n).prop_map(|(a, b, c)| Change::Word(a, b, c)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_modules_never_panic(
        which in 0..2_usize,
        changes in prop::collection::vec(change(), 0..5),
        seed in prop::option::of(any::<u64>()),
    ) {
        let text = apply(&texts()[which], &changes);
        if let Ok(module) = millpond_ptx::parse(&text)
            && let Ok(image) = Image::load(&module)
        {
            attempt(&image, seed);
        }
    }
}

fn attempt(image: &Image, seed: Option<u64>) {
    let mut heap = Heap::new();
    let mut next = 0x7_0000_0000;
    let mut globals = Vec::new();
    for global in image.globals() {
        if global.size > 1 << 24 {
            return;
        }
        heap.allocate(next, global.size.max(1), millpond_ptx::interpret::Fill::Initialised(0)).expect("there is room");
        globals.push(next);
        next += global.size.next_multiple_of(256) + 512;
    }
    let buffer = next;
    heap.allocate(buffer, 4096, millpond_ptx::interpret::Fill::Initialised(0)).expect("there is room");
    let options = Options {
        seed,
        max_warp_instructions: 20_000,
        max_idle_instructions: 10_000,
        max_call_depth: 20,
        ..Options::default()
    };
    for info in image.kernels() {
        let mut params = vec![0; info.param_bytes as usize];
        params.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&u64::to_le_bytes(buffer)));
        let launch = Launch {
            kernel: &info.name,
            grid: [2, 1, 1],
            block: [48, 1, 1],
            dynamic_shared_bytes: 256,
            params: &params,
            globals: &globals,
        };
        if let Err(fault) = run(image, &launch, &mut heap, &options) {
            assert!(!fault.to_string().is_empty());
        }
    }
}

#[test]
fn the_undamaged_texts_load() {
    for text in texts() {
        let image = Image::load(&millpond_ptx::parse(&text).unwrap()).unwrap();
        assert!(!image.kernels().is_empty());
    }
}
