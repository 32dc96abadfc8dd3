"""What a call of an operator does, written down for machine code (``codegen/boxed.py``)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import torch

from weft.codegen.boxed_forms import (
    ANY,
    CPU,
    CUDA,
    NONE,
    ONE,
    Computing,
    Form,
    MadeForm,
    NumberForm,
    RunForm,
    TensorForm,
)
from weft.codegen.interface import Slot
from weft.errors import KernelTypeError
from weft.frontend.scope import Guard
from weft.frontend.specs import ScalarSpec, Spec, TensorSpec, TupleSpec
from weft.pytorch.changing import CHANGING
from weft.runtime import stable
from weft.runtime.build import Compiled, Made
from weft.runtime.fastpath import bounds
from weft.runtime.function import packed
from weft.runtime.launch import check_error
from weft.runtime.signature import value_spec

NOWHERE = -1  # as the place of an argument
_SIZES = NumberForm(0, (1 << 62) - 1)
# An argument of a loop: the position of a tensor, or the word of a number.
Operand = int | Slot


class Unfit(Exception):
    """Machine code cannot do what the call does."""


class Program:
    """The call of an operator with the arguments ``passed``, while it is written down. On a GPU,
    and where it is ``exact``, it is one of calls with these sizes and strides."""

    places = frozenset({"cpu", "cuda"})  # where tensors may be
    loops = ""  # where loops are compiled for, if not for the device
    cpu = torch.device("cpu")  # where tensors are that it makes on the CPU
    loose = False  # it is one of calls with any strides

    def __init__(self, passed: Sequence[Any], types: Sequence[str], *, exact: bool = False) -> None:
        """Raises ``Unfit``."""
        self.numbers = set[int]()  # items that are tensors of one number, for the loop the number
        self.starts: list[int] = []  # where each argument is among the items; of a None nowhere
        self.items: list[Any] = []
        self.lists: list[tuple[int, bool] | None] = []
        self.listed = set[int]()  # items of lists
        for value, kind in zip(passed, types, strict=True):
            optional = kind.endswith("?")
            if optional and value is None:
                self.starts.append(NOWHERE)
                self.lists.append((NONE, True))
                continue
            self.starts.append(len(self.items))
            if kind == CHANGING:
                self.numbers.add(len(self.items))
            if "[" not in kind:
                self.lists.append((ONE, True) if optional else None)
                self.items.append(value)
            else:
                self.lists.append((len(value), optional))
                self.listed |= {*range(len(self.items), len(self.items) + len(value))}
                self.items += value
        tensors = [v for k, v in enumerate(self.items)
                   if isinstance(v, torch.Tensor) and k not in self.numbers]  # fmt: skip
        devices = {v.device for v in tensors}
        if len(devices) != 1 or any(type(v) not in stable.PLAIN for v in tensors):
            raise Unfit
        (self.device,) = devices
        if self.device.type not in self.places:
            raise Unfit
        self.exact = exact or self.device.type == "cuda"
        self.arguments: list[TensorForm | NumberForm | None] = [None] * len(self.items)
        self.values: dict[int, torch.Tensor] = {
            k: v for k, v in enumerate(self.items)
            if isinstance(v, torch.Tensor) and k not in self.numbers
        }  # fmt: skip
        for k in self.numbers:
            if not _is_number(self.items[k]):
                raise Unfit
            dtype = stable.number_of(torch.float64)
            self.arguments[k] = TensorForm(dtype, 8, 0, "contiguous", False, host=True)
        self.computed: list[Computing] = []
        self.made: list[MadeForm] = []
        self.runs: list[RunForm] = []
        self.codes: list[int] = []  # the addresses of the loops
        self.keep: list[object] = []

    # --- arguments -------------------------------------------------------------------------------
    def take(self, k: int, spec: Spec, *, written: bool = False) -> None:
        """Item ``k`` is as ``spec`` says."""
        if k in self.numbers:
            return
        if isinstance(spec, TensorSpec):
            self.arguments[k] = self._tensor(self.values[k], spec, written=written)
        elif isinstance(spec, ScalarSpec) and not spec.captured:
            self.arguments[k] = NumberForm(*(bounds(spec) or (None, None)))
        elif isinstance(spec, TupleSpec):
            for n, each in enumerate(spec.items):
                self.take(k + n, each)
        else:
            raise Unfit

    def take_rest(self) -> None:
        """The other items are of the kinds that they are of."""
        for k, value in enumerate(self.items):
            if self.arguments[k] is not None:
                continue
            if isinstance(value, torch.dtype | torch.device):
                self.fix(k, stable.word_of(value))
            elif type(value) is int and k in self.listed:
                self.arguments[k] = _SIZES
            else:
                try:
                    self.take(k, value_spec("", parts(value)))
                except KernelTypeError:  # loops do not take it
                    raise Unfit from None

    def take_all(self) -> None:
        """All items are as they are, but for the contents of tensors, and floats."""
        for k, value in enumerate(self.items):
            if isinstance(value, torch.dtype | torch.device):
                self.fix(k, stable.word_of(value))
            elif isinstance(value, int):
                self.fix(k, int(value))
        self.take_rest()

    def fix(self, k: int, number: int) -> None:
        """Item ``k`` is always this number."""
        self.arguments[k] = NumberForm(number, number)

    def _tensor(self, tensor: torch.Tensor, spec: TensorSpec, *, written: bool) -> TensorForm:
        if spec.shape is not None or spec.element or spec.offset or spec.backing or spec.clamped:
            raise Unfit
        number, layout = stable.number_of(tensor.dtype), spec.layout
        if tensor.is_complex() and layout != "contiguous":  # the parts of each are, whatever it is
            layout = ANY
        shape, steps = (tuple(tensor.size()), tensor.stride()) if self.exact else (None, None)
        size = tensor.element_size()
        return TensorForm(number, size, tensor.dim(), layout, written, shape, steps)

    def compute(self, operation: str, left: Slot, right: Slot) -> Slot:
        """A whole number of two."""
        computing = operation, left, right
        if computing not in self.computed:
            self.computed.append(computing)
        return Slot("computed", self.computed.index(computing))

    def as_made(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the host part makes, as calls of this kind know it."""
        return tensor

    # --- what is made ----------------------------------------------------------------------------
    def make(
        self, tensor: torch.Tensor, *, sizes: Sequence[Slot] | None = None,
        strides: Sequence[Slot] | None = None, zeros: bool = False, of: int = -1,
    ) -> int:  # fmt: skip
        """A tensor like this one, of the words ``sizes`` and ``strides`` if not of its own. Gives
        its position."""
        spec = value_spec("", parts(tensor))
        assert isinstance(spec, TensorSpec)
        form = self._tensor(tensor, spec, written=True)
        own = [[Slot("constant", n) for n in words] for words in (tensor.size(), tensor.stride())]
        if sizes is None or strides is None:
            sizes, strides = own
        position = len(self.items) + len(self.made)
        self.made.append(MadeForm(form, tuple(sizes), tuple(strides), zeros, of))
        self.values[position] = tensor
        return position

    def like(self, position: int, tensor: torch.Tensor, **how: Any) -> int:
        """A tensor of the sizes and strides of another one."""
        axes = range(tensor.dim())
        sizes, strides = ([Slot(kind, position, axis) for axis in axes]
                          for kind in ("size", "stride"))  # fmt: skip
        return self.make(tensor, sizes=sizes, strides=strides, **how)

    # --- loops -----------------------------------------------------------------------------------
    def run(self, compiled: Made, operands: Sequence[Operand], values: Sequence[Any]) -> None:
        """A compiled loop, whose arguments are ``operands``, and in this call ``values``."""
        slots = [self._of_pair(word(slot, operands)) for slot in compiled.slots]
        if isinstance(compiled, Compiled):
            if self.device.type != "cpu" or not compiled.code.address or compiled.header.checks:
                raise Unfit
            self.runs.append(RunForm(tuple(slots)))
            self.codes.append(compiled.code.address)
            self.keep.append(compiled)
            return
        from weft.runtime import gpu  # where there is one

        tensors = [v for v in values if isinstance(v, torch.Tensor)]
        call, _ = compiled.bound(tensors, check_error, brief=False)
        if not isinstance(call, gpu.Call) or call.facts.checks:
            raise Unfit
        block, _ = packed(compiled.slots, values)
        for k in call.numbers:  # which decide about the grid
            if slots[k].kind == "int":
                self.fix(slots[k].arg, struct.unpack_from("<q", block, 8 * k)[0])
        launch, aligned = call.launch_of(block)
        if launch is None:
            return
        tail = [Slot("constant", 0), Slot("constant", 1)]
        if launch.then:
            left = torch.empty(launch.words, dtype=torch.int64, device=self.device)
            tail = [Slot("pointer", self.make(left)), Slot("constant", launch.blocks)]
        for stage in (launch, *launch.then):
            rest = [Slot("constant", n) for (n,) in struct.iter_unpack("<q", launch.divisors)]
            grid = (*stage.grid, *stage.block, stage.shared)
            self.runs.append(RunForm((*slots, *tail, *rest), grid, aligned))
            self.codes.append(stage.function.value)
        self.keep.append(call)

    def _of_pair(self, slot: Slot) -> Slot:
        """A word of a loop that knows a complex tensor as pairs of floats."""
        tensor = self.values.get(slot.arg)
        if slot.kind not in ("size", "stride") or tensor is None or not tensor.is_complex():
            return slot
        if slot.axis == tensor.dim():
            return Slot("constant", 2 if slot.kind == "size" else 1)
        return Slot("pair stride", slot.arg, slot.axis) if slot.kind == "stride" else slot

    def form(
        self, returned: Sequence[int], guards: Sequence[Guard], *, listed: bool = False
    ) -> Form:
        """What was written down."""
        assert all(argument is not None for argument in self.arguments)
        device = (CUDA, self.device.index) if self.device.type == "cuda" else (CPU, 0)
        return Form(
            tuple(self.arguments), tuple(self.made), tuple(self.runs),  # type: ignore[arg-type]
            tuple(returned), bool(guards), tuple(self.lists), listed, device,
            computed=tuple(self.computed),
        )  # fmt: skip


def parts(value: Any) -> Any:
    """A complex tensor as the pairs of floats that loops know; other values as they are. Raises
    ``Unfit`` where its memory has other numbers."""
    if not isinstance(value, torch.Tensor) or not value.is_complex():
        return value
    if value.is_conj() or value.is_neg():
        raise Unfit
    return torch.view_as_real(value)


def _is_number(tensor: torch.Tensor) -> bool:
    plain = type(tensor) in stable.PLAIN and not tensor.dim() and tensor.device.type == "cpu"
    return plain and tensor.dtype is torch.float64


def word(slot: Slot, operands: Sequence[Operand]) -> Slot:
    """A word of a loop's argument block, by where its value is from."""
    if slot.kind not in ("pointer", "size", "stride", "int", "float"):
        return slot
    operand = operands[slot.arg]
    if isinstance(operand, int):
        return Slot(slot.kind, operand, slot.axis)
    return operand


def constant(value: float) -> Slot:
    """A number that is always the same, as a word."""
    word = struct.pack("<d", value) if isinstance(value, float) else struct.pack("<q", value)
    return Slot("constant", struct.unpack("<q", word)[0])
