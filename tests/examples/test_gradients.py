"""The examples that have gradients: values and gradients against PyTorch, and what they train."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck

from examples import (
    beside,
    bilateral,
    grid_sample,
    language_model,
    layer_norm,
    photograph,
    softmax,
    spring,
    wkv,
)


def doubled(*arguments: Any) -> tuple[Any, ...]:
    return tuple(a.double() if beside.is_float(a) else a for a in arguments)


def picture(rows: int, cols: int, radius: int) -> tuple[Any, ...]:
    image = torch.rand(rows, cols, 3, generator=torch.Generator().manual_seed(0))
    return image, torch.tensor(1.3), torch.tensor(0.3), radius


CASES: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
    "softmax": (softmax.softmax, softmax.torch_softmax, softmax.inputs(7, 33)),
    "softmax of one": (softmax.softmax, softmax.torch_softmax, softmax.inputs(3, 1)),
    "layer norm": (layer_norm.layer_norm, layer_norm.torch_layer_norm, layer_norm.inputs(9, 37)),
    "wkv": (wkv.wkv, wkv.torch_wkv, wkv.inputs(3, 19, 17)),
    "wkv of one step": (wkv.wkv, wkv.torch_wkv, wkv.inputs(2, 1, 5)),
    "bilateral": (bilateral.bilateral, bilateral.torch_bilateral, picture(11, 7, 2)),
    "bilateral, wide": (bilateral.bilateral, bilateral.torch_bilateral, picture(3, 5, 6)),
    "grid sample": (
        grid_sample.grid_sample, grid_sample.torch_grid_sample, grid_sample.inputs(2, 3, 7, 5),
    ),
    "grid sample, one pixel": (
        grid_sample.grid_sample, grid_sample.torch_grid_sample, grid_sample.inputs(1, 2, 1, 1),
    ),
    "springs": (spring.swing, spring.torch_swing, spring.inputs(3, 50)),
    "springs, 1000 steps": (spring.swing, spring.torch_swing, spring.inputs(2, 1000)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(6)
def test_values_and_gradients_are_those_of_torch(name: str) -> None:
    kernel, reference, arguments = CASES[name]
    single = beside.check(beside.Case(name, kernel, reference, arguments))
    # Gradients that cancel have no more digits in PyTorch's own float32.
    assert max(single.error, *single.gradients.values()) < max(1e-5, 10 * single.torch_error)
    double = beside.check(beside.Case(name, kernel, reference, doubled(*arguments)))
    assert max(double.error, *double.gradients.values()) < 1e-11


def test_wkv_is_the_textbook_formula() -> None:
    arguments = doubled(*wkv.inputs(2, 13, 5))
    result = beside.check(beside.Case("", wkv.wkv, wkv.textbook_wkv, arguments))
    assert max(result.error, *result.gradients.values()) < 1e-12
    assert gradcheck(lambda *a: wkv.wkv(*a), beside.prepared(doubled(*wkv.inputs(1, 4, 3))))


def test_wkv_stays_finite_where_the_formula_overflows() -> None:
    w, u, k, v = wkv.inputs(2, 9, 5)
    result = beside.check(beside.Case("", wkv.wkv, wkv.torch_wkv, (w, u, 400 * k, v)))
    assert max(result.error, *result.gradients.values()) < 1e-4
    assert not wkv.textbook_wkv(w, u, 400 * k, v).isfinite().all()


def test_a_grid_of_float64_points_anywhere() -> None:
    torch.manual_seed(0)
    image, grid = torch.randn(2, 3, 6, 9).double(), torch.rand(2, 4, 5, 2).double() * 3 - 1.5
    case = beside.Case("", grid_sample.grid_sample, grid_sample.torch_grid_sample, (image, grid))
    result = beside.check(case)
    assert max(result.error, *result.gradients.values()) < 1e-12


@pytest.mark.parametrize(
    ("module", "sizes"),
    [
        (softmax, ((5, 9),)),
        (layer_norm, ((5, 9),)),
        (grid_sample, ((1, 2, 5, 4),)),
        (wkv, ((2, 5, 3),)),
    ],
)
def test_tables(
    module: ModuleType,
    sizes: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(module, "SIZES", sizes)
    module.main()
    assert "backward" in capsys.readouterr().out


def test_a_result_that_is_wrong_is_not_shown() -> None:
    def off(x: torch.Tensor) -> torch.Tensor:
        return 1.001 * softmax.torch_softmax(x)

    case = beside.Case("rows", off, softmax.torch_softmax, softmax.inputs(3, 5))
    with pytest.raises(AssertionError, match=r"rows: differs from float64 by 1\.0e-03"):
        beside.report("softmax", [case])


def test_the_photograph_is_restored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(photograph, "OUT", tmp_path)
    for name, value in {"HEIGHT": 40, "WIDTH": 34, "RADIUS": 2}.items():
        monkeypatch.setattr(bilateral, name, value)
    bilateral.main()
    assert (tmp_path / "bilateral.png").read_bytes().startswith(b"\x89PNG")
    assert "restored" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")  # matplotlib's own
def test_springs_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(spring, "OUT", tmp_path)
    losses, paths, truth = spring.fit(steps=1000, rounds=40)
    assert losses[-1] < losses[0] / 10
    spring.plot(losses, paths, truth)
    assert (tmp_path / "spring.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"CHANNELS": 24, "LAYERS": 2, "TIME": 24, "BATCH": 8, "ROUNDS": 120}
    for name, value in sizes.items():
        monkeypatch.setattr(language_model, name, value)


@pytest.mark.usefixtures("tiny")
def test_a_language_model_has_the_gradients_of_torch() -> None:
    batch = torch.randint(0, 50, (3, 21), generator=torch.Generator().manual_seed(0))
    errors = language_model.compare(50, batch)
    assert len(errors) == 35
    assert max(mine for mine, _ in errors.values()) < 1e-5


@pytest.mark.usefixtures("tiny")
def test_a_language_model_learns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    language_model.main()  # asserts that the loss falls
    assert "round  119" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["softmax", "layer norm", "wkv", "bilateral", "springs"])
@pytest.mark.sampled(9)
def test_narrow_floats(name: str, dtype: torch.dtype) -> None:
    """Against float64 on the same, rounded, inputs: sums are kept in float32, and results rounded
    once, by half a unit at most."""
    kernel, reference, arguments = CASES[name]
    narrow = [a.to(dtype) if beside.is_float(a) else a for a in arguments]
    result = beside.check(beside.Case(name, kernel, reference, tuple(narrow)))
    steps = 50 if name == "springs" else 1  # its places and speeds are kept in narrow arrays
    # A tenth is room for float32's own roundings in sums that cancel.
    bound = (0.5 * steps + 0.1) * torch.finfo(dtype).eps
    assert max(result.error, *result.gradients.values()) < bound
