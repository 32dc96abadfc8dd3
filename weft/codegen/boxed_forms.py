"""What kernels of operators in machine code (``boxed.py``) are made of, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.codegen.interface import Slot
from weft.values import frozen

CPU, CUDA = 0, 1  # torch's numbers of device types
CURRENT = -2  # as the index of a device: the one that is current where the kernel is called
NONE, ONE = -1, -2  # for the length of a list: it is None; it is no list but one of its kind
ANY = "any"  # as what is known of strides: nothing


@frozen
class Keys:
    """torch's numbers of dispatch keys: those that are included where something stands ``between``
    autograd and the device; that of ``views``, which is included outside of inference mode."""

    between: tuple[int, ...]
    views: int


# A number that the code has in it, or, of the kind "kept", one of the numbers of an entry.
Word = int | Slot


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
    shape: tuple[Word, ...] | None = None
    steps: tuple[Word, ...] | None = None
    host: bool = False


@frozen
class NumberForm:
    """A number, from ``low`` to ``high`` where it is an integer."""

    low: Word | None = None
    high: Word | None = None


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


# A whole number that is computed of others, which may be of those before it (slots of the kind
# "computed"), by an operation of ``boxed.COMPUTED``.
Computing = tuple[str, Slot, Slot]
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
    None, or of a list or an optional one its length (or ``NONE`` or ``ONE``) and whether it is
    optional.
    ``arguments``: what they are, lists item by item. ``made``: tensors, whose positions are behind
    these; a ``Slot``'s ``arg`` is such a position (of the kind "constant" the word itself; of
    "item" that of a tensor whose only element, of 8 bytes, is the word; "pair stride" is one of a
    complex tensor, counted in floats).
    ``returned``: the positions of those that the operator gives, as a list if ``listed``.
    ``computed``: numbers that slots of that kind are. ``device``: torch's numbers of its type, and
    its index. ``kept``: how many numbers calls of
    this form have each others of, of the kind "kept", which stand in the entry of a record."""

    arguments: tuple[TensorForm | NumberForm, ...]
    made: tuple[MadeForm, ...]
    runs: tuple[RunForm, ...]
    returned: tuple[int, ...]
    guarded: bool
    lists: tuple[tuple[int, bool] | None, ...]
    listed: bool = False
    device: tuple[int, int] = (CPU, 0)
    kept: int = 0
    computed: tuple[Computing, ...] = ()

    @property
    def words(self) -> int:
        """How many words an entry of this form has."""
        return 1 + len(self.runs) + self.kept

    def separated(self) -> tuple[Form, tuple[int, ...]]:
        """The form without the numbers that other calls have others of: its code does for theirs,
        too. On a CUDA device, whose grids are part of the code, the form itself."""
        numbers: list[int] = []
        if self.device[0] == CUDA:
            return self, ()

        def kept(number: Word) -> Slot:
            assert isinstance(number, int)
            numbers.append(number)
            return Slot("kept", len(numbers) - 1)

        def slots(found: Sequence[Slot]) -> tuple[Slot, ...]:
            return tuple(kept(slot.arg) if slot.kind == "constant" else slot for slot in found)

        def tensor(form: TensorForm) -> TensorForm:
            shape, steps = (None if n is None else tuple(map(kept, n))
                            for n in (form.shape, form.steps))  # fmt: skip
            return replace(form, shape=shape, steps=steps)

        def argument(form: TensorForm | NumberForm) -> TensorForm | NumberForm:
            if isinstance(form, TensorForm):
                return tensor(form)
            if form.low is None or form.low != form.high:
                return form
            return NumberForm(*[kept(form.low)] * 2)

        form = replace(
            self, arguments=tuple(map(argument, self.arguments)),
            made=tuple(replace(m, tensor=tensor(m.tensor), sizes=slots(m.sizes),
                               strides=slots(m.strides)) for m in self.made),
            runs=tuple(replace(run, slots=slots(run.slots)) for run in self.runs),
            computed=tuple((name, *slots((left, right))) for name, left, right in self.computed),
        )  # fmt: skip
        return replace(form, kept=len(numbers)), tuple(numbers)
