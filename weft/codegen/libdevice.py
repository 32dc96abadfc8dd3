"""libdevice: CUDA's mathematics as LLVM bitcode, of which a kernel takes the functions it calls."""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Iterator, Sequence

import llvmlite.binding as llvm

from weft.codegen.libraries import folders
from weft.errors import WeftError

NAME = "libdevice.10.bc"


class LibdeviceMissingError(WeftError, FileNotFoundError):
    """A kernel calls mathematics and CUDA's library of it is not on this machine."""


def candidates() -> Iterator[pathlib.Path]:
    """Places where ``libdevice`` is: Triton's package, NVIDIA's wheels, CUDA toolkits."""
    for package, inside in (
        ("triton", "backends/nvidia/lib"),
        ("nvidia.cu13", "nvvm/libdevice"),
        ("nvidia.cuda_nvcc", "nvvm/libdevice"),
        ("nvidia", "cu13/nvvm/libdevice"),
    ):
        for folder in folders(package):
            yield folder / inside / NAME
    for root in toolkits():
        yield root / "nvvm" / "libdevice" / NAME


def toolkits() -> Iterator[pathlib.Path]:
    """Folders of CUDA toolkits."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield pathlib.Path(os.environ[variable])
    yield pathlib.Path("/usr/local/cuda")
    yield from sorted(pathlib.Path("/usr/local").glob("cuda-*"), reverse=True)
    yield pathlib.Path("/opt/cuda")


@functools.cache
def path() -> pathlib.Path:
    """Where it is. Raises ``LibdeviceMissingError``."""
    for place in candidates():
        if place.is_file():
            return place
    raise LibdeviceMissingError(
        f"{NAME} is nowhere: a kernel for CUDA calls its mathematics\n"
        "help: pip install triton, or nvidia-nvvm, or set CUDA_HOME to a CUDA toolkit"
    )


@functools.cache
def extract(names: tuple[str, ...]) -> bytes:
    """Bitcode of the functions ``names`` (sorted) and what they call."""
    whole = llvm.parse_bitcode(path().read_bytes())
    for function in whole.functions:  # what may be defined several times is linked if it is used
        if not function.is_declaration:
            function.linkage = "external" if function.name in names else "linkonce_odr"
    module = llvm.parse_assembly("")
    module.triple, module.data_layout = whole.triple, whole.data_layout
    module.link_in(whole)
    for function in module.functions:
        if not function.is_declaration and function.name not in names:
            function.linkage = "internal"
    return module.as_bitcode()


def link(module: llvm.ModuleRef, names: Sequence[str]) -> None:
    """Links the functions ``names`` into ``module``, as internal ones."""
    if not names:
        return
    library = llvm.parse_bitcode(extract(tuple(sorted(names))))
    library.triple, library.data_layout = module.triple, module.data_layout
    module.link_in(library)
    for name in names:
        module.get_function(name).linkage = "internal"
