"""What the language means: each kernel compiled, against its Python on the same data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

import weft

SCALE = 3
TABLE = (2, 5, 7)
PI = math.pi


def same(kernel: weft.Kernel, *args, rtol: float = 1e-5) -> None:
    """Runs ``kernel`` compiled and interpreted on copies of ``args``; compares what is written."""
    copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    expected = kernel.interpret(*copies)
    found = kernel(*args)
    for e, f in zip(flat(expected), flat(found), strict=True):
        close(f, e, rtol)
    for e, f in zip(copies, args, strict=True):
        if isinstance(f, torch.Tensor):
            close(f, e, rtol)


def flat(x) -> list:
    return [] if x is None else list(x) if isinstance(x, tuple) else [x]


def close(found, expected, rtol: float) -> None:
    expected, found = torch.as_tensor(expected), torch.as_tensor(found)
    if isinstance(expected, torch.Tensor) and expected.dim() and expected.dtype != found.dtype:
        raise AssertionError(f"dtype {found.dtype}, expected {expected.dtype}")
    torch.testing.assert_close(
        found.double(), expected.double(), rtol=rtol, atol=rtol, equal_nan=True
    )


def poisoned(*shape: int, dtype=torch.float32) -> torch.Tensor:
    return torch.full(shape, float("nan") if dtype.is_floating_point else 113, dtype=dtype)


def test_a_name_is_a_float_if_a_float_is_ever_assigned() -> None:
    @weft.kernel
    def f(x, out):
        for i in range(x.shape[0]):
            s = 0
            for j in range(i + 1):
                s += 0.5 * x[j]
            out[i] = s

    same(f, torch.randn(17), poisoned(17))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_integer_operators(dtype: torch.dtype) -> None:
    @weft.kernel
    def f(x, y, out):
        for i in range(x.shape[0]):
            out[0, i] = x[i] // y[i]
            out[1, i] = x[i] % y[i]
            out[2, i] = x[i] * y[i] - x[i]
            out[3, i] = (x[i] & 6) | (y[i] ^ 3)
            out[4, i] = abs(x[i]) + min(x[i], y[i]) + max(x[i], 3)
            out[5, i] = x[i] ** 2
            out[6, i] = x[i] << 1
            out[7, i] = x[i] >> 1
            out[8, i] = i // 3 - i % 3
            out[9, i] = (i - 8) // 3 + (i - 8) % 5

    low = 0 if dtype == torch.uint8 else -20
    x = torch.randint(low, 20, (17,)).to(dtype)
    y = torch.randint(1, 9, (17,)).to(dtype)
    if low < 0:
        y[::2] *= -1
    same(f, x, y, poisoned(10, 17, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_float_operators(dtype: torch.dtype) -> None:
    @weft.kernel
    def f(x, y, out):
        for i in range(x.shape[0]):
            out[0, i] = weft.f32(x[i]) // weft.f32(y[i])
            out[1, i] = weft.f32(x[i]) % weft.f32(y[i])
            out[2, i] = x[i] / y[i]
            out[3, i] = -x[i] + 2 * y[i]
            out[4, i] = x[i] ** 3
            out[5, i] = abs(x[i]) ** 0.5
            out[6, i] = max(x[i], y[i]) - min(x[i], 0.0)
            out[7, i] = round(x[i]) + int(y[i]) + math.floor(x[i])
            out[8, i] = (x[i] > y[i]) * 2.0
            out[9, i] = x[i] ** -2

    x, y = torch.randn(33) * 3, torch.randn(33) + 0.3
    out = poisoned(10, 33, dtype=dtype)
    tolerance = {torch.float16: 2e-2, torch.bfloat16: 1e-1}.get(dtype, 1e-4)
    same(f, x.to(dtype), y.to(dtype), out, rtol=tolerance)


def test_float_floor_division_at_its_edges() -> None:
    @weft.kernel
    def f(x, y, out):
        for i, j in weft.ndrange(x.shape[0], y.shape[0]):
            out[0, i, j] = x[i] // y[j]
            out[1, i, j] = x[i] % y[j]

    values = torch.tensor(
        [0.0, -0.0, 1.0, -1.0, 0.1, -0.3, 7.0, -7.5, 1e30, -1e-30, math.inf, -math.inf, math.nan]
    )
    out = poisoned(2, 13, 13)
    f(values, values, out)
    expected = torch.stack([values[:, None] // values[None], values[:, None] % values[None]])
    torch.testing.assert_close(out, expected, equal_nan=True, rtol=0, atol=0)


def test_weak_scalars_take_the_dtype_of_the_tensor() -> None:
    @weft.kernel
    def f(x, a: float, n: int):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * a + n
        return out

    assert f(torch.ones(3, dtype=torch.float64), 0.1, 2)[0].item() == 1.0 * 0.1 + 2
    assert f(torch.ones(3, dtype=torch.float16), 0.1, 2).dtype == torch.float16


def test_a_float_that_meets_no_tensor_is_the_kernels_own() -> None:
    @weft.kernel
    def f(x, n: int):
        for i in range(n):
            x[i] = i / n

    for dtype in (torch.float32, torch.float64):
        x = torch.zeros(7, dtype=dtype)
        f(x, 7)
        torch.testing.assert_close(x, torch.arange(7, dtype=dtype) / 7, rtol=0, atol=0)


def test_annotated_locals_cast() -> None:
    @weft.kernel
    def f(x, out):
        for i in range(x.shape[0]):
            v: weft.i32 = x[i] * 3
            w: weft.u8 = 250
            out[i] = v // 2 + w

    same(f, torch.randn(17) * 4, poisoned(17))


def test_jumps() -> None:
    @weft.kernel
    def f(x, out):
        for i in range(x.shape[0]):
            if x[i] < -1.0:
                continue
            s = 0.0
            for j in range(10):
                if j == 2:
                    continue
                if j * x[i] > 3.0:
                    break
                k = 0
                while True:
                    k += 1
                    if k > j:
                        break
                    if k % 2:
                        continue
                    s += k
                s += x[i] * j
            out[i] = s

    same(f, torch.randn(33), torch.zeros(33))


def test_chained_comparisons_and_lazy_conditions() -> None:
    @weft.kernel
    def f(x, out):
        n = x.shape[0]
        for i in range(n):
            inside = 0 < i < n - 1
            big = (i > 0 and x[i - 1] > x[i]) or (i + 1 < n and x[i + 1] > x[i])
            out[i] = (1.0 if inside else 2.0) + (10.0 if big else 20.0) + (x[i] and 5.0)

    same(f, torch.randn(17), poisoned(17))


def helper(a, b=2.0, *rest, scale=1.0):
    """Early returns in branches and loops."""
    if a > 1.0:
        return a * b * scale
    for k in range(5):
        if k * a > 2.0:
            return k + a
        for r in rest:
            if r > k:
                return r * 100.0
    return -a


@weft.func
def clamp01(v):
    return min(max(v, 0.0), 1.0)


def test_functions_are_inlined() -> None:
    @weft.kernel
    def f(x, out):
        for i in range(x.shape[0]):
            out[i] = (
                helper(x[i])
                + clamp01(x[i])
                + helper(x[i], 3.0, scale=0.5)
                + helper(-x[i], 1.0, x[i], 2.5)
            )

    same(f, torch.randn(65), poisoned(65))


def test_captured_values_are_never_stale() -> None:
    global SCALE

    @weft.kernel
    def f(x):
        for i in range(x.shape[0]):
            x[i] = SCALE * TABLE[1] + TABLE[i % 3]

    x = torch.zeros(3)
    f(x)
    assert x.tolist() == [17.0, 20.0, 22.0]
    SCALE = 10
    f(x)
    assert x.tolist() == [52.0, 55.0, 57.0]
    SCALE = 3


def test_closure_values_are_never_stale() -> None:
    factor = 2.0

    def twice(v):
        return v * factor

    @weft.kernel
    def f(x):
        for i in range(x.shape[0]):
            x[i] = twice(x[i])

    x = torch.ones(2)
    f(x)
    factor = 5.0
    f(x)
    assert x.tolist() == [10.0, 10.0]


@dataclass
class Config:
    eps: float
    width: int


def test_attributes_of_arguments() -> None:
    @weft.kernel
    def f(x, cfg):
        for i in range(cfg.width):
            x[i] = x[i] + cfg.eps

    x = torch.zeros(4)
    config = Config(0.5, 3)
    f(x, config)
    config.eps = 2.0
    f(x, config)
    assert x.tolist() == [2.5, 2.5, 2.5, 0.0]


def test_template_arguments_specialise() -> None:
    @weft.kernel
    def f(x, function: weft.template(), n: weft.template()):
        for i in range(x.shape[0]):
            s = 0.0
            for k in weft.static(range(n)):
                s += function(x[i] + k)
            x[i] = s

    x = torch.ones(2)
    f(x, clamp01, 3)
    assert x.tolist() == [3.0, 3.0]
    f(x, math.sqrt, 1)
    torch.testing.assert_close(x, torch.full((2,), math.sqrt(3.0)))
    assert len(f.specializations) == 2


def test_static_branches_are_pruned() -> None:
    @weft.kernel
    def f(x, mode: weft.template()):
        for i in range(x.shape[0]):
            if weft.static(mode == "double"):
                x[i] = x[i] * 2
            else:
                x[i] = undefined_name_in_a_pruned_branch  # noqa: F821

    x = torch.ones(2)
    f(x, "double")
    assert x.tolist() == [2.0, 2.0]


def test_loops_over_tensors_and_index_vectors() -> None:
    @weft.kernel
    def f(x, y, out):
        for i, j in out:
            out[i, j] = x[i, j] * 2
        for I in weft.grouped(y):  # noqa: E741
            out[I] += y[I] + I[0] * 10 + I[1]
        for i in weft.ndrange((1, 3)):
            out[i, 0] = -1.0
        for i, j in weft.ndrange(2, (1, 3)):
            out[i, j] += 0.5

    same(f, torch.randn(3, 5), torch.randn(3, 5), poisoned(3, 5))


def test_vectors_and_matrices() -> None:
    @weft.kernel
    def f(x, out):
        for i in range(x.shape[0]):
            v = weft.math.vec3(x[i, 0], x[i, 1], x[i, 2])
            w = weft.Vector([1.0, 2.0, 3.0])
            m = weft.Matrix([[x[i, 0], 1.0, 0.0], [0.0, 2.0, 0.5], [1.0, 0.0, 1.0]])
            u = m @ v + w * 0.5
            a, b = u.xy
            k = 2
            v[1] = 7.0
            v.z = a
            out[i, 0] = u.dot(w) + v.norm() + b
            out[i, 1] = u[k] + v[i % 3]
            c = v.cross(w)
            out[i, 2] = c.x + c.y * c.z + (m @ m)[0, 1] + m.transpose()[1, 0]
            for q in weft.static(range(3)):
                out[i, 3] += (v / 2.0)[q]
            p = weft.math.ivec2(x[i, 0] * 3, 7) // 2
            out[i, 4] = p.x + p.y + max(v.x, v.y) + v.sum() + v.max()

    out = torch.zeros(9, 5)
    same(f, torch.randn(9, 3), out, rtol=1e-4)


def test_vectors_are_carried_through_loops() -> None:
    @weft.kernel
    def f(x, out):
        for i in range(x.shape[0]):
            v = weft.Vector([0.0, 1.0])
            t = (0, 0.0)
            for j in range(i):
                v = weft.Vector([v.y, v.x + x[j]])
                if x[j] > 0:
                    v[0] += 1.0
                t = (t[0] + 1, t[1] + x[j])
            out[i] = v.x * 3 + v.y + t[0] * t[1]

    same(f, torch.randn(17), poisoned(17), rtol=1e-4)


def test_local_arrays() -> None:
    @weft.kernel
    def f(x, out):
        for i in range(x.shape[0]):
            a = weft.zeros((3, 4), weft.f32)
            big = weft.zeros((100,), weft.i32)
            for j in range(12):
                a[j // 4, j % 4] = x[i] * j
                big[j * 7] += j
            s = 0.0
            for j in range(12):
                s += a[2 - j // 4, 3 - j % 4] * (j + 1)
            for j in range(100):
                s += big[j]
            out[i] = s

    same(f, torch.randn(9), poisoned(9), rtol=1e-4)


def test_accumulation_into_elements() -> None:
    @weft.kernel
    def f(x, idx, h, g):
        for i in range(x.shape[0]):
            h[idx[i]] += x[i]
            g[i] -= x[i]
            g[i] *= 2
            weft.atomic_max(h[4], x[i])

    idx = torch.randint(0, 4, (1000,))
    x = torch.randint(0, 9, (1000,)).float()
    h, g = torch.zeros(5), torch.ones(1000)
    f(x, idx, h, g)
    expected = torch.zeros(5).index_add_(0, idx, x)
    expected[4] = x.max()
    torch.testing.assert_close(h, expected)
    torch.testing.assert_close(g, (1 - x) * 2)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
    ],
)
def test_atomics(dtype: torch.dtype) -> None:
    @weft.kernel
    def f(x, r):
        for i in range(x.shape[0]):
            weft.atomic_add(r[0], x[i])
            weft.atomic_sub(r[1], x[i])
            weft.atomic_min(r[2], x[i])
            weft.atomic_max(r[3], x[i])
            weft.atomic_cas(r[4], 0, 5)
            weft.atomic_exchange(r[5], x[0])

    x = torch.randint(0, 3, (30,)).to(dtype)
    r = torch.zeros(6, dtype=dtype)
    f(x, r)
    total = x.sum(dtype=torch.int64).item()
    expected = [
        total,
        (256 - total) % 256 if dtype == torch.uint8 else -total,
        0,
        x.max().item(),
        5,
        x[0].item(),
    ]
    assert r.tolist() == expected


def test_atomics_on_bits() -> None:
    @weft.kernel
    def f(x, r):
        for i in range(x.shape[0]):
            weft.atomic_or(r[0], x[i])
            weft.atomic_and_(r[1], x[i])
            weft.atomic_xor(r[2], x[i])

    x = torch.randint(0, 1 << 20, (1000,), dtype=torch.int32)
    r = torch.tensor([0, -1, 0], dtype=torch.int32)
    f(x, r)
    expected = [0, -1, 0]
    for v in x.tolist():
        expected = [expected[0] | v, expected[1] & v, expected[2] ^ v]
    assert r.tolist() == expected


def test_reductions() -> None:
    @weft.kernel
    def f(x, k):
        s = 0.0
        p = 1.0
        low = math.inf
        high = -math.inf
        n = 0
        both = True
        some = False
        for i in range(x.shape[0]):
            s += x[i]
            p *= 1.0 + x[i] * 0.001
            low = min(low, x[i])
            if x[i] > high:
                high = x[i]
            if x[i] > 0:
                n += 1
            both = both and k[i] < 100
            some = some or k[i] == 7
        return s, p, low, high, n, both, some

    x = torch.randn(10_007)
    k = torch.randint(0, 50, (10_007,))
    s, p, low, high, n, both, some = f(x, k)
    torch.testing.assert_close(s, x.sum(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(p, (1 + x * 0.001).prod(), rtol=1e-3, atol=1e-3)
    assert (low, high, n, both, some) == (
        x.min(),
        x.max(),
        (x > 0).sum(),
        True,
        bool((k == 7).any()),
    )
    assert n.dtype == torch.int64
    assert both.dtype == torch.bool


def test_a_reduction_is_used_by_the_next_loop() -> None:
    @weft.kernel
    def normalize(x):
        out = torch.empty_like(x)
        s = 0.0
        for i in range(x.shape[0]):
            s += x[i] * x[i]
        norm = s.sqrt()
        for i in range(x.shape[0]):
            out[i] = x[i] / norm
        return out

    x = torch.randn(1001)
    torch.testing.assert_close(normalize(x), x / x.norm())


def test_host_part() -> None:
    @weft.kernel
    def f(x, steps: int, flip: bool):
        y = x.clone()
        if flip:
            y = y.flip(0)
        for t in weft.serial(range(steps)):
            z = torch.empty_like(y)
            for i in range(y.shape[0]):
                left = y[i - 1] if i > 0 else y[0]
                z[i] = 0.5 * (left + y[i]) + t
            y = z
        y[0] = 42.0
        return y

    same(f, torch.randn(17), 3, True)
    same(f, torch.randn(1), 0, False)


def test_negative_literal_subscripts_count_from_the_end() -> None:
    @weft.kernel
    def f(x, out):
        for i in range(out.shape[0]):
            out[i] = x[i, -1] + x[-2, 0]

    same(f, torch.randn(4, 3), poisoned(4))


def test_chained_subscripts() -> None:
    @weft.kernel
    def f(x, out):
        for i in range(out.shape[0]):
            out[i] = x[i][1] + x[i][0]

    same(f, torch.randn(4, 3), poisoned(4))


def test_ranges_with_steps() -> None:
    @weft.kernel
    def f(out, step: int):
        for i in range(10, 0, -3):
            out[i] = i
        for i in range(1, 12, 4):
            s = 0
            for j in range(i, -3, -2):
                s = s * 3 + j
            for j in range(0, i * step, step):
                s += j
            out[i + 1] = s

    same(f, torch.zeros(20), 2)
    same(f, torch.zeros(20), -1)


def test_booleans() -> None:
    @weft.kernel
    def f(x, mask, out):
        for i in range(x.shape[0]):
            mask[i] = x[i] > 0 and not mask[i]
            out[i] = mask[i] | (x[i] > 1)

    x = torch.randn(33)
    same(f, x, torch.rand(33) > 0.5, torch.zeros(33, dtype=torch.bool))


def test_nan_and_infinity_keep_their_meaning() -> None:
    @weft.kernel
    def f(x, out):
        for i in range(x.shape[0]):
            out[0, i] = 1.0 if x[i] != x[i] else 0.0
            out[1, i] = max(x[i], 0.0)
            out[2, i] = max(0.0, x[i])
            out[3, i] = weft.math.max(x[i], 0.0)
            out[4, i] = 1.0 if weft.math.isnan(x[i]) else (2.0 if weft.math.isinf(x[i]) else 3.0)
            out[5, i] = x[i] * 0.0
            out[6, i] = 1.0 / x[i]

    x = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5])
    same(f, x, poisoned(7, 6))


MATH = [
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "rsqrt",
    "erf",
    "erfc",
    "floor",
    "ceil",
    "round",
    "trunc",
    "abs",
    "sign",
    "sigmoid",
]


@pytest.mark.parametrize("name", MATH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_math(name: str, dtype: torch.dtype) -> None:
    function = getattr(weft.math, name)

    @weft.kernel
    def f(x, out):
        for i in range(x.shape[0]):
            out[i] = function(x[i])

    x = torch.randn(1003, dtype=dtype) * 2
    out = torch.empty_like(x)
    f(x, out)
    expected = getattr(torch, name)(x.double())
    torch.testing.assert_close(
        out.double(),
        expected,
        equal_nan=True,
        rtol=3e-6 if dtype == torch.float32 else 1e-12,
        atol=1e-7,
    )


def test_print(capfd: pytest.CaptureFixture[str]) -> None:
    @weft.kernel
    def f(x):
        for i in range(2):
            print("x[", i, "] =", x[i], sep="", end=";")
            print(f"i is {i}", weft.Vector([i, 2]))

    f(torch.tensor([0.5, 2.0]))
    assert capfd.readouterr().out == "x[0] =0.5;i is 0 [0, 2]\nx[1] =2.0;i is 1 [1, 2]\n"


@pytest.mark.parametrize("shape", [(0,), (1,), (3,)])
def test_empty_tensors(shape: tuple[int, ...]) -> None:
    @weft.kernel
    def f(x):
        out = torch.empty_like(x)
        s = 0.0
        for i in x:
            out[i] = x[i] + 1
            s += x[i]
        return out, s

    out, s = f(torch.ones(shape))
    assert out.tolist() == [2.0] * shape[0]
    assert s.item() == shape[0]


def test_zero_and_five_dimensions() -> None:
    @weft.kernel
    def f(x, a):
        out = torch.empty_like(x)
        for i, j, k, m, n in x:
            out[i, j, k, m, n] = x[i, j, k, m, n] * a[None] + a
        return out

    x, a = torch.randn(2, 3, 1, 5, 2), torch.tensor(2.5)
    torch.testing.assert_close(f(x, a), x * 2.5 + 2.5)
    torch.testing.assert_close(f(x.permute(4, 2, 0, 1, 3), a), x.permute(4, 2, 0, 1, 3) * 2.5 + 2.5)


def test_any_strides() -> None:
    @weft.kernel
    def f(x, y):
        out = torch.empty(x.shape, dtype=x.dtype)
        for i, j in weft.ndrange(x.shape[0], x.shape[1]):
            out[i, j] = x[i, j] - y[i, j]
        return out

    base = torch.randn(40, 40)
    for x in (
        base[:17, :13],
        base.t()[3:20, 5:18],
        base[1:35:2, 2:28:2],
        base[:17, :1].expand(17, 13),
    ):
        for y in (torch.randn(17, 13), torch.randn(13, 17).t(), torch.randn(13).expand(17, 13)):
            torch.testing.assert_close(f(x, y), x - y)


def test_aliasing_arguments() -> None:
    @weft.kernel
    def f(a, b, out):
        for i in range(out.shape[0]):
            out[i] = a[i] + b[i]

    x = torch.arange(9.0)
    f(x, x, x)
    assert x.tolist() == [2.0 * k for k in range(9)]


def test_walrus_and_tuples() -> None:
    @weft.kernel
    def f(x, out):
        for i in range(x.shape[0]):
            if (v := x[i] * 2) > 1:
                a, (b, c) = v, (1.0, 2.0)
                a, b = b, a
                out[i] = a - b + c
            else:
                q, r = divmod(i, 3)
                out[i] = q * 10 + r

    same(f, torch.randn(17), poisoned(17))


def test_default_and_keyword_arguments() -> None:
    @weft.kernel
    def f(x, scale: float = 2.0, *, shift: int = 1):
        out = torch.empty_like(x)
        for i in x:
            out[i] = x[i] * scale + shift
        return out

    x = torch.ones(3)
    assert f(x).tolist() == [3.0] * 3
    assert f(x, 4.0).tolist() == [5.0] * 3
    assert f(x=x, shift=5).tolist() == [7.0] * 3


def test_integers_wrap_and_do_not_narrow_silently() -> None:
    @weft.kernel
    def f(out, n: int):
        for i in range(out.shape[0]):
            out[i] = i * i * n

    out = torch.zeros(3, dtype=torch.int64)
    f(out, 1 << 40)
    assert out.tolist() == [0, 1 << 40, 4 << 40]


def test_comparison_with_a_python_int_beyond_the_tensors_type() -> None:
    @weft.kernel
    def f(x, out, n: int):
        for i in range(x.shape[0]):
            out[i] = 1 if x[i] < n else 0

    out = torch.zeros(2, dtype=torch.int32)
    f(torch.tensor([100, -100], dtype=torch.int8), out, 1000)
    assert out.tolist() == [1, 1]


def test_a_loop_index_with_a_value_from_before_keeps_its_last_one() -> None:
    @weft.kernel
    def f(out, n: int):
        for i in range(out.shape[0]):
            j = 7
            for j in range(n):
                if j == 3:
                    break
            a, b = 0, 0
            for a, b in weft.ndrange(n, 2):  # noqa: B007
                pass
            for i in range(n):
                out[i] += 1.0
            out[i] += j * 100 + a * 10 + b

    for n in (1, 2, 6):
        same(f, torch.zeros(6), n)


def test_a_name_that_two_loops_assign_has_no_value_after_them() -> None:
    @weft.kernel
    def f(out, n: int):
        for i in out:
            for j in range(n):
                out[i] += j
            for j in range(n):
                out[i] -= j
            out[i] = j

    with pytest.raises(weft.KernelNameError, match="`j` may have no value here"):
        f(torch.zeros(3), 2)


@weft.kernel
def dtypes_compared(x, out):
    for i in range(out.shape[0]):
        if x.dtype == torch.float32:
            out[i] += 1
        if x.dtype == weft.f32:
            out[i] += 2
        if weft.f32 == x.dtype:
            out[i] += 4
        if x.dtype in (torch.float32, torch.float64):
            out[i] += 8
        if x.dtype is torch.float32:
            out[i] += 16
        if x.dtype != weft.f64:
            out[i] += 32
        if out[i].dtype == torch.float32:
            out[i] += 64
        out[i] += x.dtype.itemsize * 128


@weft.kernel
def dtypes_compared_of_what_is_read(x, out):
    for i in range(out.shape[0]):
        if x.dtype == torch.float32:
            out[i] += x[0]
        if x.dtype == weft.f32:
            out[i] += 2 * x[0]
        y = x.dtype(3.7)
        if y == 3:
            out[i] += 4


def test_dtypes_compare_as_in_python():
    assert torch.float32 == weft.f32
    assert weft.f64 != torch.float32
    assert len({weft.f32, torch.float32, weft.float32, weft.f64}) == 2
    for x, expected in ((torch.ones(1), 127 + 4 * 128), (torch.ones(1).double(), 72 + 8 * 128)):
        for run in (dtypes_compared, dtypes_compared.interpret, dtypes_compared.function):
            out = torch.zeros(1)
            run(x, out)
            assert out.tolist() == [expected]
    for x, expected in ((torch.ones(1), 3), (torch.ones(1).int(), 4)):
        out = torch.zeros(1)
        dtypes_compared_of_what_is_read(x, out)
        assert out.tolist() == [expected]
