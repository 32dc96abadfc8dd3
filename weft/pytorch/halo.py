"""Rows of neighbours: what a rank needs of those before and behind it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

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

    def widened(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        """The rank's rows with those of its neighbours, where it has any."""
        group, rank = self.mesh.get_group(self.dim), self.mesh.get_local_rank(self.dim)
        size, last = tensor.shape[axis], self.mesh.size(self.dim) - 1

        def rows(count: int) -> torch.Tensor:
            shape = [count if k == axis else n for k, n in enumerate(tensor.shape)]
            return tensor.new_empty(shape)

        steps: list[dist.P2POp] = []

        def exchange(peer: int, sent: torch.Tensor, got: torch.Tensor) -> None:
            other = dist.get_global_rank(group, rank + peer)
            pair = [(dist.isend, sent), (dist.irecv, got)]
            steps.extend(dist.P2POp(do, t, other, group) for do, t in pair if t.numel())

        front, back = rows(self.before if rank else 0), rows(self.after if rank < last else 0)
        if rank:
            exchange(-1, tensor.narrow(axis, 0, self.after).contiguous(), front)
        if rank < last:
            exchange(1, tensor.narrow(axis, size - self.before, self.before).contiguous(), back)
        for work in dist.batch_isend_irecv(steps) if steps else ():
            work.wait()
        return torch.cat([front, tensor, back], axis)
