"""What may be overwritten after a device loop, and what a device loop may overwrite."""

import torch

import weft
from weft.frontend.split import split
from weft.source import read_function


def later(function):
    """For each device loop: what loops overwrite later, what the host part does."""
    regions = split(read_function(function), function).regions
    found = [r.order.later(r.node, [a.name for a in r.args]) for r in regions]
    return [(sorted(f.by_loops), sorted(f.by_host)) for f in found]


def met(function):
    """For each device loop: which of its arguments something before it may have read."""
    regions = split(read_function(function), function).regions
    return [sorted(a.name for a in r.args if r.order.met_before(r.node, a.name)) for r in regions]


def zeroed(y):
    y.zero_()


def test_what_comes_after_counts():
    def kernel(x):
        y, z = torch.empty_like(x), torch.empty_like(x)
        for i in x:
            y[i] = x[i]
        for i in x:
            z[i] = y[i]
        for i in x:
            y[i] = z[i]
        z.mul_(2)
        return y

    assert later(kernel) == [(["y"], []), (["y"], ["z"]), ([], ["z"])]


def test_a_host_loop_comes_before_and_after_itself():
    def kernel(x, T):
        y = torch.empty_like(x)
        for t in weft.serial(T):
            for i in x:
                y[i] = x[i] * t
        return y

    assert later(kernel) == [(["y"], [])]
    assert met(kernel) == [["t", "x", "y"]]


def test_names_may_share_memory():
    def kernel(x, T):
        u, v = x.clone(), x.clone()
        for _ in weft.serial(T):
            for i in x:
                v[i] = u[i]
            u, v = v, u
        rows = [u, v]
        a = rows[0]
        for i in x:
            a[i] = 1.0
        return u

    assert later(kernel) == [(["u", "v"], []), ([], [])]


def test_functions_and_parameters():
    """A kernel that writes to its own arguments may be called again."""

    def kernel(x, y):
        for i in x:
            y[i] = x[i]
        w = torch.empty_like(x)
        for i in x:
            w[i] = y[i]
        zeroed(w[1:])

    assert later(kernel) == [(["y"], []), (["y"], ["w"])]


def test_a_new_tensor_is_not_met_before():
    def kernel(x):
        y = torch.empty_like(x)
        for i in x:
            y[i] = x[i]
        z = torch.empty(y.shape)
        for i in x:
            z[i] = y[i]
        w = z.detach()
        for i in x:
            w[i] = 0.0
        return y

    assert met(kernel) == [["x"], ["x", "y"], ["w", "x"]]
