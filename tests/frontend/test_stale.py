"""What a kernel captured, and what it was compiled from, may change: it is never stale."""

from __future__ import annotations

import builtins
import functools
import importlib
import math
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import weft

HELPERS = (
    "def h(v):\n    return v + 1.0\n\n\ndef deep(v):\n    return h(v) * 2.0\n\n\nSCALE = 3.0\n"
)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A package ``stale_pkg`` with a module ``sub``, and a module that calls into it."""
    folder = tmp_path / "stale_pkg"
    folder.mkdir()
    (folder / "__init__.py").write_text("from stale_pkg import sub\n")
    (folder / "sub.py").write_text(HELPERS)
    text = "from stale_pkg import sub\n\n\ndef through(v):\n    return sub.h(v)\n"
    (folder / "caller.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield importlib.import_module("stale_pkg"), importlib.import_module("stale_pkg.caller")
    for name in [name for name in sys.modules if name.startswith("stale_pkg")]:
        del sys.modules[name]


def other(v):
    return v * 10.0


def another(v):
    return v - 7.0


def first_default(v, w=1.0):
    return v + w


def keyword_default(v, *, w=1.0):
    return v + w


def rewritten(v):
    return v + 1.0


def shadowed(v):
    return max(v, 0.5)


def apply(step: Callable[[Any], Any], function: Callable[[Any], Any], change: Any) -> None:
    """Runs ``step`` (an in-place kernel) before and after the change, beside ``function``, the
    Python itself."""
    for changed in (False, True):
        if changed:
            change()
        for _ in range(4):  # the later ones are served by machine code
            x = torch.tensor([0.25, 2.0], dtype=torch.float64)
            step(x)
            expected = [float(function(v)) for v in (0.25, 2.0)]
            assert x.tolist() == expected, f"changed: {changed}"


@pytest.mark.parametrize("change", ["function", "reload", "module", "submodule", "code"])
def test_a_function_of_a_module_is_followed(modules: Any, change: str) -> None:
    pkg, _ = modules

    @weft.kernel
    def step(x):
        for i in x:
            x[i] = pkg.sub.h(x[i]) + pkg.sub.deep(x[i])

    def alter() -> None:
        nonlocal pkg
        if change == "function":
            pkg.sub.h = other
        elif change == "reload":
            Path(pkg.sub.__file__).write_text(HELPERS.replace("1.0", "50.0"))
            importlib.reload(pkg.sub)
        elif change == "module":
            pkg = types.SimpleNamespace(sub=types.SimpleNamespace(h=other, deep=another))
        elif change == "submodule":
            pkg.sub = types.SimpleNamespace(h=other, deep=another)
        else:
            pkg.sub.h.__code__ = another.__code__

    apply(step, lambda v: pkg.sub.h(v) + pkg.sub.deep(v), alter)


def test_a_helper_that_calls_through_a_module_is_followed(modules: Any) -> None:
    pkg, caller = modules

    @weft.kernel
    def step(x):
        for i in x:
            x[i] = caller.through(x[i]) * caller.sub.SCALE

    apply(step, lambda v: caller.through(v) * pkg.sub.SCALE, lambda: setattr(pkg.sub, "h", other))
    other_sub = types.SimpleNamespace(h=another, SCALE=5.0)
    apply(step, lambda v: caller.through(v) * caller.sub.SCALE,
          lambda: setattr(caller, "sub", other_sub))  # fmt: skip


def test_defaults_and_code_of_a_function_are_followed() -> None:
    @weft.kernel
    def step(x):
        for i in x:
            x[i] = first_default(x[i]) * keyword_default(x[i]) + rewritten(x[i])

    def python(v: float) -> float:
        return first_default(v) * keyword_default(v) + rewritten(v)

    code = rewritten.__code__
    try:
        apply(step, python, lambda: setattr(first_default, "__defaults__", (4.0,)))
        apply(step, python, lambda: keyword_default.__kwdefaults__.update(w=5.0))
        apply(step, python, lambda: setattr(rewritten, "__code__", other.__code__))
    finally:
        first_default.__defaults__, rewritten.__code__ = (1.0,), code
        keyword_default.__kwdefaults__.update(w=1.0)


def test_keywords_of_a_partial_are_followed() -> None:
    partial = functools.partial(first_default, w=2.0)

    @weft.kernel
    def step(x):
        for i in x:
            x[i] = partial(x[i])

    apply(step, partial, lambda: partial.keywords.update(w=9.0))


def test_a_builtin_that_a_global_shadows_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    @weft.kernel
    def step(x):
        for i in x:
            x[i] = shadowed(x[i]) + abs(x[i])

    def smallest(a, b):
        return a if a < b else b

    apply(step, lambda v: shadowed(v) + abs(v),
          lambda: monkeypatch.setitem(globals(), "max", smallest))  # fmt: skip
    apply(step, lambda v: shadowed(v) + abs(v),
          lambda: monkeypatch.setitem(globals(), "abs", other))  # fmt: skip
    apply(step, lambda v: shadowed(v) + abs(v), monkeypatch.undo)


def test_a_name_that_stood_for_a_known_module_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    @weft.kernel
    def step(x):
        for i in x:
            x[i] = math.fabs(x[i])

    fake = types.SimpleNamespace(fabs=other)
    step(torch.ones(1))
    monkeypatch.setitem(globals(), "math", fake)
    x = torch.ones(1)
    step(x)
    assert x.tolist() == [10.0]


def test_a_class_and_its_functions_are_followed() -> None:
    class Model:
        @staticmethod
        def f(v):
            return v + 1.0

        rate = 2.0

    model = Model()

    @weft.kernel
    def step(x):
        for i in x:
            x[i] = Model.f(x[i]) * model.rate

    apply(step, lambda v: Model.f(v) * model.rate, lambda: setattr(Model, "f", staticmethod(other)))
    apply(step, lambda v: Model.f(v) * model.rate, lambda: setattr(Model, "rate", 8.0))


class Level:
    """Answers by what it holds, which its class alone knows."""

    def __init__(self, height: int) -> None:
        self.height = height

    def __bool__(self) -> bool:
        return self.height > 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Level) and self.height == other.height

    def __lt__(self, other: Level) -> bool:
        return self.height < other.height

    def __contains__(self, height: int) -> bool:
        return height <= self.height


class Shelf:
    def __init__(self) -> None:
        self.books: list[int] = []

    def __len__(self) -> int:
        return len(self.books)


@pytest.mark.parametrize("asked", ["LEVEL", "not LEVEL", "LEVEL == TOP", "LEVEL != TOP",
                                   "LEVEL < TOP", "2 in LEVEL", "2 not in LEVEL", "SHELF",
                                   "LEVEL and SHELF"])  # fmt: skip
def test_what_methods_of_objects_answer_is_followed(asked: str, tmp_path: Path) -> None:
    text = (
        "def kernel(x):\n    for i in range(x.shape[0]):\n"
        f"        x[i] = 1.0 if {asked} else 2.0\n        if {asked}:\n            x[i] += 4.0\n"
    )
    (tmp_path / "asking.py").write_text(text)
    scope: dict[str, Any] = {"LEVEL": Level(0), "TOP": Level(2), "SHELF": Shelf()}
    exec(compile(text, str(tmp_path / "asking.py"), "exec"), scope)
    kernel = weft.kernel(scope["kernel"])
    for height, books in ((0, 0), (1, 1), (2, 0), (0, 1), (3, 2)):
        scope["LEVEL"].height, scope["SHELF"].books[:] = height, range(books)
        for _ in range(2):
            found, expected = torch.zeros(2), torch.zeros(2)
            kernel(found)
            kernel.function(expected)
            assert torch.equal(found, expected)


def test_builtins_that_torch_replaces_while_it_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    @weft.kernel
    def clipped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = max(min(x[i] * w[i], 1.0), -math.pow(2.0, 0.5))
        return out

    class Clip(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.tensor([2.0, 0.5, -3.0]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return clipped(x, self.w)

    x = torch.tensor([1.0, 1.0, 1.0])
    program = torch.export.export(Clip(), (x,), strict=False)
    assert builtins.max is max
    torch.testing.assert_close(program.module()(x), torch.tensor([1.0, 0.5, -math.sqrt(2.0)]))


def imported(folder: Path, text: str, name: str = "edited_later") -> Any:
    """A module with this text, and its file."""
    file = folder / f"{name}.py"
    file.write_text(text)
    sys.modules.pop(name, None)
    module = importlib.import_module(name)
    return module, file


EDITED = '''\
import weft


def helper(v):
    return v * 1.0


@weft.kernel
def step(x):
    for i in x:
        x[i] = helper(x[i]) + 1.0


class Pair:
    __factor = 2.0

    def twice(self, v):
        return (
            2.0 * v
        )

    @weft.kernel
    def double(self, x):
        """A docstring."""
        assert self.__factor == 2.0
        for i in x:
            x[i] = self.twice(x[i])


def made(bias):
    @weft.kernel
    def inner(x):
        for i in x:
            x[i] += bias if __name__ else weft.sin(0.0)
    return inner


scaled = lambda v: v + 4.0  # noqa


@weft.kernel
def with_lambda(x):
    for i in x:
        x[i] = scaled(x[i])
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in ("edited_later", "edited_helpers"):
        sys.modules.pop(name, None)


def test_sources_of_many_forms_are_those_that_were_imported(folder: Path) -> None:
    module, file = imported(folder, EDITED)
    file.write_text(EDITED + "\n# another line\n")
    x = torch.ones(2)
    module.step(x)
    module.Pair().double(x)
    module.made(3.0)(x)
    module.with_lambda(x)
    assert x.tolist() == [11.0, 11.0]


@pytest.mark.parametrize(
    ("old", "new", "name", "line"),
    [
        ("+ 1.0", "+ 2.0", "step", 8),
        ("+ 1.0", "- 1.0", "step", 8),
        ("v * 1.0", "v * 3.0", "helper", 4),
        ("v + 4.0", "v + 5.0", "<lambda>", 38),
        ("import weft\n", "import weft\nx = [\n(\n1)]\n", "step", 8),
    ],
)
def test_a_source_that_changed_since_it_was_imported_is_refused(
    folder: Path, old: str, new: str, name: str, line: int
) -> None:
    module, file = imported(folder, EDITED)
    file.write_text(EDITED.replace(old, new))
    kernel = module.with_lambda if name == "<lambda>" else module.step
    with pytest.raises(weft.SourceUnavailableError) as error:
        kernel(torch.ones(2))
    assert str(error.value) == (
        f"the source of `{name}` at line {line} of {file} is not the one that Python runs: the "
        "file has changed since it was imported\n"
        "help: restart, or reload the module: weft compiles a function's source text when it is "
        "first called"
    )


ANNOTATED = """\
import weft


def helper(v):
    w: weft.i32 = v * 0.6
    return w


@weft.kernel
def step(x):
    for i in x:
        v: weft.i32 = x[i] * 0.6
        x[i] = v + helper(x[i]) + 1


def made():
    @weft.kernel
    def inner(x):
        for i in x:
            v: weft.i32 = x[i] * 0.6
            x[i] = v
    return inner
"""


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("v: weft.i32", "v: weft.f32", "step"),
        ("v: weft.i32", "v", "step"),
        ("v: weft.i32", "v: weft.f32", "inner"),
        ("w: weft.i32", "w: weft.f32", "helper"),
        ("w: weft.i32 =", "w =", "helper"),
    ],
)
def test_an_annotation_that_changed_since_the_import_is_refused(
    folder: Path, old: str, new: str, name: str
) -> None:
    module, file = imported(folder, ANNOTATED)
    file.write_text(ANNOTATED.replace(old, new))
    kernel = module.made() if name == "inner" else module.step
    message = rf"the source of `{name}` at line \d+ of .* the file has changed since"
    with pytest.raises(weft.SourceUnavailableError, match=message):
        kernel(torch.full((2,), 4.0))
    importlib.reload(module)
    kernel = module.made() if name == "inner" else module.step
    x = torch.full((2,), 4.0)
    kernel(x)
    assert x.tolist() == pytest.approx([2.4, 2.4] if name == "inner" else [5.4, 5.4])


@pytest.mark.parametrize("through", [False, True])
def test_annotations_of_helpers_in_modules_without_kernels(folder: Path, through: bool) -> None:
    low = "def low(v):\n    w: weft.i32 = v * 0.6\n    return w\n\n\n"
    text = f"import weft\n\n\n{low}def scaled(v):\n    return low(v)\n"
    taken = "import edited_helpers as h" if through else "from edited_helpers import scaled"
    call = "h.scaled" if through else "scaled"
    kernel = f"@weft.kernel\ndef step(x):\n    for i in x:\n        x[i] = {call}(x[i])\n"
    helpers, file = imported(folder, text, "edited_helpers")
    module, _ = imported(folder, f"import weft\n{taken}\n\n\n{kernel}")
    file.write_text(text.replace("w: weft.i32", "w: weft.f32"))
    x = torch.full((2,), 4.0)
    with pytest.raises(weft.SourceUnavailableError, match="the source of `low` at line 4 of "):
        module.step(x)
    importlib.reload(helpers)
    if not through:  # in Python, too, the kernel's module has the old function
        importlib.reload(module)
    module.step(x)
    assert x.tolist() == pytest.approx([2.4, 2.4])


def test_comments_and_lines_elsewhere_may_change(folder: Path) -> None:
    module, file = imported(folder, ANNOTATED)
    text = ANNOTATED.replace("+ helper(x[i]) + 1", "+ helper(x[i]) + 1  # more")
    file.write_text(text + "\n\ndef other():\n    v: weft.f32 = 1\n")
    x = torch.full((2,), 4.0)
    module.step(x)
    assert x.tolist() == [5.0, 5.0]
    module.made()(x)
    assert x.tolist() == [3.0, 3.0]


def test_assertions_that_pytest_rewrote_are_no_change() -> None:
    @weft.kernel
    def asserting(x):
        for i in x:
            assert x[i] > 0.0, "positive"
            x[i] += 1.0

    x = torch.ones(2)
    asserting(x)
    assert x.tolist() == [2.0, 2.0]


class Held:
    def __init__(self, w: torch.Tensor) -> None:
        self.w = w

    def item(self, i):
        return self.w[i]


WEIGHTS = [torch.ones(3)]


def item_of(w: torch.Tensor) -> Callable[[Any], Any]:
    def item(i):
        return w[i]

    return item


def nested_item_of(w: torch.Tensor) -> Callable[[Any], Any]:
    item = item_of(w)

    def outer(i):
        return item(i)

    return outer


def default_item_of(w: torch.Tensor) -> Callable[[Any], Any]:
    def item(i, w=w):
        return w[i]

    return item


def bound_item_of(w: torch.Tensor) -> Callable[[Any], Any]:
    def item(k, i):
        return w[i] * k

    return functools.partial(item, 1)


def listed_item_of(w: torch.Tensor) -> Callable[[Any], Any]:
    WEIGHTS[0] = w
    return lambda i: WEIGHTS[0][i]


REACHING = (
    item_of, nested_item_of, default_item_of, bound_item_of, lambda w: Held(w).item, listed_item_of,
)  # fmt: skip


def freed(kernel: Any, make: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    w = torch.ones(3)
    kernel(torch.ones(3), make(w))
    w.untyped_storage().resize_(0)
    return w


@pytest.mark.parametrize("make", REACHING)
def test_a_refused_call_of_one_function_is_nothing_for_the_next(make: Callable[..., Any]) -> None:
    @weft.kernel
    def scaled(x, f):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * f(i)
        return out

    x = torch.ones(3)
    gone = freed(scaled, make)
    of_transform = torch.func.grad(lambda w: scaled(x, make(w)).sum())
    refused = [torch.eye(3).to_sparse(), torch.ones(3, device="meta"), gone]
    for call in (*(lambda w=w: scaled(x, make(w)) for w in refused), lambda: of_transform(x)):
        with pytest.raises(weft.WeftError):
            call()
        assert scaled(x, make(x + 1)).tolist() == [2.0] * 3
        assert scaled(x, lambda i: 3.0).tolist() == [3.0] * 3
    z = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(scaled(z, make(x + 1)).sum(), z)
    assert gradient.tolist() == [2.0] * 3


@pytest.mark.parametrize("make", REACHING[:-1])
def test_functions_that_reach_the_like_share_their_arguments(make: Callable[..., Any]) -> None:
    @weft.kernel
    def scaled(x, f):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = x[i] * f(i)
        return out

    for k in range(4):
        assert scaled(torch.ones(2), make(torch.full((2,), float(k)))).tolist() == [k, k]
    assert len(scaled.launchers[0].region.args) == 4  # x, f, out and the tensor


def test_what_two_functions_store_and_read_is_one_argument() -> None:
    def parts(w):
        def get(i):
            return w[i]

        def put(i, value):
            w[i] = value

        return get, put

    @weft.kernel
    def doubled(x, get, put):
        for i in range(x.shape[0]):
            put(i, get(i) * x[i])

    x = torch.full((3,), 2.0)
    for _ in range(2):
        w = torch.arange(3.0)
        doubled(x, *parts(w))
        assert w.tolist() == [0.0, 2.0, 4.0]
    assert len(doubled.launchers[0].region.args) == 4  # x, get, put and the tensor


def test_a_first_call_draws_what_others_do() -> None:
    """What called functions reach is found in it, and it is tried again; numbers are drawn once."""
    weights, offsets = [torch.ones(3)], {"one": torch.zeros(3)}

    def weighted(i: Any) -> Any:
        return weights[0][i] + offsets["one"][i]

    @weft.kernel
    def noise(x):
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = weighted(i) * weft.random()
        return out

    found: list[torch.Tensor] = []
    for _ in range(3):
        torch.manual_seed(0)
        found.append(noise(torch.ones(3)))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
