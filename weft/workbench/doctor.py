"""``weft doctor``: what this machine can do for kernels, and what is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from weft.codegen import libdevice, libraries, ptx
from weft.codegen.machine import host_cpu
from weft.errors import WeftError, first_line
from weft.options import default_options
from weft.pytorch.fusible import HOOKS, hooks
from weft.pytorch.fusion import Opaque
from weft.pytorch.releases import ABILITIES
from weft.runtime import cuda, stable
from weft.runtime.cache import disk
from weft.runtime.tuned import machine_of
from weft.values import frozen
from weft.version import VERSION
from weft.workbench.cache import megabytes
from weft.workbench.limits import Limits, limits, small_sum
from weft.workbench.processes import place_of
from weft.workbench.report import Table, listed

OK, MISSING, WRONG = "ok", "missing", "WRONG"


@frozen
class Finding:
    """``state``: "ok", "missing" or "WRONG". ``costs``: what is not there without it; ``remedy``:
    how to get it."""

    what: str
    value: str
    state: str = OK
    costs: str = ""
    remedy: str = ""


@frozen
class Doctor:
    """``limits``: rates of each device, if they were measured."""

    findings: tuple[Finding, ...]
    limits: tuple[Limits, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing that is there is broken. What is missing costs something, and may."""
        return all(found.state != WRONG for found in self.findings)

    def __str__(self) -> str:
        there = [(f.what, f.value) for f in self.findings if f.state == OK]
        parts = [listed(there)]
        for found in (f for f in self.findings if f.state != OK):
            lines = [f"{found.state}: {found.what}{found.value and f' ({found.value})'}"]
            lines += [f"    without it: {found.costs}"] if found.costs else []
            lines += [f"    to get it: {found.remedy}"] if found.remedy else []
            parts.append("\n".join(lines))
        if self.limits:
            parts.append(f"measured now, beside whatever else runs here:\n{self.rates}")
        return "\n\n".join(parts)

    @property
    def rates(self) -> Table:
        columns = ("device", "copy GB/s", "fill GB/s", "multiply-add GFLOP/s", "launch µs")
        rows = [(r.device, r.copy, r.fill, r.arithmetic, r.launch) for r in self.limits]
        return Table(columns, tuple(rows))

    __repr__ = __str__

    def data(self) -> dict[str, Any]:
        return {
            "findings": [{name: getattr(f, name) for name in Finding.__match_args__}
                         for f in self.findings],
            "limits": [{name: getattr(r, name) for name in Limits.__match_args__}
                       for r in self.limits],
        }  # fmt: skip


def doctor(measure: bool = True) -> Doctor:
    """Looks at this machine. ``measure``: its rates, too, which takes some seconds a device."""
    findings = (
        *_software(), *_processor(), *_release(), *_cache(), *_gpus(), *_tools(), _first_kernel()
    )  # fmt: skip
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])] if measure else []
    return Doctor(findings, tuple(limits(device) for device in devices))


def _software() -> Iterator[Finding]:
    yield Finding("weft", VERSION)
    yield Finding("Python", f"{platform.python_version()} ({sys.executable})")
    yield Finding("torch", torch.__version__)
    for package in ("llvmlite", "islpy", "numpy"):
        yield Finding(package, importlib.metadata.version(package))
    for package, costs in (
        ("rich", "the command line has no colours"),
        ("matplotlib", "`weft bench` draws no plots"),
    ):
        if importlib.util.find_spec(package):
            yield Finding(package, importlib.metadata.version(package))
        else:
            yield Finding(package, "", MISSING, costs, f"pip install {package}")


def _processor() -> Iterator[Finding]:
    found, there = host_cpu(), libraries.load()
    yield Finding("processor", f"{machine_of(torch.device('cpu'))}, {os.cpu_count()} logical cores")
    if found.vector_bytes:
        yield Finding("vectors", f"{8 * found.vector_bytes} bits")
    else:
        yield Finding(
            "vectors",
            "neither AVX2 nor AVX-512",
            MISSING,
            "loops run one element at a time, but where LLVM finds vectors itself",
            "a processor that has them",
        )
    if found.sleef:
        yield Finding("vector mathematics", "SLEEF, of torch's own library")
    else:
        yield Finding(
            "vector mathematics",
            "",
            MISSING,
            "exp, log, sin, ... go one by one",
            "a processor with AVX2 and a torch whose libtorch_cpu has Sleef_expf8_u10",
        )
    if there.openmp:
        yield Finding("threads", f"{torch.get_num_threads()}, of torch's own OpenMP pool")
    else:
        yield Finding(
            "threads",
            "no OpenMP",
            MISSING,
            "kernels run on the calling thread alone",
            "a torch that comes with libgomp, or the system's libgomp",
        )
    absent = stable.missing()
    if absent:
        yield Finding(
            "operators in machine code",
            absent,
            MISSING,
            "calls through torch.ops and compiled graphs go through Python",
            "a newer torch on x86-64 or AArch64, with CPython",
        )
    else:
        yield Finding("operators in machine code", "yes: calls through torch.ops need no Python")


def _release() -> Iterator[Finding]:
    """What this release of PyTorch has, of what older ones have not."""
    what = "loops fused by torch.compile"
    try:
        known = hooks()
    except Opaque as reason:
        yield Finding(
            what, str(reason), MISSING, "loops in graphs are calls between Inductor's own kernels",
            f"PyTorch {' or '.join(HOOKS)}",
        )  # fmt: skip
    else:
        but = "" if known.rounds else ", but on a CPU not those that store halves"
        yield Finding(what, f"yes{but}{'' if known.on_gpus else ', and on a GPU none'}")
    for ability in ABILITIES:
        if ability.missing:
            yield Finding(
                ability.what, f"torch {torch.__version__}", MISSING, ability.costs,
                f"PyTorch {ability.since} or later",
            )  # fmt: skip


def _cache() -> Iterator[Finding]:
    options = default_options()
    cache = disk(options)
    if cache is None:
        yield Finding(
            "disk cache",
            "WEFT_CACHE=0",
            MISSING,
            "each process compiles its kernels anew",
            "unset WEFT_CACHE",
        )
        return
    count, size = cache.size()
    room = f"{count:,} entries, {megabytes(size)} of at most {megabytes(cache.limit)}"
    if cache.usable:
        yield Finding("disk cache", f"{cache.folder}: {room}")
    else:
        yield Finding(
            "disk cache",
            f"{cache.folder} cannot be used",
            MISSING,
            "each process compiles its kernels anew",
            "WEFT_CACHE_DIR=<a folder that is yours alone>",
        )


def _metal() -> Iterator[Finding]:
    """Macs only have it."""
    if torch.backends.mps.is_available():
        name = torch.backends.mps.get_name()
        yield Finding("MPS", f"{name}: kernels of tensors on mps run there")
    elif sys.platform == "darwin":
        yield Finding(
            "MPS", f"torch {torch.__version__} sees no device", MISSING,
            "kernels run on the CPU, or by WebGPU", "a Mac with a GPU of Apple's",
        )  # fmt: skip


def _gpus() -> Iterator[Finding]:
    yield from _metal()
    if sys.platform == "darwin":  # where CUDA is not
        return
    try:
        api = cuda.driver()
    except WeftError as error:
        yield Finding(
            "CUDA driver",
            first_line(error),
            MISSING,
            "kernels run on the CPU (they can still be compiled for GPUs: weft.compile_for)",
            "a machine with an NVIDIA GPU and its driver",
        )
        return
    yield Finding("CUDA driver", _driver_version(api.library))
    if not torch.cuda.is_available():
        yield Finding(
            "GPUs",
            f"torch {torch.__version__} sees none",
            MISSING,
            "kernels run on the CPU",
            "a torch that is built for CUDA",
        )
        return
    for k in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(k)
        memory = f"{gpu.total_memory / 2**30:.0f} GB, {gpu.multi_processor_count} multiprocessors"
        yield Finding(f"GPU {k}", f"{machine_of(torch.device('cuda', k))}, {memory}")


def _driver_version(library: Any) -> str:
    import ctypes  # for this number alone

    version = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    number = version.value
    return f"for CUDA {number // 1000}.{number % 1000 // 10} (torch's: {torch.version.cuda})"


def _tools() -> Iterator[Finding]:
    def place(find: Callable[[], Any]) -> str:
        try:
            return str(find() or "")
        except WeftError:  # which says what `remedy` says
            return ""

    compiler = os.environ.get("CXX") or "g++"
    for what, path, costs, remedy in (
        ("libdevice", place(libdevice.path), "kernels for CUDA have no exp, sin, ...",
         "pip install triton, or nvidia-nvvm, or set CUDA_HOME to a CUDA toolkit"),
        ("ptxas", place(ptx.ptxas),
         "PTX is not checked without a GPU, and nothing tells registers and spills",
         "pip install nvidia-cuda-nvcc, or a CUDA toolkit"),
        ("ncu", place_of("ncu"), "no counters of a GPU's hardware",
         "Nsight Compute, of the CUDA toolkit or developer.nvidia.com"),
        ("nsys", place_of("nsys"), "no timelines of a whole program",
         "Nsight Systems, of the CUDA toolkit or developer.nvidia.com"),
        ("C++ compiler", place(lambda: shutil.which(compiler) or shutil.which("clang++")),
         "torch.compile's Inductor makes no code for the CPU (weft itself needs none)",
         "apt install g++, or set CXX"),
    ):  # fmt: skip
        yield Finding(what, path) if path else Finding(what, "", MISSING, costs, remedy)


def _first_kernel() -> Finding:
    """Whether a kernel can be compiled and computes what it should, on each kind of device."""
    what = "a kernel is compiled and run"
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for device in devices:
        x, out = torch.arange(7.0, device=device), torch.full((7,), -1.0, device=device)
        try:
            small_sum(out, x, x)
        except Exception as error:  # whatever it is, this is what the doctor is asked for
            return Finding(what, f"on {device}: {type(error).__name__}: {error}", WRONG)
        if not torch.equal(out, x + x):
            return Finding(what, f"on {device}: {out.tolist()} in place of x + x", WRONG)
    return Finding(what, f"yes, on {' and '.join(devices)}")
