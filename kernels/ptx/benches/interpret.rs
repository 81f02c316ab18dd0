//! Throughput of the interpreter with all checks on, in lane-instructions per second.
//!
//! Varies   kernel: streaming (three columns, coalesced), narrow (bytes), hash (random atomics), shared (a block scan)
//!          mode: all checks, all checks with a seed (random order and values), no checks
//! Holds    one core, a heap made once
//! Reports  lane-instructions per second, printed, and criterion's time per launch
//! Proof    the output's checksum, compared with plain Rust before anything is timed

use criterion::{Criterion, criterion_group, criterion_main};
use millpond_ptx::interpret::{Checks, Fill, Heap, Image, Launch, Options, Report, run};
use std::time::{Duration, Instant};

const HEADER: &str = ".version 8.2\n.target sm_70\n.address_size 64\n";

/// out[i] = a[i] * b[i] + i, a grid-stride loop.
const STREAM: &str = ".visible .entry k(.param .u64 a, .param .u64 b, .param .u64 out, .param .u64 rows) {
 .reg .pred %p<4>; .reg .b32 %r<12>; .reg .b64 %rd<12>;
 ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [out]; ld.param.u64 %rd4, [rows]; cvt.u32.u64 %r1, %rd4;
 mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.s32 %r5, %r2, %r3, %r4; mov.u32 %r6, %nctaid.x; mul.lo.s32 %r6, %r6, %r3;
 setp.ge.u32 %p1, %r5, %r1; @%p1 bra done;
loop: mul.wide.u32 %rd5, %r5, 4; add.s64 %rd6, %rd1, %rd5; ld.global.nc.u32 %r7, [%rd6]; add.s64 %rd7, %rd2, %rd5; ld.global.nc.u32 %r8, [%rd7];
 mad.lo.s32 %r9, %r7, %r8, %r5; add.s64 %rd8, %rd3, %rd5; st.global.u32 [%rd8], %r9;
 add.s32 %r5, %r5, %r6; setp.lt.u32 %p1, %r5, %r1; @%p1 bra loop;
done: ret; }";

/// out[i] = a[i] + b[i] over bytes.
const NARROW: &str = ".visible .entry k(.param .u64 a, .param .u64 b, .param .u64 out, .param .u64 rows) {
 .reg .pred %p<4>; .reg .b32 %r<12>; .reg .b64 %rd<12>;
 ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [out]; ld.param.u64 %rd4, [rows]; cvt.u32.u64 %r1, %rd4;
 mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.s32 %r5, %r2, %r3, %r4; mov.u32 %r6, %nctaid.x; mul.lo.s32 %r6, %r6, %r3;
 setp.ge.u32 %p1, %r5, %r1; @%p1 bra done;
loop: cvt.u64.u32 %rd5, %r5; add.s64 %rd6, %rd1, %rd5; ld.global.nc.u8 %r7, [%rd6]; add.s64 %rd7, %rd2, %rd5; ld.global.nc.u8 %r8, [%rd7];
 add.u32 %r9, %r7, %r8; add.s64 %rd8, %rd3, %rd5; st.global.u8 [%rd8], %r9;
 add.s32 %r5, %r5, %r6; setp.lt.u32 %p1, %r5, %r1; @%p1 bra loop;
done: ret; }";

/// Counts keys of `a` in an open-addressing table in `out`: 2^16 slots of key and count; `b` is not read.
const HASH: &str = ".visible .entry k(.param .u64 a, .param .u64 b, .param .u64 out, .param .u64 rows) {
 .reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %rd<12>;
 ld.param.u64 %rd1, [a]; ld.param.u64 %rd3, [out]; ld.param.u64 %rd4, [rows]; cvt.u32.u64 %r1, %rd4;
 mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.s32 %r5, %r2, %r3, %r4; mov.u32 %r6, %nctaid.x; mul.lo.s32 %r6, %r6, %r3;
 setp.ge.u32 %p1, %r5, %r1; @%p1 bra done;
loop: mul.wide.u32 %rd5, %r5, 4; add.s64 %rd6, %rd1, %rd5; ld.global.nc.u32 %r7, [%rd6]; and.b32 %r7, %r7, 32767; add.u32 %r7, %r7, 1;
 mul.lo.u32 %r8, %r7, 0x9E3779B1; shr.u32 %r8, %r8, 16;
probe: mul.wide.u32 %rd7, %r8, 8; add.s64 %rd8, %rd3, %rd7; ld.relaxed.gpu.global.u32 %r9, [%rd8]; setp.eq.u32 %p2, %r9, %r7; @%p2 bra count;
 setp.ne.u32 %p3, %r9, 0; @%p3 bra next;
 atom.global.cas.b32 %r9, [%rd8], 0, %r7; setp.eq.u32 %p2, %r9, 0; @%p2 bra count; setp.eq.u32 %p2, %r9, %r7; @%p2 bra count;
next: add.u32 %r8, %r8, 1; and.b32 %r8, %r8, 65535; bra probe;
count: red.global.add.u32 [%rd8+4], 1;
 add.s32 %r5, %r5, %r6; setp.lt.u32 %p1, %r5, %r1; @%p1 bra loop;
done: ret; }";

/// out[i] = sum of a over the block's tile of 256 up to i, by a scan in shared memory.
const SHARED: &str = ".visible .entry k(.param .u64 a, .param .u64 b, .param .u64 out, .param .u64 rows) {
 .reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %rd<12>; .shared .align 4 .b8 s[1024];
 ld.param.u64 %rd1, [a]; ld.param.u64 %rd3, [out]; ld.param.u64 %rd4, [rows]; cvt.u32.u64 %r1, %rd4;
 mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.s32 %r5, %r2, %r3, %r4; mov.u32 %r6, %nctaid.x; mul.lo.s32 %r6, %r6, %r3;
 mov.u32 %r10, s; shl.b32 %r11, %r4, 2; add.u32 %r10, %r10, %r11;
loop: mul.wide.u32 %rd5, %r5, 4; add.s64 %rd6, %rd1, %rd5; ld.global.u32 %r7, [%rd6]; st.shared.u32 [%r10], %r7; bar.sync 0; mov.u32 %r8, 1;
step: setp.ge.u32 %p2, %r4, %r8; shl.b32 %r9, %r8, 2; sub.u32 %r9, %r10, %r9; mov.u32 %r12, 0; @%p2 ld.shared.u32 %r12, [%r9]; bar.sync 0;
 add.u32 %r7, %r7, %r12; st.shared.u32 [%r10], %r7; bar.sync 0; shl.b32 %r8, %r8, 1; setp.lt.u32 %p3, %r8, 256; @%p3 bra step;
 add.s64 %rd8, %rd3, %rd5; st.global.u32 [%rd8], %r7;
 add.s32 %r5, %r5, %r6; setp.lt.u32 %p1, %r5, %r1; @%p1 bra loop;
 ret; }";

struct Case {
    image: Image,
    heap: Heap,
    params: Vec<u8>,
    out: u64,
    out_bytes: u64,
}

impl Case {
    fn new(text: &str, rows: u64, out_bytes: u64) -> Case {
        let module = millpond_ptx::parse(&format!("{HEADER}{text}")).expect("the bench's PTX parses");
        let image = Image::load(&module).expect("the bench's PTX loads");
        let mut heap = Heap::new();
        let places = [0x7_0000_0000, 0x7_4000_0000, 0x7_8000_0000];
        for (place, bytes) in places.into_iter().zip([rows * 4, rows * 4, out_bytes]) {
            heap.allocate(place, bytes, Fill::Initialised(0)).expect("there is room");
        }
        for (index, place) in places[..2].iter().enumerate() {
            let data: Vec<u8> = (0..rows as u32).flat_map(|row| value(row, index as u32).to_le_bytes()).collect();
            heap.write(*place, &data).expect("it was just allocated");
        }
        let params = places.iter().chain([&rows]).flat_map(|value| value.to_le_bytes()).collect();
        Case { image, heap, params, out: places[2], out_bytes }
    }

    fn launch(&mut self, options: &Options) -> Report {
        self.heap.set(self.out, &[0], self.out_bytes).expect("it was just allocated");
        let launch = Launch {
            kernel: "k",
            grid: [16, 1, 1],
            block: [256, 1, 1],
            dynamic_shared_bytes: 0,
            params: &self.params,
            globals: &[],
        };
        run(&self.image, &launch, &mut self.heap, options).unwrap_or_else(|fault| panic!("{fault}"))
    }

    fn words(&self) -> Vec<u32> {
        let bytes = self.heap.bytes(self.out, self.out_bytes).expect("it was just allocated");
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
    }
}

/// The value of input `index` at row `row`.
fn value(row: u32, index: u32) -> u32 {
    (row ^ index).wrapping_mul(2_654_435_761).rotate_left(7)
}

fn kernels(c: &mut Criterion) {
    // `cargo test --benches` runs every benchmark once with few rows; `cargo bench` passes `--bench`.
    let rows: u64 = if std::env::args().any(|arg| arg == "--bench") { 1 << 20 } else { 1 << 13 };
    let stream = |words: &[u32]| {
        (0..rows as u32).zip(words).all(|(n, &w)| w == value(n, 0).wrapping_mul(value(n, 1)).wrapping_add(n))
    };
    let bytes = |n: u32, index: u32| value(n / 4, index).to_le_bytes()[n as usize % 4];
    let narrow = |words: &[u32]| {
        let out = words.iter().flat_map(|word| word.to_le_bytes());
        (0..rows as u32).zip(out).all(|(n, w)| w == bytes(n, 0).wrapping_add(bytes(n, 1)))
    };
    let hash = |words: &[u32]| words.chunks(2).map(|slot| u64::from(slot[1])).sum::<u64>() == rows;
    let shared = |words: &[u32]| {
        let mut sum = 0_u32;
        (0..rows as u32).zip(words).all(|(n, &w)| {
            sum = if n % 256 == 0 { value(n, 0) } else { sum.wrapping_add(value(n, 0)) };
            w == sum
        })
    };
    type Proof<'a> = &'a dyn Fn(&[u32]) -> bool;
    let cases: [(&str, &str, u64, Proof<'_>); 4] = [
        ("streaming", STREAM, rows * 4, &stream),
        ("narrow", NARROW, rows, &narrow),
        ("hash", HASH, 8 << 16, &hash),
        ("shared", SHARED, rows * 4, &shared),
    ];
    let mut group = c.benchmark_group("interpret");
    group.sample_size(10);
    for (name, text, out_bytes, proof) in cases {
        let mut case = Case::new(text, rows, out_bytes);
        let ways =
            [("checked", Checks::ALL, None), ("seeded", Checks::ALL, Some(1)), ("unchecked", Checks::NONE, None)];
        for (how, checks, seed) in ways {
            let options = Options { checks, seed, ..Options::default() };
            let report = case.launch(&options);
            assert!(proof(&case.words()), "{name} gives wrong answers");
            let mut best = 0.0_f64;
            group.bench_function(format!("{name}/{how}"), |b| {
                b.iter_custom(|count| {
                    let mut spent = Duration::ZERO;
                    for _ in 0..count {
                        let start = Instant::now();
                        std::hint::black_box(case.launch(&options));
                        spent += start.elapsed();
                    }
                    let rate = report.lane_instructions as f64 * count as f64 / spent.as_secs_f64();
                    best = best.max(rate);
                    spent
                });
            });
            if best > 0.0 {
                println!("interpret/{name}/{how}: {:.0} million lane-instructions a second at best", best / 1e6);
            }
        }
    }
    group.finish();
}

criterion_group!(benches, kernels);
criterion_main!(benches);
