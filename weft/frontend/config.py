"""``loop_config``: what a kernel's writer asks of the loop that follows."""

from __future__ import annotations

import math

from weft.errors import KernelNameError, KernelValueError, Span
from weft.frontend.context import Lowering
from weft.frontend.hints import configured
from weft.frontend.kinds import Operand, Static, Tup

_MOST = (1024, 1024, 64)  # threads of a block on a GPU, along each side; 1024 in all


def block_dim(cx: Lowering, dims: int) -> list[int]:
    """The ``block_dim`` for the region's loop of ``dims`` indices: [] if there is none, [n] for n
    threads, or as many numbers as there are indices. Raises ``KernelValueError``."""
    node = configured(cx.region.node, "block_dim")
    if node is None:
        return []
    span = cx.span(node)
    try:
        numbers = _numbers(cx.expression(node), span)
    except KernelNameError as error:
        raise _unknown(span) from error
    if numbers is None:
        return []
    if len(numbers) not in (1, dims) or len(numbers) > 3:
        raise KernelValueError(
            f"block_dim has {len(numbers)} numbers, and the loop has {dims} "
            f"ind{'ices' if dims > 1 else 'ex'}", span,
            help="give one number, of threads in a block, or one for each index, up to three",
        )  # fmt: skip
    if not 0 < math.prod(numbers) <= _MOST[0] or min(numbers) < 1:
        raise KernelValueError(
            f"a block of {' x '.join(map(str, numbers))} threads", span,
            help=f"blocks have 1 to {_MOST[0]} threads",
        )  # fmt: skip
    return numbers


def _numbers(value: Operand, span: Span) -> list[int] | None:
    """The numbers that ``value`` holds; None where it is ``None``."""
    if isinstance(value, Static) and value.value is None:
        return None
    items = value.items if isinstance(value, Tup) else [value]
    known = [item.value for item in items if isinstance(item, Static)]
    if len(items) == len(known) == 1 and isinstance(known[0], tuple | list):
        known = list(known[0])
    elif len(known) < len(items):
        raise _unknown(span)
    if any(type(number) is not int for number in known):
        raise _unknown(span)
    return known


def _unknown(span: Span) -> KernelValueError:
    return KernelValueError(
        "block_dim is decided when the kernel is compiled", span,
        help="write a number, a tuple of numbers, or a name of the module or of the function "
        "around the kernel that holds one",
    )  # fmt: skip
