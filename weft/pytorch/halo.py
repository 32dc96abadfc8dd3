"""Rows of neighbours: what a rank needs of those before and behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from weft.pytorch.inputs import items
from weft.pytorch.sharding import Rule
from weft.values import frozen


@frozen
class Neighbours:
    """The ranks along dimension ``dim`` of ``mesh``, which have rows of tensors cut along it, as
    ``torch.chunk`` gives them. A rank needs ``before`` rows of the rank before it, and ``after`` of
    that behind it."""

    mesh: Any
    dim: int
    before: int
    after: int

    def suffice(self, size: int) -> bool:
        """Whether each rank of so many rows in all has what its neighbours need of it."""
        ranks = self.mesh.size(self.dim)
        each = -(-size // ranks)
        return size - each * (ranks - 1) >= max(self.before, self.after, 1)

    @property
    def had(self) -> int:
        """How many rows this rank gets in front of its own."""
        return self.before if self.mesh.get_local_rank(self.dim) else 0

    @property
    def has_behind(self) -> int:
        """How many it gets behind its own."""
        last = self.mesh.size(self.dim) - 1
        return self.after if self.mesh.get_local_rank(self.dim) < last else 0

    def widened(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        """The rank's rows with those of its neighbours, where it has any."""
        group, rank = self.mesh.get_group(self.dim), self.mesh.get_local_rank(self.dim)
        size, last = tensor.shape[axis], self.mesh.size(self.dim) - 1
        steps: list[dist.P2POp] = []

        def exchange(peer: int, sent: torch.Tensor, got: torch.Tensor) -> None:
            other = dist.get_global_rank(group, rank + peer)
            pair = [(dist.isend, sent), (dist.irecv, got)]
            steps.extend(dist.P2POp(do, t, other, group) for do, t in pair if t.numel())

        front, back = (_rows(tensor, axis, n) for n in (self.had, self.has_behind))
        if rank:
            exchange(-1, tensor.narrow(axis, 0, self.after).contiguous(), front)
        if rank < last:
            exchange(1, tensor.narrow(axis, size - self.before, self.before).contiguous(), back)
        for work in dist.batch_isend_irecv(steps) if steps else ():
            work.wait()
        return torch.cat([front, tensor, back], axis)

    def put_in(self, tensor: torch.Tensor, axis: int, near: Neighbours) -> torch.Tensor:
        """The rank's rows with those that it gets by ``near``, in as many as it gets by this one:
        others are 0."""
        front, back = self.had - near.had, self.has_behind - near.has_behind
        ends = [_rows(tensor, axis, n).zero_() for n in (front, back)]
        return torch.cat([ends[0], near.widened(tensor, axis), ends[1]], axis)


def _rows(like: torch.Tensor, axis: int, count: int) -> torch.Tensor:
    return like.new_empty([count if k == axis else n for k, n in enumerate(like.shape)])


# An operator, or its backward.
Run = Callable[..., Any]


def carried_out(
    run: Run, rules: Sequence[Rule], mesh: Any, passed: Sequence[Any]
) -> list[torch.Tensor]:  # fmt: skip
    """What ``run`` makes of a rank's parts by ``rules``, one for each dimension of ``mesh``: with
    rows of neighbours, which are left out of what it returns."""
    halos = [(rule, Neighbours(mesh, dim, *rule.halo)) for dim, rule in enumerate(rules)]
    wide, sizes = _all_widened(halos, passed)
    outs = [o for o in items(run(*wide)) if o is not None]
    for (rule, near), size in zip(halos, sizes, strict=True):
        if size is not None:
            outs = [o.narrow(p, near.had, size).contiguous() if isinstance(p, int) else o
                    for o, p in zip(outs, rule.outputs, strict=True)]  # fmt: skip
    return outs


def pulled(
    run: Run, rules: Sequence[Rule], mesh: Any, passed: Sequence[Any],
    grads: Sequence[torch.Tensor], wanted: Sequence[int],
) -> list[torch.Tensor]:  # fmt: skip
    """The gradients of a rank's parts for those tensors whose numbers are ``wanted``, of
    ``run(*inputs, grads, wanted, outs)``, which is the backward.

    A row has its gradient from results so many rows before and behind it, which are made of rows
    farther away. What all ranks have the whole of gets what a rank's own results contribute.
    """
    halos = [(rule, widest(rule, mesh, dim)) for dim, rule in enumerate(rules)]
    wide, sizes = _all_widened(halos, passed)
    cut = {k: tuple(isinstance(rule.inputs[k], int) for rule in rules) for k in wanted}
    found = dict[int, torch.Tensor]()
    for which in dict.fromkeys(cut.values()):
        given = [*grads]
        for dim, ((rule, near), is_cut) in enumerate(zip(halos, which, strict=True)):
            before, after = rule.halo if is_cut else (0, 0)
            lent = Neighbours(mesh, dim, after, before)
            if rule.has_halo:
                floats = [p for p, f in zip(rule.outputs, rule.floats, strict=True) if f]
                given = [near.put_in(g, p, lent) if isinstance(p, int) else g
                         for g, p in zip(given, floats, strict=True)]  # fmt: skip
        own = [k for k in wanted if cut[k] == which]
        found |= zip(own, run(*wide, given, own, None), strict=True)
    for (rule, near), size in zip(halos, sizes, strict=True):
        for k, axis in enumerate(rule.inputs):
            if size is not None and k in found and isinstance(axis, int):
                found[k] = found[k].narrow(axis, near.had, size).contiguous()
    return [found[k] for k in wanted]


def widest(rule: Rule, mesh: Any, dim: int) -> Neighbours:
    """The rows that the gradients of a rank's own rows are made of."""
    return Neighbours(mesh, dim, sum(rule.halo), sum(rule.halo))


def _all_widened(
    halos: Sequence[tuple[Rule, Neighbours]], passed: Sequence[Any]
) -> tuple[list[Any], list[int | None]]:  # fmt: skip
    """The arguments with rows of neighbours, and how many rows of its own the rank has by each rule
    that has a halo."""
    wide, sizes = [*passed], list[int | None]()
    which = [k for k, v in enumerate(passed) if isinstance(v, torch.Tensor)]
    for rule, near in halos:
        sizes.append(None)
        for k, axis in zip(which, rule.inputs, strict=True):
            if rule.has_halo and isinstance(axis, int):
                sizes[-1] = wide[k].shape[axis]
                wide[k] = near.widened(wide[k], axis)
    return wide, sizes
