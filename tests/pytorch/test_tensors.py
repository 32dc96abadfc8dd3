"""Every kind of tensor that torch makes: right, or refused by name with the way out, and never the
end of the process; also after machine code stands before a kernel."""

import json
import subprocess
import sys

import pytest
import torch

import weft
from tests.pytorch import tensors
from weft.errors import KernelValueError

DENSE = "kernels take dense tensors: pass "
NO_BATCHES = ["KernelValueError", "`x` has no memory of its own: it is a batch, or belongs to a "
              "transform of torch.func",
              "use tensors of a transform inside of it only"]  # fmt: skip
UNKNOWN = ["KernelTypeError", "`x` is a MaskedTensor, which does not take operators that it does "
           "not know", "call the kernel with the tensors that it is made of (x.to_local(), "
           "x.get_data(), ...)"]  # fmt: skip
LAZY = ["KernelValueError", "`x` is a lazily negated view", "pass x.resolve_neg()"]


def _sparse(layout):
    return ["KernelTypeError", f"`x` is a {layout} tensor",
            DENSE + "x.to_dense(), or its values and indices"]  # fmt: skip


def _nested(instead):
    return ["KernelTypeError", "`x` is a nested tensor", DENSE + instead]


def _twos(kind="Tensor"):
    return f"{kind} [2.0, 2.0, 2.0, 2.0]"


# What comes of reading and of writing to it; one entry where that is the same.
EXPECTED = {
    "zero": ["Tensor [0.0, 0.0, 0.0, 0.0]", [
        "KernelValueError", "`x` is written, and it is a ZeroTensor, which is immutable",
        "pass x.clone()"]],
    "conjugate": [f"Tensor {[2 + 0j] * 4}", [
        "KernelValueError", "`x` is written, and it is a lazily conjugated or negated view",
        "pass x.resolve_conj().resolve_neg()"]],
    "negative": [LAZY],
    "negative, contiguous": [LAZY],
    "nested": [_nested("x.to_padded_tensor(0.0), or each of x.unbind()")],
    "jagged": [f"NestedTensor {[[2.0] * 4] * 2}"],
    "coo": [_sparse("sparse_coo")],
    "csr": [_sparse("sparse_csr")],
    "bsr": [_sparse("sparse_bsr")],
    "mkldnn": [["KernelTypeError", "`x` is a mkldnn tensor", DENSE + "x.to_dense()"]],
    "quantized": [["KernelTypeError", "`x` is a quantized tensor",
                   "pass x.dequantize(), or x.int_repr() with scale and zero point"]],
    "meta": ["Tensor [4]"],
    "functional": [["KernelValueError", "`x` is a functional tensor: it stands for one in a trace",
                    "call the kernel as an operator, kernel.op(...), where tensors are "
                    "functionalized"]],
    "batched": [NO_BATCHES],
    "escaped from vmap": [None, NO_BATCHES],  # torch's own words: the host part fails
    "escaped from grad": [NO_BATCHES],
    "masked": [UNKNOWN],
    "subclass": [_twos("Plain")],
    "overriding": ["twice of Overriding", "double_ of Overriding"],
    "refusing": [["KernelTypeError", "`x` is a Refusing, whose __torch_function__ does not take "
                  "kernels", "call the kernel with the tensors that it is made of"]],
    "two": ["TwoTensor [4]"],
    "freed": [["KernelValueError", "`x` has 4 elements, and its storage has 0 bytes",
               "its storage was resized: call the kernel while the data is there (inside of FSDP's "
               "forward, say)"]],
    "fake": ["FakeTensor [4]"],
    "buffer": [_twos()],
    "parameter": [_twos(), _twos("Parameter")],
    "shared": [_twos()],
    "inference": [_twos(), ["KernelValueError", "`x` is written, and it is an inference tensor, "
                            "outside of inference mode", "pass x.clone(), or call the kernel under "
                            "torch.inference_mode()"]],
    "empty": ["Tensor []"],
}  # fmt: skip


@pytest.mark.slow
def test_every_kind_of_tensor():
    program = [sys.executable, "-m", "tests.pytorch.tensors"]
    out = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    lines = map(json.loads, out.splitlines())
    came = {(name, kernel, how): result for name, kernel, how, result in lines}
    found, expected = {}, {}
    for name in tensors.MAKE:
        reading, writing = EXPECTED[name][0], EXPECTED[name][-1]
        for kernel, result in (("twice", reading), ("double_", writing)):
            for how in ("first", "later") if result is not None else ():
                found[name, kernel, how] = came.get((name, kernel, how))
                expected[name, kernel, how] = result
    assert found == expected


# --- meta tensors: shapes, dtypes and gradients without data -----------------------------------
@weft.kernel
def totals(x: torch.Tensor, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    n, m = x.shape
    out = torch.empty(n, dtype=torch.float64, device=x.device)
    largest = 0.0
    for i in range(n):
        s = 0.0
        for j in range(m):
            s += x[i, j] * x[i, j]
        out[i] = s
    for i, j in weft.ndrange(n, m):
        largest = max(largest, x[i, j])
    return out, largest


@weft.kernel
def newton(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        y = 1.0
        while abs(y * y - x[i]) > 1e-3:
            y = (y + x[i] / y) / 2
        out[i] = y
    return out


@pytest.mark.parametrize(("kernel", "args"), [(totals, (2,)), (newton, ())])
def test_a_call_with_meta_tensors_is_like_one_with_data(kernel, args):
    shape = (3, 4) if kernel is totals else (3,)
    for warm in (0, 8):
        for _ in range(warm):
            kernel(torch.rand(shape) + 1, *args)
        outs = {}
        for device in ("cpu", "meta"):
            x = torch.rand(shape, device="cpu").add(1).to(device).requires_grad_()
            out = kernel(x, *args)
            out = out if isinstance(out, tuple) else (out,)
            sum(o.sum() for o in out).backward()
            outs[device] = [(t.shape, t.dtype, t.requires_grad) for t in (*out, x.grad)]
            assert {t.device.type for t in (*out, x.grad)} == {device}
        assert outs["meta"] == outs["cpu"]


def test_a_module_on_the_meta_device():
    with torch.device("meta"):
        assert tensors.twice(torch.ones(5)).shape == (5,)


def test_meta_tensors_beside_others_are_refused():
    @weft.kernel
    def copy(x, out):
        for i in range(out.shape[0]):
            out[i] = x[i]

    with pytest.raises(KernelValueError, match="`x` is on meta and `out` on cpu"):
        copy(torch.ones(3, device="meta"), torch.ones(3))


def test_operators_refuse_meta_tensors_beside_others():
    """They gave memory that nothing had been written to."""

    @weft.kernel
    def scaled(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * by
        return out

    x, by = torch.ones(3), torch.tensor(2.0)
    for needs in (False, True):
        with pytest.raises(KernelValueError, match="`x` is on cpu and `by` on meta"):
            scaled.op(x.requires_grad_(needs), by.to("meta"))
    assert scaled.op(x.detach().to("meta"), by).is_meta  # as torch's own: a number of the CPU
    assert scaled.op(x, by).tolist() == [2.0] * 3


# --- storages, inference and zeros ---------------------------------------------------------------
def test_a_tensor_larger_than_its_storage():
    x = torch.ones(7)
    x.untyped_storage().resize_(8)
    with pytest.raises(KernelValueError, match="`x` has 7 elements, and its storage has 8 bytes"):
        tensors.twice(x)


def test_inference_tensors_are_written_in_inference_mode():
    with torch.inference_mode():
        for _ in range(8):
            x = torch.ones(4)
            tensors.double_(x)
        assert x.tolist() == [2.0] * 4
    with pytest.raises(KernelValueError, match="it is an inference tensor"):
        tensors.double_(x)
    assert x.tolist() == [2.0] * 4  # refused before anything is written


def test_zero_tensors_have_gradients():
    x = torch._efficientzerotensor(3).requires_grad_()
    out = tensors.twice(x)
    out.sum().backward()
    assert out.tolist() == [0.0] * 3
    assert x.grad.tolist() == [2.0] * 3


def test_a_batch_of_gradients():
    x = torch.ones(3, requires_grad=True)
    for _ in range(2):
        rows = torch.autograd.grad(tensors.twice(x), x, torch.eye(3), is_grads_batched=True)
        jacobians = [torch.autograd.functional.jacobian(tensors.twice, x.detach(), vectorize=True,
                                                        strategy=f"{mode}-mode")
                     for mode in ("reverse", "forward")]  # fmt: skip
        batch = torch.vmap(lambda v, x=x: torch.autograd.grad(tensors.twice(x), x, v)[0])
        rows += torch.autograd.grad(tensors.twice.op(x), x, torch.eye(3), is_grads_batched=True)
        for found in (*rows, *jacobians, batch(torch.eye(3))):
            assert torch.equal(found, 2 * torch.eye(3))


@pytest.mark.parametrize("warm", [False, True])
def test_gradients_that_are_lazy(warm):
    x = torch.ones(1, requires_grad=True)
    if warm:
        tensors.twice(x).backward(torch.ones(1))
    negative = torch.tensor([3j]).conj().imag  # contiguous, as it is one element
    zero = torch._efficientzerotensor(1)
    for grad, expected in ((negative, -6.0), (zero, 0.0)):
        found = torch.autograd.grad(tensors.twice(x), x, grad)[0]
        assert found.tolist() == [expected]


def test_a_lazy_primal_of_a_dual_tensor_is_refused():
    with torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(torch._neg_view(torch.ones(3)), torch.ones(3))
        with pytest.raises(KernelValueError, match="`x` is a lazily negated view"):
            tensors.twice(x)


def test_a_result_is_of_the_type_of_the_first_call_in_later_ones():
    @weft.kernel
    def double(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = 2.0 * x[i]
        return out

    x = torch.ones(4).as_subclass(tensors.Plain)
    assert {type(double(x)) for _ in range(20)} == {tensors.Plain}
    assert {type(double(x.as_subclass(torch.Tensor))) for _ in range(20)} == {torch.Tensor}


@weft.kernel
def squared_again(v: torch.Tensor) -> torch.Tensor:
    a = v.clone()
    for i in range(v.shape[0]):
        a[i] = a[i] * v[i]
    return a


def test_a_batch_of_tangents_of_what_a_loop_overwrites_is_refused():
    """Torch asks that they are changed in place, and tells it by memory that batches have not."""
    x = torch.rand(3)
    torch.testing.assert_close(torch.func.jacfwd(squared_again)(x), torch.diag(2 * x))
    with pytest.raises(weft.errors.GradientError) as raised:
        torch.autograd.functional.jacobian(
            squared_again, x, vectorize=True, strategy="forward-mode"
        )
    assert raised.value.message == (
        "the tangents are a batch, and the loop overwrites `a`, which has some: torch cannot "
        "follow that"
    )
    assert raised.value.help == ("call torch.func.jacfwd in place of jacobian(..., vectorize=True)")
