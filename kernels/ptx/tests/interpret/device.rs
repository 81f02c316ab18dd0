//! A small device for tests: buffers, a parameter block, a launch.

use millpond_ptx::interpret::{
    Fault, FaultKind, Fill, GlobalInfo, Heap, Image, Launch, LoadError, Options, Report, run,
};

/// Header of every module in these tests.
pub const HEADER: &str = ".version 8.2\n.target sm_70\n.address_size 64\n";

pub struct Device {
    pub heap: Heap,
    next: u64,
}

/// An argument of a kernel.
#[derive(Debug, Clone, Copy)]
pub enum Arg {
    U32(u32),
    U64(u64),
}

pub fn load(text: &str) -> Result<Image, LoadError> {
    let module = millpond_ptx::parse(&format!("{HEADER}{text}")).expect("the test's PTX parses");
    Image::load(&module)
}

/// The image of a kernel `k` with parameters `p0`, `p1`, … (all `.u64`) and a body.
pub fn kernel(params: usize, body: &str) -> String {
    let params: Vec<String> = (0..params).map(|n| format!(".param .u64 p{n}")).collect();
    format!(
        ".visible .entry k({}) {{\n .reg .pred %p<20>; .reg .b16 %h<20>; .reg .b32 %r<60>; .reg .b64 %rd<60>;\n .reg .f32 %f<20>; .reg .f64 %fd<20>;\n{body}\n ret;\n}}\n",
        params.join(", ")
    )
}

impl Device {
    pub fn new() -> Device {
        Device { heap: Heap::new(), next: 0x7_0000_0000 }
    }

    /// Allocates memory that was never written.
    pub fn alloc(&mut self, bytes: u64) -> u64 {
        let base = self.next;
        self.next += bytes.next_multiple_of(256) + 256;
        self.heap.allocate(base, bytes, Fill::Uninitialised(0xCD)).expect("there is room");
        base
    }

    pub fn zeros(&mut self, bytes: u64) -> u64 {
        let base = self.alloc(bytes);
        self.heap.set(base, &[0], bytes).expect("it was just allocated");
        base
    }

    pub fn upload<T: Word>(&mut self, values: &[T]) -> u64 {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_bytes()).collect();
        let base = self.alloc(bytes.len() as u64);
        self.heap.write(base, &bytes).expect("it was just allocated");
        base
    }

    pub fn download<T: Word>(&self, address: u64, count: usize) -> Vec<T> {
        let size = size_of::<T>();
        let bytes = self.heap.bytes(address, (count * size) as u64).expect("the test reads its own buffers");
        bytes.chunks_exact(size).map(T::from_bytes).collect()
    }

    /// Allocates every module variable and writes its initial bytes.
    pub fn globals(&mut self, image: &Image) -> Vec<u64> {
        let sizes: Vec<u64> = image.globals().iter().map(|GlobalInfo { size, .. }| (*size).max(1)).collect();
        let addresses: Vec<u64> = sizes.into_iter().map(|size| self.alloc(size)).collect();
        for index in 0..addresses.len() {
            let bytes = image.initial_bytes(index, &addresses);
            self.heap.write(addresses[index], &bytes).expect("it was just allocated");
        }
        addresses
    }

    pub fn launch(
        &mut self,
        image: &Image,
        grid: u32,
        block: u32,
        args: &[Arg],
        options: &Options,
    ) -> Result<Report, Box<Fault>> {
        self.launch_as(image, "k", [grid, 1, 1], [block, 1, 1], 0, args, options)
    }

    #[expect(clippy::too_many_arguments, reason = "a launch has that many parts")]
    pub fn launch_as(
        &mut self,
        image: &Image,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        dynamic_shared_bytes: u32,
        args: &[Arg],
        options: &Options,
    ) -> Result<Report, Box<Fault>> {
        let globals = self.globals(image);
        let mut params = Vec::new();
        for arg in args {
            match arg {
                Arg::U32(value) => params.extend(value.to_le_bytes()),
                Arg::U64(value) => {
                    params.resize(params.len().next_multiple_of(8), 0);
                    params.extend(value.to_le_bytes());
                }
            }
        }
        let launch = Launch { kernel, grid, block, dynamic_shared_bytes, params: &params, globals: &globals };
        run(image, &launch, &mut self.heap, options)
    }

    /// Runs the body as kernel `k` with 64-bit parameters.
    pub fn body(&mut self, grid: u32, block: u32, args: &[u64], body: &str) -> Result<Report, Box<Fault>> {
        self.body_with(grid, block, args, body, &Options::default())
    }

    pub fn body_with(
        &mut self,
        grid: u32,
        block: u32,
        args: &[u64],
        body: &str,
        options: &Options,
    ) -> Result<Report, Box<Fault>> {
        let image = load(&kernel(args.len(), body)).unwrap_or_else(|error| panic!("{error}"));
        let args: Vec<Arg> = args.iter().map(|&value| Arg::U64(value)).collect();
        self.launch(&image, grid, block, &args, options)
    }
}

pub fn seeded(seed: u64) -> Options {
    Options { seed: Some(seed), ..Options::default() }
}

/// Returns the fault of a launch that must fail.
#[track_caller]
pub fn fault(result: Result<Report, Box<Fault>>) -> Box<Fault> {
    match result {
        Ok(_) => panic!("the launch passed; a fault must be found"),
        Err(fault) => fault,
    }
}

#[track_caller]
pub fn expect_fault(result: Result<Report, Box<Fault>>, kind: FaultKind) -> Box<Fault> {
    let fault = fault(result);
    assert_eq!(fault.kind, kind, "{fault}");
    fault
}

#[track_caller]
pub fn expect_ok(result: Result<Report, Box<Fault>>) -> Report {
    result.unwrap_or_else(|fault| panic!("{fault}"))
}

pub trait Word: Copy {
    fn to_bytes(self) -> Vec<u8>;
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! word {
    ($($ty:ty),*) => {$(
        impl Word for $ty {
            fn to_bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
            fn from_bytes(bytes: &[u8]) -> $ty {
                <$ty>::from_le_bytes(bytes.try_into().expect("chunks of the right size"))
            }
        }
    )*};
}
word!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);
