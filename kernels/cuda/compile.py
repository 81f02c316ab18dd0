"""Drives NVIDIA's compilers from the PyPI wheels. Called by `cargo images`; see there for what to install.

    compile.py ptx SOURCE OPTION…         CUDA C++ → PTX on standard output (NVRTC)
    compile.py resources ARCH IMAGE…      what ptxas -v says about each image, on standard output

The wheels are found wherever this Python finds the package `nvidia`. Nothing is linked: NVRTC is opened as a library.
"""

import ctypes
import glob
import os
import subprocess
import sys
import tempfile


def wheel(pattern):
    """The one path below the `nvidia` packages that matches."""
    try:
        import nvidia
    except ImportError:
        sys.exit("this Python has no package `nvidia`")
    for root in nvidia.__path__:
        found = glob.glob(os.path.join(root, pattern))
        if found:
            return found[0]
    sys.exit(f"nothing matches nvidia/{pattern}")


def to_ptx(path, options):
    nvrtc = ctypes.CDLL(wheel("cuda_nvrtc/lib/libnvrtc.so.12"))
    with open(path, "rb") as file:
        source = file.read()
    options = list(options) + ["-I" + wheel("cuda_runtime/include"), "-I" + wheel("cuda_cccl/include")]
    options += ["-I" + os.path.dirname(os.path.abspath(path))]
    program = ctypes.c_void_p()
    # Only the file's name goes in: the image must not depend on where the checkout lies.
    name = os.path.basename(path).encode()
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, name, 0, None, None) != 0:
        sys.exit(f"{path}: NVRTC made no program")
    texts = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    status = nvrtc.nvrtcCompileProgram(program, len(options), texts)

    def read(size, get):
        count = ctypes.c_size_t()
        size(program, ctypes.byref(count))
        text = ctypes.create_string_buffer(count.value)
        get(program, text)
        return text.value.decode()

    sys.stderr.write(read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog))
    if status != 0:
        sys.exit(f"{path}: NVRTC failed with {status}")
    sys.stdout.write(read(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX))


def resources(arch, paths):
    assembler = wheel("cuda_nvcc/bin/ptxas")
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            command = [assembler, f"-arch={arch}", "-v", path, "-o", os.path.join(folder, "object")]
            done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
            if done.returncode != 0:
                sys.exit(f"{path}: ptxas failed\n{done.stderr}")
            sys.stdout.write(f"image {os.path.basename(path)}\n{done.stderr}")


if __name__ == "__main__":
    verb, arguments = sys.argv[1], sys.argv[2:]
    if verb == "ptx":
        to_ptx(arguments[0], arguments[1:])
    elif verb == "resources":
        resources(arguments[0], arguments[1:])
    else:
        sys.exit(__doc__)
