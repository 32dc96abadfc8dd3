"""Arguments that share memory: what Python gives, in parallel only where iterations are apart."""

import itertools
import warnings
from random import Random

import pytest
import torch

import weft
from weft.errors import KernelValueError
from weft.runtime.overlap import OverlapWarning, any_shared


@weft.kernel
def copied(x, out):
    for i, j in weft.ndrange(out.shape[0], out.shape[1]):
        out[i, j] = x[i, j] + 1


@weft.kernel
def transposed(x, out):
    for i, j in weft.ndrange(out.shape[0], out.shape[1]):
        out[i, j] = x[j, i] + 1


@weft.kernel
def summed(x, out):
    for i in range(out.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s += x[i, j]
        out[i, 0] = s


@weft.kernel
def accumulated(x, out):
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        out[i, 0] += x[i, j]


@weft.kernel
def nearby(x, out):
    for i, j in weft.ndrange(out.shape[0], out.shape[1]):
        out[i, j] = x[max(i - 1, 0), j] + 1


@weft.kernel
def squared(x, out):
    for i, j in weft.ndrange(out.shape[0], out.shape[1]):
        out[i, j] = x[i * i % x.shape[0], j] + 1


KERNELS = (copied, transposed, summed, accumulated, nearby, squared)
TOUCHED = {  # by iteration (i, j): what is read, what is written
    copied: lambda i, j, n, m: ({(i, j)}, {(i, j)}),
    transposed: lambda i, j, n, m: ({(j, i)}, {(i, j)}),
    summed: lambda i, j, n, m: ({(i, k) for k in range(m)}, {(i, 0)}),
    accumulated: lambda i, j, n, m: ({(i, j)}, {(i, 0)}),
    nearby: lambda i, j, n, m: ({(max(i - 1, 0), j)}, {(i, j)}),
    squared: lambda i, j, n, m: ({(i * i % n, j)}, {(i, j)}),
}


def views(random: Random) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A buffer and two square views of it; the second has each element once."""
    base, n = torch.randn(64, dtype=torch.float64), random.randint(1, 4)
    while True:
        found = []
        for _ in range(2):
            strides = random.choice([(n, 1), (1, n), (2 * n, 2), (4, 1), (1, 4), (8, 1), (8, 2)])
            reach = (n - 1) * sum(strides)
            found.append(base.as_strided((n, n), strides, random.randrange(min(64 - reach, 10))))
        if len({t.data_ptr() for t in elements(found[1])}) == n * n:
            return base, found[0], found[1]


def same_view(base: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    return base.as_strided(view.shape, view.stride(), view.storage_offset())


def elements(view: torch.Tensor) -> list[torch.Tensor]:
    return [view[i] for i in itertools.product(*map(range, view.shape))]


def meet(kernel: weft.Kernel, x: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether two iterations touch one element through the two arguments, by trying all."""
    (n, m), touched = x.shape, TOUCHED[kernel]
    columns = 1 if kernel is summed else m
    read, written = {}, {}
    for i, j in itertools.product(range(n), range(columns)):
        a, b = touched(i, j, n, m)
        read[i, j] = {x[e].data_ptr() for e in a}
        written[i, j] = {out[e].data_ptr() for e in b}
    return any(read[a] & written[b] for a in read for b in written if a != b)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("seed", range(30))
def test_views_of_one_buffer_give_what_python_gives(seed):
    random = Random(seed)
    for kernel in KERNELS:
        base, x, out = views(random)
        shared = {t.data_ptr() for t in elements(x)} & {t.data_ptr() for t in elements(out)}
        assert any_shared([x, out], [(1, 0)]) == bool(shared)
        expected = base.clone()
        kernel.function(
            *(expected.as_strided(v.shape, v.stride(), v.storage_offset()) for v in (x, out))
        )
        fresh = weft.kernel(kernel.function)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            fresh(x, out)
        torch.testing.assert_close(base, expected)
        if kernel is not squared:  # a remainder of products is not followed: in order, if unsure
            assert bool(warned) == meet(kernel, x, out), (kernel, x.stride(), out.stride())
        else:
            assert warned or not meet(kernel, x, out)


@weft.kernel
def shifted(x):
    y, z = x[1:], x[:-1]
    for i in z:
        z[i] = y[i]


def test_the_warning_says_where_and_what_to_write():
    line = shifted.function.__code__.co_firstlineno + 3
    x = torch.arange(100_000.0)
    kernel = shifted.changed({})  # which has said nothing on another device
    with pytest.warns(OverlapWarning) as warned:
        kernel(x)
    kernel(x)  # said once
    assert torch.equal(x[:-2], torch.arange(2.0, 100_000.0))
    assert [(w.filename, w.lineno) for w in warned] == [(__file__, line)]
    assert str(warned[0].message) == (
        "kernel `shifted`: `z` and `y` share memory in which iterations may meet: the loop runs in "
        "order, on one thread\nhelp: pass a copy (y.clone()) to run it in parallel"
    )


@weft.kernel
def gathered(x, index, out):
    for i in range(index.shape[0]):
        for k in range(3):
            out[i, k] += x[index[i], k]


def test_columns_of_one_array_are_apart_whatever_subscripts_are():
    state, index = torch.randn(50, 6), torch.randint(0, 50, (50,))
    expected = state.clone()
    expected[:, 3:] += expected[index, :3]
    gathered(state[:, :3], index, state[:, 3:])  # no warning, which would be an error
    torch.testing.assert_close(state, expected)
    with pytest.warns(OverlapWarning, match="`out` and `x` share memory"):
        gathered.changed({})(state[:, :3], index, state[:, 2:5])


@pytest.mark.filterwarnings("ignore::weft.runtime.overlap.OverlapWarning")
def test_one_plan_does_not_serve_another_distance():
    base = torch.zeros(40, dtype=torch.float64)
    for begin in (0, 20, 1, 2, 0, 1, 20):
        base.copy_(torch.arange(40.0))
        expected = base.clone()
        copied.function(expected[:10].view(10, 1), expected[begin : begin + 10].view(10, 1))
        copied(base[:10].view(10, 1), base[begin : begin + 10].view(10, 1))
        assert torch.equal(base, expected)


@weft.kernel
def increased(x):
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        x[i, j] += 1.0


@pytest.mark.parametrize(
    ("shape", "strides"), [((20, 2), (1, 10)), ((5, 3), (2, 2)), ((9, 3), (1, 1)), ((4, 4), (3, 2))]
)
def test_a_written_view_that_overlaps_itself_is_refused(shape, strides):
    x = torch.zeros(100).as_strided(shape, strides)
    with pytest.raises(KernelValueError) as caught:
        increased(x)
    first, *_, last = str(caught.value).splitlines()
    assert first.partition("`increased`: ")[2] == (
        f"`x` is written, and its strides {strides} are smaller than what they step over: "
        "several of its indices are one place in memory"
    )
    assert last == "help: pass x.clone()"


@pytest.mark.parametrize(
    ("shape", "strides"), [((3, 2), (2, 3)), ((1, 5), (0, 1)), ((0, 3), (1, 1)), ((2, 3), (5, 2))]
)
def test_strides_that_interleave_without_meeting_are_fine(shape, strides):
    base = torch.zeros(100)
    increased(base.as_strided(shape, strides))
    assert base.sum() == shape[0] * shape[1]


def test_overlapping_windows_may_be_read():
    x, out = torch.randn(20), torch.zeros(16, 5)
    copied(x.unfold(0, 5, 1), out)
    assert torch.equal(out, x.unfold(0, 5, 1) + 1)
