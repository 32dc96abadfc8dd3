"""A kernel as a shared library that programs without Python load: an operator of PyTorch.

The library has the machine code of loops, that of the operators around them (``codegen/boxed.py``),
and what registers these (``codegen/exported.py``), and needs nothing of weft.
"""

from __future__ import annotations

import os
import pathlib
import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from weft.codegen import boxed, exported, libraries, machine, pool
from weft.codegen.exported import CARRIED, Exported
from weft.codegen.launching import architecture
from weft.errors import KernelTypeError, KernelValueError, WeftError
from weft.frontend.kinds import RegionChanged
from weft.frontend.scope import Guard
from weft.pytorch import library_texts
from weft.pytorch.boxed import BoxedKernel, Found
from weft.pytorch.boxed_program import Unfit
from weft.pytorch.portable import Codes, Portable, example
from weft.runtime import jit, stable
from weft.runtime.cache import hashed
from weft.runtime.launch import KernelLike

# pyright: reportPrivateUsage=false

_PORTABLE = "x86-64-v3"  # what code is made for, unless asked otherwise: AVX2, since 2013
# Instruction sets that code may use, by the names that C compilers have for them.
_SETS = {
    "x86-64": (), "x86-64-v2": ("ssse3", "sse4.2"),
    "x86-64-v3": ("avx", "avx2", "bmi", "bmi2", "fma"),
    "x86-64-v4": ("avx2", "fma", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}  # fmt: skip
_KNOWN = {name for names in _SETS.values() for name in names}


def export(
    kernel: KernelLike, path: str | os.PathLike[str], examples: Sequence[Any], target: str
) -> None:
    """Writes the shared library ``path`` that is the kernel's operator for tensors as those of the
    ``examples`` (tuples of arguments) in all but their sizes and strides; beside it a header for C
    and C++ and an example.

    ``target``: the CPU that the code is for: one of ``machine.LEVELS`` ("x86-64-v3" if it is ""),
    or "native". Examples on a GPU give code for it, with PTX; so do examples on "meta", where
    ``target`` is an architecture ("sm_90"). Raises ``KernelTypeError`` and ``KernelValueError``
    where that takes Python.
    """
    file = pathlib.Path(path)
    calls = [kernel.operators.found(tuple(values), {}) for values in examples]
    overloads = list(dict.fromkeys(operator.overload for operator, _, _ in calls))
    if len(overloads) > 1:
        raise KernelTypeError(
            f"the examples for `{kernel.__name__}` differ in more than kinds of tensors",
            kernel.span,
            help="an operator has one type for each argument: the examples have "
            + " and ".join(str(o._schema).partition("(")[2].partition(")")[0] for o in overloads),
        )  # fmt: skip
    code = boxed_of(overloads[0])
    if code is None:
        _refuse_argument(kernel, calls[0][0].types)
        raise KernelTypeError(
            f"`{kernel.__name__}` cannot be exported", kernel.span,
            help="its host part may compute whole numbers of sizes (x.shape[0] // 2) and make "
            "tensors by torch.empty, torch.zeros, torch.empty_like and torch.zeros_like around one "
            "loop, or be one that graphs hold (docs/operators.md)",
        )  # fmt: skip
    library, given = Library(target), [passed for _, _, passed in calls]
    library.add(code, overloads[0], given, kernel.__name__)
    library.write(file)
    schema = overloads[0]._schema
    library_texts.write(file, kernel.__name__, schema, given[0], library.frozen)


def _refuse_argument(kernel: KernelLike, types: Sequence[str]) -> None:
    """Raises ``KernelTypeError`` where one of the kernel's arguments, of these schema types, is
    none that a library takes: one that may be None, or is fixed in the operator."""
    for parameter, kind in zip(kernel.parts.parameters, types, strict=True):
        if not kind or kind.endswith("?"):
            what = "may be None" if kind else "is no tensor and no number"
            raise KernelTypeError(
                f"`{kernel.__name__}` cannot be exported: `{parameter.name}` {what}", kernel.span,
                help="the functions of a library take tensors and numbers: write a kernel that "
                f"always has `{parameter.name}` (annotated as torch.Tensor, say), or one without",
            )  # fmt: skip


def boxed_of(overload: Any) -> BoxedKernel | None:
    """The kernel in machine code of an operator, if it is one of weft's that has one, and takes
    what a library does."""
    family, name = getattr(overload, "family", None), overload._schema.name.partition("::")[2]
    if family is None or name not in family.portable:
        return None
    code: BoxedKernel | None = family.boxed.get(name) or family.portable[name]()
    return None if code is None or any(t.endswith("?") for t in code.types) else code


class Library:
    """Operators that become a shared library. ``frozen``: values from around the kernels, by
    name, which stay what they are."""

    def __init__(self, target: str) -> None:
        self.arch = architecture(target) if target.startswith(("sm_", "compute_")) else ""
        level = "" if self.arch or target == "native" else target or _level()
        if level and level not in machine.LEVELS:
            raise KernelValueError(
                f"`{target}` is no target",
                help=f'"native", one of {", ".join(machine.LEVELS)}, or the architecture of a GPU '
                'as "sm_90"',
            )
        self.level = level
        self.cpu = Codes(level, "")
        self._gpus = dict[str, Codes]()
        self.operators: list[Exported] = []
        self.frozen: dict[str, Any] = {}
        self._texts: list[str] = []  # the operators' machine code, as LLVM IR

    def add(
        self, code: BoxedKernel, operator: Any, examples: Sequence[Sequence[Any]], entry: str = ""
    ) -> None:
        """Adds an operator, for tensors as those of the examples. ``entry``: its plain name."""
        name = entry or operator._schema.name.partition("::")[2]
        forms: list[Any] = []
        codes: list[tuple[Any, ...]] = []
        guards: list[Guard] = []
        for values in examples:
            made_by = self._codes(code, values, name)
            for loose, exact in ((False, True), (False, False), (True, False)):
                if exact and not made_by.arch:
                    continue
                passed = [example(v, loose=loose) for v in values]
                try:
                    program, found = _written_down(code, passed, made_by, loose, exact)
                except Unfit:
                    if exact or loose:
                        continue
                    raise self._refused(code, name) from None
                guards += found.guards
                if found.form not in forms:
                    forms.append(found.form)
                    codes.append(tuple(program.ran))
        frozen = self._frozen(code, guards)
        self.frozen |= frozen
        schema = str(operator._schema).partition("::")[2]
        namespace, _, own = operator._schema.name.partition("::")
        schemas = schema, *([entry + schema.removeprefix(own)] if entry else [])
        arguments = tuple(a.name for a in operator._schema.arguments)
        symbol = f"{CARRIED}_{len(self.operators)}"
        entry = f"weft_{entry}" if entry.isascii() and entry else ""
        self._texts.append(boxed.text(forms, stable.keys(), symbol))
        mark = hashed(*(f"{n}={v!r}" for n, v in frozen.items()))[:8] if frozen else ""
        self.operators.append(
            Exported(
                name, namespace, schemas, arguments, tuple(forms), tuple(codes), entry, mark
            )
        )  # fmt: skip

    def _frozen(self, code: BoxedKernel, guards: Iterable[Guard]) -> dict[str, Any]:
        """The values from around a kernel, and from around what it calls, that its code has."""
        pairs = list(zip(code.launcher.region.args, code.recipe.places, strict=True))
        own = {place.place: arg.name for arg, place in pairs if isinstance(place, Guard)}
        every = [*(place for _, place in pairs if isinstance(place, Guard)), *guards]
        found: dict[str, Any] = {}
        if code.recipe.defaults:
            found["torch.get_default_dtype()"] = torch.get_default_dtype()
        for guard in every:
            value = guard.read()
            if isinstance(value, int | float | str | tuple | list | torch.dtype):
                name = own.get(guard.place, guard.name)
                same = [n for n, v in found.items() if n.partition(" ")[0] == name and v != value]
                found[f"{name} ({len(same) + 1})" if same else name] = value
        return found

    def _codes(self, code: BoxedKernel, values: Sequence[Any], name: str) -> Codes:
        """Where the machine code for a call with these values goes."""
        devices = {v.device for v in values if isinstance(v, torch.Tensor)}
        if not devices:
            raise KernelValueError(
                f"`{name}` takes no tensor", code.launcher.region.span,
                help="PyTorch finds a library's code by the devices of tensors: pass one, which "
                "the kernel writes to or takes its device from",
            )  # fmt: skip
        kind = next(iter(devices)).type if len({d.type for d in devices}) == 1 else ""
        arch = self.arch if kind in ("meta", "cuda") else ""
        if kind == "cuda" and not arch:
            arch = architecture(torch.cuda.get_device_capability(next(iter(devices))))
        if (kind == "cpu" and self.arch) or (kind == "meta" and not arch) or not kind:
            raise KernelValueError(
                f"the tensors of an example for `{name}` are on "
                f"{', '.join(sorted(map(str, devices)))}", code.launcher.region.span,
                help='give tensors on one device: "cpu", "cuda", or "meta" with the architecture '
                'of a GPU as `target` ("sm_90")',
            )  # fmt: skip
        return self._gpus.setdefault(arch, Codes("", arch)) if arch else self.cpu

    def _refused(self, code: BoxedKernel, name: str) -> KernelValueError:
        around = [p for p in code.recipe.places if isinstance(p, Guard)]
        captured = [p.name for p in around if isinstance(p.read(), torch.Tensor)]
        if captured:
            return KernelValueError(
                f"`{name}` takes the tensor `{captured[0]}` from around it",
                code.launcher.region.span,
                help="a library would have to keep what it holds now: make it a parameter",
            )
        later = code.launcher.region.args[len(code.recipe.places) :]
        if later:
            return KernelValueError(
                f"`{later[0].name}`, of a function that `{name}` calls, has changed since the "
                "first call", code.launcher.region.span,
                help="the kernel looks it up at each call now, which a library cannot: export it "
                "before, or in another process, or pass the value to the kernel",
            )  # fmt: skip
        return KernelValueError(
            f"`{name}` takes Python for an example", code.launcher.region.span,
            help="what a library can take: plain tensors and numbers, of a kernel that does not "
            "assert, print or add in an order that varies, and makes tensors where its arguments "
            "are (device=x.device)",
        )  # fmt: skip

    def write(self, file: pathlib.Path) -> None:
        """Writes the library."""
        level = self.level
        sets = _SETS[level] if level else sorted(_KNOWN & machine.features())
        release = torch.__version__.split(".")
        text = exported.text(
            self.operators, {stable.number_of(d): str(d).removeprefix("torch.") for d in _DTYPES},
            sets if any("CPU" in o.keys for o in self.operators) else (),
            level or "the processor that it was written on", (int(release[0]), int(release[1])),
        )  # fmt: skip
        shared = pool.text(machine.host_cpu(level), openmp=libraries.load().openmp)
        objects = [jit.emit(text, cpu=level) for text in (shared, *self._texts)]
        _link(file, [*self.cpu.objects, *objects], text, [o.entry for o in self.operators])


def _written_down(
    code: BoxedKernel, passed: Sequence[Any], codes: Codes, loose: bool, exact: bool
) -> tuple[Portable, Found]:
    """Raises ``Unfit``."""
    while True:
        program = Portable(passed, code.types, codes, loose=loose, exact=exact)
        try:
            return program, code.form_of(passed, program)
        except RegionChanged as change:
            code.launcher.forms.change(change)


_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16,
           torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.int16,
           torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
           torch.bool)  # fmt: skip


def _level() -> str:
    return _PORTABLE if "x86_64" in machine.machine().triple else ""


def _link(file: pathlib.Path, objects: Sequence[bytes], text: str, entries: Sequence[str]) -> None:
    """Has the system's compiler make a shared library of object code and C, whose symbols are its
    own but for the ``entries``. It stays loaded: torch has its functions."""
    place = pathlib.Path(torch.__file__).parent / "lib"
    with tempfile.TemporaryDirectory() as folder:
        parts = [f"{folder}/registered.c"]
        pathlib.Path(parts[0]).write_text(text)
        for k, data in enumerate(objects):
            parts.append(f"{folder}/{k}.o")
            pathlib.Path(parts[-1]).write_bytes(data)
        hidden = pathlib.Path(folder, "symbols")
        visible = "".join(f" {name};" for name in entries if name)
        hidden.write_text(f"{{ {'global:' + visible if visible else ''} local: *; }};")
        made = pathlib.Path(folder, "made.so")
        command = [*shlex.split(os.environ.get("CC", "cc")), "-shared", "-fPIC", "-O1", "-w"]
        command += ["-fexceptions", "-o", str(made), *parts, f"-Wl,--version-script={hidden}"]
        command += ["-Wl,-z,nodelete", f"-L{place}", "-ltorch_cpu", "-lm", "-ldl"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise WeftError(f"{command[0]} makes no shared library:\n{ended.stderr}")
        data = made.read_bytes()
    new = file.with_name(file.name + ".new")  # a process may have the old one loaded
    new.write_bytes(data)
    new.chmod(0o755)
    new.replace(file)
