"""A kernel as a shared library that programs without Python load: an operator of PyTorch."""

from __future__ import annotations

import copy
import os
import pathlib
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from weft.codegen import boxed, exported, libraries, machine, pool
from weft.errors import KernelTypeError, KernelValueError, WeftError
from weft.pytorch.boxed import BoxedKernel
from weft.pytorch.boxed_program import Unfit
from weft.runtime import jit, stable
from weft.runtime.build import Compiled
from weft.runtime.launch import KernelLike

# pyright: reportPrivateUsage=false


def export(kernel: KernelLike, path: str | os.PathLike[str], examples: Sequence[Any]) -> None:
    """Writes the shared library ``path`` that is the kernel's operator for CPU tensors as those of
    the ``examples`` (tuples of arguments) in all but their sizes; beside it a header for C++ and an
    example. Raises ``KernelTypeError`` and ``KernelValueError`` where that takes Python."""
    file = pathlib.Path(path)
    code = _code(kernel, examples)
    found: list[Any] = []
    for example in examples:
        try:
            found.append(code.form_of(tuple(example)))
            if not isinstance(found[-1].keep[0], Compiled):
                raise Unfit
        except Unfit:
            raise KernelValueError(
                f"`{kernel.__name__}` takes Python for an example",
                kernel.span,
                help="what a library can take: plain CPU tensors and numbers, of a kernel that "
                "does not assert, print or add in an order that varies",
            ) from None
    schema = str(kernel.op._schema).partition("::")[2]
    name = schema.partition("(")[0]
    objects: list[bytes] = []
    loops: list[list[str]] = []
    for form in found:
        symbol, data = _loop(form.keep[0], len(objects))
        loops.append([symbol])
        objects.append(data)
    forms = [replace(form.form, guarded=False) for form in found]
    namespace = kernel.op._schema.name.partition("::")[0]
    schemas = [schema, kernel.__name__ + schema.removeprefix(name)]
    message = f"{kernel.__name__}: the library has no code for such arguments, nor gradients"
    objects += [
        jit.emit(pool.text(machine.host_cpu(), openmp=libraries.load().openmp)),
        jit.emit(boxed.text(forms, stable.keys())),
        jit.emit(exported.text(namespace, schemas, loops, message)),
    ]
    _link(file, objects)
    arguments = kernel.op._schema.arguments
    types, names = [str(a.type) for a in arguments], [a.name for a in arguments]
    header = _header(namespace, kernel.__name__, types, names, len(kernel.op._schema.returns))
    file.with_suffix(".h").write_text(header)
    values = [_example(value) for value in examples[0]]
    file.with_name(f"{file.stem}_example.cpp").write_text(
        _program(file, namespace, kernel.__name__, names, values, len(kernel.op._schema.returns))
    )


def _code(kernel: KernelLike, examples: Sequence[Any]) -> BoxedKernel:
    for example in examples:
        kernel.op(*example)
    names = {code.name: code for launcher in kernel.launchers for code in launcher.boxed}
    code = names.get(kernel.op._schema.name.partition("::")[2]) if examples else None
    if code is None:
        raise KernelTypeError(
            f"`{kernel.__name__}` cannot be exported", kernel.span,
            help="give examples of its arguments, as tuples. Its host part may take sizes from "
            "x.shape, have numbers, and make tensors by torch.empty_like(x) and "
            "torch.zeros_like(x), around one loop",
        )  # fmt: skip
    return code


def _loop(compiled: Compiled, number: int) -> tuple[str, bytes]:
    """The symbol and the object code of a loop."""
    from weft import compiler  # where a library is made

    job = compiled.job
    function = copy.copy(job.loop.function)
    function.name = f"{function.name}_{number}"
    made = compiler.to_code(function, job.options, noalias=job.noalias, asked=job.asked)
    return made.symbol, made.object


def _link(file: pathlib.Path, objects: Sequence[bytes]) -> None:
    """Has the system's compiler make a shared library of object code, whose symbols are its own."""
    place = pathlib.Path(torch.__file__).parent / "lib"
    with tempfile.TemporaryDirectory() as folder:
        parts: list[str] = []
        for k, data in enumerate(objects):
            parts.append(f"{folder}/{k}.o")
            pathlib.Path(parts[-1]).write_bytes(data)
        hidden = pathlib.Path(folder, "symbols")
        hidden.write_text("{ local: *; };")
        command = [*shlex.split(os.environ.get("CC", "cc")), "-shared", "-o", str(file), *parts]
        command += [f"-Wl,--version-script={hidden}", f"-L{place}", "-ltorch_cpu", "-lm"]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise WeftError(f"{command[0]} makes no shared library:\n{made.stderr}")


_CPP = {"Tensor": "const at::Tensor&", "int": "int64_t", "SymInt": "int64_t", "float": "double",
        "bool": "bool"}  # fmt: skip


def _header(
    namespace: str, name: str, types: Sequence[str], names: Sequence[str], returns: int
) -> str:
    """A function of C++ that calls the operator."""
    cpp = [_CPP.get(t, "at::IntArrayRef") for t in types]
    result = ("void", "at::Tensor")[returns] if returns < 2 else (
        f"std::tuple<{', '.join(['at::Tensor'] * returns)}>")  # fmt: skip
    symbols = {"int64_t": "c10::SymInt", "at::IntArrayRef": "c10::SymIntArrayRef"}
    symbolic = [symbols.get(t, t) for t in cpp]
    return f"""// The kernel `{name}`, an operator of PyTorch: load the library, then call.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/types.h>

namespace {namespace} {{
inline {result} {name}({", ".join(f"{t} {n}" for t, n in zip(cpp, names, strict=True))}) {{
  static const auto op = c10::Dispatcher::singleton()
      .findSchemaOrThrow("{namespace}::{name}", "")
      .typed<{result}({", ".join(symbolic)})>();
  return op.call({", ".join(names)});
}}
}}  // namespace {namespace}
"""


def _example(value: Any) -> str:
    """A value of C++ like this one."""
    if isinstance(value, torch.Tensor):
        sizes = ", ".join(map(str, value.shape))
        type_ = str(value.dtype).removeprefix("torch.")
        kinds = {"float32": "Float", "float64": "Double", "float16": "Half", "int32": "Int",
                 "int64": "Long", "int16": "Short", "int8": "Char", "uint8": "Byte",
                 "bool": "Bool", "bfloat16": "BFloat16"}  # fmt: skip
        return f"torch::ones({{{sizes}}}, torch::k{kinds[type_]})"
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)


def _program(
    file: pathlib.Path, namespace: str, name: str, names: Sequence[str], values: Sequence[str],
    returns: int,
) -> str:  # fmt: skip
    made = [f"auto {n} = {v};" for n, v in zip(names, values, strict=True)]
    call = f"{namespace}::{name}({', '.join(names)})"
    shown = names[0] if returns == 0 else "result" if returns == 1 else "std::get<0>(result)"
    return f"""// Calls the kernel `{name}`. $torch: where PyTorch is (Python's torch.__path__[0]).
// c++ -std=c++20 {file.stem}_example.cpp -Wl,--no-as-needed ./{file.name} -I$torch/include \\
//     -I$torch/include/torch/csrc/api/include -L$torch/lib -ltorch -ltorch_cpu -lc10 \\
//     -Wl,-rpath,$torch/lib,-rpath,$PWD
#include <iostream>
#include <torch/types.h>
#include "{file.stem}.h"

int main() {{
  {chr(10).join(made).replace(chr(10), chr(10) + "  ")}
  {"" if returns == 0 else "auto result = "}{call};
  std::cout << {shown}.sum().item<double>() << std::endl;
}}
"""
