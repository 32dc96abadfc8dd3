"""Streaming stores: which operations are marked, and what a CPU makes of them."""

from __future__ import annotations

import pytest
import torch

import weft
from tests.schedule.test_marks import TEXT, marked
from weft import compiler
from weft.codegen import cpu, cuda
from weft.codegen.machine import host_cpu
from weft.errors import ScheduleError
from weft.ir.parse import parse_function
from weft.ir.text import print_function, same
from weft.ir.verify import verify
from weft.schedule.language import parse, show
from weft.schedule.legal_cpu import outermost
from weft.schedule.machine import CpuMachine
from weft.schedule.nest import LoopNest
from weft.tools.cross import lowered_loops
from weft.tuning.neighbours import cpu_schedules

NO_VECTORS = pytest.mark.skipif(
    host_cpu().vector_bytes < 32, reason="this machine has no vectors of 8 floats"
)


@weft.kernel
def blend(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor):
    n, m = c.shape
    for i, j in weft.ndrange(n, m):
        c[i, j] = a[i, j] * 2 + b[i, m - 1 - j]


def by(text: str) -> weft.Kernel:
    return weft.kernel(schedule={"cpu": text})(blend.function)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_stores_to_arguments_are_marked(device: str) -> None:
    function = parse_function(TEXT)
    if device == "cpu":
        schedule = parse("vectorize(i, 8); streaming_stores((y))")
        made = cpu.scheduled(function, schedule, CpuMachine(32)).function
    else:
        schedule = parse("streaming_stores((y)); bind(i, x); block(256, 1)")
        made = cuda.scheduled(function, schedule).bound.function
    verify(made)
    assert same(parse_function(print_function(made)), made)
    stores = marked(made, "streaming")
    assert {op.name for op in stores} == {"memref.store"}
    assert {op.operands[1].name for op in stores} == {"y"}


@NO_VECTORS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int16])
def test_what_streams_is_what_is_stored(dtype: torch.dtype) -> None:
    """Whole vectors, parts of some, and those that begin anywhere."""
    width = min(8, host_cpu().vector_bytes // dtype.itemsize)
    kernels = [
        by(f"vectorize(j, {width}, {2 * width}); streaming_stores((c))"),
        by("unroll_jam(i, 2); vectorize(j, 4, 4, reverse=True); streaming_stores((c))"),
    ]
    for n, m in ((0, 3), (1, 1), (3, 17), (2, 127), (5, 64)):
        for offset in (0, 1, 16):
            a, b = (torch.randint(-99, 99, (n, m)).to(dtype) for _ in range(2))
            for kernel in kernels:
                c = torch.full((n * m + offset + 1,), 77, dtype=dtype)
                kernel(a, b, c[offset:-1].view(n, m))
                assert torch.equal(c[offset:-1].view(n, m), a * 2 + b.flip(1))
                assert bool((c[:offset] == 77).all())
                assert c[-1] == 77


@NO_VECTORS
def test_whole_vectors_go_past_the_caches_and_are_there_for_other_threads() -> None:
    x = torch.ones(2, 64)
    for text, streams in (("", False), ("; streaming_stores((c))", True)):
        made = by("vectorize(j, 8)" + text).inspect(x, x, x)
        assert ("movnt" in str(made["assembly"])) == streams
        assert ("sfence" in str(made["assembly"])) == streams


@NO_VECTORS
def test_what_is_tuned_tries_it_where_there_are_no_loops_inside() -> None:
    x = torch.ones(2, 64)
    (loop,) = lowered_loops(blend, x, x, x)
    for function, streams in (
        (compiler.optimize(loop, blend.options), True),
        (parse_function(TEXT), False),
    ):
        parallel = outermost(function)
        assert parallel is not None
        found = list(map(show, cpu_schedules(LoopNest(function, parallel), CpuMachine(32))))
        text = "vectorize(j, 8, 32); streaming_stores((c))"
        assert [each for each in found if "streaming" in each] == [text] * streams


@NO_VECTORS
@pytest.mark.parametrize(("text", "message"), [
    ("streaming_stores((c))", "whole vectors stream"),
    ("vectorize(j, 8); streaming_stores((a))", "all stores of a loop stream, or none"),
])  # fmt: skip
def test_what_does_not_stream(text: str, message: str) -> None:
    x = torch.ones(2, 64)
    with pytest.raises(ScheduleError, match=message):
        by(text)(x, x, x)
