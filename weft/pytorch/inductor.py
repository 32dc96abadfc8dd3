"""What Inductor is told of a kernel's operators: the nodes of its loop IR that they become.

These hooks are no public interface: with a version of torch that is not in ``fusible.HOOKS``,
operators stay calls.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._inductor import ir, lowering
from torch._inductor.virtualized import V, ops

from weft.pytorch.changing import Unknown
from weft.pytorch.fake import beside_fakes
from weft.pytorch.fusible import Launch, Recorder, hooks
from weft.pytorch.fusion import Fusion, Opaque
from weft.pytorch.namespace import Latest

log = logging.getLogger("weft.specialize")


def _forget(overload: Any) -> None:
    getattr(lowering, hooks().table).pop(overload, None)


_told = Latest(_forget)


def offer(overload: Any, record: Recorder) -> None:
    """Tells Inductor, which is imported, how an operator is lowered."""
    try:
        name = hooks().table
    except Opaque as reason:
        log.debug("%s stays a call: %s", overload, reason)
        return
    table: dict[Any, Any] = getattr(lowering, name)
    if overload in table or overload._schema.is_mutable or not overload._schema.returns:
        return
    _told.add(overload)

    if name == "lowerings":  # which has calls, too, made of what is not there
        tag = lowering.get_layout_constraint_tag(overload, with_default=True)  # pyright: ignore[reportPrivateImportUsage]
        constraint = lowering.tag_to_layout_constraint(tag)
        lowering.make_fallback(overload, constraint, warn=False, override_decomp=True)
    call = table.get(overload)

    def lowered(*passed: Any, **named: Any) -> Any:
        try:
            return _lowered(record, _whole(overload, passed, named))
        except Opaque as reason:
            log.debug("%s stays a call: %s", overload, reason)
            return None if call is None else call(*passed, **named)

    table[overload] = lowered


def _lowered(record: Recorder, passed: Sequence[Any]) -> Any:
    """What stands for a call with ``passed``, of Inductor's. Raises ``Opaque``."""
    node: torch.fx.Node = V.graph.current_node
    given: Any = _whole(node.target, node.args, node.kwargs)
    fakes: Any = torch.fx.map_arg(given, lambda arg: arg.meta["val"])
    mode = detect_fake_mode(fakes)
    if mode is None or len(fakes) != len(passed):
        raise Opaque("it has no tensor argument")
    pairs = list(zip(_flat(fakes), _flat(passed), strict=True))
    if any(isinstance(v, torch.Tensor) and v.is_inference() for v, _ in pairs):
        raise Opaque("it reads tensors of inference mode")
    with mode, beside_fakes(mode):
        recorded, out = record(fakes, V.graph.sizevars.statically_known_true)
    if any(probe.reduced for _, probe in recorded.launches) and not _has_neighbours(node):
        raise Opaque("it reduces, and nothing stands beside it")
    boxes = {id(f): p for f, p in pairs if isinstance(f, torch.Tensor)}
    for launch, probe in recorded.launches:
        _carry_out(launch, probe, boxes)
    outs = out if isinstance(out, tuple | list) else (out,)
    if not all(id(o) in boxes for o in outs):
        raise Opaque("its host part computes what it returns")
    found = [boxes[id(o)] for o in outs]
    return type(out)(found) if isinstance(out, tuple | list) else found[0]


def _flat(values: Sequence[Any]) -> list[Any]:
    return [v for value in values for v in (value if isinstance(value, list | tuple) else [value])]


def _whole(overload: Any, passed: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """All arguments of a call: Inductor has those that a call left out as keywords."""
    rest = overload._schema.arguments[len(passed) :]
    return [*passed, *(named.get(a.name, a.default_value) for a in rest)]


def _has_neighbours(node: torch.fx.Node) -> bool:
    """Whether it is computed from, or for, what the graph computes."""
    items = [u for user in node.users for u in (
        user.users if user.target is operator.getitem else [user])]  # fmt: skip
    return any(n.op == "call_function" for n in (*node.all_input_nodes, *items))


class _Ops:
    """Inductor's operations, with one more of them on each device."""

    def __init__(self, on_gpu: bool) -> None:
        self.ops = ops
        self.div_rn = ops.div_rn if on_gpu and not hooks().lacking else ops.truediv

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(self.ops, name)


def _carry_out(launch: Launch, probe: Fusion, boxes: dict[int, Any]) -> None:
    """Adds to ``boxes`` what a launch fills."""
    tensors = {v: t for v, t in launch.named if isinstance(t, torch.Tensor)}
    device = next(iter(tensors.values())).device
    numbers = [n.tensor for _, n in launch.named if isinstance(n, Unknown)]
    inputs = {id(t): boxes[id(t)] for t in (*tensors.values(), *numbers) if id(t) in boxes}

    def reduce(
        kind: Any, dtype: torch.dtype, inner: Callable[..., Any], ranges: Sequence[Any],
        reduced: Sequence[Any],
    ) -> Callable[..., Any]:  # fmt: skip
        made = ir.Reduction.create(
            device=device, dst_dtype=dtype, src_dtype=dtype, inner_fn=inner, ranges=list(ranges),
            reduction_ranges=list(reduced), reduction_type=kind,
        )  # fmt: skip
        made.realize()
        return made.make_loader()

    loaders = {k: box.make_loader() for k, box in inputs.items()}
    values = launch.given(lambda tensor: loaders.get(id(tensor)))
    fusion = Fusion(launch.prepared, values, probe.facts, _Ops(probe.facts.on_gpu), reduce, probe)
    for stored in fusion.stores:
        boxes[id(tensors[stored.memref])] = ir.Pointwise.create(
            device=device, dtype=tensors[stored.memref].dtype,
            inner_fn=lambda index, stored=stored: fusion.element(stored, index),
            ranges=list(fusion.values[stored.memref].sizes),
        )  # fmt: skip
