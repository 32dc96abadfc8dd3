"""Random functions, compiled and interpreted: the memory they leave must be the same."""

from __future__ import annotations

import copy
import importlib.util
import pathlib
import random
from types import ModuleType

import numpy as np
import pytest
from compiled import Compiled

from weft.ir.interp import run


def neighbour(path: str) -> ModuleType:
    """A module of another folder of tests, which is not importable by name."""
    place = pathlib.Path(__file__).parent.parent / path
    spec = importlib.util.spec_from_file_location(f"codegen_{place.stem}", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


kernels = neighbour("ir/kernels.py")


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.sampled(3)
def test_compiled_is_interpreted(seed: int) -> None:
    rng = random.Random(seed)
    function = kernels.random_function(rng)
    kernel = Compiled(function, strict_math=True)
    for _ in range(3):
        args = kernels.random_arguments(rng)
        expected = copy.deepcopy(args)
        try:
            run(function, expected)
        except (IndexError, AssertionError):
            continue
        kernel(*args)
        for got, want in zip(args, expected, strict=True):
            if isinstance(got, np.ndarray):
                np.testing.assert_array_equal(got, want)
