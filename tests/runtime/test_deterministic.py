"""Accumulations under torch.use_deterministic_algorithms(True)."""

import pytest
import torch

import weft
from weft.errors import KernelValueError
from weft.runtime.deterministic import Ordered, is_unordered


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@weft.kernel
def scatter(x: torch.Tensor, k: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        out[k[i]] += x[i]


@weft.kernel
def count(k: torch.Tensor, out: torch.Tensor) -> None:
    for i in range(k.shape[0]):
        out[k[i]] += 1


@weft.kernel
def listed(k: torch.Tensor, out: torch.Tensor, n: torch.Tensor) -> None:
    for i in range(k.shape[0]):
        if k[i] > 0:
            out[weft.atomic_add(n[0], 1)] = k[i]


@weft.kernel
def scale_(x: torch.Tensor, c: float) -> None:
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        x[i, j] *= c


@weft.kernel
def rows(x: torch.Tensor, out: torch.Tensor) -> None:
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        out[i] += x[i, j]


def arguments(n=400_000):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, generator=generator) * 1e3
    return x, torch.randint(0, 7, (n,), generator=generator)


@pytest.mark.parametrize("warm", [False, True])
def test_sums_have_the_order_of_one_thread(warm):
    x, k = arguments()
    for _ in range(8 * warm):  # machine code stands before the kernel
        scatter(x, k, torch.zeros(7))
    expected = torch.zeros(7)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    scatter(x, k, expected)
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(5):
            out = torch.zeros(7)
            scatter(x, k, out)
            assert torch.equal(out, expected)
        assert torch.get_num_threads() == 2
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)


def test_what_an_accumulation_gives_has_an_order(deterministic):
    k = torch.arange(-100_000, 100_000)
    out, n = torch.zeros(100_000, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    listed(k, out, n)
    assert torch.equal(out[: n[0]], k[k > 0])


def test_which_loops_have_no_order():
    x, k = arguments(10)
    calls = [
        (scatter, (x, k, torch.zeros(7)), True),
        (count, (k, torch.zeros(7, dtype=torch.int64)), False),
        (listed, (k, torch.zeros(10, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)), True),
        (scale_, (torch.ones(3, 4), 2.0), False),
        (rows, (torch.ones(3, 4), torch.zeros(3)), True),
    ]
    for kernel, args, expected in calls:
        kernel(*args)
        function = kernel.specializations[-1].compiled.function
        assert is_unordered(function) == expected, kernel.__name__


def test_a_gpu_refuses_or_warns(deterministic):
    x, k = arguments(10)
    scatter(x, k, torch.zeros(7))
    done = []
    call = Ordered(done.append, scatter.specializations[-1].compiled, True, scatter.span)
    message = (
        "what iterations do to `out` has no order on a GPU, so that the result is not deterministic"
    )
    help = (
        "write the loop over the elements of `out`, run it on the CPU (on one thread), or allow "
        "it: torch.use_deterministic_algorithms(False), or warn_only=True"
    )
    with pytest.raises(KernelValueError) as caught:
        call(b"")
    assert (caught.value.message, caught.value.help) == (message, help)
    assert done == []
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match="has no order on a GPU"):
        call(b"")
    assert done == [b""]
