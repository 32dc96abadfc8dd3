"""The host part on fake tensors."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import weft
from weft.errors import KernelValueError

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.compile's own


@weft.kernel
def counts(x: torch.Tensor) -> torch.Tensor:
    n = int(x.max()) + 1
    out = torch.zeros(n)
    for i in range(x.shape[0]):
        out[x[i]] += 1.0
    return out


@weft.kernel
def signed(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    if x.sum() > 0:
        for i in range(x.shape[0]):
            out[i] = x[i]
    else:
        for i in range(x.shape[0]):
            out[i] = -x[i]
    return out


@pytest.mark.parametrize(
    ("kernel", "line"), [(counts, "n = int(x.max()) + 1"), (signed, "if x.sum() > 0:")]
)
@pytest.mark.parametrize("shapes", [None, ShapeEnv], ids=["static", "symbolic"])
def test_data_that_is_not_there(kernel, line, shapes):
    with FakeTensorMode(shape_env=shapes and shapes()) as mode:
        x = mode.from_tensor(torch.tensor([1, 2, 2]))
        with pytest.raises(KernelValueError) as info:
            kernel(x)
    assert info.value.message == (
        "the host part makes a number of what is in a tensor, and there is no data yet"
    )
    assert info.value.help == (
        "under torch.compile sizes and branches may depend on shapes and numbers only: compute the "
        "number outside of the kernel and pass it as an argument"
    )
    assert info.value.span.text.strip() == line


@pytest.mark.slow  # eight seconds of torch.compile
@pytest.mark.parametrize("kernel", [counts, signed])
def test_numbers_made_of_data_break_the_graph(kernel):
    torch._dynamo.reset()
    x = torch.tensor([1, 2, 2])
    compiled = torch.compile(lambda x: kernel(x + 1) + 1, backend="aot_eager")
    for y in (x, x - 7 * (kernel is signed)):
        torch.testing.assert_close(compiled(y), kernel(y + 1) + 1)
    with pytest.raises(Exception, match="the host part makes a number of what is in a tensor"):
        torch.compile(kernel, backend="aot_eager", fullgraph=True)(x)


@weft.kernel
def wide_total(x):
    total = weft.i64(0)
    for i in range(x.shape[0]):
        total += weft.i64(x[i])
    return total


@weft.kernel
def scaled(x, by: float):
    n = weft.f32(x.shape[0])
    scale = weft.math.sqrt(n) + weft.max(weft.i8(by), n)
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * scale
    return out


@weft.kernel
def in_steps(x):
    count, step = weft.u8(0), weft.cast(0.5, weft.f64)
    out = x.clone()
    while count < 3:
        for i in range(x.shape[0]):
            out[i] += step
        count += 1
    return out, weft.c64(count)


@weft.kernel
def rounded(x, dtype: weft.template()):
    out, last = torch.empty_like(x), dtype(0)
    for i in range(x.shape[0]):
        out[i] = dtype(x[i])
        last = weft.max(last, dtype(x[i]))
    return out, last


@pytest.mark.parametrize(
    ("kernel", "others"),
    [(wide_total, ()), (scaled, (2.7,)), (in_steps, ()), (rounded, (weft.i16,)),
     (rounded, (weft.f16,))],
)  # fmt: skip
@pytest.mark.parametrize("dynamic", [False, True])
def test_dtypes_of_weft_in_a_host_part(kernel, others, dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: kernel(x, *others), backend="aot_eager", fullgraph=True, dynamic=dynamic
    )
    for n in (5, 9):
        x = torch.randn(n) * 100
        torch.testing.assert_close(compiled(x), kernel(x, *others))
