"""What isl may do for one kernel, counted in its own steps: verdicts are the same everywhere.

A step takes 0.1 to 0.7 us in questions that kernels ask, up to 5 us where dozens of divisions meet
and up to 15 us where isl tests for a subset with numbers beyond 64 bits. The worst kernels known
take 250 ms, those of the tests and the gallery a tenth of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import islpy

MOST = 30_000  # steps for one question: no proof of the tests needs 14,000
TOTAL = 220_000  # for all questions of a kernel
FREE = 3_000  # what is not counted, in each question
PAIRS = 5_000  # of accesses of a kernel, some 50 us each without isl
LEAST = 200  # what is counted, in any case
# How often a step of a question without an answer counts: these steps are the slow ones.
EMPTY, SUBSET = 6, 14

_COARSE = 128  # steps are known to within so many

T = TypeVar("T")


class Budget:
    """What is ``left`` of ``TOTAL`` (and of ``PAIRS``). Where nothing is left, nothing more is
    known."""

    def __init__(self) -> None:
        self.asked = 0
        self.unanswered = 0
        self.left = TOTAL
        self.pairs = PAIRS

    def proves_empty(self, text: str) -> bool:
        """Whether isl proves that the set ``text`` is empty."""
        return self._ask(lambda most: _is_empty(text, most), EMPTY) is True

    def ask(self, question: Callable[[islpy.Context], T], weight: int) -> T | None:
        """The answer to a question, of which ``weight`` says whether it tests for subsets; None if
        it is too much work."""
        return self._ask(lambda most: _answer(question, most), weight)

    def _ask(self, question: Callable[[int], tuple[T | None, int]], weight: int) -> T | None:
        if self.left <= 0:
            return None
        self.asked += 1
        answer, steps = question(min(MOST, FREE + self.left // weight))
        if answer is None:
            self.unanswered += 1
        self.left -= max((steps - FREE) * (weight if answer is None else 1), LEAST)
        return answer


@lru_cache(maxsize=1024)  # several passes, and `inspect`, ask the same of a kernel
def _is_empty(text: str, most: int) -> tuple[bool | None, int]:
    import islpy  # 50 ms: only for what the quick arguments do not settle

    return _answer(lambda context: islpy.Set.read_from_str(context, text).is_empty(), most)


def _answer(question: Callable[[islpy.Context], T], most: int) -> tuple[T | None, int]:
    """The answer, None if it takes more than ``most`` steps, and the steps it took."""
    import islpy  # 50 ms, see _is_empty

    context = islpy.Context()
    context.set_max_operations(most)
    try:
        answer = question(context)
    except islpy.Error:
        return None, most
    low, high = 0, most
    while low + _COARSE < high:  # isl does not tell: with which limit does one more step fail?
        middle = (low + high) // 2
        context.set_max_operations(middle)
        try:
            islpy.Val.int_from_si(context, 0)
            high = middle
        except islpy.Error:
            low = middle
    return answer, high
