#!/usr/bin/env python3
"""PyTorch on Millpond's memory: real work on several streams, checked against the CPU, and timed against PyTorch's own allocator.

    cargo build --release -p millpond-memory --example millpond_allocator
    python memory/examples/torch_allocator.py --library target/release/examples/libmillpond_allocator.so

Needs a machine with an NVIDIA GPU and PyTorch, and nothing else. Ends with 0 if every check held, with 1 if one did not, with 2
if there is nothing to run on. A PyTorch process cannot change its allocator once it has one, so each part runs in a process of its
own:

    check     tensors on several streams and threads, record_stream, graphs, errors, statistics
    time      the same loop of allocations, small kernels and frees, under each allocator
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import threading
import time

# Our functions, and the setters by which PyTorch takes them. PyTorch wires allocate and free alone by itself.
HOOKS = {
    "set_init_fn": "millpond_init",
    "set_reset_fn": "millpond_reset",
    "set_memory_fraction_fn": "millpond_memory_fraction",
    "set_base_alloc_fn": "millpond_base_alloc",
    "set_record_stream_fn": "millpond_record_stream",
    "set_begin_allocate_to_pool": "millpond_begin_allocate_to_pool",
    "set_end_allocate_to_pool_fn": "millpond_end_allocate_to_pool",
    "set_release_pool": "millpond_release_pool",
}
STRATEGIES = ["cuda", "cuda_async_default", "cuda_async", "caching", "arena", "binning"]


class Library:
    """The C interface, for what PyTorch does not call."""

    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        self.c.millpond_alloc.restype = ctypes.c_void_p
        self.c.millpond_alloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.c.millpond_free.restype = None
        self.c.millpond_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        self.c.millpond_trim.restype = ctypes.c_int64
        self.c.millpond_trim.argtypes = [ctypes.c_int, ctypes.c_size_t]
        self.c.millpond_stats_json.restype = ctypes.c_int64
        self.c.millpond_stats_json.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
        self.c.millpond_last_error.restype = ctypes.c_char_p
        self.c.millpond_last_error.argtypes = []

    def last_error(self):
        words = self.c.millpond_last_error()
        return None if words is None else words.decode()

    def statistics(self, device=0):
        needed = self.c.millpond_stats_json(device, None, 0)
        if needed < 0:
            raise RuntimeError(self.last_error())
        room = ctypes.create_string_buffer(needed + 256)
        self.c.millpond_stats_json(device, room, len(room))
        return json.loads(room.value.decode())


def install(path):
    """Makes the library PyTorch's allocator. Before anything of CUDA is used."""
    import torch

    path = os.path.abspath(path)
    library = Library(path)
    allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "millpond_alloc", "millpond_free")
    native = allocator.allocator()
    for setter, name in HOOKS.items():
        take = getattr(native, setter, None)
        if take is None:
            # Without record_stream, memory that several streams use would be freed too early.
            if setter == "set_record_stream_fn":
                raise SystemExit(f"PyTorch {torch.__version__} has no {setter}: several streams cannot be used safely")
            print(f"PyTorch {torch.__version__} has no {setter}")
            continue
        take(ctypes.cast(getattr(library.c, name), ctypes.c_void_p).value)
    torch.cuda.memory.change_current_allocator(allocator)
    # PyTorch holds the functions by address: library and allocator stay as long as the process.
    install.kept = (library, allocator)
    return library


failures = []


def check(holds, words):
    print(("ok      " if holds else "FAILED  ") + words, flush=True)
    if not holds:
        failures.append(words)


def busy(torch, milliseconds=2):
    """Keeps the current stream busy, so that what is submitted behind it surely has not run when the host goes on."""
    sleep = getattr(torch.cuda, "_sleep", None)
    if sleep is not None:
        sleep(int(milliseconds * 1_500_000))


def check_streams(torch, library, rounds):
    """One stream makes a tensor, others read it late, and its memory is wanted again at once."""
    before = library.statistics()["record_streams"]
    streams = [torch.cuda.Stream() for _ in range(4)]
    main = torch.cuda.current_stream()
    wrong = 0
    for round in range(rounds):
        rows = 50_000 + 1_000 * (round % 7)
        expected = torch.arange(rows, dtype=torch.int64) * 3 + round
        source = expected.to("cuda")
        sums = []
        for number, stream in enumerate(streams):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                busy(torch)
                sums.append((source * (number + 1)).cumsum(0)[-1])
            source.record_stream(stream)
        del source
        # The bytes are free for the main stream now, as far as PyTorch knows; whoever gets them writes them.
        trash = [torch.full((rows,), -1, dtype=torch.int64, device="cuda") for _ in range(4)]
        del trash
        for number, (stream, total) in enumerate(zip(streams, sums)):
            main.wait_stream(stream)
            total.record_stream(main)
            wrong += int(total.item() != int(expected.sum()) * (number + 1))
    check(wrong == 0, f"{rounds} tensors read by {len(streams)} streams while their memory was freed: {wrong} wrong sums")
    recorded = library.statistics()["record_streams"] - before
    check(recorded >= rounds * len(streams), f"record_stream reached the library: {recorded} times")


def check_threads(torch, rounds):
    """Threads with streams of their own, freeing what they did not allocate."""
    wrong = []

    def work(number):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for round in range(rounds):
                    rows = 1 + (number * 7919 + round * 104_729) % 200_000
                    tensor = torch.full((rows,), number + 1, dtype=torch.int64, device="cuda")
                    parts = [tensor[:] * factor for factor in (1, 2, 3)]
                    del tensor
                    if int(sum(part.sum() for part in parts).item()) != rows * (number + 1) * 6:
                        wrong.append((number, round))
        except Exception as error:  # Of a thread, which nobody else would see.
            wrong.append((number, repr(error)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(not wrong, f"8 threads of {rounds} rounds: {wrong[:3] or 'all sums right'}")


def check_training(torch):
    """A small network: cuBLAS, autograd and its threads, an optimiser. The CPU does the same in the same precision."""
    def train(device):
        torch.manual_seed(7)
        model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 1)).double().to(device)
        data = torch.linspace(-1, 1, 512 * 64, dtype=torch.float64).reshape(512, 64).to(device)
        target = data.sum(1, keepdim=True).sin()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(25):
            optimiser.zero_grad()
            loss = torch.nn.functional.mse_loss(model(data), target)
            loss.backward()
            optimiser.step()
        return float(loss.item())

    device, host = train("cuda"), train("cpu")
    check(abs(device - host) <= 1e-9 + 1e-6 * abs(host), f"25 steps of training: loss {device:.12f}, on the CPU {host:.12f}")


def check_graphs(torch, library):
    """A graph keeps what it was captured with, whatever else is allocated between its replays."""
    rows = 100_000
    static = torch.zeros(rows, dtype=torch.float64, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # A warm-up, as PyTorch asks for before a capture.
        for _ in range(2):
            (static * 2 + 1).cumsum(0)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = static * 2
        plus = doubled + 1
        del doubled
        result = plus.cumsum(0)
        del plus
    held = library.statistics()["graph_bytes"]
    wrong = 0
    for round in range(20):
        static.fill_(round)
        trash = [torch.full((rows,), -7.0, dtype=torch.float64, device="cuda") for _ in range(6)]
        graph.replay()
        del trash
        expected = (2 * round + 1) * rows
        wrong += int(result[-1].item() != expected)
    check(wrong == 0, f"20 replays of a graph between other allocations: {wrong} wrong")
    check(held >= rows * 8, f"the graph had memory of its own: {held} bytes")
    del result
    graph.reset()
    del graph
    left = library.statistics()["graph_bytes"]
    check(left == 0, f"and gave it back when it was gone: {left} bytes left")


def check_errors(torch, library):
    """What is wrong is refused with words; nothing is freed twice."""
    c = library.c
    check(torch.empty(0, device="cuda").numel() == 0, "a tensor of no elements")
    check(c.millpond_alloc(-5, 0, None) is None and "-5 bytes" in (library.last_error() or ""), "a negative size")
    check(c.millpond_alloc(1 << 60, 0, None) is None, f"more than there is: {library.last_error()}")
    check("out of device memory" in (library.last_error() or ""), "is out of memory")
    ptr = c.millpond_alloc(1000, 0, None)
    check(ptr is not None and ptr % 256 == 0, f"an allocation of our own at {ptr or 0:#x}")
    c.millpond_free(ptr, 999, 0, None)
    check("it stays allocated" in (library.last_error() or ""), "a free with another size")
    c.millpond_free(ptr, 1000, 0, None)
    check(library.last_error() is None, "a free")
    c.millpond_free(ptr, 1000, 0, None)
    check("is not allocated" in (library.last_error() or ""), "a second free")


def child_check(arguments):
    import torch

    library = install(arguments.library)
    if not torch.cuda.is_available():
        print("PyTorch sees no GPU")
        return 2
    name = torch.cuda.get_device_name(0)
    first = torch.ones(1000, device="cuda")
    check(float(first.sum().item()) == 1000.0, f"PyTorch {torch.__version__} on {name}")
    statistics = library.statistics()
    wanted = os.environ.get("MILLPOND_MEMORY_RESOURCE") or "cuda_async"
    check(statistics["memory_resource"] == wanted, f"its memory comes from {statistics['memory_resource']}")
    check(statistics["live_allocations"] >= 1, "the library allocates for it")
    device_before = torch.cuda.current_device()
    check_streams(torch, library, arguments.rounds)
    check_threads(torch, arguments.rounds)
    check_training(torch)
    if not arguments.skip_graphs:
        check_graphs(torch, library)
    check(torch.cuda.current_device() == device_before, "the current device is what it was")
    errors = library.statistics()["errors"]
    check(errors == 0, f"PyTorch's own calls met {errors} errors")
    check_errors(torch, library)
    del first
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    statistics = library.statistics()
    check(statistics["leaked_bytes"] == 0, "nothing leaked")
    check(statistics["pending_frees"] == 0, "no free is outstanding")
    print(json.dumps(statistics, indent=2))
    return 1 if failures else 0


def child_time(arguments):
    """The same loop under either allocator: sizes from a fixed sequence, four streams, some memory shared by two."""
    import torch

    if arguments.allocator == "millpond":
        install(arguments.library)
    if not torch.cuda.is_available():
        return 2
    streams = [torch.cuda.Stream() for _ in range(4)]
    held = []

    def run(rounds):
        state = 12345
        for round in range(rounds):
            state = (state * 1_103_515_245 + 12_345) % (1 << 31)
            size = 1 << (10 + state % 15)  # 1 KiB to 16 MiB
            stream = streams[round % 4]
            with torch.cuda.stream(stream):
                tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
                tensor.fill_(1)
                if round % 16 == 0:
                    tensor.record_stream(streams[(round + 1) % 4])
            held.append(tensor)
            if len(held) > 32:
                held.pop(state % 32)
        held.clear()
        torch.cuda.synchronize()

    run(arguments.rounds * 10)
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        run(arguments.rounds * 100)
        times.append((time.perf_counter() - begin) / (arguments.rounds * 100) * 1e6)
    # torch.empty alone and its free: what the allocator costs the host.
    with torch.cuda.stream(streams[0]):
        for _ in range(1000):
            torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
        begin = time.perf_counter()
        for _ in range(20_000):
            torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
        alone = (time.perf_counter() - begin) / 20_000 * 1e6
    torch.cuda.synchronize()
    print("time: " + json.dumps({"loop_us": sorted(times)[2], "alone_us": alone}))
    return 0


def run_child(arguments, part, extra=(), environment=None):
    command = [sys.executable, os.path.abspath(__file__), "--library", arguments.library, "--part", part]
    command += ["--rounds", str(arguments.rounds), *extra]
    if arguments.skip_graphs:
        command.append("--skip-graphs")
    return subprocess.run(command, env={**os.environ, **(environment or {})}, text=True, stdout=subprocess.PIPE)


def parent(arguments):
    worst = 0
    strategies = arguments.strategy or ["cuda_async", "caching"]
    for strategy in strategies:
        print(f"== checks under {strategy}", flush=True)
        child = run_child(arguments, "check", environment={"MILLPOND_MEMORY_RESOURCE": strategy})
        print(child.stdout, end="", flush=True)
        if child.returncode == 2:
            return 2
        if child.returncode != 0:
            print(f"== {strategy} ended with {child.returncode}")
            worst = 1
    if arguments.check_only or worst:
        return worst
    print("== host time per allocation, fill and free on four streams, and of allocation and free alone")
    runs = [("native", None)] + [("millpond", strategy) for strategy in strategies]
    for allocator, strategy in runs:
        environment = {"MILLPOND_MEMORY_RESOURCE": strategy} if strategy else {}
        child = run_child(arguments, "time", ["--allocator", allocator], environment)
        lines = [line for line in child.stdout.splitlines() if line.startswith("time: ")]
        if child.returncode != 0 or not lines:
            print(child.stdout)
            print(f"{allocator} {strategy or ''} ended with {child.returncode}")
            worst = 1
            continue
        times = json.loads(lines[-1].removeprefix("time: "))
        name = f"millpond {strategy}" if strategy else "PyTorch's own"
        print(f"{name:28} {times['loop_us']:8.2f} us  {times['alone_us']:8.2f} us", flush=True)
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="target/release/examples/libmillpond_allocator.so")
    parser.add_argument("--strategy", action="append", choices=STRATEGIES, help="may be given several times")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--check-only", action="store_true", help="no times")
    parser.add_argument("--skip-graphs", action="store_true")
    parser.add_argument("--part", choices=["check", "time"], help=argparse.SUPPRESS)
    parser.add_argument("--allocator", choices=["native", "millpond"], default="millpond", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part == "check":
        return child_check(arguments)
    if arguments.part == "time":
        return child_time(arguments)
    if not os.path.exists(arguments.library):
        print(f"{arguments.library} is not there: cargo build --release -p millpond-memory --example millpond_allocator")
        return 2
    try:
        import torch  # noqa: F401
    except ImportError:
        print("this needs PyTorch")
        return 2
    return parent(arguments)


if __name__ == "__main__":
    sys.exit(main())
