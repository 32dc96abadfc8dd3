"""``weft bench``: wrong providers are not timed, tables and plots have what was measured."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import weft
from benchmarks import sweeps
from tests.workbench import kernels
from weft.workbench import bench as core
from weft.workbench import limits as measured
from weft.workbench.limits import Limits
from weft.workbench.report import UsageError
from weft_cli.app import app

FILE = str(Path(kernels.__file__))
REACHED = Limits("cpu", 10.0, 10.0, 100.0, 1.0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates of the machine are not measured, and few samples are taken."""
    monkeypatch.setattr(core, "limits", lambda device: REACHED)


def by_torch(w: torch.Tensor, x: torch.Tensor, eps: float) -> torch.Tensor:
    return w.flip(0) * x + eps


def not_flipped(w: torch.Tensor, x: torch.Tensor, eps: float) -> torch.Tensor:
    return w * x + eps


def fails(*_: Any) -> None:
    raise ValueError("no such thing\nat all")


def test_providers_are_timed_over_sizes() -> None:
    found = weft.bench(kernels.mixed, beside={"torch": by_torch}, sweep={"b": [3, 50], "t": [40]},
                       seconds=0.01, device="cpu")  # fmt: skip
    assert found.ok
    assert [(row.sizes, row.provider) for row in found.rows] == [
        ((("b", n), ("t", 40)), name) for n in (3, 50) for name in ("weft", "torch")
    ]
    for row in found.rows:
        b = dict(row.sizes)["b"]
        assert (row.bytes, row.flops) == (4 * (2 * b * 40 + 40), 2 * b * 40)
        assert 0 < row.lower <= row.median <= row.upper
        assert row.samples >= 5
        assert row.bandwidth == pytest.approx(row.bytes / row.median / 1e6)
    table = found.table
    assert table.columns[:4] == ("b", "t", "provider", "ms")
    of_copy = table.rows[0][table.columns.index("% of copy")]
    assert of_copy == pytest.approx(10 * found.rows[0].bandwidth)
    assert min(row[-1] for row in table.rows) == 1.0


def test_sizes_that_are_not_swept_are_as_given() -> None:
    found = weft.bench(kernels.mixed, beside={"sums": lambda w, x, eps: x.sum(0)},
                       sweep={"b": [3]}, sizes={"t": 40}, seconds=0.001, device="cpu")  # fmt: skip
    other, weft_row = found.rows  # what fails comes first
    assert weft_row.sizes == (("b", 3),)
    assert weft_row.bytes == 4 * (2 * 3 * 40 + 40)
    assert other.failure == "shape [40] in place of [3, 40]"


def test_what_computes_other_numbers_or_fails_is_not_timed() -> None:
    others = {"not flipped": not_flipped, "fails": fails}
    found = weft.bench(kernels.mixed, torch.tensor([1.0, 2.0]), torch.ones(1, 2), 0.5,
                       beside=others, seconds=0.01, device="cpu")  # fmt: skip
    assert not found.ok
    rows = {row.provider: row for row in found.rows}
    assert rows["weft"].median > 0
    assert (rows["not flipped"].median, rows["fails"].median) == (0.0, 0.0)
    assert str(found).endswith(
        "\n\nWRONG: not flipped: a result: 2 of 2 elements differ; at [0, 0] there is 1.5 in place "
        "of 2.5\nWRONG: fails: ValueError: no such thing"
    )


def test_sums_that_cancel_may_be_off_by_roundings() -> None:
    """float32 has 0.001 between numbers at 10,000."""

    @weft.kernel
    def total(x: torch.Tensor) -> torch.Tensor:
        out = x.new_zeros(1)
        for i in range(x.shape[0]):
            out[0] += x[i]
        return out

    x = torch.tensor([1e4, 1.0, -1e4])
    beside = {"rounded": lambda x: x.new_full((1,), 1.001), "wrong": lambda x: x.new_full((1,), 9)}
    found = weft.bench(total, x, beside=beside, seconds=0.001, device="cpu")
    assert [row.provider for row in found.rows if row.failure] == ["wrong"]


def test_the_projects_own_sweeps_compute_what_pytorch_does() -> None:
    for name, sweep in sweeps.SWEEPS.items():
        providers = {n: p for n, p in sweep.providers.items() if n != "torch.compile"}
        few = replace(
            sweep,
            providers=providers,
            sweep={"n": [130]},
            plan=replace(sweep.plan, seconds=0.001, device="cpu"),
        )
        assert few.run().ok, name


def test_gradients_are_timed_and_compared() -> None:
    def detached(w: torch.Tensor, x: torch.Tensor, eps: float) -> torch.Tensor:
        return by_torch(w.detach(), x, eps)

    found = weft.bench(kernels.mixed, backward=True, seconds=0.01, device="cpu",
                       beside={"torch": by_torch, "detached": detached})  # fmt: skip
    failures = {row.provider: row.failure for row in found.rows}
    assert failures["weft"] == failures["torch"] == ""
    assert "elements differ" in failures["detached"]
    assert "mixed, backward, on cpu" in str(found)


def test_what_a_kernel_writes_to_is_put_back_before_each_sample() -> None:
    @weft.kernel
    def doubled(x: torch.Tensor) -> None:
        for i in range(x.shape[0]):
            x[i] = x[i] * 2.0

    x = torch.ones(4)
    seen: list[float] = []

    def by_hand(x: torch.Tensor) -> None:
        seen.append(float(x[0]))
        x *= 2.0

    found = weft.bench(doubled, x, beside={"by hand": by_hand}, cold=True, seconds=0.001,
                       device="cpu")  # fmt: skip
    assert found.ok
    assert set(seen) == {1.0}


@weft.benchmark({"weft": kernels.mixed, "torch": by_torch}, device="cpu", seconds=0.005, n=[8, 16])
def sizes(n: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    return torch.rand(n), torch.rand(2, n), 1.0


@pytest.mark.slow
def test_the_decorator_and_the_plot(tmp_path: Path) -> None:
    found = sizes.run()
    assert found.name == "sizes"
    assert len(found.rows) == 4
    found.plot(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == (1680, 672)
        assert len(image.convert("RGB").getcolors(1 << 20)) > 100
    found.plot(tmp_path / "a.svg")
    told = (tmp_path / "a.svg").read_text()
    assert ">copy: 10 GB/s<" in told, "text stays text"
    assert ">FLOPs per byte (pale: smaller sizes)<" in told
    many = tuple(replace(row, flops=100 * row.bytes) for row in found.rows)
    replace(found, rows=many).plot(tmp_path / "b.svg")
    assert ">multiply-adds: 100 GFLOP/s<" in (tmp_path / "b.svg").read_text()
    with pytest.raises(UsageError, match=r"help: a name that ends with \.png"):
        found.plot(tmp_path / "a.doc")


def test_the_command_writes_tables(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    words = ["bench", f"{FILE}:mixed", "--sweep", "t=8..32", "--beside", "by_torch", "--device",
             "cpu", "--seconds", "0.001", "--size", "b=2"]  # fmt: skip
    done = CliRunner().invoke(app, [*words, "--csv", str(path), "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert [(row["t"], row["provider"]) for row in told["rows"]] == [
        (n, name) for n in (8, 16, 32) for name in ("weft", "by_torch")
    ]
    assert told["limits"]["copy"] == 10.0
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert float(rows[1]["ms"]) == told["rows"][1]["median"]
    there = f"{Path(__file__)}:sizes"
    assert "times the fastest" in CliRunner().invoke(app, ["bench", there]).output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--sweep", "q=3"), "'q' is no size of mixed\nhelp: there are t, b"),
        (("--sweep", "t=9..3"), "write --sweep n=1000,2000 or"),
        (("--sweep", "t=a"), "write --sweep n=1000,2000 or"),
        (("--beside", "nobody"), "there is no function 'nobody' beside the kernel\nhelp: there"),
        (("--csv", "/nowhere/at.csv", "--seconds", "0.001"), "/nowhere/at.csv cannot be written"),
    ],
)
def test_usage_errors_say_what_to_write(words: tuple[str, ...], told: str) -> None:
    done = CliRunner().invoke(app, ["bench", f"{FILE}:mixed", "--device", "cpu", *words])
    assert done.exit_code == 2, done.output
    assert told in done.stderr


def test_limits_are_those_of_the_best_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def samples(runs: Any, device: torch.device) -> list[list[float]]:
        for run in runs:
            run()
        return [[4.0, 2.0, 8.0]]  # milliseconds

    monkeypatch.setattr(measured, "samples", samples)
    monkeypatch.setattr(measured, "_BYTES", {"cpu": 8000})
    monkeypatch.setattr(measured, "_FLOATS", {"cpu": 1000})
    found = measured.limits("cpu")
    assert found.copy == pytest.approx(2 * 8000 / 2e-3 / 1e9)
    assert found.fill == pytest.approx(8000 / 2e-3 / 1e9)
    assert found.launch == pytest.approx(2.0)  # microseconds each of a thousand


def test_random_numbers_are_compared_by_one_seed(tmp_path: Path) -> None:
    """A kernel that draws some computed others than itself."""

    @weft.kernel
    def noisy(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * weft.random()
        return out

    for backward in (False, True):
        found = weft.bench(noisy, torch.rand(9), seconds=0.001, device="cpu", backward=backward,
                           beside={"again": lambda x: noisy(x)})  # fmt: skip
        assert found.ok, found
    with pytest.raises(UsageError, match="cannot be written"):
        found.plot(tmp_path / "not_there" / "x.png")
