"""One provider's process: told by lines of JSON what to prepare and when to measure.

It is started by `benchmarks.harness`. Peers print banners; those go to stderr, and the protocol has
the original stdout to itself.
"""

import importlib
import importlib.util
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import Subject
from benchmarks.peers import threads

CPU = torch.device("cpu")
SAMPLE_MS = 2.0


def timer_of_weft() -> Any:
    """The module that takes times for ``weft bench``, by its path: a peer's process does not import
    weft."""
    path = Path(__file__).parents[1] / "weft" / "tuning" / "measure.py"
    spec = importlib.util.spec_from_file_location("timer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


timer = timer_of_weft()


def find(module: str, subject: str) -> Subject:
    """The subject of that name in ``benchmarks.<module>``."""
    subjects = importlib.import_module(f"benchmarks.{module}").SUBJECTS
    return next(s for s in subjects if s.name == subject)


def as_float64(result: Any) -> torch.Tensor:
    """A provider's result (tensor, NumPy array or number) as a float64 tensor."""
    if isinstance(result, torch.Tensor):
        return result.detach().double()
    return torch.as_tensor(np.asarray(result)).double()


class Worker:
    """Samples that are being taken now, by provider, and how many calls each has."""

    def __init__(self) -> None:
        self.calls: dict[str, tuple[Callable[[], Any], int]] = {}

    def prepare(self, module: str, subject: str, case: str, provider: str) -> dict[str, Any]:
        """Build the call, run it, compare it with float64, and find how often a sample calls it."""
        what = find(module, subject)
        chosen = next(c for c in what.cases if c.name == case)
        begin = time.perf_counter()
        call = what.providers[provider](chosen)
        result = call()
        first_ms = (time.perf_counter() - begin) * 1e3
        exact = what.reference(chosen).double()
        got = as_float64(result).reshape(exact.shape)
        error = ((got - exact).abs().max() / exact.abs().max().clamp_min(1e-30)).item()
        if not error <= what.tolerance:
            return {"failure": f"wrong: {error:.1e} from float64"}
        count = timer.repeats(call, SAMPLE_MS)
        self.calls[provider] = timer.repeated(call, count), count
        return {"first_ms": first_ms, "error": error}

    def measure(self, provider: str, seconds: float) -> dict[str, Any]:
        """Samples for about ``seconds``, at least one, after one that is thrown away."""
        call, count = self.calls[provider]
        (times,) = timer.samples([call], CPU, seconds=seconds, least=1)
        return {"samples": [ms / count for ms in times]}

    def drop(self) -> dict[str, Any]:
        """Let go of the prepared calls and their tensors."""
        self.calls.clear()
        return {}


def failure(error: BaseException) -> str:
    """A table cell's worth of what went wrong."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, ModuleNotFoundError):
        return "not installed"
    if "InvalidCxxCompiler" in text:
        return "no C++ compiler"
    return (text.splitlines() or [type(error).__name__])[0][:100]


def main() -> None:
    """Answer requests ``[method, *arguments]`` until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    torch.set_num_threads(threads())
    worker = Worker()
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        try:
            answer = getattr(worker, method)(*arguments)
        except Exception as error:
            traceback.print_exc()
            answer = {"failure": failure(error)}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
