"""weft: write the loop, get the PyTorch operator.

    import torch, weft

    @weft.kernel
    def axpy(a: float, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in weft.ndrange(x.shape[0]):
            out[i] = a * x[i] + y[i]
        return out

``import weft as ti`` runs kernels written for Taichi.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from weft import errors
from weft.errors import (
    CompileError,
    InternalError,
    KernelAssertionError,
    KernelIndexError,
    KernelNameError,
    KernelOverflowError,
    KernelSyntaxError,
    KernelTypeError,
    KernelValueError,
    RaceError,
    ScheduleError,
    SourceUnavailableError,
    WeftError,
)
from weft.settings import rarely_collected

with rarely_collected:  # this imports all the rest
    from weft.kernel import Definition, Kernel, kernel

from weft.lang import math, types
from weft.lang.atomics import (
    atomic_add,
    atomic_and,
    atomic_and_,
    atomic_cas,
    atomic_exchange,
    atomic_max,
    atomic_min,
    atomic_mul,
    atomic_or,
    atomic_or_,
    atomic_sub,
    atomic_xor,
)
from weft.lang.dtypes import (
    bf16,
    bfloat16,
    bool_,
    c64,
    c128,
    complex64,
    complex128,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    i8,
    i16,
    i32,
    i64,
    int8,
    int16,
    int32,
    int64,
    u1,
    u8,
    u16,
    u32,
    u64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from weft.lang.field import (
    cpu,
    cuda,
    field,
    gpu,
    init,
    metal,
    ndarray,
    opengl,
    var,
    vulkan,
    x64,
    zeros,
)
from weft.lang.loops import (
    data_oriented,
    func,
    grouped,
    loop_config,
    loop_unique,
    ndrange,
    serial,
    static,
    static_assert,
    static_print,
    stop_grad,
)
from weft.lang.math import (
    abs,
    acos,
    asin,
    atan2,
    bit_cast,
    bit_shr,
    cast,
    ceil,
    cos,
    exp,
    floor,
    frexp,
    log,
    max,
    min,
    one,
    pow,
    raw_div,
    raw_mod,
    round,
    rsqrt,
    select,
    sin,
    sqrt,
    tan,
    tanh,
    zero,
)
from weft.lang.pending import sync
from weft.lang.random import randint, randn, random
from weft.lang.types import ref, template
from weft.lang.vectors import Matrix, Vector
from weft.version import VERSION as __version__

if TYPE_CHECKING:
    from weft import ad as ad
    from weft.lang import algorithms as algorithms
    from weft.lang import experimental as experimental
    from weft.lang import linalg as linalg
    from weft.lang.layout import Layout as Layout
    from weft.lang.layout import Level
    from weft.lang.layout import axes as axes
    from weft.lang.layout import root as root
    from weft.lang.linalg import eig as eig
    from weft.lang.linalg import polar_decompose as polar_decompose
    from weft.lang.linalg import solve as solve
    from weft.lang.linalg import sym_eig as sym_eig
    from weft.lang.structs import Struct as Struct
    from weft.lang.structs import StructField as StructField
    from weft.lang.structs import dataclass as dataclass

    svd, FieldsBuilder = linalg.taichi_svd, Level
    from weft.pytorch.exported_program import export_library as export_library
    from weft.tools.cross import compile_for as compile_for
    from weft.tools.foreign import c_source as c_source
    from weft.tools.foreign import cuda_source as cuda_source
    from weft.tuning.autotune import Config as Config
    from weft.tuning.autotune import autotune as autotune
    from weft.tuning.tune import tune as tune
    from weft.tuning.tune import tuned as tuned
    from weft.workbench.bench import bench as bench
    from weft.workbench.bench import benchmark as benchmark
    from weft.workbench.check import check as check
    from weft.workbench.profile import profile as profile
    from weft.workbench.report_page import report as report


_LATER = {
    "bench": "weft.workbench.bench", "benchmark": "weft.workbench.bench",
    "c_source": "weft.tools.foreign",
    "check": "weft.workbench.check",
    "cuda_source": "weft.tools.foreign", "profile": "weft.workbench.profile",
    "report": "weft.workbench.report_page",
    "export_library": "weft.pytorch.exported_program",
    "compile_for": "weft.tools.cross", "Config": "weft.tuning.autotune",
    "autotune": "weft.tuning.autotune", "tune": "weft.tuning.tune", "tuned": "weft.tuning.tune",
}  # fmt: skip


# Taichi's names, and what is written in the language, likewise: "module:name", or a module.
_TAICHI = {
    **{name: f"weft.lang.layout:{name}" for name in ("root", "axes", "Layout")},
    "FieldsBuilder": "weft.lang.layout:Level",
    "real_func": "weft.lang.loops:func", "experimental": "weft.lang.experimental",
    "algorithms": "weft.lang.algorithms",
    **{name: f"weft.lang.structs:{name}" for name in ("Struct", "StructField", "dataclass")},
    **{name: f"weft.lang.linalg:{name}" for name in ("solve", "eig", "sym_eig", "polar_decompose")},
    "svd": "weft.lang.linalg:taichi_svd", "linalg": "weft.lang.linalg",
    "arm64": "weft.lang.field:arm64",
    **{f"Taichi{ours}": f"weft.errors:{theirs}" for ours, theirs in (
        ("CompilationError", "CompileError"), ("SyntaxError", "KernelSyntaxError"),
        ("TypeError", "KernelTypeError"), ("NameError", "KernelNameError"),
        ("RuntimeError", "WeftError"), ("RuntimeTypeError", "KernelTypeError"),
        ("AssertionError", "KernelAssertionError"),
    )},
    "webgpu": "weft.webgpu", "ad": "weft.ad", "Tape": "weft.ad:Tape",
}  # fmt: skip


# `import weft.math as tm` and `from weft.types import ndarray` find these.
sys.modules[f"{__name__}.math"], sys.modules[f"{__name__}.types"] = math, types


def _implementing(kernel: Kernel) -> Any:
    return importlib.import_module("weft.workbench.dispatch").Implementations(kernel)


Definition.implementing = staticmethod(_implementing)


def __getattr__(name: str) -> Any:
    """What is imported when it is first asked for."""
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    if name in _TAICHI:
        module, _, own = _TAICHI[name].partition(":")
        found = importlib.import_module(module)
        return getattr(found, own) if own else found
    if 0 < len(name) < 5 and set(name) <= {*"ijkl"}:  # Taichi's axes
        return importlib.import_module("weft.lang.layout").named(name)
    from weft.lang import absent  # what is told of a name that is not there

    raise AttributeError(absent.reason(name) or f"module 'weft' has no attribute {name!r}")


__all__ = [
    "CompileError", "InternalError", "Kernel", "KernelAssertionError", "KernelIndexError",
    "KernelNameError", "KernelOverflowError", "KernelSyntaxError", "KernelTypeError",
    "KernelValueError", "Matrix", "RaceError", "ScheduleError", "SourceUnavailableError",
    "Vector", "WeftError",
    "__version__", "abs", "acos", "asin", "atan2", "atomic_add", "atomic_and", "atomic_and_",
    "atomic_cas", "atomic_exchange", "atomic_max", "atomic_min", "atomic_mul", "atomic_or",
    "atomic_or_", "atomic_sub", "atomic_xor", "bf16", "bfloat16", "bit_cast", "bit_shr",
    "bool_", "c64", "c128", "cast", "ceil", "complex64", "complex128", "cos", "cpu", "cuda",
    "data_oriented", "errors", "exp", "f8e4m3", "f8e5m2", "f16", "f32", "f64", "field",
    "float8_e4m3fn", "float8_e5m2", "float16", "float32",
    "float64", "floor", "frexp", "func", "gpu", "grouped", "i8", "i16", "i32", "i64", "init",
    "int8", "int16", "int32", "int64", "kernel", "log", "loop_config", "loop_unique", "math",
    "max", "metal", "min", "ndarray", "ndrange", "one", "opengl", "pow", "randint", "randn",
    "random", "raw_div", "raw_mod", "ref", "round", "rsqrt", "select", "serial", "sin", "sqrt",
    "static", "static_assert", "static_print", "stop_grad", "sync", "tan", "tanh", "template",
    "types", "u1", "u8", "u16", "u32", "u64", "uint8", "uint16", "uint32", "uint64", "var",
    "vulkan", "x64", "zero", "zeros",
]  # fmt: skip
