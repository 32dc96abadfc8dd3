"""The kernels of the replay, with arguments of which only types and ranks matter."""

from __future__ import annotations

from typing import Any

import torch

import weft
from tests.autodiff import overwriting
from tests.autodiff.test_gradients import CASES
from tests.cuda import test_teams as teams
from tests.cuda.test_even import divided, tiled
from tests.cuda.test_launching import modulo, scaled_rows
from tests.cuda.test_ptx import CALLS, atomics, empty, mathematics
from tests.schedule.test_unroll_jam import nearest, sparse, windows

Case = tuple[Any, ...]
INTS = {"dtype": torch.int64}


@weft.kernel
def outer_sum(x, y, out):
    for i, j in out:
        out[i, j] += x[i] * y[j]


LAYOUTS = {
    "contiguous": empty(9, 8),
    "unit": empty(9, 16)[:, :8],
    "strided": empty(8, 9).T,
}

_FORMS: dict[str, Case] = {
    "mathematics": (mathematics, empty(9), empty(9), empty(4, 9)),
    "mathematics.f64": (
        mathematics, *(empty(9, dtype=torch.float64),) * 2, empty(4, 9, dtype=torch.float64),
    ),
    "atomics": (atomics, empty(9), empty(9, **INTS), empty(9), empty(9), empty(9)),
    **{f"layout.{name}": (outer_sum, empty(9), empty(8), x) for name, x in LAYOUTS.items()},
    "matmul.debug": (weft.kernel(debug=True)(CALLS["matmul"][0].function), *CALLS["matmul"][1:]),
    "softmax.strict": (
        weft.kernel(strict_math=True)(CALLS["softmax"][0].function), *CALLS["softmax"][1:],
    ),
    "windows": (windows, empty(2, 3, 9, 9), empty(4, 3, 3, 3), empty(2, 4, 7, 7)),
    "nearest": (nearest, empty(9), empty(9)),
    "sparse": (sparse, empty(5, **INTS), empty(9, **INTS), empty(9), empty(6, 3), empty(4, 3)),
    "tiled.u8": (tiled, *(empty(3, 16, dtype=torch.uint8),) * 2, 2, 3),
    "tiled": (tiled, empty(3, 16), empty(3, 16), 2, 3),
    "divided": (divided, empty(9), empty(9), 3, 4),
    "modulo": (modulo, empty(9), empty(9), 3, 4),
    "scaled_rows": (scaled_rows, empty(9, 8), empty(9)),
    "col_sums": (teams.col_sums, empty(9, 8), empty(8)),
    "column_statistics": (teams.column_statistics, empty(5, 9, 8), *(empty(9, 8),) * 3),
    "statistics": (teams.statistics, empty(9, 8), *(empty(9),) * 4),
    "in_place": (teams.in_place, empty(9, 8), empty(9, 8)),
    "normalised": (teams.normalised, empty(3, 9, 8), empty(3, 9, 8), empty(3, 9)),
    "distances": (teams.distances, empty(9, 8), empty(4, 8), empty(9, **INTS)),
    "sparse_rows": (
        teams.product, empty(5, **INTS), empty(9, **INTS), empty(9), empty(6), empty(4),
    ),
}  # fmt: skip

_OVERWRITING: dict[str, Case] = {
    "overwritten.softmax": (overwriting.softmax, empty(9, 8)),
    "overwritten.cholesky": (overwriting.cholesky_left, empty(4, 4)),
    "overwritten.lu": (overwriting.lu, empty(4, 4)),
    "overwritten.prefix": (overwriting.prefix, empty(4)),
    "overwritten.fft": (overwriting.fft, empty(8)),
}


def _differentiable() -> dict[str, Case]:
    """The kernels of the tests of gradients, but those that are examples too."""
    left_out = ("axpy", "conv", "softmax", "layernorm", "wkv", "newton", "total")
    found: dict[str, Case] = {}
    for name, make in CASES.items():
        if name not in left_out:
            kernel, *args = make()
            tensor = torch.Tensor
            found[f"gradient.{name}"] = (
                kernel, *(a.to("meta") if isinstance(a, tensor) else a for a in args),
            )  # fmt: skip
    return found


# Second derivatives of these take seconds, or are many.
_ONCE = {"bilateral", "swing", "gradient.two", "gradient.stride2", "gradient.blur"}
# Each with how often it is differentiated.
KERNELS: dict[str, tuple[Case, int]] = {
    **{name: (case, 0) for name, case in _FORMS.items()},
    **{
        name: (case, 1 if name in _ONCE else 2)
        for name, case in (CALLS | _differentiable() | _OVERWRITING).items()
    },
}
