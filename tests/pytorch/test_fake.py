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
