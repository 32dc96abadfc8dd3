"""Structs, fields of structs, dataclasses and named tuples in device loops: against the undecorated
Python, and against torch."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import pytest
import torch

import weft as ti
from tests.cuda.emulator import emulated

vec3 = ti.math.vec3


@ti.dataclass
class Sphere:
    center: vec3  # type: ignore
    radius: ti.f32  # type: ignore

    @ti.func
    def area(self) -> Any:
        return 4 * math.pi * self.radius * self.radius

    def shifted(self, d: Any) -> Any:
        return Sphere(self.center + d, self.radius)


Line = ti.types.struct(dir=vec3, length=ti.f32)
Marked = ti.types.struct(line=Line, idx=ti.i32)


def spheres(count: int, **options: Any) -> Any:
    found = Sphere.field(shape=count, **options)
    with torch.no_grad():
        found.center.copy_(torch.randn(count, 3))
        found.radius.copy_(torch.rand(count) + 1)
    return found


@ti.kernel
def moved(f: ti.template(), out: torch.Tensor) -> None:  # type: ignore
    for i in range(out.shape[0]):
        s = Sphere(f[i].center, f[i].radius)
        s.radius = s.radius * 2
        s.center.x = 7.0
        t = s.shifted(1.0)
        for _ in range(2):
            t = t.shifted(0.25)
        out[i, 0] = s.area()
        out[i, 1] = t.center.norm()
        f[i].radius += 1
        out[i, 2] = f[i].radius + f[i].center[1]
        f[i] = Sphere(f[i].center * 2, f[i].radius)
        out[i, 3] = f[i].area()


@pytest.mark.parametrize("count", [0, 1, 17])
def test_fields_of_structs_and_their_methods(count: int) -> None:
    first = spheres(count)
    runs: list[list[torch.Tensor]] = []
    for run in (moved.function, moved, moved.interpret, emulated(moved)):
        field, out = Sphere.field(shape=count), torch.full((count, 4), torch.nan)
        field.copy_from(first)
        run(field, out)
        runs.append([out, field.to_torch()["center"], field.to_torch()["radius"]])
    for others in runs[1:]:
        for found, wanted in zip(others, runs[0], strict=True):
            torch.testing.assert_close(found, wanted)
    if count:
        assert not torch.equal(runs[0][2], first.radius)


@ti.kernel
def areas(f: ti.template()) -> torch.Tensor:  # type: ignore
    out = torch.empty(f.shape[0])
    for i in f:
        out[i] = f[i].area() * f[i].center.norm_sqr()
    return out


def test_gradients_of_fields_of_structs() -> None:
    field = spheres(5, needs_grad=True)
    areas(field).sum().backward()
    center = field.to_torch()["center"].requires_grad_()
    radius = field.to_torch()["radius"].requires_grad_()
    (4 * math.pi * radius**2 * (center**2).sum(1)).sum().backward()
    torch.testing.assert_close(field.center.grad.to_torch(), center.grad)
    torch.testing.assert_close(field.radius.grad, radius.grad)


marked = Marked.field(shape=4)


@ti.kernel
def nested() -> None:
    for i in marked:
        marked[i] = Marked(Line(vec3(1.0), i), i)
    for i in marked:
        m = Marked(Line(vec3(2.0), 1.0), 3.9)
        m.line.length = 5.5
        m.line.dir.x = 4.0
        n = m
        n.idx = 100
        marked[i].line.length += m.line.dir.x + m.line.length + m.idx
        marked[i].idx = n.idx
    for place in ti.grouped(marked):
        marked[place] = marked[place] * 2 + 1


@pytest.mark.parametrize("call", [nested, nested.interpret], ids=["compiled", "interpret"])
def test_nested_structs_are_values(call: Any) -> None:
    for field in (marked.line.dir, marked.line.length, marked.idx):
        field.fill_(0)
    call()
    found = marked.to_numpy()
    assert found["line"]["length"].tolist() == [(i + 4 + 5.5 + 3) * 2 + 1 for i in range(4)]
    assert found["line"]["dir"].tolist() == [[3.0] * 3] * 4
    assert found["idx"].tolist() == [201] * 4


def set_in_branches(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        m = Marked(Line(vec3(x[i]), 1.0), 3)
        if i < 2:
            m.line.dir = vec3(1.0, 2.0, x[i])
        else:
            m.line.dir.y = x[i]
        for j in range(i):
            m.line.length = m.line.length * 2 + j
            while m.line.dir[2] < 9:
                m.line.dir[2] = m.line.dir[2] + 4
        out[i] = m.line.dir.x + 10 * m.line.dir.y + 100 * m.line.dir.z + 1000 * m.line.length
    return out


def test_members_of_members_are_set_in_branches_and_loops() -> None:
    x = torch.arange(1.0, 6.0)
    expected = set_in_branches(x)
    assert torch.equal(ti.kernel(set_in_branches)(x), expected)
    assert torch.equal(ti.kernel(set_in_branches).interpret(x), expected)


@dataclasses.dataclass
class Point:
    x: float
    y: float = 2.0

    def norm2(self) -> Any:
        return self.x * self.x + self.y * self.y


class Pair(NamedTuple):
    a: float
    b: int = 3


def total(c: Any) -> Any:
    return c.x + c.y


ORIGIN, WEIGHTS = Point(1.5, 2.5), Pair(0.5, 2)


@ti.kernel
def plain(out: torch.Tensor, c: Point, n: Pair) -> None:
    for i in range(out.shape[0]):
        p, q = Point(i * 1.0), Pair(i + 0.5, i)
        for _ in range(3):
            p = Point(p.x + 1, p.y * 2)
        d = {"u": p.x, "v": 2.0}
        u, w = q
        out[i] = p.norm2() + q.a + q.b + d["u"] * d["v"] + u + w + q[0]
        out[i] += total(ORIGIN) * WEIGHTS.a + WEIGHTS.b + c.norm2() + n.a + n.b + total(c)


def test_dataclasses_named_tuples_and_dicts_are_values() -> None:
    for point in (Point(3.0, 1.0), Point(4.0, -1.0)):  # what changes is passed, or compiled anew
        runs = []
        for run in (plain.function, plain, plain.interpret):
            runs.append(torch.full((3,), torch.nan))
            run(runs[-1], point, Pair(1.0))
        torch.testing.assert_close(runs[1], runs[0])
        torch.testing.assert_close(runs[2], runs[0])


counted = ti.Struct.field({"n": ti.i32, "s": ti.f32}, shape=3)


@ti.kernel
def histogram(x: torch.Tensor) -> None:
    for i in range(x.shape[0]):
        counted[x[i]].n += 1
        ti.atomic_add(counted[x[i]].s, 0.5)


def test_members_are_accumulated_into_atomically() -> None:
    counted.fill(0)
    histogram(torch.tensor([0, 1, 1, 2, 2, 2]))
    assert counted.n.tolist() == [1, 2, 3]
    assert counted.s.tolist() == [0.5, 1.0, 1.5]


pack = ti.types.argpack(gain=ti.i32, shift=vec3)
settings = ti.Struct({"a": 2, "b": {"c": 3}})


@ti.kernel
def packed(p: pack, s: Sphere, out: torch.Tensor) -> None:  # type: ignore
    for i in range(out.shape[0]):
        c = settings
        c.a = c.a + i
        out[i] = p.gain * p.shift.y + s.radius + c.a + c.b.c


def test_packs_and_structs_are_arguments() -> None:
    out, given = torch.empty(3), pack(2, vec3(1.0, 2.0, 3.0))
    packed(given, Sphere(0.0, 0.5), out)
    assert out.tolist() == [4.5 + 5 + i for i in range(3)]
    given.gain = 5
    packed(given, Sphere(radius=1.5), out)
    assert out.tolist() == [11.5 + 5 + i for i in range(3)]


def test_structs_outside_of_loops() -> None:
    s = Sphere(vec3(1.0, 2.0, 3.0), 2)
    assert s.area() == pytest.approx(16 * math.pi)
    assert s.shifted(1.0).center.y == 3.0
    assert Marked({"line": {"dir": vec3(0.0), "length": 2}}).to_dict()["line"]["length"] == 2.0
    assert Marked().line.length == 0
    field = Sphere.field(shape=(2, 2))
    field[1, 0] = s
    field[1, 0].radius = 5
    assert field.radius[1, 0] == 5.0
    assert field[1, 0] == Sphere(vec3(1.0, 2.0, 3.0), 5.0)
    assert field.shape == (2, 2)
    assert len(list(field)) == 4
    for wrong, text in (
        (lambda: Sphere(1.0, 2.0, 3.0), "Sphere has 2 members, and 3 are given"),
        (lambda: Sphere(size=1.0), "Sphere: `size` is none of its members"),
        (lambda: ti.types.struct(fill=ti.i32), "a struct has a member `fill`, which is a method's"),
    ):
        with pytest.raises(ti.KernelTypeError) as caught:
            wrong()
        assert text in str(caught.value)


def bump(s: Any) -> Any:
    s.radius += 1
    return s.radius


@ti.kernel
def bumped(out: torch.Tensor) -> None:
    for i in range(out.shape[0]):
        s = Sphere(0.0, 1.0)
        out[i] = bump(s) + s.radius


@ti.kernel
def mixed(out: torch.Tensor) -> None:
    for i in range(out.shape[0]):
        s = Sphere(0.0, 1.0)
        if i > 1:
            s = Line(0.0, 1.0)
        out[i] = s.radius


@ti.kernel
def misspelt(out: torch.Tensor) -> None:
    for i in range(out.shape[0]):
        out[i] = Sphere(0.0, 1.0).radios


KEPT = Line.field(2)


@ti.kernel
def struct_copies():
    a = ti.Struct(x=1, inner=ti.Struct(y=2, v=vec3(0.0)))
    b = a
    b.x = 5
    c = b.inner
    c.y = 7
    c.v.x = 3.0
    d, e = c, (a if a.x == 1 else b)
    d.fill(4)
    e.inner.v[1] = 8.0
    element = KEPT[0]
    element.length = 9.0
    KEPT[1].length = 2.0
    line = Line(vec3(1.0), 1.0)
    marked = Marked(line, 1)
    held = marked
    held.line.dir.y = 6.0
    marked.line = held.line
    marked.line.dir.x = 0.0
    return a, b, c, d, e, element.length, line, held, marked


@pytest.mark.parametrize("run", [struct_copies, struct_copies.interpret])
def test_a_struct_is_a_value_in_the_host_part(run: Any) -> None:
    KEPT.fill(0)
    a, b, c, d, e, length, line, held, marked = run()
    zero = vec3(0.0)
    assert a == ti.Struct(x=1, inner=ti.Struct(y=2, v=zero))
    assert b == ti.Struct(x=5, inner=ti.Struct(y=2, v=zero))
    assert c == ti.Struct(y=7, v=vec3(3.0, 0.0, 0.0))
    assert d == ti.Struct(y=4, v=vec3(4.0))
    assert e == ti.Struct(x=1, inner=ti.Struct(y=2, v=vec3(0.0, 8.0, 0.0)))
    assert length == 9
    assert KEPT.length.tolist() == [0, 2]
    assert line.dir.to_list() == [1, 1, 1]
    assert held.line.dir.to_list() == [1, 6, 1]
    assert marked.line.dir.to_list() == [0, 6, 1]


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (bumped, "`s` is what the function was called with, and a copy of it"),
        (mixed, "`s` is a struct, Sphere(center, radius) here and a struct, struct(dir, length)"),
        (misspelt, "a struct, Sphere(center, radius) has no attribute `radios`"),
    ],
    ids=lambda v: v.__name__ if callable(v) else "",
)
def test_what_cannot_be_is_refused(kernel: Any, text: str) -> None:
    with pytest.raises(ti.KernelTypeError) as caught:
        kernel(torch.zeros(3))
    assert text in str(caught.value)


@ti.kernel
def pushed(f: ti.template(), top: torch.Tensor, out: torch.Tensor) -> None:  # type: ignore
    for i in range(out.shape[0]):
        f[ti.atomic_add(top[0], 1)] = Sphere(vec3(1.0), 2.0)
        out[i] = f[ti.atomic_add(top[1], 1)].center.norm_sqr()


def test_subscripts_of_elements_are_evaluated_once() -> None:
    field, top = Sphere.field(shape=8), torch.zeros(2, dtype=torch.int32)
    pushed(field, top, torch.empty(5))
    assert top.tolist() == [5, 5]
    assert field.radius.tolist() == [2.0] * 5 + [0.0] * 3
    assert field.center[:5].eq(1).all()


@dataclasses.dataclass
class Doubled:
    x: float

    def __post_init__(self) -> None:
        self.x *= 2


@dataclasses.dataclass
class Derived(Doubled):
    y: float = 0.0


class Shifted(Pair):
    def __new__(cls, a: float) -> Any:
        return super().__new__(cls, a + 1, 0)


@dataclasses.dataclass
class Helped(Point):
    @staticmethod
    def twice(v: Any) -> Any:
        return v * 2


def _made(what: str) -> Any:
    @ti.kernel
    def post(out: torch.Tensor) -> None:
        for i in range(out.shape[0]):
            out[i] = Derived(i).x

    @ti.kernel
    def new(out: torch.Tensor) -> None:
        for i in range(out.shape[0]):
            out[i] = Shifted(i).a

    @ti.kernel
    def static(out: torch.Tensor) -> None:
        for i in range(out.shape[0]):
            out[i] = Helped(i * 1.0).twice(3.0)

    return {"post": post, "new": new, "static": static}[what]


def test_objects_that_do_more_than_hold_members_are_refused() -> None:
    with pytest.raises(ti.KernelTypeError):
        _made("new")(torch.zeros(3))


@pytest.mark.parametrize("what", ["post", "static"])
def test_classes_that_begin_their_objects_and_have_functions(what: str) -> None:
    _made(what)(out := torch.zeros(3))
    expected = [Derived(i).x for i in range(3)] if what == "post" else [6.0] * 3
    assert out.tolist() == expected


@dataclasses.dataclass
class Both:
    x: float
    y: float


WRONG = (
    "(p + p)[0]", "(2 * p)[1]", "(d + d)[0]", "p[0]", "p[i]", "p[0:1][0]", "sum(p)", "max(p)",
    "len(p)", "tuple(p)[0]", "d[0]", "p == d", "p == (x[i], 2.0)", "ti.Vector(p).x", "x[p]",
)  # fmt: skip


@pytest.mark.parametrize("expression", WRONG)
def test_structs_and_dicts_are_no_tuples(expression: str, tmp_path: Any) -> None:
    """Python refuses these; as tuples of their members they would be numbers, in silence."""
    lines = ["def f(x):", "    for i in range(1):"]
    lines += [
        "        p, d = Both(x[i], 2.0), {'a': x[i], 'b': 2.0}",
        f"        x[i] = {expression}",
    ]
    path = tmp_path / "written.py"
    path.write_text("\n".join(lines) + "\n")
    names = {"Both": Both, "ti": ti}
    exec(compile(path.read_text(), str(path), "exec"), names)
    with pytest.raises(ti.KernelTypeError, match=r"Both\(|dict\(|dict has no item 0|`max` needs"):
        ti.kernel(names["f"])(torch.ones(3))


def test_a_dict_is_gone_over_by_its_keys() -> None:
    @ti.kernel
    def kernel(x: torch.Tensor, out: torch.Tensor):
        for i in range(x.shape[0]):
            d = {"a": x[i], "b": 2.0}
            first, _ = d
            found = 1000.0 * ("b" in d) + 100 * len(d) + d[first]
            for key in d:
                found = 10 * found + d[key]
            out[i] = found

    x, out = torch.tensor([3.0, -1.0]), torch.zeros(2, 2)
    kernel.function(x, out[0])
    kernel(x, out[1])
    assert out[0].tolist() == out[1].tolist()


Counted = ti.types.struct(total=ti.f64, count=ti.i32, last=ti.types.vector(2, ti.f64))


@ti.func
def count(to: ti.template(), x):
    if x > 0.25:
        to.total += x
        to.count += 1
        to.last[0] = x
        to.last.y -= 1.0


@ti.func
def count_twice(to: ti.template(), x):
    for _ in range(2):
        count(to, x)


@ti.func
def count_both(a: ti.template(), b: ti.template()):
    a.count += 1
    b.count += 2


def test_a_template_parameter_is_the_callers_struct() -> None:
    @ti.kernel
    def counted(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(x.shape[0], 4, dtype=torch.float64)
        for i in range(x.shape[0]):
            found = Counted(total=x[i])
            t = 0
            while t < 3:
                count_twice(found, x[i] * t)
                t += 1
            out[i, 0] = found.total
            out[i, 1] = found.count
            out[i, 2] = found.last.x
            out[i, 3] = found.last[1]
        return out

    x = torch.rand(17, dtype=torch.float64, requires_grad=True)
    made = counted(x)
    assert torch.equal(made, counted.interpret(x))
    (gradient,) = torch.autograd.grad(made[:, 0].sum(), x)
    d = x.detach()
    assert torch.equal(gradient, 1 + 2.0 * (d > 0.25) + 4.0 * (2 * d > 0.25))

    field = Counted.field(shape=3)

    @ti.kernel
    def in_a_field():
        for i in range(3):
            count(field[i], 1.0)

    @ti.kernel
    def one_for_both():
        for _ in range(3):
            found = Counted()
            count_both(found, found)

    in_a_field()
    assert field.to_numpy()["total"].tolist() == [1.0, 1.0, 1.0]
    assert field.to_numpy()["last"].tolist() == [[1.0, -1.0]] * 3
    with pytest.raises(ti.KernelTypeError, match="two template"):
        one_for_both()
