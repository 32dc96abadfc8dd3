"""``weft inspect``: what becomes of a kernel's loops, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from weft import compiler
from weft.codegen.launching import UnsupportedArchitectureError, architecture
from weft.frames import user_frames
from weft.kernel import Kernel, kernel_inside
from weft.pytorch.fake import fake_launchers
from weft.pytorch.fusible import explained
from weft.runtime.candidates import table
from weft.runtime.inspection import inspected, visited
from weft.runtime.launch import Launcher
from weft.values import frozen
from weft.workbench.arguments import call_arguments
from weft.workbench.report import UsageError

_USUAL = ("source", "index sets", "schedule", "cost")
# What text a stage is, by the names of lexers; nothing: plain text.
_LANGUAGES = {"source": "python", "llvm": "llvm", "llvm optimized": "llvm", "assembly": "gas",
              "ptx": "ptx", "gradient": "llvm", "tangents": "llvm"}  # fmt: skip


@frozen
class Listing:
    """One stage of one loop, or of all. ``language``: as Pygments calls it; "" if it has none."""

    loop: str
    stage: str
    text: str

    @property
    def language(self) -> str:
        ir = self.stage.startswith(("ir", "step", "scheduled ir"))
        return "llvm" if ir else _LANGUAGES.get(self.stage, "")

    @property
    def title(self) -> str:
        return f"{self.loop}: {self.stage}" if self.loop else self.stage


@frozen
class Stages:
    """Listings in order, and the names of all stages that there are."""

    kernel: str
    listings: tuple[Listing, ...]
    names: tuple[str, ...]
    ok: bool = True

    def __str__(self) -> str:
        parts = [f"=== {item.title} ===\n{item.text.rstrip()}" for item in self.listings]
        return "\n\n".join([*parts, self.others]) if self.others else "\n\n".join(parts)

    __repr__ = __str__

    @property
    def others(self) -> str:
        """The stages that are not listed, in words."""
        listed = {item.stage for item in self.listings}
        rest = [name for name in self.names if name not in listed]
        return f"other stages: {', '.join(rest)}" if rest else ""

    def data(self) -> dict[str, Any]:
        listings = [{name: getattr(item, name) for name in Listing.__match_args__}
                    for item in self.listings]  # fmt: skip
        return {"kernel": self.kernel, "listings": listings, "stages": list(self.names)}


@user_frames
def inspect(
    kernel: Any, *args: Any, stages: Sequence[str] = (), gpu: str = "", device: str = "",
    sizes: Mapping[str, int] | None = None, names: Mapping[str, Any] | None = None,
) -> Stages:  # fmt: skip
    """The ``stages`` of each loop that a call runs, by the names that ``Stages.names`` has; "all"
    of them; or source, index sets, schedule and cost.

    ``gpu``: what a GPU of that architecture ("sm_90") gets, which need not be here. Arguments are
    made as for ``weft.check``, of ``sizes``, on ``device``. Raises ``UsageError``.
    """
    inner = kernel_inside(kernel)
    if inner is None:
        raise UsageError(f"there is nothing to inspect in {type(kernel).__name__}")
    given = call_arguments(inner, args, names, sizes, "cpu" if gpu else device)
    loops = compiled_loops(inner, given, gpu)
    found = [Listing(x.name, name, text) for x in loops for name, text in x.texts.items()]
    every = tuple(dict.fromkeys([*(x.stage for x in found), "cost", "schedules", "gradient",
                                 "tangents"]))  # fmt: skip
    wanted = every if "all" in stages else tuple(stages) or tuple(n for n in _USUAL if n in every)
    unknown = [name for name in wanted if name not in every]
    if unknown:
        raise UsageError(f"there is no stage {unknown[0]!r}\nhelp: there are {', '.join(every)}")
    listings: list[Listing] = []
    for name in wanted:
        more = _of_all(inner, given, name)
        listings += [x for x in found if x.stage == name] if more is None else [more]
    return Stages(inner.__name__, tuple(listings), every)


def compiled_loops(
    kernel: Kernel, given: tuple[Any, ...], gpu: str = "", lines: bool = False
) -> list[compiler.Stages]:
    """Every stage of each loop that a call runs, on copies; for the GPU ``gpu``, which need not be
    here, no loop runs. On a GPU the code is that of the schedule which the call takes. ``lines``:
    IR and code say which source lines they come from."""
    options = replace(kernel.options, lines=lines)
    launchers = [Launcher(r, kernel.source, options) for r in kernel.parts.regions]
    device = next((v.device for v in given if isinstance(v, torch.Tensor) and v.is_cuda), None)
    if not gpu and device is None:
        return inspected(kernel.parts.host, launchers, given, {}, explained).loops
    try:
        arch = architecture(gpu or torch.cuda.get_device_capability(device))
    except UnsupportedArchitectureError as error:
        raise UsageError(f"--gpu: {error}" if gpu else str(error)) from None

    def visit(launcher: Launcher, values: tuple[Any, ...]) -> compiler.Stages:
        specs, rows = launcher.forms.specs(values), table(launcher, values, "cuda", None)
        taken = next((row.schedule for row in rows if row.taken), "")
        found = compiler.stages(
            launcher.region, specs, launcher.source, options, arch=arch, taken=taken
        )
        found.texts["inductor"] = explained(launcher, values)
        return found

    runs: list[Callable[..., Any]] = [
        lambda *values, launcher=launcher: launcher.slow(values) for launcher in launchers
    ]
    copies = tuple(v.clone() if isinstance(v, torch.Tensor) else v for v in given)
    runs = list(fake_launchers(kernel)) if gpu else runs
    return visited(kernel.parts.host, launchers, runs, copies, {}, visit)


def _of_all(kernel: Kernel, given: tuple[Any, ...], stage: str) -> Listing | None:
    """A stage that is of all loops together; None for one of each loop."""
    match stage:
        case "cost":
            text = str(kernel.cost(*given))
        case "schedules":
            text = str(kernel.schedules(*given))
        case "gradient":
            text = kernel.backward.inspect(*given)
        case "tangents":
            text = kernel.jvp.inspect(*given)
        case _:
            return None
    return Listing("", stage, text)
