"""What a graph changes, and a kernel in it takes from around it: the kernel would see it as it was
before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft

S = torch.zeros(3)
NUMBER = 1.0
FOUND: dict[str, Any] = {"number": 1.0, "tensor": S}
LISTED = [1.0]


class Config:
    factor = 1.0


CONFIG = Config()


def element(i: Any) -> Any:
    return S[i]


@weft.kernel
def of_tensor(x):
    out = torch.empty_like(x)
    for i in out:
        out[i] = x[i] * S[i]
    return out


@weft.kernel
def of_function(x):
    out = torch.empty_like(x)
    for i in out:
        out[i] = x[i] * element(i)
    return out


@weft.kernel
def of_tensor_in_dict(x):
    out = torch.empty_like(x)
    for i in out:
        out[i] = x[i] * FOUND["tensor"][i]
    return out


@weft.kernel
def of_numbers(x):
    out = torch.empty_like(x)
    for i in out:
        out[i] = x[i] * CONFIG.factor * NUMBER * FOUND["number"] * LISTED[0]
    return out


@weft.kernel
def counting(s):
    for i in s:
        s[i] += 1


def tensor_first(x: torch.Tensor) -> torch.Tensor:
    S.add_(1)
    return of_tensor(x)


def by_kernel_first(x: torch.Tensor) -> torch.Tensor:
    counting(S)
    return of_function(x)


def in_dict_first(x: torch.Tensor) -> torch.Tensor:
    S.add_(1)
    return of_tensor_in_dict(x)


def attribute_first(x: torch.Tensor) -> torch.Tensor:
    before, CONFIG.factor = CONFIG.factor, 5.0
    out = of_numbers(x)
    CONFIG.factor = before
    return out


def global_first(x: torch.Tensor) -> torch.Tensor:
    global NUMBER
    NUMBER += 1
    return of_numbers(x)


def item_first(x: torch.Tensor) -> torch.Tensor:
    FOUND["number"] += 1
    return of_numbers(x)


def listed_first(x: torch.Tensor) -> torch.Tensor:
    LISTED[0] += 1
    return of_numbers(x)


def afterwards(x: torch.Tensor) -> torch.Tensor:
    out = of_tensor(x)
    S.add_(1)
    return out


def nothing(x: torch.Tensor) -> torch.Tensor:
    return of_tensor(x) + of_function(x) + of_tensor_in_dict(x) + of_numbers(x)


CHANGING = [tensor_first, by_kernel_first, in_dict_first, attribute_first, global_first,
            item_first, listed_first]  # fmt: skip
BACKENDS = ["eager", "aot_eager", "inductor"]


@pytest.fixture(autouse=True)
def anew() -> None:
    global NUMBER
    S.zero_()
    NUMBER = FOUND["number"] = LISTED[0] = CONFIG.factor = 1.0
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", CHANGING)
def test_it_is_refused(function: Callable[..., Any], backend: str) -> None:
    with pytest.raises(Exception, match="is changed by what is compiled"):
        torch.compile(function, fullgraph=True, backend=backend)(torch.ones(3))


def test_inductor_sees_no_order() -> None:
    """What is written to after the kernel was written to before it."""
    with pytest.raises(Exception, match="`S` is changed by what is compiled"):
        torch.compile(afterwards, fullgraph=True)(torch.ones(3))


@pytest.mark.parametrize(
    ("function", "backend"),
    [(afterwards, "eager"), (afterwards, "aot_eager"), *((nothing, b) for b in BACKENDS)],
)
def test_what_is_changed_later_or_not_at_all(function: Callable[..., Any], backend: str) -> None:
    x = torch.ones(3)
    expected = [function(x)[0].item() for _ in range(3)]
    S.zero_()
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    assert [compiled(x)[0].item() for _ in range(3)] == expected
