//! The table of the checklist's lines: what each asks, which claims stand for it, and where they run.
//!
//!   S1.10 │ allocate, use and free on three streams │ `order/three_streams` … │ each strategy │ sim, shim, cuda
//!
//! Printed    as `docs/memory-conformance.md` by a test, which fails when the page is stale, when a line has no claim,
//!            or when a claim names a line that is not here.

use std::fmt::Write as _;

use super::{Claim, Needs, Over, claims};

/// A line of the checklist that can be tested, and what it asks.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    pub id: &'static str,
    pub rule: &'static str,
}

const fn line(id: &'static str, rule: &'static str) -> Line {
    Line { id, rule }
}

/// A test that is no claim: of a feature that one device and one process cannot show, or of another crate.
#[derive(Clone, Copy, Debug)]
pub struct Elsewhere {
    pub lines: &'static [&'static str],
    /// The file, from the root of the repository, and the test in it.
    pub file: &'static str,
    pub test: &'static str,
    /// What it runs on.
    pub on: &'static str,
}

/// Lines that can be tested, in order.
pub const LINES: &[Line] = &[
    line("S0.6", "a successful allocation is usable in its stream's order; its result must be looked at"),
    line("S0.7", "on the allocating stream nothing more is needed"),
    line("S0.8", "another stream waits for an event behind the allocation"),
    line("S0.9", "or the host waits past the allocation: then every stream may use it"),
    line("S0.10", "a free comes after every stream that used the memory"),
    line("S0.11", "allocating, using and freeing streams may all differ"),
    line(
        "S0.14",
        "the default pool is a device's current pool until another is set; an allocation that names none takes the current one",
    ),
    line("S0.16", "a freed block serves the next allocation; a synchronisation gives back the unused rest"),
    line("S0.17", "the release threshold is what a synchronisation leaves at most"),
    line("S0.18", "in a loop with a synchronisation each round, a threshold above zero makes rounds reuse memory"),
    line("S0.19", "reuse without an explicit dependency varies from run to run, and can be switched off"),
    line("S0.20", "switches for opportunistic reuse and for internal dependencies"),
    line("S1.6", "the pool or the stream decides the device, not the thread"),
    line("S1.7", "an address is valid from its allocation to its free, in stream order"),
    line("S1.8", "a use that nothing orders behind the allocation is undefined: found"),
    line("S1.9", "a use once the free has begun is undefined: found"),
    line("S1.10", "allocate, use and free on three streams, tied by events"),
    line("S1.11", "plain memory may be freed in stream order, behind its uses"),
    line("S1.12", "a pool's memory may be freed plainly; that does not wait"),
    line("S1.13", "before such a free the host waits itself"),
    line("S1.15", "a device's current pool is local to it: allocations that name no pool land on the stream's device"),
    line("S1.16", "each device has a default pool, reachable from its device, and not exportable"),
    line("S1.17", "explicit pools are made for a kind of memory and a place"),
    line("S1.18", "only explicit pools have a handle type, a maximum size, or a place on a host node"),
    line("S1.19", "access to a pool from another GPU is the pool's own setting, not that of contexts"),
    line("S1.20", "a pool's own device has access, which cannot be taken away"),
    line("S1.21", "a device that is given access must be capable of it"),
    line("S1.22", "access holds for all of a pool's allocations, earlier and later"),
    line(
        "S1.23",
        "on an empty pool the driver may accept an impossible peer and fail the next allocation: checked first",
    ),
    line("S1.24", "access is given once and stays"),
    line("S1.25", "an impossible peer is refused in our own words, before the driver is asked"),
    line("S1.26", "a pool is shared between processes in two steps"),
    line("S1.27", "first the pool: exported, carried by the system, imported"),
    line("S1.28", "then an allocation: its data is opaque and travels in any way"),
    line("S1.29", "an imported pool is reachable from its own device alone until the importer says more"),
    line("S1.30", "importing does not wait for the allocation: an event between the processes does"),
    line("S1.31", "the importer frees before the exporter; its free does not end the exporter's use"),
    line("S1.32", "a shared pool gives no memory back: no trim, no threshold"),
    line("S1.33", "an imported pool cannot allocate or be current, and counts only what it imported"),
    line("S1.34", "this is the driver's behaviour and may change: refused by our types, not by trust in the driver"),
    line("S1.35", "ask the driver's version first, then whether pools and handle types are supported"),
    line("S1.36", "pools stay small by default; the highest threshold keeps memory"),
    line("S1.37", "to shrink a pool, synchronise, then trim"),
    line("S1.38", "a high threshold leaves shrinking to the program; a trim keeps what it is told"),
    line("S1.39", "reserved and used bytes, and their watermarks since the last reset"),
    line(
        "S1.40",
        "reuse comes before the system; the same stream has it at once, every stream after a synchronisation",
    ),
    line("S1.41", "reuse along event chains"),
    line("S1.42", "reuse of what the freeing stream has passed in fact"),
    line("S1.43", "reuse behind a dependency that the driver inserts"),
    line("S1.44", "switch reuse off for repeatable runs, and then synchronise oneself when memory is short"),
    line("S1.45", "each kind of synchronisation retires frees and looks at the threshold"),
    line("S1.47", "asking for the attributes of a freed address is undefined: found, and not expressible by our types"),
    line("S1.48", "a memset node in a graph does not take a pool's memory; a captured memset does"),
    line("S1.49", "pointer attributes: no context, the device's ordinal, the pool"),
    line("S2.3", "several streams: one pool tied by events, or a pool each"),
    line("S2.6", "kernels allocate on the device, and learn when there is no room"),
    line("S3.2", "two measures: held by the allocator, in use by its callers"),
    line("S3.3", "a cache of our own and the driver's pool are both to be had"),
    line("S3.4", "a library with an allocating and a freeing C function replaces another allocator"),
    line("S3.5", "their signatures: size, device, stream; the free has the address first"),
    line("S3.14", "allocations come from a pool, and frees return to it"),
    line("S3.15", "the system is asked when a pool is short, and has unused memory back at a synchronisation"),
    line("S3.16", "the default threshold is zero"),
    line("S3.17", "a loop with a synchronisation each round then takes memory from the system each time"),
    line("S3.18", "the highest threshold ends that"),
    line("S3.22", "a pool's memory is its own device's until access is given for the whole pool"),
    line("S3.23", "a pool is exported as a handle over a socket"),
];

/// Lines that no test can hold, and why.
pub const UNTESTED: &[(&str, &str)] = &[
    (
        "S0.1, S0.4, S1.2, S2.4, S3.1, S3.11–S3.13, S3.19, S3.25",
        "about cost: measured by `millpond mem bench` and by criterion, and no test asserts on time",
    ),
    ("S0.2, S0.3, S0.5, S3.6, S3.9", "what a stream is; every claim here rests on it"),
    ("S0.12, S0.13, S1.14", "which functions and handles there are: stood for by S0.14 and S1.15–S1.18"),
    ("S0.15", "the driver remaps pages where nobody sees them; the simulated device does it in tests of its own"),
    ("S0.21, S1.3, S1.50, S1.51, S2.7–S2.9, S3.24", "about other programs, tools, or the documents themselves"),
    (
        "S1.1, S1.4, S3.7, S3.8",
        "that a call does not block shows only in time; the simulated device counts host waits, which S0.6–S0.9 use",
    ),
    ("S1.5", "per-thread default streams are not used; a stream from outside is wrapped"),
    ("S1.46", "contexts are set by the driver's wrapper at each call, as S1.6 shows"),
    ("S2.1, S2.2, S2.5", "the faults of a sample; the arena's own tests answer each"),
    ("S3.10, S3.20, S3.21", "what a caller does around capture and peers"),
];

/// Tests that are no claims.
pub const ELSEWHERE: &[Elsewhere] = &[
    Elsewhere {
        lines: &["S3.4"],
        file: "memory/tests/memory/shim/allocator.rs",
        test: "a_callers_day",
        on: "shim, through `dlopen`",
    },
    Elsewhere {
        lines: &["S3.4", "S3.5"],
        file: "memory/tests/memory/shim/allocator.rs",
        test: "the_library_the_header_and_the_docs_name_the_same_functions",
        on: "the library itself",
    },
    Elsewhere {
        lines: &["S3.5"],
        file: "memory/tests/memory/shim/allocator.rs",
        test: "the_header_compiles",
        on: "a C compiler, where there is one",
    },
    Elsewhere {
        lines: &["S3.5"],
        file: "memory/tests/memory/shim/allocator.rs",
        test: "errors_are_told_and_nothing_unwinds",
        on: "shim, through `dlopen`",
    },
    Elsewhere {
        lines: &["S0.19", "S1.42"],
        file: "memory/tests/memory/sim_pool.rs",
        test: "opportunistic_reuse_takes_what_has_been_freed_in_fact",
        on: "sim",
    },
    Elsewhere {
        lines: &["S2.6"],
        file: "kernels/tests/kernels/text_made.rs",
        test: "texts_are_made_as_rust_makes_them",
        on: "sim",
    },
    Elsewhere {
        lines: &["S2.6"],
        file: "kernels/tests/kernels/text_made.rs",
        test: "too_little_room_raises_the_flag_and_more_of_it_does",
        on: "sim",
    },
];

/// Where a claim runs.
fn drivers(claim: &Claim) -> &'static str {
    match (claim.needs, claim.finds) {
        _ if claim.only_simulated.is_some() => "sim",
        (Needs::TwoProcesses, _) => "sim",
        (_, Some(_)) => "sim, shim",
        (Needs::TwoDevices | Needs::DevicesApart, None) => "sim, shim, cuda with two devices",
        (Needs::Nothing, None) => "sim, shim, cuda",
    }
}

fn over(claim: &Claim) -> &'static str {
    match claim.over {
        Over::Each => "each strategy",
        Over::Pools => "`cuda_async`, `cuda_async_default`",
        Over::Driver => "the driver",
    }
}

/// Claims and other tests that stand for a line, each with where it runs.
fn witnesses(id: &str) -> Vec<(String, String)> {
    let own = claims().iter().filter(|claim| claim.lines.contains(&id));
    let own = own.map(|claim| (format!("`{}`", claim.name), format!("{} · {}", over(claim), drivers(claim))));
    let others = ELSEWHERE.iter().filter(|other| other.lines.contains(&id));
    own.chain(others.map(|other| (format!("`{}`", other.test), other.on.to_string()))).collect()
}

/// The page, as it must stand in `docs/memory-conformance.md`.
pub fn page() -> String {
    let mut page = String::from(
        "# What the memory layer promises\n\n\
         Printed from `memory/src/conformance` by a test of `millpond-memory`; change it there.\n\n\
         S0 is an introduction to the stream-ordered allocator, S1 the CUDA guide's chapter about it, S2 a pool that kernels\n\
         allocate from, S3 slides about allocators of deep learning. A claim is run by `cargo test` on the simulated device\n\
         (`sim`) under several seeds, through a libcuda that forwards into it (`shim`), and by `millpond selftest` on a GPU\n\
         (`cuda`). It must leave nothing in use and nothing found, except the claims of `found/`, which do what CUDA leaves\n\
         undefined: there exactly one kind of finding must be reported.\n\n\
         ## Lines\n\n\
         | line | rule | tests | run on |\n|---|---|---|---|\n",
    );
    for line in LINES {
        let (tests, on): (Vec<_>, Vec<_>) = witnesses(line.id).into_iter().unzip();
        let _ = writeln!(page, "| {} | {} | {} | {} |", line.id, line.rule, tests.join("<br>"), on.join("<br>"));
    }
    page.push_str("\n## Claims\n\n| claim | promise | run on | finds |\n|---|---|---|---|\n");
    for claim in claims() {
        let finds = claim.finds.map_or("nothing", |kind| kind.as_str());
        let _ =
            writeln!(page, "| `{}` | {} | {} · {} | {finds} |", claim.name, claim.claim, over(claim), drivers(claim));
    }
    page.push_str("\n## Lines that no test holds\n\n| lines | why |\n|---|---|\n");
    for (lines, why) in UNTESTED {
        let _ = writeln!(page, "| {lines} | {why} |");
    }
    page
}
