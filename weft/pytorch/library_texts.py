"""The header of a shared library (``shared_library.py``), and an example of C++."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

_CPP = {"Tensor": "const at::Tensor&", "int": "int64_t", "SymInt": "int64_t", "float": "double",
        "bool": "bool", "List[float]": "at::ArrayRef<double>",
        "List[bool]": "at::ArrayRef<bool>"}  # fmt: skip
_WORDS = {"Tensor": "a tensor's handle", "int": "an int64_t", "SymInt": "an int64_t",
          "float": "the bits of a double", "bool": "0 or 1"}  # fmt: skip


# Keywords of C++ that are none of Python, and names that the headers have themselves.
_TAKEN = """
alignas alignof asm auto bool case catch char concept const consteval constexpr constinit decltype
default delete do double dynamic_cast enum explicit export extern false float friend goto inline
int long mutable namespace new noexcept nullptr operator private protected public register
requires short signed sizeof static struct switch template this throw true typedef typeid typename
union unsigned using virtual void volatile xor bitand bitor compl why found made package op kind
size plain text at std c10 torch weft main result
"""


def cpp_name(name: str) -> str:
    """The name of a parameter or kernel in C++."""
    return name + "_" * (name in _TAKEN.split() or re.fullmatch(r"[a-z]+\d+", name) is not None)


def write(
    file: pathlib.Path, name: str, schema: Any, example: Sequence[Any], frozen: Mapping[str, Any]
) -> None:
    """Writes the header and the example of the library ``file``, of the kernel ``name``."""
    namespace = schema.name.partition("::")[0]
    types = [str(a.type) for a in schema.arguments]
    names = [cpp_name(a.name) for a in schema.arguments]
    header = _header(namespace, name, types, names, len(schema.returns), frozen)
    file.with_suffix(".h").write_text(header)
    values = [example_of(value) for value in example]
    program = program_text(file, namespace, name, names, values, len(schema.returns))
    file.with_name(f"{file.stem}_example.cpp").write_text(program)


def _header(
    namespace: str, name: str, types: Sequence[str], names: Sequence[str], returns: int,
    frozen: Mapping[str, Any],
) -> str:  # fmt: skip
    """A function of C, and one of C++, that call the operator."""
    cpp = [_CPP.get(t, "at::IntArrayRef") for t in types]
    result = ("void", "at::Tensor")[returns] if returns < 2 else (
        f"std::tuple<{', '.join(['at::Tensor'] * returns)}>")  # fmt: skip
    passed = [f"c10::fromIntArrayRefSlow({n})" if t == "at::IntArrayRef" else n
              for t, n in zip(cpp, names, strict=True)]  # fmt: skip
    parameters = ", ".join(f"{t} {n}" for t, n in zip(cpp, names, strict=True))
    symbols = {"int64_t": "c10::SymInt", "at::IntArrayRef": "c10::SymIntArrayRef"}
    symbolic = [symbols.get(t, t) for t in cpp]
    kept = "".join(f"// `{n}`, from around the kernel, is {v!r}.\n" for n, v in frozen.items())
    words = ", ".join(f"{_WORDS.get(t, 'the handle of a list')} ({n})"
                      for t, n in zip(types, names, strict=True))  # fmt: skip
    entry = f"""
// `stack`: {words}, in PyTorch's stable C interface (torch/csrc/stable/c/shim.h).
// Handles are gone then; the results' take their places. Gives NULL, or what is wrong.
#ifdef __cplusplus
extern "C"
#endif
const char *weft_{name}(uint64_t *stack);
""" if name.isascii() else ""  # fmt: skip
    return f"""// The kernel `{name}`, an operator of PyTorch: load the library, then call.
{kept}#pragma once
#include <stdint.h>
{entry}
#ifdef __cplusplus
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/types.h>

namespace {namespace} {{
inline {result} {cpp_name(name)}({parameters}) {{
  static const auto op = c10::Dispatcher::singleton()
      .findSchemaOrThrow("{namespace}::{name}", "")
      .typed<{result}({", ".join(symbolic)})>();
  return op.call({", ".join(passed)});
}}
}}  // namespace {namespace}
#endif
"""


CPP_KINDS = {"float32": "Float", "float64": "Double", "float16": "Half", "int32": "Int",
          "int64": "Long", "int16": "Short", "int8": "Char", "uint8": "Byte",
          "uint16": "UInt16", "uint32": "UInt32", "uint64": "UInt64",
          "bool": "Bool", "bfloat16": "BFloat16", "float8_e4m3fn": "Float8_e4m3fn",
          "float8_e5m2": "Float8_e5m2"}  # fmt: skip


def example_of(value: Any) -> str:
    """A value of C++ like this one."""
    if isinstance(value, torch.Tensor):
        sizes = ", ".join(
            str(n.node.hint if isinstance(n, torch.SymInt) else n) for n in value.size()
        )
        options = f"torch::k{CPP_KINDS[str(value.dtype).removeprefix('torch.')]}"
        if value.device.type != "cpu":
            options = f"torch::device(torch::kCUDA).dtype({options})"
        return f"torch::ones({{{sizes}}}, {options})"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        kinds = {bool: "bool", float: "double"}
        kind = kinds.get(type(value[0]), "int64_t") if value else "int64_t"
        return f"std::array<{kind}, {len(value)}>{{{', '.join(map(example_of, value))}}}"
    return repr(value)


def program_text(
    file: pathlib.Path, namespace: str, name: str, names: Sequence[str], values: Sequence[str],
    returns: int,
) -> str:  # fmt: skip
    """An example of C++ that calls the kernel ``name``, and says how it is built."""
    made = [f"auto {n} = {v};" for n, v in zip(names, values, strict=True)]
    call = f"{namespace}::{cpp_name(name)}({', '.join(names)})"
    shown = names[0] if returns == 0 else "result" if returns == 1 else "std::get<0>(result)"
    return f"""// Calls the kernel `{name}`. $torch: where PyTorch is (Python's torch.__path__[0]).
// c++ -std=c++20 {file.stem}_example.cpp -Wl,--no-as-needed ./{file.name} -I$torch/include \\
//     -I$torch/include/torch/csrc/api/include -L$torch/lib -ltorch -ltorch_cpu -lc10 \\
//     -Wl,-rpath,$torch/lib,-rpath,$PWD
#include <array>
#include <iostream>
#include <torch/types.h>
#include "{file.stem}.h"

int main() {{
  {chr(10).join(made).replace(chr(10), chr(10) + "  ")}
  {"" if returns == 0 else "auto result = "}{call};
  std::cout << {shown}.sum().item<double>() << std::endl;
}}
"""
