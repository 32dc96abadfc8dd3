"""Of four parts of a form of random kernels, LLVM brings those of three to machine code with the
least effort."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from weft.codegen import cpu
from weft.options import default_options

FULL = 4  # one in so many parts is compiled as users' kernels are


@pytest.fixture(autouse=True)
def effort(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is weft's stays as it is, and so do LLVM's passes over its IR, which take its flags at
    their word. The last step is LLVM's own, and a third of its time. That is in no key of the disk
    cache."""
    part = getattr(request.node, "callspec", None) and request.node.callspec.params.get("part")
    if not part or part % FULL == 0:
        yield
        return
    monkeypatch.setattr(cpu, "EFFORT", 0)
    monkeypatch.setenv("WEFT_CACHE", "0")
    default_options.cache_clear()
    yield
    monkeypatch.undo()
    default_options.cache_clear()
