"""Shaders in the Metal Shading Language on a CPU: compiled as C++, with a header that gives its
words a meaning (``metal/metal_stdlib``), run over the grid."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from weft.codegen.shading import ENTRY, Stage
from weft.lang.resident import Home
from weft.runtime import webgpu

HERE = Path(__file__).parent / "metal"
COMPILER = shutil.which("g++") or shutil.which("clang++")
FLAGS = ["-std=c++17", "-O1", "-ffp-contract=off", "-fwrapv", "-shared", "-fPIC", "-w", "-x", "c++"]

# ``entry`` with its buffers, for each thread of a grid. Fibers are needed where threads wait.
HARNESS = """
struct Any {{ void* at; template <typename T> operator T*() const {{ return (T*)at; }} }};
static void** buffers;
static uint3 block, blocks;
static void thread(uint number) {{
  const uint3 place{{number % {x}u, number / {x}u % {y}u, number / {xy}u}};
  {entry}({arguments}place, number, block, blocks);
}}
extern "C" int run(void** given, uint x, uint y, uint z) {{
  buffers = given;
  blocks = uint3{{x, y, z}};
  for (block.z = 0; block.z < z; ++block.z)
    for (block.y = 0; block.y < y; ++block.y)
      for (block.x = 0; block.x < x; ++block.x)
        {run}
  return 0;
}}
"""
PLAIN = "for (uint k = 0; k < {threads}u; ++k) thread(k);"
FIBERS = "if (!metal::fibers::run({threads}u, thread)) return 1;"

Run = Callable[..., int]


class Metal:
    """What ``runtime.webgpu_device.Device`` is, for Metal's language."""

    name, ends_loops = "metal", False
    features = frozenset({"shader-int64"})

    def __init__(self) -> None:
        self.lock = Home.lock
        self.limits = {
            "max-storage-buffers-per-shader-stage": 31,
            "max-compute-invocations-per-workgroup": 1024,
        }
        self.texts = 0  # that were compiled
        self.epoch = 0
        self.checks: list[tuple[Any, Callable[[Any], None]]] = []

    def buffer(self, size: int) -> Any:
        size = -(-size // 4) * 4
        return (ctypes.c_char * size).from_buffer_copy(b"\xab" * size)

    def give_back(self, buffer: Any) -> None:
        pass

    def release(self, buffer: Any) -> None:
        pass

    def upload(self, buffer: Any, data: Any) -> None:
        ctypes.memmove(buffer, bytes(data), len(bytes(data)))

    def read(self, buffer: Any, address: int, size: int) -> None:
        ctypes.memmove(address, buffer, size)

    def words(self, buffer: Any, count: int) -> tuple[int, ...]:
        return tuple((ctypes.c_uint32 * count).from_buffer(buffer))

    def pipeline(
        self, stage: Stage, name: str, threads: tuple[int, int, int], *, free: bool
    ) -> Run:
        self.texts += 1
        return harnessed(stage.text, ENTRY, len(stage.buffers), threads)

    def read_into(self, buffer: Any, address: int, size: int) -> None:
        ctypes.memmove(address, buffer, size)
        self.check()

    def later(self, buffer: Any, check: Callable[[Any], None]) -> None:
        self.checks.append((buffer, check))

    def check(self) -> None:
        checks, self.checks = self.checks, []
        for buffer, check in checks:
            check(buffer)

    def group(self, pipeline: Run, buffers: Sequence[Any], free: int = 0) -> Sequence[Any]:
        return buffers

    def run(
        self, stages: Sequence[tuple[Run, Sequence[Any], tuple[int, int, int]]], words: bytes = b""
    ) -> None:
        for run, buffers, grid in stages:
            if words:
                buffers = [(ctypes.c_char * len(words)).from_buffer_copy(words), *buffers]
            places = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
            assert run(places, *grid) == 0, "a barrier that some threads of a block do not come to"


def harnessed(text: str, entry: str, count: int, threads: tuple[int, int, int]) -> Run:
    """What runs ``entry`` with so many buffers on a grid of blocks of ``threads``."""
    x, y, z = threads
    arguments = "".join(f"Any{{buffers[{k}]}}, " for k in range(count))
    run = FIBERS if "threadgroup_barrier" in text else PLAIN
    harness = HARNESS.format(
        entry=entry, arguments=arguments, x=x, y=y, xy=x * y, run=run.format(threads=x * y * z)
    )
    return compiled(text + harness)


def compiled(text: str) -> Run:
    return library(text).run


@functools.cache
def library(text: str) -> ctypes.CDLL:
    """C++, compiled and loaded."""
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, f"{name}.so")
        made = subprocess.run(
            [str(COMPILER), *FLAGS, f"-I{HERE}", "-o", str(place), "-"],
            input=text, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert made.returncode == 0, f"{made.stderr}\n{text}"
        return ctypes.CDLL(str(place))


DEVICE = Metal()


def in_place_of_webgpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """``kernel.on("webgpu")`` runs Metal's language, or the test is skipped."""
    if COMPILER is None:
        pytest.skip("there is no C++ compiler for Metal's language")
    backend = webgpu.WebGpu("metal", "msl", lambda: DEVICE)  # type: ignore[arg-type]
    monkeypatch.setattr(webgpu, "WEBGPU", backend)
