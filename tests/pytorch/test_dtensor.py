"""Kernels with DTensors: rules of sharding, as tables and on several ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch.torch_version import TorchVersion

import weft
from tests import processes
from tests.pytorch import sharded

# An older torch asks how large the tensor is before it draws, as 2.10 and 2.11 do.
RANDOM = ("the host part asks how large a tensor is that is cut"
          if TorchVersion(torch.__version__) < "2.13"
          else "the host part computes rand_like of a tensor that is cut")  # fmt: skip
PROGRAM = Path(__file__).with_name("sharded.py")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_ranks_give_what_one_process_gives(ranks: int, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RANKS": str(ranks)}
    found = processes.run(PROGRAM, environment, tmp_path)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1].endswith(" 0 failed"), found.stdout


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs")
def test_ranks_with_a_gpu_each(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RANKS": "2 cuda"}
    found = processes.run(PROGRAM, environment, tmp_path)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1].endswith(" 0 failed"), found.stdout


def table(kernel: weft.Kernel, *args: object) -> list[str]:
    """The table, without its first line."""
    return str(kernel.sharding(*args)).splitlines()[1:]


def t(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def test_the_table_of_a_matrix_product() -> None:
    assert (
        str(sharded.matmul.sharding(t(6, 4), t(4, 5)))
        == """\
sharding of matmul
loop  a          b          ->  result
i     Shard(0)   Replicate  ->  Shard(0)
k     Shard(1)   Shard(0)   ->  Partial(sum)
j     Replicate  Shard(1)   ->  Shard(1)
      Replicate  Replicate  ->  Replicate"""
    )


def test_what_is_refused_says_why() -> None:
    assert table(sharded.softmax, t(6, 4))[1:] == [
        "i     Shard(0)   ->  Shard(0)",
        "      Replicate  ->  Replicate",
        "not along x.shape[1]: the max over all rows is used before ranks have combined it "
        f"(line {line_of('s += weft.exp(x[i, j] - top)')})",
    ]
    assert table(sharded.ramp, t(6))[1:] == [
        "      Replicate  ->  Replicate",
        f"not along x.shape[0]: the index `i` is used as a number (line {line_of('x[i] * i')})",
    ]


def line_of(text: str) -> int:
    lines = PROGRAM.read_text().splitlines()
    return next(k for k, line in enumerate(lines, 1) if text in line)


def test_loops_of_one_kernel_have_common_rules() -> None:
    assert table(sharded.scaled_norm, t(6, 4), t(4))[1] == (
        "i     Shard(0)   Replicate  ->  Shard(0)"
    )
    assert len(sharded.scaled_norm.sharding(t(6, 4), t(4)).rules) == 1


def test_sums_and_extremes_are_parts() -> None:
    assert table(sharded.squares, t(6))[1] == "i     Shard(0)   ->  Partial(sum)"
    assert table(sharded.largest, t(6))[1] == "i     Shard(0)   ->  Partial(max)"
    assert table(sharded.columns, t(6, 4))[1:3] == [
        "i     Shard(0)   ->  Partial(sum)", "j     Shard(1)   ->  Shard(0)",
    ]  # fmt: skip


@weft.kernel
def pairs(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[0]):
            if j != i:
                s += x[j]
        out[i] = s
    return out


@weft.kernel
def running(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for b in range(x.shape[0]):
        s = 0.0
        for i in range(x.shape[1]):
            s += x[b, i]
            out[b, i] = s
    return out


@weft.kernel
def backwards(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    n = x.shape[0]
    for i in range(n):
        out[i] = x[n - 1 - i]
    return out


@weft.kernel
def from_ones(x: torch.Tensor) -> torch.Tensor:
    out = torch.ones(x.shape[1])
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        out[j] += x[i, j]
    return out


@weft.kernel
def by_size(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    if x.shape[0] > 4:
        for i in range(x.shape[0]):
            out[i] = x[i]
    else:
        for i in range(x.shape[0]):
            out[i] = -x[i]
    return out


@weft.kernel
def mean(x: torch.Tensor) -> torch.Tensor:
    s = 0.0
    for i in range(x.shape[0]):
        s += x[i] / x.shape[0]
    return s


@weft.kernel
def masked(x: torch.Tensor) -> torch.Tensor:
    keep = torch.rand_like(x)
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] if keep[i] > 0.5 else 0.0
    return out


@weft.kernel
def flipped(x: torch.Tensor) -> torch.Tensor:
    y = x.flip(0)
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] + y[i]
    return out


@weft.kernel
def started(x: torch.Tensor, e: float) -> torch.Tensor:
    s = e
    for i in range(x.shape[0]):
        s += x[i]
    return s


@weft.kernel
def lower(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(i + 1):
            s += x[j]
        out[i] = s
    return out


@pytest.mark.parametrize(
    ("kernel", "args", "reason"),
    [
        (pairs, (t(6),), "`j` and `i` go over the same rows"),
        (running, (t(3, 6),), "`s` is carried from row to row"),
        (backwards, (t(6),), "`x` is not accessed by row"),
        (from_ones, (t(6, 3),), "`out` is not 0 at first"),
        (by_size, (t(6),), "the host part asks how large a tensor is that is cut"),
        (mean, (t(6),), "the size is used as a number"),
        (masked, (t(6),), RANDOM),
        (flipped, (t(6),), "the host part computes flip of a tensor that is cut"),
        (started, (t(6), 0.5), "the sum over all rows does not start from 0"),
        (lower, (t(6),), "how long the loop over `j` is depends on the row"),
    ],
)
def test_what_no_rank_can_do_alone(
    kernel: weft.Kernel, args: tuple[object, ...], reason: str
) -> None:
    found = kernel.sharding(*args)
    axis = 1 if kernel is running else 0
    assert all(rule.inputs[0] != axis for rule in found.rules)
    (why,) = [refused.reason for refused in found.refused if (0, axis) in refused.axes]
    assert reason in why


@weft.kernel
def views(x: torch.Tensor) -> torch.Tensor:
    y = (2 * x.t()).view(x.shape[1], 2, -1)
    out = x.new_empty(x.shape[1], y.shape[2])
    for i, j in weft.ndrange(y.shape[0], y.shape[2]):
        out[i, j] = y[i, 0, j] + y[i, 1, j]
    return out


def test_the_host_part_may_move_axes_and_compute_elements() -> None:
    assert [rule.inputs for rule in views.sharding(t(6, 4)).rules] == [(1,)]


def test_neighbours_are_a_halo() -> None:
    def halo(kernel: weft.Kernel, *args: torch.Tensor) -> dict[tuple[object, ...], object]:
        return {rule.inputs: rule.halo for rule in kernel.sharding(*args).rules}

    assert halo(sharded.second_difference, t(9)) == {(0,): (1, 1)}
    assert halo(sharded.smoothed, t(3, 9)) == {(0,): (0, 0), (1,): (2, 1)}
    assert halo(sharded.causal_conv, t(3, 9), t(4)) == {(0, None): (0, 0), (1, None): (3, 0)}
