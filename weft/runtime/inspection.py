"""Looking at the loops of a kernel: the stages of their compilation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from weft import compiler
from weft.runtime.launch import Launcher
from weft.runtime.pairs import apart

T = TypeVar("T")


class Inspection:
    """The stages of each loop that ran: ``loops[k]["llvm"]``, or ``text("ir", "llvm")`` of all."""

    def __init__(self, loops: list[compiler.Stages]) -> None:
        self.loops = loops

    def text(self, *stages: str) -> str:
        """The named stages (all if none is named) of every loop."""
        return "\n\n".join(loop.text(*stages) for loop in self.loops)

    def __getitem__(self, stage: str) -> str:
        """One stage of the first loop. Raises ``KeyError`` with the names that there are."""
        if not self.loops:
            raise KeyError(f"`{stage}`: the call launched no loop")
        return self.loops[0][stage]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, stage: object) -> bool:
        return bool(self.loops) and stage in self.loops[0]

    def keys(self) -> list[str]:
        """The names of the first loop's stages, in order."""
        return self.loops[0].keys() if self.loops else []

    def __str__(self) -> str:
        return self.text()


def visited(
    host: Callable[..., Any], launchers: Sequence[Launcher], runs: Sequence[Callable[..., Any]],
    args: Sequence[Any], kwargs: dict[str, Any], visit: Callable[[Launcher, tuple[Any, ...]], T],
) -> list[T]:  # fmt: skip
    """What ``visit`` says of each launch of a call, in which loops are carried out by ``runs``."""
    found: list[T] = []

    def note(launcher: Launcher, values: tuple[Any, ...]) -> None:
        found.append(visit(launcher, launcher.forms.extended(values)))

    def recording(launcher: Launcher, run: Callable[..., Any]) -> Callable[..., Any]:
        def launch(*values: Any) -> Any:
            result = run(*values)
            apart(launcher, values, note)
            return result

        return launch

    with torch.no_grad():
        host(list(map(recording, launchers, runs)), *args, **kwargs)
    return found


def inspected(
    host: Callable[..., Any], launchers: Sequence[Launcher], args: Sequence[Any],
    kwargs: dict[str, Any], fused: Callable[[Launcher, tuple[Any, ...]], str],
) -> Inspection:  # fmt: skip
    """Every stage of each loop that a call launches, which is carried out on copies. ``fused`` says
    what Inductor makes of a launch."""
    copies = [v.clone() if isinstance(v, torch.Tensor) else v for v in args]
    named = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in kwargs.items()}
    runs = [lambda *values, launcher=launcher: launcher.slow(values) for launcher in launchers]

    def stages(launcher: Launcher, values: tuple[Any, ...]) -> compiler.Stages:
        tensors = [v for v in values if isinstance(v, torch.Tensor)]
        on_gpu = [v for v in tensors if v.is_cuda]
        arch, options, specs = "", launcher.options, launcher.forms.specs(values)
        place = "cuda" if on_gpu else "cpu"
        made = launcher.forms.specialize([*specs.values()], place=place).compiled
        fitting = made.fitting(tensors, launcher).job
        tuned, beyond = fitting.asked, fitting.streaming_beyond
        if tuned is not None:  # or what a person asks for
            asked = (place, made.loop.summary.name, tuned)
            options = replace(options, schedules=(asked,))
        if on_gpu:
            from weft.runtime import gpu  # imported by the call already

            arch = gpu.architecture(on_gpu[0].get_device())
        found = compiler.stages(
            launcher.region, specs, launcher.source, options, arch=arch, streaming_beyond=beyond,
            columns=fitting.columns,
        )  # fmt: skip
        found.texts["inductor"] = fused(launcher, values)
        return found

    return Inspection(visited(host, launchers, runs, copies, named, stages))
