"""The header of a kernel that is a package of AOTInductor (``exported_program.py``): it looks at
the arguments before the package sees them, which does not."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from weft.pytorch.library_texts import CPP_KINDS, cpp_name, example_of, program_text
from weft.values import frozen

_DEVICES = {"cpu": "at::kCPU", "cuda": "at::kCUDA"}


@frozen
class Package:
    """``file``: its name. ``arguments``: by the kernel's parameters, tensors (with symbolic sizes)
    and other values; ``ranges``: of the symbols; ``outputs``: how many tensors it gives;
    ``written``: names of parameters."""

    file: str
    arguments: tuple[tuple[str, Any], ...]
    ranges: Mapping[str, tuple[int, int]]
    outputs: int
    written: frozenset[str]


def write(
    file: pathlib.Path, name: str, namespace: str, packages: Sequence[Package],
    kept: Mapping[str, Any],
) -> None:  # fmt: skip
    """Writes the header and the example of the library ``file``."""
    first = packages[0]
    shown = [(cpp_name(n), v) for n, v in first.arguments if cpp_type(v)]
    names = [n for n, _ in shown]
    parameters = ", ".join(f"{cpp_type(v)} {n}" for n, v in shown)
    result = ("void", "at::Tensor")[first.outputs] if first.outputs < 2 else (
        f"std::tuple<{', '.join(['at::Tensor'] * first.outputs)}>")  # fmt: skip
    fixed = {**kept, **{n: v for n, v in first.arguments if not cpp_type(v)}}
    notes = "".join(f"// `{n}` is {v!r}.\n" for n, v in fixed.items())
    checks = "\n".join(_check(k, p, parameters) for k, p in enumerate(packages))
    calls = "\n".join(_call(k, p, names, name) for k, p in enumerate(packages))
    header = f"""// The kernel `{name}`: loops in {file.name}, which has to be loaded, the rest
// in a package of AOTInductor (.pt2), which is looked for in {name}_folder().
{notes}#pragma once
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/types.h>
#include <stdexcept>
#include <string>

namespace {namespace} {{
namespace {name}_package {{
{_HELPERS}
{checks}
}}  // namespace {name}_package

inline std::string& {name}_folder() {{
  static std::string folder = ".";
  return folder;
}}

inline {result} {cpp_name(name)}({parameters}) {{
  std::string why;
{calls}
  throw std::invalid_argument("{name}: " + why);
}}
}}  // namespace {namespace}
"""
    file.with_suffix(".h").write_text(header)
    values = [example_of(v) for _, v in shown]
    text = program_text(file, namespace, name, names, values, first.outputs)
    file.with_name(f"{file.stem}_example.cpp").write_text(text)


def packages_of(file: pathlib.Path) -> set[str]:
    """The packages that the header of a library asks for, which may not be there yet."""
    header = file.with_suffix(".h")
    text = header.read_text() if header.is_file() else ""
    return set(re.findall(rf'_folder\(\) \+ "/({re.escape(file.stem)}[_0-9]*\.pt2)"', text))


def cpp_type(value: Any) -> str:
    """The parameter of C++; "" where the value is the package's own."""
    if isinstance(value, torch.Tensor):
        return "const at::Tensor&"
    return {bool: "bool", int: "int64_t", float: "double"}.get(type(value), "")


def _check(number: int, package: Package, parameters: str) -> str:
    """A function that says what is wrong with arguments for a package."""
    from torch.utils._sympy.printers import CppPrinter  # sympy

    lines: list[str] = []
    sizes: list[str] = []
    known = set[str]()
    print_size = CppPrinter().doprint
    for own_name, value in package.arguments:
        name = cpp_name(own_name)
        if isinstance(value, torch.Tensor):
            kind = CPP_KINDS[str(value.dtype).removeprefix("torch.")]
            written = str(own_name in package.written).lower()
            lines.append(f'  kind(why, "{own_name}", {name}, {_DEVICES[value.device.type]}, '
                         f"at::k{kind}, {value.dim()}, {written});")  # fmt: skip
            for axis, size in enumerate(value.size()):
                expr = size.node.expr if isinstance(size, torch.SymInt) else None
                own = f"{name}.size({axis})"
                if expr is not None and expr.is_symbol and str(expr) not in known:
                    known.add(str(expr))
                    low, high = package.ranges.get(str(expr), (0, 1 << 62))
                    sizes.append(f"  const int64_t {expr} = {own};")
                    sizes.append(f'  size(why, "{own_name}", {axis}, {own}, {low}, {high}LL);')
                else:
                    wanted = str(size) if expr is None else print_size(expr)
                    sizes.append(f'  size(why, "{own_name}", {axis}, {own}, {wanted}, {wanted});')
        elif cpp_type(value):
            literal = example_of(value)
            sizes.append(f"""  if (why.empty() && {name} != {literal})
    why = "`{own_name}` is " + c10::str({name}) + ", and the package has {literal}";""")
    body = "\n".join([*lines, "  if (!why.empty()) return why;", *sizes])
    return f"inline std::string why_{number}({parameters}) {{\n  std::string why;\n{body}\n" + (
        "  return why;\n}"
    )


def _call(number: int, package: Package, names: Sequence[str], kernel: str) -> str:
    passed = ", ".join(
        cpp_name(name) if name in package.written else f"{kernel}_package::plain({cpp_name(name)})"
        for name, value in package.arguments if isinstance(value, torch.Tensor)
    )  # fmt: skip
    gives = {0: "return;", 1: "return made[0];"}.get(
        package.outputs,
        f"return {{{', '.join(f'made[{k}]' for k in range(package.outputs))}}};",
    )
    path, asked = json.dumps("/" + package.file), f"why_{number}({', '.join(names)})"
    return f"""  if (auto found = {kernel}_package::{asked}; found.empty()) {{
    static torch::inductor::AOTIModelPackageLoader package({kernel}_folder() + {path});
    auto made = package.run({{{passed}}});
    {gives}
  }} else {{
    if (why.find(found) == std::string::npos) why += (why.empty() ? "" : "; or ") + found;
  }}"""


_HELPERS = r"""using text = std::string;

inline void kind(text& why, const char* name, const at::Tensor& x, at::DeviceType device,
                 at::ScalarType dtype, int64_t rank, bool written) {
  const text is = text("`") + name + "` ", wanted = ", and the package is for ";
  if (!why.empty()) return;
  if (x.device().type() != device)
    why = is + "is on " + x.device().str() + wanted + c10::DeviceTypeName(device);
  else if (x.scalar_type() != dtype)
    why = is + "is " + c10::toString(x.scalar_type()) + wanted + c10::toString(dtype);
  else if (x.dim() != rank)
    why = is + "has " + std::to_string(x.dim()) + " dimensions" + wanted + std::to_string(rank);
  else if (written && !x.is_contiguous())
    why = is + "is written, and not contiguous";
  else if (x.requires_grad() && at::GradMode::is_enabled())
    why = is + "requires a gradient, and the package has none: call it under at::NoGradGuard";
}
inline void size(text& why, const char* name, int axis, int64_t n, int64_t low, int64_t high) {
  if (why.empty() && !(low <= n && n <= high))
    why = text("`") + name + "` has size " + std::to_string(n) + " along axis " +
          std::to_string(axis) + ", and the package is for " + std::to_string(low) +
          (low == high ? "" : high >> 60 ? " or more" : " to " + std::to_string(high));
}
inline at::Tensor plain(const at::Tensor& x) {
  const bool fits = x.is_contiguous() && reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 == 0;
  return fits ? x : x.clone(at::MemoryFormat::Contiguous);
}"""
