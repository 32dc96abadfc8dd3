"""What the compiler makes of a kernel, as texts with names; their hashes; and two of them
compared. Nothing here depends on the machine: CPUs are values, and no GPU is asked."""

from __future__ import annotations

import difflib
import hashlib
import multiprocessing
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from tests.golden.cases import KERNELS
from weft import compiler
from weft.codegen import cpu, cuda
from weft.errors import CompileError
from weft.ir.core import Function
from weft.ir.text import print_function
from weft.options import Options
from weft.schedule import default_cpu
from weft.schedule.choose import candidate
from weft.schedule.language import brief
from weft.schedule.machine import CpuMachine
from weft.tools.cross import gradient_loops, lowered_loops, tangent_loops

ROOT = pathlib.Path(__file__).parents[2]
RECORD = pathlib.Path(__file__).with_name("record.txt")
MACHINES = (CpuMachine(32, sleef=True), CpuMachine(64, sleef=True))


def loops(name: str) -> Iterator[tuple[str, Function]]:
    """The loops of a kernel and of its derivatives, each with a name: "0", its gradient's "0.0",
    "0.1", its tangent's "0.t0". Raises ``CompileError``s of the kernel itself."""
    (kernel, *args), times = KERNELS[name]
    found = {str(k): loop for k, loop in enumerate(lowered_loops(kernel, *args))}
    for label, loop in list(found.items()) if times else ():
        for k, step in enumerate(tangent_loops(loop)):
            found[f"{label}.t{k}"] = step
    last = {label: loop for label, loop in found.items() if "t" not in label}
    for _ in range(times):
        before, last = last, dict[str, Function]()
        for label, loop in before.items():
            try:
                last |= {f"{label}.{k}": step for k, step in enumerate(gradient_loops(loop))}
            except CompileError:  # it has none
                continue
        found |= last
    yield from found.items()


def texts(name: str) -> Iterator[tuple[str, str]]:
    """What each stage makes of each loop: (loop, stage and candidate; text)."""
    options: Options = KERNELS[name][0][0].options
    for label, loop in loops(name):
        function = compiler.optimize_for_cpu(loop, options)
        yield f"{label} ir cpu", print_function(function)
        for machine in MACHINES:
            schedule, *_ = default_cpu.candidates(function, machine)
            kernel = cpu.scheduled(function, schedule, machine)
            yield f"{label} llvm cpu{machine.vector_bytes}", kernel.emit()
        function = compiler.optimize(loop, options)
        yield f"{label} ir cuda", print_function(function)
        facts = cuda.analyse(function)
        for text in facts.candidates:
            schedule = candidate(text).schedule
            grid = cuda.scheduled(function, schedule)
            yield f"{label} llvm {brief(schedule)}", grid.emit()


def hashes(name: str) -> list[str]:
    """A line for each text of a kernel, as they stand in the record."""
    return sorted(
        f"{name} {what} {hashlib.sha256(text.encode()).hexdigest()[:12]}"
        for what, text in texts(name)
    )


def recorded() -> dict[str, list[str]]:
    """The lines of the record, by kernel."""
    found: dict[str, list[str]] = {}
    for line in RECORD.read_text().splitlines():
        found.setdefault(line.split(" ", 1)[0], []).append(line)
    return found


def differences(before: list[str], now: list[str]) -> list[str]:
    """A line for each text that changed, appeared or went: what, not the hashes."""
    old = dict(line.rsplit(" ", 1) for line in before)
    new = dict(line.rsplit(" ", 1) for line in now)
    return [
        f"{what}: {'new' if what not in old else 'gone' if what not in new else 'changed'}"
        for what in sorted(old | new)
        if old.get(what) != new.get(what)
    ]


# -- the command


def every(names: list[str], processes: int) -> dict[str, list[str]]:
    """The hashes of these kernels, by that many processes."""
    fork = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=fork) as pool:
        return dict(zip(names, pool.map(hashes, names), strict=True))


def record(names: list[str], processes: int) -> int:
    """Writes the record of these kernels, and says what changed."""
    before = recorded() if RECORD.exists() else {}
    now = {name: before[name] for name in before.keys() & KERNELS.keys()} | every(names, processes)
    RECORD.write_text("\n".join(line for name in sorted(now) for line in now[name]) + "\n")
    return _report(before, now, before.keys() | now.keys())


def check(names: list[str], processes: int) -> int:
    """Says what these kernels' texts differ in from the record: 1 if in anything."""
    before, now = recorded(), every(names, processes)
    return _report(before, now, now.keys() | (before.keys() - KERNELS.keys()))


def _report(before: dict[str, list[str]], now: dict[str, list[str]], names: set[str]) -> int:
    changed = [
        line for name in sorted(names)
        for line in differences(before.get(name, []), now.get(name, []))
    ]  # fmt: skip
    print("\n".join([*changed, f"{len(changed)} of {sum(map(len, now.values()))} texts differ"]))
    return bool(changed)


def show(name: str, revision: str) -> int:
    """Prints how the texts of a kernel differ from those of a git revision, as a unified diff."""
    with tempfile.TemporaryDirectory() as folder:
        archive = pathlib.Path(folder, "archive.tar")
        subprocess.run(["git", "archive", "-o", archive, revision], cwd=ROOT, check=True)
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        before = _texts_in(pathlib.Path(folder), name)
    now = _texts_in(ROOT, name)
    for what in sorted(before | now):
        print("".join(difflib.unified_diff(
            before.get(what, "").splitlines(keepends=True),
            now.get(what, "").splitlines(keepends=True),
            f"{name} {what} at {revision}", f"{name} {what} now",
        )), end="")  # fmt: skip
    return before != now


def _texts_in(root: pathlib.Path, name: str) -> dict[str, str]:
    """The texts of a kernel as the code in ``root`` makes them, in a process of its own."""
    command = [sys.executable, "-m", "tests.golden", "texts", name]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    run = subprocess.run(command, cwd=root, env=environment, check=True, capture_output=True)
    parts = run.stdout.decode().split("\x00")[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def timed() -> None:
    """Prints how long each kernel takes in this process."""
    for name in KERNELS:
        begin = time.process_time()
        print(f"{name}: {len(hashes(name))} texts, {time.process_time() - begin:.2f} s")
