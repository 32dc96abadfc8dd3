"""In what form gradients are accumulated."""

import pytest
import torch

import weft
from tests.autodiff import kernels as k
from weft.ir.core import walk


def notes(kernel, *args):
    """How each gradient of a kernel of one loop is accumulated."""
    kernel(*(a.double().requires_grad_() if a.is_floating_point() else a
             for a in args if isinstance(a, torch.Tensor)),
           *(a for a in args if not isinstance(a, torch.Tensor)))  # fmt: skip
    # The first form is the usual one; others are for tapes that are long, and the like.
    made, *_ = [r for s in kernel.specializations if s.derived for r in s.derived.adjoints]
    return made.notes, made


def test_causal_convolution_gathers():
    found, made = notes(k.conv, torch.randn(2, 5), torch.randn(2, 2, 5), 0.3)
    assert found == {"d.w": "gather", "d.k": "gather"}
    assert len(made.steps) == 2
    assert not made.workspaces


def test_layer_norm_keeps_two_numbers_for_each_row():
    found, made = notes(k.layernorm, torch.randn(3, 4), torch.randn(4), torch.randn(4))
    assert found["d.w"] == "gather"
    assert found["d.x"].startswith("plain store")
    assert len(made.workspaces) == 2


@pytest.mark.parametrize(
    ("kernel", "args", "note"),
    [
        (k.upsample, (torch.randn(3),), "gather"),
        (k.blur, (torch.randn(4, 5),), "gather"),
        (k.stride2, (torch.randn(9), torch.randn(3)), "gather"),
    ],
)
def test_gather(kernel, args, note):
    found, _ = notes(kernel, *args)
    assert set(found.values()) == {note}


def test_a_number_that_all_iterations_read_is_reduced():
    found, _ = notes(k.axpy, torch.randn(()), torch.randn(5), torch.randn(5))
    assert found["d.a"] == "parallel reduction"


def test_data_dependent_subscripts_are_atomic_and_say_so():
    found, _ = notes(k.pick, torch.randn(3), torch.tensor([0, 2, 1, 2]))
    assert found == {"d.x": "atomic (data-dependent subscript idx[i])"}


def test_the_backward_can_be_looked_at():
    text = k.conv.backward.inspect(torch.randn(2, 5), torch.randn(2, 2, 5), 0.3)
    assert "d.w: gather" in text
    assert "scf.parallel" in text


def test_bounds_that_are_minima_and_maxima_bound_the_sums_of_the_gradient():
    """The sums over what reads an element must not go over all iterations to look for them."""
    _, made = notes(k.blur, torch.randn(4, 5))
    loop = made.steps[-1]
    sums = [op for op in walk(loop.body) if op.name == "scf.for"]
    assert sums
    for op in sums:
        assert [v.owner.name for v in op.operands[:1]] == ["arith.maxsi"]
        assert all(inner.name != "scf.if" for inner in walk(op.regions[0]))


def columns(x):
    out = x.new_empty(x.shape[1])
    for i in range(x.shape[1]):
        p = 1.0
        for j in range(x.shape[0]):
            p *= x[j, i]
        out[i] = p
    return out


def test_tapes_lie_as_the_loop_reads_its_inputs():
    """Neighbouring iterations have neighbouring places on a tape where they read neighbours."""
    for kernel, shapes, interleaved in (
        (weft.kernel(columns), ((3, 4),), True),
        (weft.kernel(k.product.function), ((3, 4),), False),
    ):
        _, made = notes(kernel, *map(torch.randn, shapes))
        tapes = [w for w in made.workspaces if w.name.startswith("tape")]
        assert tapes
        assert all(w.interleaved == interleaved for w in tapes)


@pytest.mark.slow
def test_loops_agree_which_of_equal_values_is_the_largest():
    """Each loop computed the hyperbolic tangent again and rounded it in its own way: the largest
    had the adjoint in one of them, what it was compared with in another; the gradient was twice."""

    @weft.kernel
    def kernel(x, y, n):
        out = x.new_zeros(x.shape[0], x.shape[1])
        for i, j in weft.ndrange(x.shape[0], x.shape[1]):
            f = y[i, 0]
            if x[i, j] < 1.0:
                for _ in range(3):
                    few = int(x[i, j] * 4 if abs(x[i, j]) < 99 else 7) % 11 % 3
                    f += weft.math.tanh(weft.math.exp(-abs(y[i, n % y.shape[1]] * few)))
                    other = weft.math.sin(x[x.shape[0] - 1 - i, j])
                    out[i, j] = max(out[i, j], weft.math.tanh(min(other, f)))
        return out

    generator = torch.Generator().manual_seed(7)
    x, y = (torch.randn(40, n, generator=generator, dtype=torch.float64) for n in (30, 4))
    leaves = x.requires_grad_(), y.requires_grad_()
    found = torch.autograd.grad(kernel(*leaves, 1).sum(), leaves)
    expected = kernel.backward.interpret(x.detach(), y.detach(), 1)[:2]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
