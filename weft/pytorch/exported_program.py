"""Programs of ``torch.export`` that hold kernels, without Python: the library that their operators
need, and kernels whose host part is such a program.

The whole of such a kernel is a package of AOTInductor beside the library. Its code believes that
arguments are as the program says; so the header that calls it looks first.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx.node import map_arg

from weft.codegen.machine import LEVELS
from weft.errors import KernelTypeError, KernelValueError
from weft.pytorch import package_texts, shared_library
from weft.pytorch.hosted import TracedLoop, traced_loops
from weft.pytorch.package_texts import Package, cpp_type
from weft.pytorch.recipe import recipe_of
from weft.pytorch.releases import PACKAGES
from weft.pytorch.shared_library import Library, boxed_of
from weft.runtime.launch import KernelLike

# pyright: reportPrivateUsage=false


_OLDER = (
    "older ones compile for the processor of this machine, or give operators other dtypes than "
    "those of the graph. A host part that computes whole numbers of sizes and makes tensors by "
    "torch.empty and the like, around one loop, is in the library itself, with any PyTorch"
)


def export_library(
    path: str | os.PathLike[str], *programs: torch.export.ExportedProgram, target: str = ""
) -> None:
    """Writes the shared library ``path`` with the operators of kernels that the ``programs`` hold:
    what a package of AOTInductor (``torch._inductor.aoti_compile_and_package``) of them asks for
    where there is no Python. ``target`` is that of ``kernel.export``.

    Raises ``KernelValueError`` where a program holds no kernel, and ``KernelTypeError`` where it
    holds one that takes Python.
    """
    library = Library(target)
    for program in programs:
        add_program(library, program)
    if not library.operators:
        raise KernelValueError(
            "the programs hold no operators of kernels",
            help="give what torch.export.export gives for modules that call kernels",
        )
    library.write(pathlib.Path(path))


def add_program(library: Library, program: torch.export.ExportedProgram) -> None:
    """Adds the operators that a program calls, for tensors as it knows them."""
    calls = dict[Any, list[list[Any]]]()
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            inner = [a for a in node.args if isinstance(a, torch._ops.OpOverload)]
            for overload in (node.target, *inner):
                if not hasattr(overload, "family"):
                    continue
                if inner or boxed_of(overload) is None:
                    raise KernelTypeError(
                        f"`{overload}` takes Python",
                        help="give the program as torch.export.export gives it" if inner else
                        "a library has kernels with one loop, around which the host part computes "
                        "whole numbers of sizes and makes tensors (torch.empty, torch.empty_like, "
                        "...), and the loops of host parts that graphs hold (docs/operators.md)",
                    )  # fmt: skip
                values = map_arg(tuple(node.args), lambda n: n.meta["val"])
                if PACKAGES.missing and any(isinstance(v, torch.dtype) for v in values):
                    raise KernelTypeError(
                        f"`{overload}` takes a dtype, which AOTInductor gives it from PyTorch "
                        f"{PACKAGES.since} on: this is {torch.__version__}", help=_OLDER,
                    )  # fmt: skip
                found = calls.setdefault(overload, [])
                if _kinds(values) not in map(_kinds, found):
                    found.append(list(values))
    there = {operator.schemas[0] for operator in library.operators}
    for overload, examples in calls.items():
        if str(overload._schema).partition("::")[2] not in there:
            code = boxed_of(overload)
            assert code is not None
            library.add(code, overload, examples)


def _kinds(values: Sequence[Any]) -> list[Any]:
    """What is equal for calls that one example stands for."""
    return [
        (v.dtype, v.dim(), v.device.type, v.is_contiguous()) if isinstance(v, torch.Tensor) else ""
        for v in values
    ]


class _Whole(torch.nn.Module):
    """A kernel, of its tensors."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.call(*tensors)


def export(
    kernel: KernelLike, path: str | os.PathLike[str], examples: Sequence[Any], target: str = "",
    dynamic: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Writes the shared library ``path`` that has the kernel's loops, beside it a header for C++
    and an example.

    Of a kernel that is one loop (see ``shared_library.export``) the library has all. Of a host part
    that PyTorch traces, packages of AOTInductor beside the library have the whole, one for each of
    the ``examples``, for numbers as the example's and sizes as ``dynamic`` says: by tensors' names
    what ``torch.export`` takes as dynamic shapes; None is all that can vary. Packages of an earlier
    library at ``path``, which its header has and the new one has not, are removed. Raises
    ``CompileError``s.
    """
    file = pathlib.Path(path)
    before = package_texts.packages_of(file)
    kept = _export(kernel, file, examples, target, dynamic)
    for name in before.difference(kept):
        file.with_name(name).unlink(missing_ok=True)


def _export(
    kernel: KernelLike, file: pathlib.Path, examples: Sequence[Any], target: str,
    dynamic: Mapping[str, Any] | None,
) -> list[str]:  # fmt: skip
    """``export``, and the names of the packages beside the library."""
    if not examples:
        raise KernelTypeError(
            f"`{kernel.__name__}` cannot be exported", kernel.span,
            help="give examples of its arguments, as tuples",
        )  # fmt: skip
    for example in examples:
        if not isinstance(example, tuple | list):  # the rows of a tensor would be arguments
            names = ", ".join(p.name for p in kernel.parts.parameters)
            raise KernelTypeError(
                f"an example for `{kernel.__name__}` is a {type(example).__name__}", kernel.span,
                help=f"each is a tuple of all arguments: export(path, ({names},))",
            )  # fmt: skip
    operators = kernel.operators
    loops = operators.loops
    if not loops and operators.followed:
        loops = traced_loops(operators, exported=True)
    if not loops or recipe_of(kernel) is not None:
        shared_library.export(kernel, file, examples, target)
        return []
    if PACKAGES.missing:
        raise KernelTypeError(
            f"the host part of `{kernel.__name__}` takes a package of AOTInductor, and that "
            f"PyTorch {PACKAGES.since}: this is {torch.__version__}", kernel.span, help=_OLDER,
        )  # fmt: skip
    library = Library(target)
    calls = [kernel.bind(tuple(values), {}).arguments for values in examples]
    kinds = [[(n, cpp_type(v) or repr(v)) for n, v in values.items()] for values in calls]
    for kind in kinds:
        for (name, own), (_, first) in zip(kind, kinds[0], strict=True):
            if own != first:
                raise KernelValueError(
                    f"`{name}` is {own} in one example for `{kernel.__name__}`, and {first} in "
                    "another", kernel.span,
                    help="the header has one function: give all examples the same, or write "
                    "several libraries",
                )  # fmt: skip
    packages: list[Package] = []
    programs: list[Any] = []
    for values in calls:
        program = _traced(kernel, loops, values, dynamic)
        add_program(library, program)
        number = f"_{len(packages)}" if packages else ""
        packages.append(_package(kernel, f"{file.stem}{number}.pt2", values, program))
        programs.append(program)
    for package, program in zip(packages, programs, strict=True):
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(file.with_name(package.file)),
            inductor_configs=_configs(library.level),
        )  # fmt: skip
    library.write(file)
    space = kernel.operators.namespace
    package_texts.write(file, kernel.__name__, space, packages, library.frozen)
    return [package.file for package in packages]


def _configs(level: str) -> dict[str, Any]:
    """Inductor's own settings for the CPU that code is for."""
    return {"cpp.march": level, "cpp.simdlen": 8 * LEVELS[level] or 1} if level else {}


def _traced(
    kernel: KernelLike, loops: Sequence[TracedLoop], values: Mapping[str, Any],
    dynamic: Mapping[str, Any] | None,
) -> torch.export.ExportedProgram:  # fmt: skip
    names = [name for name, v in values.items() if isinstance(v, torch.Tensor)]
    if any(isinstance(v, list | tuple) and any(isinstance(t, torch.Tensor) for t in v)
           for v in values.values()):  # fmt: skip
        raise KernelTypeError(
            f"`{kernel.__name__}` takes several tensors as one argument", kernel.span,
            help="a library takes each tensor as an argument of its own",
        )  # fmt: skip
    for name in names:
        if not values[name].is_contiguous():
            raise KernelValueError(
                f"`{name}` is not contiguous in an example for `{kernel.__name__}`",
                kernel.span,
                help="give contiguous examples: calls copy other tensors",
            )
    wrong = [name for name in dynamic or {} if name not in names]
    if wrong:
        raise KernelValueError(
            f"`{wrong[0]}` is no tensor of `{kernel.__name__}`",
            kernel.span,
            help="dynamic says for each tensor's name which of its sizes vary, as "
            "torch.export's dynamic_shapes do: {'x': {0: torch.export.Dim('rows')}}",
        )
    auto = torch.export.Dim.AUTO  # pyright: ignore[reportAttributeAccessIssue]
    shapes = tuple(
        dict.fromkeys(range(values[n].dim()), auto) if dynamic is None else dynamic.get(n)
        for n in names
    )

    def call(*tensors: torch.Tensor) -> Any:
        given = {**values, **dict(zip(names, tensors, strict=True))}
        return kernel.operators.host(loops, **given)

    with torch.no_grad():
        example = tuple(torch.empty_like(values[n]) for n in names)
        return torch.export.export(_Whole(call), example, dynamic_shapes=(shapes,))


def _package(
    kernel: KernelLike, file: str, values: Mapping[str, Any], program: Any
) -> Package:  # fmt: skip
    """What a program asks of arguments."""
    nodes = {node.name: node for node in program.graph.nodes}
    inputs = iter([nodes[name].meta["val"] for name in program.graph_signature.user_inputs])
    outputs = [nodes[name].meta["val"] for name in program.graph_signature.user_outputs]
    if not all(isinstance(v, torch.Tensor) for v in outputs):
        raise KernelTypeError(
            f"`{kernel.__name__}` returns what is no tensor", kernel.span,
            help="a library gives tensors",
        )  # fmt: skip
    arguments = [(name, next(inputs) if isinstance(v, torch.Tensor) else v)
                 for name, v in values.items()]  # fmt: skip
    ranges = {str(s): (int(r.lower), int(min(r.upper, 1 << 62)))
              for s, r in program.range_constraints.items()}  # fmt: skip
    return Package(file, tuple(arguments), ranges, len(outputs), kernel.mutated)
