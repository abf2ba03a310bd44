"""Compiles a CUDA source with NVRTC: nvrtc.py <arch> <source> <ptx> [option...]. Warnings are errors. No GPU needed."""

import ctypes
import glob
import os
import sys


def library():
    pattern = os.path.join(sys.prefix, "lib", "python3*", "site-packages", "nvidia", "cuda_nvrtc", "lib", "libnvrtc.so.*")
    return ctypes.CDLL(sorted(glob.glob(pattern))[0])


def text(nvrtc, program, size_of, get):
    size = ctypes.c_size_t()
    size_of(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    get(program, buffer)
    return buffer.value


def main():
    arch, source, target, *more = sys.argv[1:]
    nvrtc = library()
    program = ctypes.c_void_p()
    with open(source, "rb") as file:
        code = file.read()
    if error := nvrtc.nvrtcCreateProgram(ctypes.byref(program), code, source.encode(), 0, None, None):
        sys.exit(f"nvrtcCreateProgram: {error}")
    # -rdc=true keeps the client objects visible by name.
    folder = os.path.dirname(os.path.abspath(source))
    options = [f"--gpu-architecture={arch}", "-std=c++17", "-rdc=true", f"-I{folder}", *more]
    array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = nvrtc.nvrtcCompileProgram(program, len(options), array)
    log = text(nvrtc, program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).decode().strip()
    if log:
        print(log, file=sys.stderr)
    # The deprecation of old architectures is no fault of the source.
    faults = [line for line in log.splitlines() if "warning" in line and "Architectures prior" not in line]
    if failed or faults:
        sys.exit(1)
    with open(target, "wb") as file:
        file.write(text(nvrtc, program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX))


if __name__ == "__main__":
    main()
