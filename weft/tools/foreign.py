"""Functions written in CUDA C++, C or C++, from their text to something that takes tensors.

``cuda_source(text)`` and ``c_source(text)`` have a function of the text by its name. What it takes
is read from its declaration, and checked at each call: a pointer takes a tensor of its dtype.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from weft.errors import KernelTypeError, KernelValueError
from weft.runtime.cuda import driver, make_current
from weft.values import frozen

# torch has no public name for its runtime compiler.
# pyright: reportPrivateUsage=false
# The type of a number, if it may be passed, and the dtype of what a pointer points to.
_FLOATS: dict[str, tuple[Any, torch.dtype | None]] = {
    "float": (ctypes.c_float, torch.float32), "double": (ctypes.c_double, torch.float64),
    "bool": (ctypes.c_bool, torch.bool), "void": (None, None),
    "__half": (None, torch.float16), "half": (None, torch.float16),
    "__nv_bfloat16": (None, torch.bfloat16),
    "float2": (None, torch.complex64), "double2": (None, torch.complex128),
}  # fmt: skip
_INTEGERS = {
    "int8": "char, signed char, int8_t", "uint8": "unsigned char, uint8_t",
    "int16": "short, int16_t", "uint16": "unsigned short, uint16_t",
    "int32": "int, int32_t", "uint32": "unsigned, unsigned int, uint32_t",
    "int64": "long, long long, int64_t, ptrdiff_t",
    "uint64": "unsigned long, unsigned long long, uint64_t, size_t",
}  # fmt: skip
_TYPES = _FLOATS | {
    name: (getattr(ctypes, f"c_{integer}"), getattr(torch, integer))
    for integer, names in _INTEGERS.items()
    for name in names.split(", ")
}
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_IGNORED = re.compile(r"\b(?:const|restrict|__restrict__|__restrict|volatile|struct)\b")


@frozen
class Taken:
    """One parameter of a function: its type's name, and whether it is a pointer to such."""

    name: str
    type: str
    points: bool

    def packed(self, value: Any, device: str, function: str) -> Any:
        """What is passed for ``value``. Raises ``KernelTypeError`` and ``KernelValueError``."""
        number, dtype = _TYPES[self.type]
        if not self.points:
            return self._number(value, number, function)
        if not isinstance(value, torch.Tensor) or (dtype and value.dtype is not dtype):
            found = f"{value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise KernelTypeError(
                f"`{self.name}` of {function} is a pointer to {self.type}, and {found} is passed",
                help=f"pass a tensor of {dtype}" if dtype else "pass a tensor",
            )
        if value.device.type != device:
            raise KernelValueError(f"`{self.name}` of {function} is on {value.device}",
                                   help=f"pass a tensor on {device}")  # fmt: skip
        return ctypes.c_void_p(value.data_ptr())

    def _number(self, value: Any, number: Any, function: str) -> Any:
        if number is None:
            raise KernelTypeError(f"`{self.name}` of {function} is a {self.type} by value",
                                  help="take a float, or a pointer")  # fmt: skip
        wanted = (int, float) if number in (ctypes.c_float, ctypes.c_double) else (int, bool)
        if not isinstance(value, wanted):
            raise KernelTypeError(f"`{self.name}` of {function} is {self.type}, and "
                                  f"{type(value).__name__} is passed")  # fmt: skip
        packed = number(value)
        if isinstance(value, int) and packed.value != value:
            raise KernelValueError(f"`{self.name}` of {function} is {self.type}, which has no "
                                   f"{value}", help="take a wider type")  # fmt: skip
        return packed


def taken(text: str, name: str, before: str = "") -> tuple[Taken, ...]:
    """The parameters of the function ``name`` of ``text``, by its declaration, in which ``before``
    stands before the name. Raises ``KernelTypeError``."""
    plain = _COMMENT.sub(" ", text)
    bounds = r"(?:__launch_bounds__\s*\([^()]*\)\s*)?"
    found = re.search(rf"{before}[^;{{}}()]*?{bounds}\bvoid\s+{bounds}{name}\s*\(([^)]*)\)", plain)
    if found is None:
        raise KernelTypeError(
            f"the source has no `{before}{' ' * bool(before)}void {name}(...)`",
            help="it is called by the name of a function that is no template",
        )
    declared = [p.strip() for p in found[1].split(",") if p.strip() not in ("", "void")]
    return tuple(_parameter(p, name) for p in declared)


def _parameter(declared: str, function: str) -> Taken:
    words = _IGNORED.sub(" ", declared)
    match = re.fullmatch(r"\s*([A-Za-z_][\w\s]*?)\s*(\**)\s*(\w+)\s*", words)
    kind = "" if match is None else " ".join(match[1].split())
    kind = {"long int": "long", "long long int": "long long", "short int": "short",
            "unsigned long long int": "unsigned long long"}.get(kind, kind)  # fmt: skip
    if match is None or kind not in _TYPES or len(match[2]) > 1:
        raise KernelTypeError(
            f"`{declared}` of {function} is no parameter that weft knows how to pass",
            help=f"take pointers to, or numbers of, {', '.join(_TYPES)}",
        )
    return Taken(match[3], kind, bool(match[2]))


def _packed(
    parameters: Sequence[Taken], args: Sequence[Any], device: str, function: str
) -> list[Any]:
    if len(args) != len(parameters):
        raise KernelTypeError(
            f"{function} takes {len(parameters)} arguments, and {len(args)} are passed",
            help=f"it is {function}({', '.join(p.name for p in parameters)})",
        )
    pairs = zip(parameters, args, strict=True)
    return [p.packed(v, device, function) for p, v in pairs]


class cuda_source:
    """CUDA C++, compiled by NVRTC, which comes with PyTorch (2.9 or later).

    ``source.name(grid, block, *args, shared=0)`` launches the ``__global__`` function ``name`` on
    PyTorch's current stream: ``grid`` and ``block`` are numbers or tuples of up to three,
    ``shared`` are bytes. It is compiled when it is first launched on a device. ``options`` are the
    compiler's: ``["--use_fast_math"]``.
    """

    def __init__(self, text: str, options: Sequence[str] = ()) -> None:
        self._text, self._options = text, list(options)
        self._made: dict[tuple[str, int], Any] = {}

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        parameters = taken(self._text, name, "__global__")

        def launch(grid: Any, block: Any, *args: Any, shared: int = 0) -> None:
            packed = _packed(parameters, args, "cuda", name)
            device = next((v.device.index for v in args if isinstance(v, torch.Tensor)),
                          torch.cuda.current_device())  # fmt: skip
            with torch.cuda.device(device):
                function = self._function(name, device)
                make_current(device)
                slots = (ctypes.c_void_p * max(len(packed), 1))(
                    *[ctypes.addressof(value) for value in packed]
                )
                api = driver()
                stream = ctypes.c_void_p(api.stream(device))
                code = api.library.cuLaunchKernel(
                    function, *_three(grid), *_three(block), shared, stream, slots, None
                )
                api.check(code, f"launching {name}")

        launch.__name__ = name
        self.__dict__[name] = launch
        return launch

    def _function(self, name: str, device: int) -> ctypes.c_void_p:
        made = self._made.get((name, device))
        if made is None:
            compiler = getattr(torch.cuda, "_compile_kernel", None)
            if compiler is None:
                raise KernelValueError(
                    "this PyTorch has no runtime compiler of CUDA C++",
                    help="install PyTorch 2.9 or later, or compile it with "
                    "torch.utils.cpp_extension.load_inline",
                )
            made = compiler(self._text, name, nvcc_options=self._options)
            self._made[name, device] = made
        return made.func


def _three(sizes: Any) -> tuple[int, int, int]:
    given = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    x, y, z = (*given, *(1,) * (3 - len(given)))
    return x, y, z


class c_source:
    """C, or C++ (``language="c++"``, its functions declared ``extern "C"``), compiled by this
    machine's compiler.

    ``source.name(*args)`` calls the function ``void name(...)``. It is compiled at the first call,
    with ``-O3`` and ``flags``: ``["-fopenmp"]``.
    """

    def __init__(self, text: str, language: str = "c", flags: Sequence[str] = ()) -> None:
        if language not in ("c", "c++"):
            raise KernelValueError(f"language={language!r}", help='write "c" or "c++"')
        self._text, self._language, self._flags = text, language, [*flags]
        self._library: ctypes.CDLL | None = None

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        parameters = taken(self._text, name)

        def call(*args: Any) -> None:
            packed = _packed(parameters, args, "cpu", name)
            self._loaded()[name](*packed)

        call.__name__ = name
        self.__dict__[name] = call
        return call

    def _loaded(self) -> ctypes.CDLL:
        if self._library is None:
            names = ("cc", "gcc", "clang") if self._language == "c" else ("c++", "g++", "clang++")
            compiler = next(filter(None, map(shutil.which, names)), None)
            if compiler is None:
                raise KernelValueError(f"there is no compiler of {self._language.upper()}",
                                       help=f"install one of {', '.join(names)}")  # fmt: skip
            with tempfile.TemporaryDirectory(prefix="weft-") as folder:
                file = Path(folder, "source." + ("c" if self._language == "c" else "cpp"))
                file.write_text(self._text)
                library = Path(folder, "source.so")
                command = [compiler, "-O3", "-shared", "-fPIC", "-o", str(library), str(file),
                           *self._flags]  # fmt: skip
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise KernelValueError(f"{compiler} refuses the source:\n{done.stderr}")
                self._library = ctypes.CDLL(str(library))  # stays loaded without its file
        return self._library
