//! Limits of thread blocks match the device's shape, and launches beyond them are refused as in CUDA.

use super::sim_rig::{DEVICE, Rig};
use millpond_memory::Device;
use millpond_memory::driver::sim::{Shape, SimDriver, SimOptions};
use millpond_memory::driver::*;

fn rig(shape: Shape) -> Rig {
    Rig::with(SimOptions { shape, ..SimOptions::default() })
}

const HEADER: &str = ".version 8.2\n.target sm_70\n.address_size 64\n";

/// A kernel with `static_bytes` of static shared memory, and dynamic shared memory as launched.
fn shared_kernel(static_bytes: u32) -> String {
    format!(
        "{HEADER}.shared .align 8 .b8 own[{static_bytes}];\n.extern .shared .align 8 .b8 dynamic[];\n
.visible .entry k()\n{{ st.shared.u32 [own], 1; st.shared.u32 [dynamic], 1; ret; }}"
    )
}

/// A kernel with `values` live values at once.
fn wide_kernel(values: u32, directive: &str) -> String {
    let load = |n: u32| format!("ld.global.u32 %r{n}, [%d+{}];\n", n * 4);
    let store = |n: u32| format!("st.global.u32 [%d+{}], %r{n};\n", n * 4);
    let body: String = (0..values).map(load).chain((0..values).map(store)).collect();
    format!(
        "{HEADER}.visible .entry k(.param .u64 at) {directive}\n{{ .reg .b64 %d; .reg .b32 %r<{values}>;\nld.param.u64 %d, [at];\n{body}ret; }}"
    )
}

fn launch(rig: &Rig, function: FunctionHandle, threads: u32, shared_bytes: u32, params: &[u8]) -> Result<()> {
    let launch = KernelLaunch {
        function,
        name: "k",
        grid: [1, 1, 1],
        block: [threads, 1, 1],
        shared_bytes,
        params,
        accesses: &[],
        figures: None,
        site: std::panic::Location::caller(),
    };
    rig.driver.launch_checked(&launch, rig.stream())
}

#[test]
fn attributes_are_those_of_the_shape() {
    let expected = [
        (Shape::SM_70, (7, 0), 96, 96, 2048),
        (Shape::SM_75, (7, 5), 64, 64, 1024),
        (Shape::SM_86, (8, 6), 100, 99, 1536),
        (Shape::SM_90, (9, 0), 228, 227, 2048),
        (Shape::SM_120, (12, 0), 100, 99, 1536),
    ];
    assert_eq!(expected.map(|(shape, ..)| shape), Shape::ALL);
    for (shape, capability, shared, optin, threads) in expected {
        let device = Device::open(SimDriver::new(SimOptions { shape, ..SimOptions::default() }), 0).unwrap();
        let limits = device.limits();
        assert_eq!(limits.compute_capability, capability);
        assert_eq!(limits.shared_bytes_per_multiprocessor, shared << 10, "{shape:?}");
        assert_eq!(limits.shared_bytes_per_block_optin, optin << 10, "{shape:?}");
        assert_eq!(limits.shared_bytes_per_block, 48 << 10, "{shape:?}");
        assert_eq!(limits.max_threads_per_multiprocessor, threads, "{shape:?}");
        assert_eq!((limits.registers_per_multiprocessor, limits.max_threads_per_block), (65536, 1024), "{shape:?}");
    }
    assert_eq!(SimOptions::default().shape, Shape::SM_90);
}

#[test]
fn static_shared_memory_leaves_less_for_launches() {
    for shape in Shape::ALL {
        let rig = rig(shape);
        let kernel = rig.kernel(&shared_kernel(16), "k");
        let optin = shape.shared_bytes_per_block_optin;
        let allow = |bytes| rig.driver.function_set_max_dynamic_shared(kernel, bytes);
        launch(&rig, kernel, 32, (48 << 10) - 16, &[]).unwrap();
        let refused = launch(&rig, kernel, 32, (48 << 10) - 15, &[]).unwrap_err();
        assert_eq!(refused.code, DriverCode::INVALID_VALUE, "without asking, 48 KiB in all: {refused}");
        let refused = allow(optin).unwrap_err();
        assert_eq!(refused.code, DriverCode::INVALID_VALUE, "{refused}");
        assert!(refused.to_string().contains("16 of static shared memory"), "{refused}");
        allow(optin - 16).unwrap();
        launch(&rig, kernel, 32, optin - 16, &[]).unwrap();
        assert_eq!(rig.driver.occupancy(kernel, 32, optin - 16).unwrap(), 1, "{shape:?}");
        rig.driver.device_synchronize(DEVICE).unwrap();
        rig.assert_silent();
    }
}

#[test]
fn targets_newer_than_the_shape_are_refused() {
    for (shape, target, runs) in [
        (Shape::SM_70, "sm_70", true),
        (Shape::SM_70, "sm_75", false),
        (Shape::SM_75, "sm_75", true),
        (Shape::SM_86, "sm_90", false),
        (Shape::SM_90, "sm_90a", true),
        (Shape::SM_90, "sm_120", false),
        (Shape::SM_120, "sm_120", true),
    ] {
        let ptx = format!(".version 8.2\n.target {target}\n.address_size 64\n.visible .entry k() {{ ret; }}");
        let loaded = rig(shape).driver.module_load(DEVICE, &ptx);
        assert_eq!(loaded.is_ok(), runs, "{target} on {shape:?}");
        if let Err(error) = loaded {
            assert_eq!(error.code, DriverCode::NO_BINARY_FOR_GPU);
            assert!(error.to_string().contains(&shape.name()), "{error}");
        }
    }
}

#[test]
fn blocks_whose_registers_exceed_the_file_are_refused() {
    let rig = rig(Shape::SM_90);
    let registers = |kernel| rig.driver.function_attribute(kernel, FunctionAttribute::Registers).unwrap();
    let wide = rig.kernel(&wide_kernel(140, ""), "k");
    assert_eq!(registers(wide), 142, "140 values and an address");
    let stream = rig.stream();
    let at = rig.alloc(1024, stream);
    rig.fill(at, 0, 1024, stream);
    rig.driver.stream_synchronize(stream).unwrap();
    let params = at.0.to_le_bytes();
    let refused = launch(&rig, wide, 512, 0, &params).unwrap_err();
    assert_eq!(refused.code, DriverCode::LAUNCH_OUT_OF_RESOURCES);
    assert!(refused.to_string().contains("73728 registers"), "{refused}");
    assert_eq!(rig.driver.occupancy(wide, 512, 0).unwrap(), 0);
    assert_eq!(rig.driver.function_attribute(wide, FunctionAttribute::MaxThreadsPerBlock).unwrap(), 448);
    assert_eq!(rig.driver.occupancy(wide, 448, 0).unwrap(), 1);
    // A kernel that declares its maximum number of threads gets at most the registers available to them.
    let bounded = rig.kernel(&wide_kernel(140, ".maxntid 512"), "k");
    assert_eq!(registers(bounded), 128);
    assert_eq!(rig.driver.occupancy(bounded, 512, 0).unwrap(), 1);
    let few = rig.kernel(&wide_kernel(140, ".maxntid 512 .minnctapersm 2"), "k");
    assert_eq!((registers(few), rig.driver.occupancy(few, 512, 0).unwrap()), (64, 2));
    rig.assert_silent();
}
