"""``weft inspect``, ``weft tune`` and ``weft demo``: what they print, and where they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import weft
from tests.workbench import kernels
from weft.workbench import bench, demo, limits, tuning
from weft.workbench.stages import inspect
from weft_cli.app import app

FILE = str(Path(kernels.__file__))


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_inspect_shows_the_usual_stages_and_names_the_others() -> None:
    done = run("inspect", f"{FILE}:mixed")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("=== mixed_0: source ===\n    for b, t in weft.ndrange(B, T):")
    for part in ("=== mixed_0: index sets ===\nreads w[T - 1 - t]\n", "=== mixed_0: schedule ===\n",
                 "=== cost ===\nmixed_0, line "):  # fmt: skip
        assert part in done.output
    last = done.output.splitlines()[-1]
    assert last.startswith("other stages: ir, index sets in words, ir after simplify, ")
    assert last.endswith("assembly, inductor, schedules, gradient, tangents")


def test_inspect_shows_the_stages_that_are_asked_for() -> None:
    words = ("--stage", "gradient", "--stage", "ir", "--size", "t=40", "--json")
    told = json.loads(run("inspect", f"{FILE}:mixed", *words).output)
    assert [(x["loop"], x["stage"]) for x in told["listings"]] == [
        ("", "gradient"), ("mixed_0", "ir"),
    ]  # fmt: skip
    assert "d.w: gather" in told["listings"][0]["text"]
    assert "func.func @mixed_0(" in told["listings"][1]["text"]
    assert "inductor" in told["stages"]


def test_inspect_for_a_gpu_that_is_not_here() -> None:
    found = inspect(kernels.mixed, gpu="sm_90", stages=["ptx"])
    assert ".target sm_90" in found.listings[0].text
    assert found.listings[0].language == "ptx"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--stage", "hoist"), "there is no stage 'hoist'\nhelp: there are source, ir, index sets"),
        (("--gpu", "sm_9000"), "--gpu: 'sm_9000' is no architecture that is known: there are"),
        (("--size", "q=3"), "'q' is no size of mixed\nhelp: there are t, b"),
        (("--size", "t=3,4"), "write one number"),
        (("--size", "t=3", "--args", "1"), "sizes are for arguments that are made"),
    ],
)
def test_inspect_refuses(words: tuple[str, ...], told: str) -> None:
    done = run("inspect", f"{FILE}:mixed", *words)
    assert done.exit_code == 2, done.output
    assert told in done.stderr


def test_what_cannot_be_compiled_is_told_without_a_traceback() -> None:
    done = run("inspect", f"{FILE}:mixed", "--args", "torch.rand(3, 3), torch.rand(2, 3), 0.5")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"weft: {FILE}:")
    assert "this must be a scalar, and is a computed row" in done.stderr
    assert "Traceback" not in done.stderr


def test_tune_prints_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:  # fmt: skip
    seen: dict[str, Any] = {}

    def times(runs: Any, *_: Any) -> list[float]:
        return [1.0 + k for k in range(len(runs))]

    def measured(kernel: Any, *args: Any, **how: Any) -> Any:
        seen.update(how, shapes=[a.shape for a in args if isinstance(a, torch.Tensor)])
        return weft.tune(
            kernel, *args, measure=lambda runs, *_: [1.0 + k for k in range(len(runs))]
        )

    monkeypatch.setattr(tuning, "tune", measured)
    path = tmp_path / "records.json"
    words = ("--size", "t=64", "--device", "cpu", "--most", "2", "--save", str(path))
    done = run("tune", f"{FILE}:mixed", *words)
    assert done.exit_code == 0, done.output
    assert done.output.startswith("w f32[64]; x f32[3, 64]; eps 0.75\n\nmixed_0: ")
    assert "1 ms   1.00 x  default" in done.output
    assert seen == {"backward": False, "most": 2, "shapes": [(64,), (3, 64)]}
    assert path.exists()


@pytest.mark.slow
def test_demo_writes_a_file_and_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached = limits.Limits("cpu", 10.0, 10.0, 100.0, 1.0)
    monkeypatch.setattr(bench, "limits", lambda device: reached)
    monkeypatch.setattr(demo, "SIZES", [64, 128])
    monkeypatch.setattr(demo, "SECONDS", 3.0)
    monkeypatch.chdir(tmp_path)
    done = run("demo", "mine_to_try.py")
    assert done.exit_code == 0, done.output
    assert "$ weft check mine_to_try.py:smoothed\n" in done.output
    assert "$ weft bench mine_to_try.py:smoothed --sweep n=64,128 --beside" in done.output
    (tmp_path / "mine_to_try.py").write_text("mine = 1\n")
    done = run("demo", "mine_to_try.py")
    assert done.exit_code == 2
    assert "mine_to_try.py is there already\nhelp: weft demo another_name.py" in done.stderr
    assert (tmp_path / "mine_to_try.py").read_text() == "mine = 1\n"
