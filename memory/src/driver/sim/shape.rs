//! What a multiprocessor holds, by compute capability: how large thread blocks may be, and how many of them fit.
//!
//! ```text
//!            shared memory, KiB                      threads  blocks
//!            multiprocessor   block   if asked for
//!   sm_70          96          48          96         2,048     32      V100
//!   sm_75          64          48          64         1,024     16      T4, RTX 20
//!   sm_86         100          48          99         1,536     16      A10, RTX 30
//!   sm_90         228          48         227         2,048     32      H100, H200: the default
//!   sm_120        100          48          99         1,536     24      RTX 50
//! ```
//!
//! All of them  65,536 registers of 32 bits, 255 a thread at most, handed out eight a thread at a time; blocks of
//!              1,024 threads.
//! Driver       keeps 1 KiB of shared memory of each resident block, from sm_80 on.
//! After        CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".

use millpond_ptx::interpret::KernelInfo;

pub(super) const MAX_THREADS_PER_BLOCK: u32 = 1024;
pub(super) const REGISTERS_PER_MULTIPROCESSOR: u32 = 65536;
const MAX_REGISTERS_PER_THREAD: u32 = 255;
/// Allocation unit of registers per thread.
const REGISTER_UNIT: u32 = 8;
/// An assembler uses no fewer.
const LEAST_REGISTERS: u32 = 16;

/// The limits of a simulated device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub compute_capability: (u32, u32),
    pub shared_bytes_per_multiprocessor: u32,
    /// What every launch may have, static and dynamic together.
    pub shared_bytes_per_block: u32,
    /// With `Kernel::allow_shared`.
    pub shared_bytes_per_block_optin: u32,
    /// What the driver keeps of the shared memory of each resident block.
    pub shared_bytes_reserved: u32,
    pub threads_per_multiprocessor: u32,
    pub blocks_per_multiprocessor: u32,
}

impl Shape {
    pub const SM_70: Shape = Shape {
        compute_capability: (7, 0),
        shared_bytes_per_multiprocessor: 96 << 10,
        shared_bytes_per_block: 48 << 10,
        shared_bytes_per_block_optin: 96 << 10,
        shared_bytes_reserved: 0,
        threads_per_multiprocessor: 2048,
        blocks_per_multiprocessor: 32,
    };
    pub const SM_75: Shape = Shape {
        compute_capability: (7, 5),
        shared_bytes_per_multiprocessor: 64 << 10,
        shared_bytes_per_block_optin: 64 << 10,
        threads_per_multiprocessor: 1024,
        blocks_per_multiprocessor: 16,
        ..Shape::SM_70
    };
    pub const SM_86: Shape = Shape {
        compute_capability: (8, 6),
        shared_bytes_per_multiprocessor: 100 << 10,
        shared_bytes_per_block_optin: 99 << 10,
        shared_bytes_reserved: 1 << 10,
        threads_per_multiprocessor: 1536,
        blocks_per_multiprocessor: 16,
        ..Shape::SM_70
    };
    pub const SM_90: Shape = Shape {
        compute_capability: (9, 0),
        shared_bytes_per_multiprocessor: 228 << 10,
        shared_bytes_per_block_optin: 227 << 10,
        shared_bytes_reserved: 1 << 10,
        ..Shape::SM_70
    };
    pub const SM_120: Shape = Shape { compute_capability: (12, 0), blocks_per_multiprocessor: 24, ..Shape::SM_86 };

    pub const ALL: [Shape; 5] = [Shape::SM_70, Shape::SM_75, Shape::SM_86, Shape::SM_90, Shape::SM_120];

    /// The newest target that it runs: 90 for sm_90.
    pub fn target(self) -> u32 {
        self.compute_capability.0 * 10 + self.compute_capability.1
    }

    /// As in `sm_90`.
    pub fn name(self) -> String {
        format!("sm_{}", self.target())
    }

    /// The shape called `name`, one of [`Shape::ALL`].
    pub fn named(name: &str) -> Option<Shape> {
        Shape::ALL.into_iter().find(|shape| shape.name() == name)
    }

    /// Registers that a block of `threads` threads takes.
    pub(super) fn block_registers(kernel: &KernelInfo, threads: u32) -> u32 {
        registers(kernel).next_multiple_of(REGISTER_UNIT) * threads.next_multiple_of(32)
    }

    /// Thread blocks that a multiprocessor holds at once.
    pub(super) fn resident_blocks(self, kernel: &KernelInfo, threads: u32, dynamic_shared_bytes: u32) -> u32 {
        let shared = kernel.static_shared_bytes.saturating_add(dynamic_shared_bytes);
        let shared = shared.saturating_add(self.shared_bytes_reserved).max(1);
        let by_threads = self.threads_per_multiprocessor / threads.next_multiple_of(32);
        let by_registers = REGISTERS_PER_MULTIPROCESSOR / Shape::block_registers(kernel, threads);
        let by_shared = self.shared_bytes_per_multiprocessor / shared;
        by_threads.min(by_registers).min(by_shared).min(self.blocks_per_multiprocessor)
    }
}

/// Registers of a thread: what is live at once, within what the kernel's own directives and the hardware allow. What an
/// assembler makes of the same PTX is within a few of it (`kernels/images/resources.txt`); where it would spill,
/// nothing is.
pub(super) fn registers(kernel: &KernelInfo) -> u32 {
    let resident = kernel.max_threads.map(|threads| threads.next_multiple_of(32) * kernel.min_blocks.unwrap_or(1));
    let allowed = resident.map_or(MAX_REGISTERS_PER_THREAD, |threads| {
        let each = REGISTERS_PER_MULTIPROCESSOR / threads.max(1);
        (each - each % REGISTER_UNIT).clamp(LEAST_REGISTERS, MAX_REGISTERS_PER_THREAD)
    });
    let allowed = allowed.min(kernel.max_registers.unwrap_or(MAX_REGISTERS_PER_THREAD));
    kernel.live_words.max(LEAST_REGISTERS).min(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(live_words: u32, max_threads: Option<u32>, min_blocks: Option<u32>) -> KernelInfo {
        KernelInfo {
            name: "k".into(),
            params: vec![],
            param_bytes: 0,
            static_shared_bytes: 4 << 10,
            local_bytes: 0,
            registers: 1000,
            live_words,
            max_threads,
            min_blocks,
            max_registers: None,
            required_threads: None,
        }
    }

    #[test]
    fn names_are_found_again() {
        for shape in Shape::ALL {
            assert_eq!(Shape::named(&shape.name()), Some(shape));
        }
        assert_eq!(Shape::named("sm_90"), Some(Shape::SM_90));
        assert_eq!(Shape::named("sm_91"), None);
    }

    #[test]
    fn registers_are_what_is_live_within_what_is_allowed() {
        assert_eq!(registers(&kernel(3, None, None)), 16);
        assert_eq!(registers(&kernel(100, None, None)), 100);
        assert_eq!(registers(&kernel(400, None, None)), 255);
        assert_eq!(registers(&kernel(400, Some(512), None)), 128, "512 of them fill the file");
        assert_eq!(registers(&kernel(400, Some(512), Some(2))), 64);
        assert_eq!(registers(&KernelInfo { max_registers: Some(40), ..kernel(400, None, None) }), 40);
    }

    #[test]
    fn the_scarcest_of_four_decides_how_many_blocks_fit() {
        let blocks =
            |shape: Shape, live, threads, shared| shape.resident_blocks(&kernel(live, None, None), threads, shared);
        assert_eq!(blocks(Shape::SM_90, 16, 1024, 0), 2, "threads");
        assert_eq!(blocks(Shape::SM_75, 16, 1024, 0), 1);
        assert_eq!(blocks(Shape::SM_86, 16, 1024, 0), 1);
        assert_eq!(blocks(Shape::SM_90, 16, 32, 0), 32, "blocks");
        assert_eq!(blocks(Shape::SM_120, 16, 32, 0), 20, "shared memory, with what the driver keeps");
        assert_eq!(blocks(Shape::SM_70, 16, 32, 44 << 10), 2, "shared memory");
        assert_eq!(blocks(Shape::SM_90, 65, 256, 0), 3, "registers, eight at a time");
        assert_eq!(blocks(Shape::SM_90, 255, 512, 0), 0, "more than there are");
    }
}
