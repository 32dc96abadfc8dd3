"""What stands in a shared library around the kernel of an operator (``boxed.py``), as LLVM IR: its
registration, the record that it reads, and what takes the place of Python."""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen import boxed
from weft.codegen.interrupt import FUNCTIONS

# Interrupts are Python's: nobody asks for them here.
_STUBS = "".join(f"define i64 @{name}() {{ ret i64 0 }}\n" for name in FUNCTIONS)


def text(
    namespace: str, schemas: Sequence[str], loops: Sequence[Sequence[str]], message: str
) -> str:
    """The LLVM IR for operators of these ``schemas``, all with one kernel. ``loops``: the symbols
    of the loops of each form; ``message`` says what an error does of a call that no form covers."""
    strings: list[str] = []

    def string(value: str) -> str:
        data = value.encode()
        letters = "".join(f"\\{byte:02x}" for byte in (*data, 0))
        strings.append(f'@s{len(strings)} = private constant [{len(data) + 1} x i8] c"{letters}"')
        return f"ptr @s{len(strings) - 1}"

    symbols = [symbol for form in loops for symbol in form]
    words = ["ptr null", "ptr @python"]
    for form in loops:
        words += ["ptr null", *(f"ptr @{symbol}" for symbol in form)]
    space, empty = string(namespace), string("")
    body = [
        f"call i32 @aoti_torch_library_init_fragment({space}, {empty}, i32 0, ptr %handle)",
        "%define = load ptr, ptr %handle",
    ]
    body += [f"call i32 @aoti_torch_library_def(ptr %define, {string(s)})" for s in schemas]
    for symbol, key in ((boxed.BELOW, "CPU"), (boxed.AUTOGRAD, "AutogradCPU")):
        place = f"{space}, {string(key)}, {empty}, i32 0, ptr %handle"
        body.append(f"call i32 @aoti_torch_library_init_impl({place})")
        body.append(f"%in.{key} = load ptr, ptr %handle")
        for schema in schemas:
            name = string(schema.partition("(")[0])
            function = f"ptr @kernel.{symbol}"
            body.append(f"call i32 @aoti_torch_library_impl(ptr %in.{key}, {name}, {function})")
    lines = "\n  ".join(body)
    kernels = "".join(f"""
declare void @{symbol}(ptr, i64, i64, ptr)
define internal void @kernel.{symbol}(ptr %stack, i64 %given, i64 %wanted) {{
  tail call void @{symbol}(ptr %stack, i64 %given, i64 %wanted, ptr @record)
  ret void
}}
""" for symbol in boxed.SYMBOLS)  # fmt: skip
    said = string(message)
    return f"""
{_STUBS}
declare i32 @aoti_torch_library_init_fragment(ptr, ptr, i32, ptr)
declare i32 @aoti_torch_library_init_impl(ptr, ptr, ptr, i32, ptr)
declare i32 @aoti_torch_library_def(ptr, ptr)
declare i32 @aoti_torch_library_impl(ptr, ptr, ptr)
{"".join(f"declare void @{symbol}(ptr)" + chr(10) for symbol in symbols)}
@record = internal constant [{len(words)} x ptr] [{", ".join(words)}]
define internal ptr @python(ptr %stack, i64 %which) {{ ret {said} }}
{kernels}
define internal void @register() {{
  %handle = alloca ptr
  {lines}
  ret void
}}
@llvm.global_ctors = appending global [1 x {{ i32, ptr, ptr }}]
  [{{ i32, ptr, ptr }} {{ i32 65535, ptr @register, ptr null }}]
{chr(10).join(strings)}
"""
