"""Which graphs refer to memory that a launch is about to overwrite (see ``overwriting.py``).

What refers to one memory is found by its boxes of elements, in trees of hulls: a time loop that
fills a tensor asks about all the steps before it, in a time that grows with the logarithm of their
number.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field

import torch

from weft.index.boxes import Box, disjoint, hull
from weft.pytorch.overwriting import Moment, Referred
from weft.values import frozen, mutable

# pyright: reportPrivateUsage=false


@frozen
class Layout:
    """Where in memory the elements of a tensor are."""

    address: int
    itemsize: int
    shape: torch.Size
    strides: tuple[int, ...]

    @staticmethod
    def of(tensor: torch.Tensor) -> Layout:
        return Layout(tensor.data_ptr(), tensor.element_size(), tensor.size(), tensor.stride())

    def extent(self, box: Box) -> tuple[int, int]:
        """The addresses between which the elements of a box are."""
        low = sum(side[0] * step for side, step in zip(box, self.strides, strict=True))
        high = sum(side[1] * step for side, step in zip(box, self.strides, strict=True))
        return self.address + low * self.itemsize, self.address + (high + 1) * self.itemsize


@frozen
class _Node:
    """A box, and what refers to it; or the hull of two nodes."""

    box: Box
    size: int
    parts: tuple[_Node, _Node] | weakref.ref[Referred]


@mutable
class _Memory:
    """What refers to one memory: roots of trees, by layout and by number among the boxes."""

    moment: Moment
    trees: dict[tuple[Layout, int], list[_Node]] = field(default_factory=dict)

    def add(self, held: Referred, tensor: torch.Tensor) -> None:
        layout, boxes = _based(tensor, held.boxes)
        for k, box in enumerate(boxes):
            roots = self.trees.setdefault((layout, k), [])
            roots.append(_Node(box, 1, weakref.ref(held)))
            while len(roots) > 1 and roots[-1].size >= roots[-2].size:
                b, a = roots.pop(), roots.pop()
                roots.append(_Node(hull((a.box, b.box)), a.size + b.size, (a, b)))

    def take(self, tensor: torch.Tensor, boxes: Sequence[Box]) -> list[Referred]:
        """Takes out what refers to elements in ``boxes`` of ``tensor``."""
        layout, boxes = _based(tensor, boxes)
        found: list[Referred] = []
        for key in list(self.trees):
            apart = _apart(key[0], layout, boxes)
            roots = [left for n in self.trees[key] if (left := _cut(n, apart, found)) is not None]
            if roots:
                self.trees[key] = roots
            else:
                del self.trees[key]
        return found

    def is_alive(self) -> bool:
        return any(_is_live(ref) for roots in self.trees.values() for n in roots for ref in _all(n))


class References:
    """Every ``Referred`` whose graph is alive, by the memory that it refers to."""

    def __init__(self) -> None:
        self._found: dict[int, _Memory] = {}
        self._lock = threading.RLock()
        self._most = 64  # memories, after which those of dead graphs are looked for

    def add(self, held: Referred, tensor: torch.Tensor) -> None:
        """``held`` refers to ``tensor``, as it is after the launch."""
        with self._lock:
            if len(self._found) >= self._most:
                self._found = {key: m for key, m in self._found.items() if m.is_alive()}
                self._most = 2 * len(self._found) + 64
            key = tensor.untyped_storage()._cdata
            memory = self._found.get(key)
            if memory is None or memory.moment.version != tensor._version:
                memory = self._found[key] = _Memory(Moment(tensor._version))
            held.begin(tensor, memory.moment)
            memory.add(held, tensor)

    def overwritten(
        self, tensors: Sequence[torch.Tensor], boxes: Callable[[int], Sequence[Box]]
    ) -> list[tuple[Moment, torch.Tensor]]:
        """Before a launch writes to ``tensors``, to ``boxes(k)`` of number k: copies what graphs
        refer to there. What they refer to elsewhere is there after the launch as well: the moments
        are to be set to the versions that the tensors have then."""
        spared: list[tuple[Moment, torch.Tensor]] = []
        if not self._found:
            return spared
        with self._lock:
            for k, tensor in enumerate(tensors):
                key = tensor.untyped_storage()._cdata
                memory = self._found.get(key)
                if memory is None:
                    continue
                if memory.moment.version != tensor._version:  # something else has changed it
                    del self._found[key]
                    continue
                for held in memory.take(tensor, boxes(k)):
                    held.copy()
                spared.append((memory.moment, tensor))
        return spared


REFERENCES = References()


def _based(tensor: torch.Tensor, boxes: Sequence[Box]) -> tuple[Layout, Sequence[Box]]:
    """The boxes of a view as boxes of the whole tensor, where its dimensions are some of those."""
    base = tensor._base
    if base is None or not base.is_contiguous() or 0 in tensor.size():
        return Layout.of(tensor), boxes
    rest = int(tensor.storage_offset() - base.storage_offset())
    whole: list[tuple[int, int]] = []
    axes: dict[int, int] = {}
    for axis, (n, step) in enumerate(zip(base.size(), base.stride(), strict=True)):
        at, rest = divmod(rest, step) if n > 1 else (0, rest)
        whole.append((at, at))
        if n > 1:
            axes[step] = axis
    places = [axes.pop(step, None) if n > 1 else -1
              for n, step in zip(tensor.size(), tensor.stride(), strict=True)]  # fmt: skip
    if rest or None in places:
        return Layout.of(tensor), boxes
    found: list[Box] = []
    for box in boxes:
        sides = list(whole)
        for place, (low, high) in zip(places, box, strict=True):
            if place is not None and place >= 0:
                at = whole[place][0]
                sides[place] = at + low, at + high
        found.append(tuple(sides))
    inside = all(high < n for box in found for (_, high), n in zip(box, base.size(), strict=True))
    return (Layout.of(base), found) if inside else (Layout.of(tensor), boxes)


def _apart(mine: Layout, other: Layout, boxes: Sequence[Box]) -> Callable[[Box], bool]:
    """Whether a box of the layout ``mine`` has nothing in common with ``boxes`` of ``other``."""
    if mine == other:
        return lambda box: all(disjoint(box, b) for b in boxes)
    extents = [other.extent(b) for b in boxes]

    def apart(box: Box) -> bool:
        low, high = mine.extent(box)
        return all(high <= begin or end <= low for begin, end in extents)

    return apart


def _cut(node: _Node, apart: Callable[[Box], bool], found: list[Referred]) -> _Node | None:
    """What is left of a tree without the boxes that are not ``apart``, which go to ``found``."""
    if apart(node.box):
        return node
    if isinstance(node.parts, weakref.ref):
        held = node.parts()
        if held is not None and _is_live(node.parts) and held not in found:
            found.append(held)
        return None
    first, second = node.parts
    a, b = _cut(first, apart, found), _cut(second, apart, found)
    if a is None or b is None:
        return a or b
    return node if a is first and b is second else _Node(node.box, node.size, (a, b))


def _is_live(ref: weakref.ref[Referred]) -> bool:
    held = ref()
    return held is not None and held.tensor is not None and held.copies is None


def _all(node: _Node) -> Iterator[weakref.ref[Referred]]:
    if isinstance(node.parts, weakref.ref):
        yield node.parts
    else:
        for part in node.parts:
            yield from _all(part)
