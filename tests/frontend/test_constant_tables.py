"""Tables of constants that numbers of run time look up: permutations, colour maps, CRCs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import weft
from tests.cuda.emulator import emulated
from tests.fuzz.check import function
from weft.frontend import guarded_loads
from weft.frontend.aggregates import FEW
from weft.frontend.specs import constant_key

KINDS: dict[str, Any] = {
    "floats": lambda k: 0.1 * k - 0.7,
    "ints": lambda k: 7 * k - 11,
    "flags": lambda k: k % 3 == 1,
    "floats and ints": lambda k: k if k % 3 else k + 0.5,
    "ints of 64 bits": lambda k: k * (1 << 40) - 3,
    "infinities": lambda k: (math.inf, -math.inf, 0.5, -0.0)[k % 4],
}
LOOKED_UP = """
def kernel(x, out):
    for i in range(x.shape[0]):
        out[i] = 2 * T[x[i] % len(T)] + T[-1 - x[i] % len(T)]
"""


def made(text: str, **names: Any) -> Any:
    found = function(text)
    found.__globals__.update(names)
    return found


def agrees(plain: Any, x: torch.Tensor, out: torch.Tensor) -> None:
    expected, host = torch.zeros_like(out, device="cpu"), x.cpu()
    plain(host.tolist() if host.dtype.is_floating_point else host, expected)
    weft.kernel(plain)(x, out)
    assert torch.allclose(out.cpu(), expected, equal_nan=True)


@pytest.mark.parametrize("size", [FEW, FEW + 1, 300])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sort", [tuple, list])
def test_numbers_of_run_time_are_subscripts(kind: str, size: int, sort: Any) -> None:
    table = sort(map(KINDS[kind], range(size)))
    x = torch.arange(3 * size, dtype=torch.int32)
    dtype = torch.int64 if "64" in kind else torch.float32
    agrees(made(LOOKED_UP, T=table), x, torch.full((3 * size,), 7).to(dtype))


def test_a_table_gives_subscripts_of_another() -> None:
    """As in Perlin's noise."""
    agrees(made("""
def kernel(x, out):
    for i in range(x.shape[0]):
        out[i] = G[P[(P[x[i] % 256] + i) % 256] % 12][i % 2]
""", P=[(k * 167 + 13) % 256 for k in range(256)], G=[(k, -k / 2) for k in range(12)]),
           torch.arange(700, dtype=torch.int32), torch.zeros(700))  # fmt: skip


def test_a_checksum() -> None:
    """CRC-32, of which the table has 256 words of 32 bits."""
    table = []
    for k in range(256):
        for _ in range(8):
            k = (k >> 1) ^ (0xEDB88320 if k & 1 else 0)
        table.append(k)
    plain = made(
        """
def kernel(x, out):
    for i in range(x.shape[0]):
        c = 0xFFFFFFFF
        for j in range(x.shape[1]):
            c = (c >> 8) ^ T[(c ^ x[i, j]) & 255]
        out[i] = c ^ 0xFFFFFFFF
""",
        T=table,
    )
    x = torch.tensor([[*b"123456789"], [*b"weft weft"]], dtype=torch.int64)
    out = torch.zeros(2, dtype=torch.int64)
    weft.kernel(plain)(x, out)
    assert out[0].item() == 0xCBF43926


def test_rows_vectors_and_tables_in_the_loop() -> None:
    agrees(made("""
def kernel(x, out):
    for i in range(x.shape[0]):
        steps = (1.5, 2.5, -1.0, 0.25, 8.0, 3.0, 9.0, -4.0, 5.0, 0.5)
        a, b = T[x[i] % 10]
        out[i] = steps[(x[i] * 3) % 10] * a + b
""", T=[(k / 4, k * k) for k in range(10)]),
           torch.arange(37, dtype=torch.int32), torch.zeros(37))  # fmt: skip


def test_derivatives_pass_by() -> None:
    @weft.kernel
    def kernel(x, k):
        out = torch.zeros_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * x[i] * WEIGHTS[k[i]]
        return out

    x = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    k = torch.tensor([9, 0, 4])
    weights = torch.tensor(WEIGHTS)[k.cpu()].to(x.device)
    (first,) = torch.autograd.grad(kernel(x, k).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.allclose(first, 2 * x * weights)
    assert torch.allclose(second, 2 * weights)


WEIGHTS = tuple(0.5 * k - 1.0 for k in range(10))


def test_a_table_that_changes() -> None:
    table = [0.5 * k for k in range(20)]
    plain = made(LOOKED_UP, T=table)
    kernel, x = weft.kernel(plain), torch.arange(20, dtype=torch.int32)
    for step in range(4):
        table[step] = 10.0 + step
        out, expected = torch.zeros(20), torch.zeros(20, device="cpu")
        kernel(x, out)
        plain(x.cpu(), expected)
        assert torch.equal(out.cpu(), expected)


@pytest.mark.cpu
def test_emulated() -> None:
    for kind in KINDS:
        plain = made(LOOKED_UP, T=tuple(map(KINDS[kind], range(33))))
        dtype = torch.int64 if "64" in kind else torch.float64
        x, out, expected = torch.arange(99), torch.zeros(99, dtype=dtype), torch.zeros(99)
        expected = expected.to(dtype)
        emulated(weft.kernel(plain))(x, out)
        plain(x, expected)
        assert torch.equal(out.nan_to_num(), expected.nan_to_num())


@pytest.mark.cpu
def test_debug_mode_checks_the_subscript() -> None:
    plain = made("def kernel(x, out):\n    for i in range(x.shape[0]):\n        out[i] = T[x[i]]\n",
                 T=tuple(range(12)))  # fmt: skip
    x = torch.tensor([3, 12])
    with pytest.raises(weft.KernelIndexError, match="subscript 12 of `T` is out of range"):
        weft.kernel(debug=True)(plain)(x, torch.zeros(2))
    out = torch.zeros(2)
    weft.kernel(plain)(x, out)
    assert out.tolist() == [3, 11]  # an element, whatever the subscript


@pytest.mark.cpu
def test_a_long_table_is_one_operation() -> None:
    """A thousand took 49 s when they were as many choices."""
    plain = made(LOOKED_UP, T=tuple(0.5 * k for k in range(5000)))
    x, out = torch.arange(9), torch.zeros(9)
    text = str(weft.kernel(plain).inspect(x, out).loops[0]["ir"])
    assert text.count("arith.table") == 2
    assert text.count("\n") < 60


@pytest.mark.cpu
def test_choices_of_what_is_not_loaded_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each choice of a chain, all those below it were: of 1,000 it took 42 s."""
    seen, own = [], guarded_loads._Guards._own

    def counted(guards: Any, arm: Any, block: Any) -> Any:
        seen.append(arm)
        return own(guards, arm, block)

    monkeypatch.setattr(guarded_loads._Guards, "_own", counted)
    items = ", ".join(f"{k} * i" for k in range(40))
    plain = made(f"""
def kernel(x, out):
    for i in range(1, x.shape[0]):
        s = ({items})
        out[i] = weft.select(i > 0, x[i - 1], 0.0) + s[i % 40]
""")
    weft.kernel(plain)(torch.arange(9.0), torch.zeros(9))
    assert len(seen) <= 2


@pytest.mark.cpu
def test_keys_of_tables() -> None:
    values = [(1, 2), [1, 2], (1.0, 2.0), (True, 2), (1, 2.0), (0.0, 1.0), (-0.0, 1.0), (), [],
              ((1, 2),), (1.0,), (b"1",), (0.0, 1), "12"]  # fmt: skip
    keys = [constant_key(value) for value in values]
    assert len({*keys}) == len(values)
    assert keys == [constant_key(eval(repr(value))) for value in values]
    assert constant_key((math.nan, 1.0)) == constant_key((math.nan, 1.0))
