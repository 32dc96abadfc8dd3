"""LLVM IR to PTX, and what NVIDIA's assembler says of it."""

from __future__ import annotations

import functools
import pathlib
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence

import llvmlite.binding as llvm

from weft.codegen import libdevice
from weft.codegen.launching import overlap
from weft.codegen.libraries import folders
from weft.codegen.optimize import optimize
from weft.errors import WeftError
from weft.values import frozen

TRIPLE = "nvptx64-nvidia-cuda"


@functools.cache
def machine(arch: str) -> llvm.TargetMachine:
    """LLVM's description of a GPU."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(TRIPLE)
    return target.create_target_machine(cpu=arch, features=f"+{_version(arch)}", opt=3)


def _version(arch: str) -> str:
    """The least version of PTX that a driver must take for ``arch``: as low as possible."""
    number = int(arch.removeprefix("sm_"))
    if number in (103, 121):
        return "ptx88"
    versions = {120: "ptx87", 103: "ptx88", 100: "ptx86", 80: "ptx78", 0: "ptx70"}
    return next(version for least, version in versions.items() if number >= least)


def optimized(text: str, arch: str, functions: Sequence[str] = ()) -> llvm.ModuleRef:
    """The module ``text`` after optimisation, with libdevice's ``functions`` in it."""
    tm = machine(arch)
    module = llvm.parse_assembly(text)
    module.triple = TRIPLE
    module.data_layout = str(tm.target_data)
    libdevice.link(module, functions)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = False
    options.slp_vectorization = False
    optimize(module, tm, options)
    return module


def assemble(module: llvm.ModuleRef, arch: str) -> str:
    """The PTX of an optimised module."""
    return roomy(ordered(wrapping(complemented(machine(arch).emit_assembly(module)))))


_NEGATION = re.compile(r"\b(?:neg\.s(16|32)(\s+)(%\w+), |sub\.s(16|32)(\s+)(%\w+), 0, )(%\w+);")
_EXTREMUM = re.compile(r"\b(?:min|max)\.s(?:16|32)\b")


def complemented(text: str) -> str:
    """PTX in which ``-x`` of an integer is ``~x + 1``, where it has extrema of integers as well.

    NVIDIA's assembler (ptxas 13.0 and the driver's, for sm_90, with any optimisation) gives wrong
    numbers for some extrema of three operands of which one is a negation, such as
    ``min(min(a, -b), 0)`` of 32 bits: it joins the two and loses the sign."""

    def other(found: re.Match[str]) -> str:
        bits, space, to = (found[k] or found[k + 3] for k in (1, 2, 3))
        return f"not.b{bits}{space}{to}, {found[7]};\n\tadd.s{bits}{space}{to}, {to}, 1;"

    return _NEGATION.sub(other, text) if _EXTREMUM.search(text) else text


_MAGNITUDE = re.compile(r"\babs\.s16\s+(%\w+), (%\w+);")


def wrapping(text: str) -> str:
    """PTX in which ``|x|`` of 16 bits is ``(x ^ s) - s``, s the sign: an H200 took that of -32768
    for 32768 where it was made wider afterwards."""
    return _MAGNITUDE.sub(
        r"{ .reg .b16 %sign, %other;\n\tshr.s16 %sign, \2, 15;\n\txor.b16 %other, \2, %sign;\n"
        r"\tsub.s16 \1, %other, %sign; }", text
    )  # fmt: skip


_RESULT = re.compile(r"^\t(?:@!?%\w+ )?([\w.]+)\s+(%\w+), (.*);$", re.MULTILINE)
_COMPARED = re.compile(r"\bsetp\.([gl][te])((?:\.ftz)?\.f32\s+%\w+), (%\w+), 0f(\w{8});")


def ordered(text: str) -> str:
    """PTX in which ``|x| > -1``, ``|x| >= 0`` and ``-|x| < 1`` of floats, and the same of
    ``exp2(x)``, ask whether ``x`` is a number: NVIDIA's assembler (ptxas 13.0 for sm_90, with
    optimisation) takes them for true, also of NaN."""
    bodies = re.split(r"(?m)^(?=\.(?:visible |weak )?(?:\.entry|\.func))", text)
    return "".join(map(_ordered, bodies))


def _ordered(body: str) -> str:
    """``ordered`` of one function, which has registers of its own."""
    signs = dict[str, set[int]]()  # of registers: 1 of what is never below 0, -1 of its negation
    for name, register, operands in _RESULT.findall(body):
        if name == "abs.f32" or name.startswith("ex2.approx"):
            found = {1}
        elif name == "neg.f32":
            found = {-sign for sign in signs.get(operands, {0})}
        else:
            found = {0}
        signs[register] = signs.get(register, set()) | found

    def asked(found: re.Match[str]) -> str:
        relation, form, register, constant = found.groups()
        (c,) = struct.unpack(">f", bytes.fromhex(constant))
        sign = {"g": {1}, "l": {-1}}[relation[0]]
        c = -c if relation[0] == "l" else c
        if signs.get(register) != sign or not (c < 0 or (c == 0 and relation[1] == "e")):
            return found[0]
        return f"setp.num{form}, {register}, {register};"

    return _COMPARED.sub(asked, body)


_PARAMETER = re.compile(r"^\s*\.param .*?\.[busf](\d+) .*?(?:\[(\d+)\])?,?$", re.MULTILINE)
_VERSION = re.compile(r"^\.version (\d+)\.(\d+)$", re.MULTILINE)
_FEW_BYTES = 4352  # of parameters, ahead of PTX 8.1 (CUDA 12.1), which takes 32,764


def roomy(text: str) -> str:
    """PTX of a version that takes as many bytes of parameters as its function has. PTX ISA, kernel
    function parameters: 32,764 bytes from version 8.1 on, 4,352 before."""
    found = _PARAMETER.findall(text)
    if sum(int(bits) // 8 * int(length or 1) for bits, length in found) <= _FEW_BYTES:
        return text
    return _VERSION.sub(lambda v: v[0] if (int(v[1]), int(v[2])) > (8, 1) else ".version 8.1", text)


def streaming(text: str) -> str:
    """PTX with global stores of data that makes way first in the caches. LLVM has no word for it:
    it drops ``!nontemporal``."""
    return re.sub(r"\bst\.global\.", "st.global.cs.", text)


def unrolled(text: str) -> str:
    """PTX whose loops may all be unrolled by ``ptxas``: what is left of a loop's turns, too, of
    which LLVM says that it should not be, so that each turn waits for what it loads."""
    return text.replace('\t.pragma "nounroll";\n', "")


_ENTRY = re.compile(r"(?=^\.visible \.entry )", re.MULTILINE)


def dependent(text: str, arch: str) -> str:
    """PTX of kernels that run one after the other: the blocks of each may start where all of the
    one before have (``runtime.cuda.FOLLOWS``), and wait until that is done and has written, where
    ``arch`` can. What it wrote is no constant (``ld.global.nc``) while they are there."""
    head, *entries = _ENTRY.split(text)
    if len(entries) < 2 or not overlap(arch):
        return text
    for k, entry in enumerate(entries):
        start = "\n\tgriddepcontrol.wait;" * (k > 0)
        start += "\n\tgriddepcontrol.launch_dependents;" * (k + 1 < len(entries))
        made = re.sub(r"^\{", "{" + start, entry, count=1, flags=re.MULTILINE)
        entries[k] = made.replace("ld.global.nc.", "ld.global.") if k else made
    return head + "".join(entries)


# -- NVIDIA's assembler


@functools.cache
def ptxas() -> pathlib.Path | None:
    """The assembler, from the PATH, a CUDA toolkit, Triton's package or NVIDIA's wheels."""
    return next((place for place in _assemblers() if place.is_file()), None)


def _assemblers() -> Iterator[pathlib.Path]:
    found = shutil.which("ptxas")
    if found:
        yield pathlib.Path(found)
    for root in libdevice.toolkits():
        yield root / "bin" / "ptxas"
    for package, inside in (
        ("triton", ("backends/nvidia/bin/ptxas-blackwell", "backends/nvidia/bin/ptxas")),
        ("nvidia.cu13", ("bin/ptxas",)), ("nvidia.cuda_nvcc", ("bin/ptxas",)),
        ("nvidia", ("cu13/bin/ptxas",)),
    ):  # fmt: skip
        for folder in folders(package):
            yield from (folder / place for place in inside)


@frozen
class Usage:
    """What one kernel function takes: registers of a thread; bytes of static shared memory of a
    block, of a thread's stack, and of registers spilled to it."""

    function: str
    registers: int
    shared: int
    stack: int
    spill_stores: int
    spill_loads: int

    def occupancy(self, threads: int, dynamic: int = 0) -> float:
        """The part of a multiprocessor's 64 warps that can be there at once (65536 registers, 227
        kB)."""
        warps = -(-threads // 32)
        registers = -(-max(self.registers, 1) * 32 // 256) * 256 * warps
        blocks = min(65536 // registers, 32, 64 // warps)
        if self.shared + dynamic:
            blocks = min(blocks, 232448 // (self.shared + dynamic + 1024))
        return min(1.0, blocks * warps / 64)

    def describe(self, threads: int) -> str:
        """One line, for blocks of ``threads``."""
        return (
            f"{self.function}: {self.registers} registers, {self.shared} bytes of shared memory, "
            f"{self.spill_stores + self.spill_loads} bytes spilled, stack of {self.stack} bytes, "
            f"occupancy {self.occupancy(threads):.0%} with {threads} threads"
        )


class AssemblerError(WeftError, RuntimeError):
    """ptxas refused PTX that weft made, or is not there."""


def usage(ptx: str, arch: str) -> dict[str, Usage]:
    """What ptxas says of each kernel. Raises ``AssemblerError``."""
    return _assemble(ptx, arch)[0]


def cubin(ptx: str, arch: str) -> bytes:
    """Machine code of PTX. Raises ``AssemblerError``."""
    return _assemble(ptx, arch)[1]


def _assemble(ptx: str, arch: str) -> tuple[dict[str, Usage], bytes]:
    tool = ptxas()
    if tool is None:
        raise AssemblerError("ptxas is nowhere: install CUDA, triton or nvidia-cuda-nvcc")
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        source, target = pathlib.Path(folder, "kernel.ptx"), pathlib.Path(folder, "kernel.cubin")
        source.write_text(ptx)
        command = [str(tool), "-v", f"-arch={arch}", "-o", str(target), str(source)]
        command += ["-lineinfo"] if "\t.loc\t" in ptx else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise AssemblerError(f"ptxas for {arch}: {(done.stderr or done.stdout).strip()}")
        return _read(done.stderr + done.stdout), target.read_bytes()


def _read(log: str) -> dict[str, Usage]:
    found: dict[str, Usage] = {}
    for part in re.split(r"Compiling entry function ", log)[1:]:
        name = re.match(r"'([^']+)'", part)
        if name is None:
            continue
        numbers = [
            int(match.group(1)) if (match := re.search(pattern, part)) else 0
            for pattern in (
                r"Used (\d+) registers",
                r"(\d+) bytes smem",
                r"(\d+) bytes stack frame",
                r"(\d+) bytes spill stores",
                r"(\d+) bytes spill loads",
            )
        ]
        found[name.group(1)] = Usage(name.group(1), *numbers)
    return found


def disassembly(ptx: str, arch: str) -> str | None:
    """SASS, by nvdisasm or cuobjdump; None where neither is found. Where the PTX says source lines,
    nvdisasm's has them."""
    for name, options in (("nvdisasm", ["-c", "-g"]), ("cuobjdump", ["--dump-sass"])):
        beside = ptxas()
        places = [shutil.which(name), str(beside.parent / name) if beside else None]
        tool = next((p for p in places if p and pathlib.Path(p).is_file()), None)
        if tool is None:
            continue
        with tempfile.TemporaryDirectory(prefix="weft-") as folder:
            target = pathlib.Path(folder, "kernel.cubin")
            target.write_bytes(cubin(ptx, arch))
            done = subprocess.run(
                [tool, *options, str(target)], capture_output=True, text=True, check=False
            )
            if done.returncode == 0:
                return done.stdout
    return None
