"""What texts of random kernels have in common: the class whose objects they change, how choices are
drawn, and how a kernel is compared with the Python."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

import torch

import weft
from tests.fuzz.check import function

POINT = """
import dataclasses


@dataclasses.dataclass
class P:
    a: float
    b: float

    def grow(self, by):
        self.a += by
        if by > 0:
            self.b = self.b * 0.5 - by
        return self

"""


class Text:
    """The text of a kernel, which is drawn. ``loops``: of run time that are open."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.loops = 0
        self.lines: list[str] = []

    def emit(self, indent: int, *lines: str) -> None:
        self.lines += ["    " * indent + line for line in lines]

    def pick(self, *choices: str) -> str:
        return self.random.choice(choices)

    def at(self, whole: str, count: int) -> str:
        """A subscript of ``count`` items by an integer: from the front, or from the end."""
        front = f"{whole} % {count}"
        return self.pick(front, front, f"{front} - {count}", f"-1 - {front}")


def beside_the_python(
    random: Random, text: str, out: torch.Tensor, refused: Collection[str]
) -> str:
    """The kernel ``text`` of ``x`` (5) leaves the numbers in ``out[1]`` that the Python leaves in
    ``out[0]``: "agrees", or "refused" by one of these messages; AssertionError where it differs."""
    plain = function(text)
    x = torch.rand(5, dtype=torch.float64) * 2 - 1
    plain(x.numpy(), out[0].numpy())
    try:
        weft.kernel(debug=random.random() < 0.3)(plain)(x, out[1])
    except weft.CompileError as error:
        if any(each in str(error) for each in refused):
            return "refused"
        raise AssertionError(f"{text}\n{error}") from error
    assert torch.allclose(out[0], out[1], rtol=1e-6, atol=1e-8, equal_nan=True), (
        f"{text}\n{x}\n{(out[0] - out[1]).nonzero().tolist()}"
    )
    return "agrees"
