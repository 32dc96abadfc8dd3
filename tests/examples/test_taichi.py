"""The programs in Taichi's vocabulary against NumPy, the undecorated Python, closed forms and
finite differences, at tiny sizes."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import weft as ti
from examples import photograph
from examples.taichi import dam_break, heat_source, life, path_tracer


@pytest.fixture(autouse=True)
def _defaults() -> Iterator[None]:
    ti.init()
    torch.manual_seed(0)
    yield
    ti.init()


@pytest.mark.parametrize("module", [dam_break, heat_source, life, path_tracer])
def test_only_the_import_says_weft(module: Any) -> None:
    text = inspect.getsource(module)
    assert len(text.splitlines()) >= 100
    assert [line for line in text.splitlines() if "weft" in line] == ["import weft as ti"]
    assert "torch" not in text


def test_life_by_rolling_arrays() -> None:
    world = life.Life(13, 17)
    world.scatter(0.4)
    world.put("glider", 11, 15)  # over both edges
    age = world.age.to_numpy()
    assert 40 < (age > 0).sum() < 140
    for _ in range(20):
        around = [(1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1)]
        alive = sum(np.roll(age > 0, by, (0, 1)).astype(int) for by in around)
        lives = (alive == 3) | ((alive == 2) & (age > 0))
        age = np.where(lives, age + 1, 0)
    world.run(20)
    assert (world.age.to_numpy() == age).all()
    assert world.population[None] == (age > 0).sum() > 0
    young = world.picture()[age == 1]
    assert len(young) > 0
    assert (young == (255, 229, 89)).all()


def test_a_glider_moves_by_a_cell_in_four_generations() -> None:
    world = life.Life(9, 9)
    world.put("glider", 6, 6)
    before = world.age.to_numpy() > 0
    world.run(8)
    assert ((world.age.to_numpy() > 0) == np.roll(before, (2, 2), (0, 1))).all()


def spline(q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The cubic spline without its factor, and its derivative."""
    inner, outer = q < 1, (q >= 1) & (q < 2)
    value = inner * (1 - 1.5 * q**2 + 0.75 * q**3) + outer * 0.25 * (2 - q) ** 3
    return value, inner * (-3 * q + 2.25 * q**2) - outer * 0.75 * (2 - q) ** 2


def fallen(water: dam_break.DamBreak, x: np.ndarray, v: np.ndarray) -> tuple[Any, Any, Any]:
    """A step of the dam's break in NumPy, every particle with every other."""
    h, m, tall = water.h, water.mass, (dam_break.WIDTH, dam_break.HEIGHT)
    d = x[:, None] - x
    r = np.linalg.norm(d, axis=2)
    factor = 10 / (7 * np.pi * h**2)
    density = (m * factor * spline(r / h)[0]).sum(1)
    pressure = np.maximum(water.stiffness * ((density / 1000) ** 7 - 1), 0)
    own = pressure / density**2
    approach = np.minimum(((v[:, None] - v) * d).sum(2), 0)
    mean = 0.5 * (density[:, None] + density)
    viscous = -0.08 * water.sound * h * approach / (r**2 + 0.01 * h**2) / mean
    push = m * (own[:, None] + own + viscous) * factor / h * spline(r / h)[1]
    a = -(push / np.where(r > 0, r, 1))[:, :, None] * d
    a = a.sum(1) - [0, 9.81]
    for sign, far in ((1, x), (-1, tall - x)):
        near = np.maximum(1 - far / water.spacing, 0)
        a += sign * 0.2 * water.sound**2 / h * near**2
    v = v + water.dt * a
    x = x + water.dt * v
    out = (x < 0) | (x > tall)
    return np.clip(x, 0, tall), np.where(out, -0.3 * v, v), density


def test_a_dam_breaks_as_all_pairs_of_particles_say() -> None:
    water = dam_break.DamBreak(6, 7, 0.05, real=ti.f64)
    v = np.random.default_rng(0).normal(0, 2, (42, 2))
    v[0] = [-300, -300]  # over both walls at once
    water.v.from_numpy(v)
    x = water.x.to_numpy()
    for _ in range(6):
        x, v, density = fallen(water, x, v)
        water.step()
        np.testing.assert_allclose(water.density.to_numpy(), density, rtol=1e-10)
    np.testing.assert_allclose(water.x.to_numpy(), x, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(water.v.to_numpy(), v, rtol=1e-7, atol=1e-9)


def test_paths_are_those_of_the_undecorated_python() -> None:
    box = path_tracer.Box(4, 3)
    box.render()
    found = box.sum.to_numpy()
    box.sum.fill(0)
    torch.manual_seed(0)
    path_tracer.Box.render.interpret(box)
    np.testing.assert_allclose(found, box.sum.to_numpy(), rtol=2e-3, atol=1e-5)
    assert (found > 0).any()


def test_light_in_a_box_that_glows_is_a_geometric_series() -> None:
    depth = 9
    box = path_tracer.Box(6, 6, depth, roulette=False)
    box.walls.fill([0.5, 0.25, 0.0])
    box.glow.fill([1.0, 2.0, 3.0])
    box.lamp.fill(0)
    box.radius.fill(0)
    box.run(2)
    expected = [sum(0.5**k for k in range(depth)), 2 * sum(0.25**k for k in range(depth)), 3]
    np.testing.assert_allclose(box.mean(), np.broadcast_to(expected, (6, 6, 3)), rtol=1e-5)
    box.roulette, box.depth = True, 64  # what the roulette ends, it gives to others
    box.sum.fill(0)
    box.passes = 0
    box.run(400)
    np.testing.assert_allclose(box.mean().mean((0, 1)), [2, 8 / 3, 3], rtol=0.01)


def cooled(plate: heat_source.Plate, u: np.ndarray) -> np.ndarray:
    k = plate.conductivity.to_numpy()
    for _ in range(plate.steps):
        change = np.zeros_like(u)
        for axis in (0, 1):
            a, b = (np.moveaxis(k, axis, 0)[cut] for cut in (slice(-1), slice(1, None)))
            flow = 2 * a * b / (a + b) * np.diff(np.moveaxis(u, axis, 0), axis=0)
            np.moveaxis(change, axis, 0)[:-1] += flow
            np.moveaxis(change, axis, 0)[1:] -= flow
        u = u + change
    return u


def test_a_plate_cools_and_its_gradients_are_those_of_finite_differences() -> None:
    n = 9
    plate = heat_source.Plate(n, 3, real=ti.f64)
    truth = plate.experiment()
    np.testing.assert_allclose(plate.measured.to_numpy(), cooled(plate, truth), rtol=1e-12)
    plate.begin.from_numpy(np.random.default_rng(1).random((n, n)))
    plate.gradient()

    def loss() -> float:
        plate.loss[None] = 0.0
        plate.cool()
        plate.compare()
        return float(plate.loss[None])

    found = {name: getattr(plate, name).grad.to_numpy() for name in ("begin", "conductivity")}
    for name, i, j in (("begin", 0, 0), ("begin", 4, 7), ("conductivity", 8, 4),
                       ("conductivity", 3, 3)):  # fmt: skip
        difference = central(loss, getattr(plate, name), i, j)
        assert abs(difference) > 1e-4
        assert abs(difference - found[name][i, j]) < 1e-7
    losses = plate.find(10)
    assert losses[-1] < 0.5 * losses[0]
    assert (
        np.abs(plate.begin.to_numpy() - truth).mean()
        < np.abs(plate.measured.to_numpy() - truth).mean()
    )


def central(value: Callable[[], float], field: Any, i: int, j: int, by: float = 1e-5) -> float:
    before = float(field[i, j])
    field[i, j] = before + by
    above = value()
    field[i, j] = before - by
    below = value()
    field[i, j] = before
    return (above - below) / (2 * by)


@pytest.mark.slow("their own sizes")
@pytest.mark.parametrize("name", ["dam_break", "heat_source", "life", "path_tracer"])
def test_programs_write_pictures(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(photograph, "OUT", tmp_path)
    importlib.import_module(f"examples.taichi.{name}").main()
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert f"{name}.png" in capsys.readouterr().out
