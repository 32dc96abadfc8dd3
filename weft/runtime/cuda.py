"""The CUDA driver, by ctypes: loading PTX into torch's contexts, launching on torch's streams."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from weft.errors import WeftError
from weft.runtime.record import LaunchAttribute, LaunchConfig
from weft.values import frozen

# torch has no public name for the current stream's address or the current device without a check.
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false


class CudaError(WeftError, RuntimeError):
    """The driver refused something. ``code`` is its CUresult."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@frozen
class Driver:
    library: ctypes.CDLL
    launch: Callable[..., int]  # cuLaunchKernelEx(config, function, parameters, extra)
    stream: Callable[[int], int]  # the address of torch's current stream on a device
    device: Callable[[], int]  # the device that torch has current

    @functools.cached_property
    def version(self) -> int:
        """1000 times the major version of CUDA that it has, and ten times the minor one."""
        found = ctypes.c_int()
        self.check(self.library.cuDriverGetVersion(ctypes.byref(found)), "cuDriverGetVersion")
        return found.value

    def error(self, code: int) -> str:
        """The driver's own words for a CUresult."""
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        self.library.cuGetErrorName(code, ctypes.byref(name))
        self.library.cuGetErrorString(code, ctypes.byref(text))
        known = (name.value or b"CUresult %d" % code).decode()
        return f"{(text.value or b'unknown error').decode()} ({known})"

    def check(self, code: int, what: str) -> None:
        if code:
            raise CudaError(f"{what}: {self.error(code)}", code)


@functools.cache
def library() -> ctypes.CDLL:
    """The driver's library, which is not started. Raises ``CudaError`` where there is none."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise CudaError(f"no CUDA driver: {error}", 0) from error


@functools.cache
def driver() -> Driver:
    """The driver. Raises ``CudaError`` where there is none."""
    api = library()
    code = api.cuInit(0)
    if code:
        raise CudaError(f"the CUDA driver does not start: CUresult {code}", code)
    launch: Any = api.cuLaunchKernelEx
    launch.restype = ctypes.c_int
    return Driver(api, launch, torch._C._cuda_getCurrentRawStream, torch._C._cuda_getDevice)


@frozen
class Module:
    """Code in the context of one device, and its functions by name."""

    handle: ctypes.c_void_p
    functions: dict[str, ctypes.c_void_p]


_JIT_ERROR_BUFFER, _JIT_ERROR_SIZE = 5, 6
NO_SUCH_CODE = (200, 218, 500)  # an invalid image, invalid PTX, a function that is not in it


def load(ptx: str, names: list[str], device: int, what: str) -> Module:
    """Loads PTX on a device. ``what`` is said in errors. Raises ``CudaError`` with the driver's
    log.

    The driver makes machine code of it, and keeps that in a cache of its own on disk
    (``CUDA_CACHE_PATH``). Its linker, which would give the machine code to us, takes more registers
    than are good.
    """
    api = driver()
    with torch.cuda.device(device):
        make_current(device)
        log = ctypes.create_string_buffer(8192)
        options = (ctypes.c_int * 2)(_JIT_ERROR_BUFFER, _JIT_ERROR_SIZE)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), len(log))
        handle = ctypes.c_void_p()
        text = ctypes.c_char_p(ptx.encode())
        code = api.library.cuModuleLoadDataEx(ctypes.byref(handle), text, 2, options, values)
        if code:
            said = log.value.decode(errors="replace").strip()
            raise CudaError(f"{what} cannot be loaded: {api.error(code)}\n{said}".rstrip(), code)
        functions = {}
        for name in names:
            function = ctypes.c_void_p()
            code = api.library.cuModuleGetFunction(ctypes.byref(function), handle, name.encode())
            api.check(code, f"{what} has no function {name}")
            functions[name] = function
    return Module(handle, functions)


def make_current(device: int) -> None:
    """Makes the context that torch uses on ``device`` current in this thread."""
    torch.cuda.init()
    api = driver()
    current = ctypes.c_void_p()
    api.check(api.library.cuCtxGetCurrent(ctypes.byref(current)), "cuCtxGetCurrent")
    if current.value is None:
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        api.check(api.library.cuDeviceGet(ctypes.byref(handle), device), f"CUDA device {device}")
        code = api.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)
        api.check(code, f"the context of CUDA device {device}")
        api.check(api.library.cuCtxSetCurrent(context), f"the context of CUDA device {device}")


@functools.cache
def attributes(function: int) -> dict[str, int]:
    """Registers, local and shared bytes and threads that the driver gives a loaded function."""
    api, found = driver(), {}
    for name, number in (("threads", 0), ("shared", 1), ("local", 3), ("registers", 4)):
        value = ctypes.c_int()
        code = api.library.cuFuncGetAttribute(
            ctypes.byref(value), number, ctypes.c_void_p(function)
        )
        api.check(code, "cuFuncGetAttribute")
        found[name] = value.value
    return found


_EXTRA_POINTER, _EXTRA_SIZE = 1, 2

# A launch whose blocks may be there before the launch ahead of it has ended: their code waits for
# that (``ptx.dependent``). CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION of the driver API.
FOLLOWS = LaunchAttribute(6, 1)
# The least CUDA whose graphs can hold such launches (programmatic dependent launch edges).
FOLLOWING = 12030


class Frame:
    """What one launch hands to the driver: an argument block and a grid, made once and reused.
    ``follows``: it may be launched as ``FOLLOWS`` says."""

    __slots__ = ("block", "config", "extra", "reference", "size")

    def __init__(
        self, size: int, grid: tuple[int, int, int], block: tuple[int, int, int], shared: int,
        follows: bool = False,
    ) -> None:  # fmt: skip
        self.block = ctypes.create_string_buffer(max(size, 8))
        self.size = ctypes.c_size_t(size)
        self.extra = (ctypes.c_void_p * 5)(
            _EXTRA_POINTER,
            ctypes.addressof(self.block),
            _EXTRA_SIZE,
            ctypes.addressof(self.size),
            0,
        )
        attributes = ctypes.addressof(FOLLOWS) if follows else None
        self.config = LaunchConfig(*grid, *block, shared, None, attributes, int(follows))
        self.reference = ctypes.byref(self.config)
