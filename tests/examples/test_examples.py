"""Every example has ``main()`` and runs, here at tiny sizes; what they print is true."""

import importlib
import pkgutil
from pathlib import Path

import pytest
import torch

import examples
from examples import brick_wall, causal_conv, demo, gallery, life_of_a_kernel, photograph

MODULES = sorted(module.name for module in pkgutil.iter_modules(examples.__path__))
# What examples have in common, a package of them (``test_taichi.py``), and what needs packages that
# need not be there.
NOT_RUN = {"photograph", "beside", "taichi", "triton_kernels", "numba_kernels"}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Small sizes for every example; PNG files go to a temporary folder."""
    monkeypatch.setattr(photograph, "OUT", tmp_path)
    sizes = {
        "image_height": 40,
        "image_width": 66,
        "tile_height": 8,
        "tile_width": 16,
        "ph": 3,
        "pw": 5,
        "shift_x": (16, 0),
        "shift_y": (8, 8),
    }
    for name, value in sizes.items():
        monkeypatch.setattr(brick_wall, name, value)
    for name, value in {"B": 2, "C": 3, "T": 11}.items():
        monkeypatch.setattr(causal_conv, name, value)


@pytest.mark.parametrize("name", [name for name in MODULES if name not in NOT_RUN])
def test_every_example_has_a_main(name: str) -> None:
    assert callable(importlib.import_module(f"examples.{name}").main)


@pytest.mark.usefixtures("tiny")
def test_brick_wall_is_the_same_three_ways_and_is_written(tmp_path: Path) -> None:
    brick_wall.main()
    assert (tmp_path / "brick_wall.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("tiny")
def test_causal_conv_agrees_with_float64(capsys: pytest.CaptureFixture[str]) -> None:
    causal_conv.main()
    assert "taichi_forward_v0" in capsys.readouterr().out


def test_life_of_a_kernel_counts_instantiations_as_the_document_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    life_of_a_kernel.main()
    shown = [line for line in capsys.readouterr().out.splitlines() if "instantiation(s)" in line]
    assert [int(line.split(": ")[1].split()[0]) for line in shown] == [0, 1, 1, 2, 2]


@pytest.mark.parametrize("example", gallery.EXAMPLES, ids=lambda e: e.kernel.__name__)
@pytest.mark.parametrize("n", [9, 64])
def test_gallery_agrees_with_torch(example: gallery.Example, n: int) -> None:
    torch.manual_seed(n)
    gallery.compare(example, n)


@pytest.mark.usefixtures("tiny")
def test_demo_prints_one_table_and_the_place_of_the_picture(
    capsys: pytest.CaptureFixture[str],
) -> None:
    demo.main(["--quick", "--no-compile"])
    shown = capsys.readouterr().out
    for words in ("brick wall", "causal convolution", "undecorated Python", "brick_wall.png"):
        assert words in shown


def test_a_course_is_moved_by_half_a_brick_over_the_one_below() -> None:
    tile = torch.arange(4 * 6, dtype=torch.int32).view(4, 6)
    wall = brick_wall.torch_pad(
        brick_wall.pixel_coordinates(12, 18), tile, (6, 0), (3, 4), ph=0, pw=0
    )
    assert torch.equal(wall[8:12, 0:6], tile)  # the lowest course starts at the left edge
    assert torch.equal(wall[4:8, 3:9], tile)  # the one above it, half a brick to the right
    assert torch.equal(wall[0:4, 6:12], tile)
