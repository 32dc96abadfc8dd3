"""Which form of an adjoint, and which workspaces, the sizes of a call ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft.autodiff.names import TRIPS
from weft.errors import GradientError
from weft.ir.core import Op, Value
from weft.ir.types import compute_type
from weft.pytorch import workspaces
from weft.pytorch.loop import Loop, Reversed
from weft.pytorch.workspaces import Workspaces, numbers
from weft.runtime.signature import TORCH_DTYPES
from weft.values import mutable

_MANY = 1 << 14  # elements of a gradient, from which on each may have a thread that sums it


@mutable
class Sizes:
    """What the form of an adjoint depends on: the sizes of a call of ``loop``, whose gradients are
    ``wanted``. ``env``: its arguments by name. ``plain``: nothing is derived from the adjoint,
    whose form then may be one that is only fast."""

    loop: Loop
    values: Sequence[Any]
    wanted: frozenset[int]
    env: dict[str, Any]
    shapes: dict[Value, torch.Size]
    device: torch.device
    plain: bool

    def fitting(self, made: Reversed) -> tuple[Reversed, Workspaces]:
        """The form of the adjoint that fits, and its workspaces, remembered where both follow from
        these sizes alone."""
        if made.measure is not None or not workspaces.REMEMBERED:
            return self._fitted(made)
        numbers = tuple(v if isinstance(v, int) else None for v in self.values)
        key = (numbers, *self.shapes.values(), self.device, self.plain, torch.is_grad_enabled(),
               torch.are_deterministic_algorithms_enabled(), torch.get_num_threads())  # fmt: skip
        found = made.fitting.get(key)
        if found is None:
            fitting, sizes = self._fitted(made)
            if fitting.measure is not None:
                return fitting, sizes
            if len(made.fitting) >= workspaces.REMEMBERED:
                made.fitting.clear()
            found = made.fitting[key] = fitting, sizes.remembered()
        return found

    def _fitted(self, made: Reversed) -> tuple[Reversed, Workspaces]:
        """With checkpoints where tapes are long, with split sums where gradients have few elements,
        with private copies and without zeros where that is possible; without sums whose order
        varies where torch is to be deterministic, whatever that takes."""
        loop, lasting = self.loop, torch.is_grad_enabled()
        self.env = {**self.env, **self._gradients()}
        sizes = self._workspaces(made)
        form, wide = dict[str, Any](), dict[str, Any]()
        if torch.are_deterministic_algorithms_enabled():
            if any(note.startswith("atomic") for note in made.adjoint.notes.values()):
                form["sort"] = True
                if self.plain:
                    form["segments"] = frozenset(
                        name
                        for name, note in made.adjoint.notes.items()
                        if note.startswith("atomic") and self.env[name].numel() >= _MANY
                    )
        elif sizes.tape_bytes > max(
            loop.options.tape_bytes, 0 if loop.options.strict_math else sizes.afforded
        ):
            form["wide"] = False
            if not lasting:
                form["checkpoints"] = sizes.long
                turns = workspaces.CHUNK.get(self.device.type, 0)
                columns = turns and self.plain and not loop.options.strict_math
                wide = {"chunk": turns, "rows": sizes.rows if columns else 0}
                narrow = workspaces.turns_in_registers(sizes, turns)
                form |= {"chunk": narrow} if narrow else wide
        copies: dict[str, int] = {}
        sums: dict[str, int] = {}
        if self.plain:
            threads, strict = torch.get_num_threads(), loop.options.strict_math
            if "sort" not in form:
                copies = sizes.private(loop.options.tape_bytes, threads, strict=strict)
                if sums := sizes.segments(threads, copies):
                    form["segments"] = frozenset(sums)
            if copies:
                form["private"] = frozenset(copies)
                each = [self.env[name] for name in copies]
                if len(each) > 1 and len({(x.shape, x.dtype) for x in each}) == 1:
                    form["alike"] = True
            if sizes.dense:
                form["stored"] = sizes.dense
            if loop.halves:
                form["narrow"] = True
        if few := frozenset(sizes.few - copies.keys()):
            form["split"] = few
        kept = frozenset(loop.written) - self.wanted
        for _ in range(6 if form else 0):
            made = loop.reversed(self.wanted, kept, lasting=lasting, **form)
            sizes = self._workspaces(made, sizes.trips)
            sizes.copies = copies
            if wide and "rows" not in form and (made.adjoint.segments or sizes.too_long):
                form |= wide  # its arrays are in memory all the same
                continue
            if form.get("rows") and sizes.too_long:
                form["rows"] = 0
                continue
            if form.get("chunk") and sizes.too_long:
                form["chunk"] = 0  # segments between some checkpoints
                continue
            if sums and sizes.sorted_in_vain(sums, torch.get_num_threads()):
                sums.clear()
                del form["segments"]
                continue
            # This form may ask for more than the first one to store, or find more that it can.
            stored = form.get("stored", frozenset())
            better = stored - (made.adjoint.dense.keys() - sizes.dense)
            better |= sizes.dense if self.plain else frozenset()
            if better == stored:
                break
            form["stored"] = better
        self._check_versions(sizes)
        return made, sizes

    def _gradients(self) -> dict[str, torch.Tensor]:
        """What stands for the gradients that are not made yet: without memory."""
        loop, prefix = self.loop, self.loop.prefix
        found: dict[str, torch.Tensor] = {}
        for k in self.wanted - {*loop.written}:
            argument = loop.function.args[k]
            dtype = TORCH_DTYPES[compute_type(argument.memref.element).name]
            one = torch.empty((), dtype=dtype, device=self.device)
            found[prefix + loop.names[k]] = one.expand(self.shapes[argument])
        return found

    def _check_versions(self, sizes: Workspaces) -> None:
        """Refuses tapes of overwritten elements that are too long: they have no segments."""
        loop, found = self.loop, sizes.versions
        most, needed = max(workspaces.VERSIONS, loop.options.tape_bytes), sum(found.values())
        if needed > most:
            names = "` and `".join(found)
            raise GradientError(
                f"the gradient of this loop needs all that `{names}` held before it was "
                f"overwritten: a tape of {-(-needed >> 20)} MB, and {most >> 20} are allowed",
                loop.function.span,
                help=f"set WEFT_TAPE_MB={-(-needed >> 20)} if there is so much memory, or let one "
                "call have fewer iterations",
            )  # fmt: skip

    def _workspaces(self, made: Reversed, known: dict[Op, int] | None = None) -> Workspaces:
        args = self.loop.function.args
        given = [self.shapes.get(a, v) for a, v in zip(args, self.values, strict=True)]
        values = numbers(args, given)

        def measured(count: int) -> list[int]:
            assert made.measure is not None
            device = self.device
            if device.type == "meta":
                if self.loop.make is None:  # without data, a loop has no iterations
                    return [0] * count
                device = torch.device("cpu")  # for who counts
            trips = torch.zeros(count, dtype=torch.int64, device=device)
            with torch.no_grad():
                made.measure.run(made.values(made.measure, {**self.env, TRIPS: trips}))
            return trips.tolist()

        return workspaces.workspaces(made.adjoint, self.env, values, measured, known)
