"""``loop_config``: which loop it is about, and ``serialize`` wherever it stands."""

import types

import pytest
import torch

import weft
from weft import loop_config as renamed
from weft.errors import KernelSyntaxError, RaceError

settings = types.SimpleNamespace(in_order=True)
IN_ORDER, PARALLEL = True, False


@weft.kernel
def in_branch(x, go: bool):
    if go:
        weft.loop_config(serialize=True)
        for i in range(1, x.shape[0]):
            x[i] += x[i - 1]


@weft.kernel
def in_serial(x, go: bool):
    for _ in weft.serial(range(1)):
        if not go:
            pass
        else:
            weft.loop_config(serialize=True)
            for i in range(1, x.shape[0]):
                x[i] += x[i - 1]


@weft.kernel
def in_while(x, go: bool):
    while go:
        weft.loop_config(serialize=True)
        for i in range(1, x.shape[0]):
            x[i] += x[i - 1]
        go = False


@weft.kernel
def in_with_and_try(x, go: bool):
    with torch.no_grad():
        try:
            raise ValueError
        except ValueError:
            weft.loop_config(serialize=True)
            for i in range(1, 3):
                x[i] += x[i - 1]
        finally:
            weft.loop_config(serialize=True)
            for i in range(3, x.shape[0]):
                x[i] += x[i - 1]


@weft.kernel
def by_match(x, go: bool):
    match go:
        case True:
            weft.loop_config(serialize=1)
            for i in range(1, x.shape[0]):
                x[i] += x[i - 1]


@weft.kernel
def by_name(x, go: bool):
    weft.loop_config(serialize=IN_ORDER)
    for i in range(1, x.shape[0]):
        x[i] += x[i - 1]


@weft.kernel
def by_not(x, go: bool):
    weft.loop_config(serialize=not PARALLEL)
    for i in range(1, x.shape[0]):
        x[i] += x[i - 1]


@weft.kernel
def by_attribute(x, go: bool):
    weft.loop_config(serialize=settings.in_order)
    for i in range(1, x.shape[0]):
        x[i] += x[i - 1]


@weft.kernel
def by_parameter(x, go: bool):
    weft.loop_config(serialize=go)
    for i in range(1, x.shape[0]):
        x[i] += x[i - 1]


@weft.kernel
def by_options(x, go: bool):
    options = {"serialize": go, "block_dim": 64}
    weft.loop_config(**options)
    for i in range(1, x.shape[0]):
        x[i] += x[i - 1]


@weft.kernel
def by_another_name(x, go: bool):
    renamed(serialize=True)
    n = x.shape[0]  # Taichi's hints are about the next loop, whatever stands between
    renamed(block_dim=64)
    for i in range(1, n):
        x[i] += x[i - 1]


@weft.kernel
def on_a_serial_loop(x, go: bool):
    if go:
        weft.loop_config(serialize=True)
        for i in weft.serial(range(1, x.shape[0])):
            x[i] += x[i - 1]


def closure():
    in_order = True

    @weft.kernel
    def by_closure(x, go: bool):
        weft.loop_config(serialize=in_order)
        for i in range(1, x.shape[0]):
            x[i] += x[i - 1]

    return by_closure


SERIALIZED = [in_branch, in_serial, in_while, in_with_and_try, by_match, by_name, by_not,
              by_attribute, by_parameter, by_options, by_another_name, on_a_serial_loop,
              closure()]  # fmt: skip


@pytest.mark.parametrize("kernel", SERIALIZED, ids=lambda k: k.__name__)
def test_a_serialised_loop_runs_in_order_wherever_it_stands(kernel):
    x, y = torch.ones(64), torch.ones(64)
    kernel(x, True)
    kernel.interpret(y, True)
    assert x.tolist() == y.tolist() == list(range(1, 65))


def test_what_serialize_is_may_change():
    x = torch.ones(4)
    settings.in_order = False
    try:
        with pytest.raises(RaceError):
            by_attribute(x, True)
    finally:
        settings.in_order = True
    by_attribute(x, True)
    assert x.tolist() == [1, 2, 3, 4]
    with pytest.raises(RaceError):
        by_parameter(x, False)


def test_a_hint_that_no_loop_follows_is_refused():
    @weft.kernel
    def lost(x, go: bool):
        weft.loop_config(serialize=True)
        if go:
            for i in range(1, x.shape[0]):
                x[i] += x[i - 1]

    with pytest.raises(KernelSyntaxError) as caught:
        lost(torch.ones(4), True)
    assert caught.value.message == "no loop follows `loop_config(serialize=...)` here"
    assert caught.value.help == "write it on the line before the loop that it is about"


def test_other_hints_may_stand_anywhere():
    @weft.kernel
    def hinted(x, go: bool):
        weft.loop_config(block_dim=64)
        weft.loop_config(serialize=False)
        if go:
            for i in x:
                x[i] += 1

    x = torch.ones(4)
    hinted(x, True)
    assert x.tolist() == [2] * 4
