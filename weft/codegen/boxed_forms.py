"""What kernels of operators in machine code (``boxed.py``) are made of, as values."""

from __future__ import annotations

from weft.codegen.interface import Slot
from weft.values import frozen

CPU, CUDA = 0, 1  # torch's numbers of device types
CURRENT = -2  # as the index of a device: the one that is current where the kernel is called
ANY = "any"  # as what is known of strides: nothing


@frozen
class Keys:
    """torch's numbers of dispatch keys: those that are included where something stands ``between``
    autograd and the device; that of ``views``, which is included outside of inference mode."""

    between: tuple[int, ...]
    views: int


@frozen
class TensorForm:
    """A tensor: torch's number of its dtype, the bytes of an element, what is known of its strides
    (one of ``ir.types.LAYOUTS``, or ``ANY``), whether a loop writes to it, its sizes and strides
    where they are to be these, and whether it is on the CPU, wherever others are."""

    dtype: int
    bytes: int
    rank: int
    layout: str
    written: bool
    shape: tuple[int, ...] | None = None
    steps: tuple[int, ...] | None = None
    host: bool = False


@frozen
class NumberForm:
    """A number, from ``low`` to ``high`` where it is an integer."""

    low: int | None = None
    high: int | None = None


@frozen
class MadeForm:
    """A tensor that the kernel makes, and what it has to be: as ``torch.empty_like`` of the tensor
    ``like`` where that is a position, else of the words ``sizes`` and ``strides``; with the
    contents of the tensor ``of`` where that is a position, and zeros where ``zeros``."""

    tensor: TensorForm
    sizes: tuple[Slot, ...]
    strides: tuple[Slot, ...]
    zeros: bool = False
    of: int = -1
    like: int = -1


# A number of a call: a word of the argument block, or an operation on two numbers.
Size = Slot | tuple[str, "Size", "Size"]


@frozen
class RunForm:
    """A compiled loop: the words of its argument block. On a CUDA device also the grid, block and
    shared bytes, and the pointers among the words that have to be multiples of so many bytes.
    ``covering``: lower bound, upper bound, step and threads of each axis of the grid (x first) that
    has one thread for each iteration, where ``grid`` does not say how many blocks that is."""

    slots: tuple[Slot, ...]
    grid: tuple[int, ...] = ()
    aligned: tuple[tuple[int, int], ...] = ()
    covering: tuple[tuple[Size, Size, int, int], ...] = ()


@frozen
class Form:
    """What a kernel does with arguments of one kind. ``lists``: for each argument of the operator
    None, or of a list its length and whether it is an optional one (of which -1 is none at all).
    ``arguments``: what they are, lists item by item. ``made``: tensors, whose positions are behind
    these; a ``Slot``'s ``arg`` is such a position (of the kind "constant" the word itself; of
    "item" that of a tensor whose only element, of 8 bytes, is the word; "pair stride" is one of a
    complex tensor, counted in floats).
    ``returned``: the positions of those that the operator gives, as a list if ``listed``.
    ``device``: torch's numbers of its type, and its index."""

    arguments: tuple[TensorForm | NumberForm, ...]
    made: tuple[MadeForm, ...]
    runs: tuple[RunForm, ...]
    returned: tuple[int, ...]
    guarded: bool
    lists: tuple[tuple[int, bool] | None, ...]
    listed: bool = False
    device: tuple[int, int] = (CPU, 0)

    @property
    def words(self) -> int:
        """How many words of a record are this form's."""
        return 1 + len(self.runs)
