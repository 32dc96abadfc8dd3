"""Kernels with DTensors: rules of sharding, as tables and on several ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import weft
from tests import processes
from tests.pytorch import sharded

PROGRAM = Path(__file__).with_name("sharded.py")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_give_what_one_process_gives(ranks: int, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RANKS": str(ranks)}
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


def test_neighbours_are_a_halo() -> None:
    def halo(kernel: weft.Kernel, *args: torch.Tensor) -> dict[tuple[object, ...], object]:
        return {rule.inputs: rule.halo for rule in kernel.sharding(*args).rules}

    assert halo(sharded.second_difference, t(9)) == {(0,): (1, 1)}
    assert halo(sharded.smoothed, t(3, 9)) == {(0,): (0, 0), (1,): (2, 1)}
    assert halo(sharded.causal_conv, t(3, 9), t(4)) == {(0, None): (0, 0), (1, None): (3, 0)}
