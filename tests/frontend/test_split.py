"""What runs on the host, what on the device, and what passes between them."""

import textwrap
import traceback

import pytest
import torch

import weft
from weft.errors import KernelNameError, KernelSyntaxError
from weft.frontend.returns import Returned
from weft.frontend.split import split
from weft.source import read_function

SCALE = 3.0


class CFG:
    eps = 0.5


def halves(x):
    return x * 0.5


def fill_first(y, value):
    y[0] = value


def parts_of(function):
    return split(read_function(function), function)


def names(region):
    return [arg.name for arg in region.args]


def error_text(kind, function):
    with pytest.raises(kind) as caught:
        parts_of(function)
    head, *rest = str(caught.value).split("\n")
    file, line, message = head.split(":", 2)
    assert file == __file__
    assert int(line) > function.__code__.co_firstlineno
    return "\n".join([message.strip(), *rest])


def test_a_loop_over_ndrange_is_a_region_and_the_rest_is_host_code():
    def kernel(w, k, eps):
        _, C, T = k.shape
        out = torch.empty_like(k)
        for c, t in weft.ndrange(C, T):
            s = eps
            for u in range(t + 1):
                s += w[c, u] * k[0, c, u]
            out[0, c, t] = s
        return out

    parts = parts_of(kernel)
    (region,) = parts.regions
    assert names(region) == ["C", "T", "eps", "w", "k", "out"]
    assert region.results == []
    assert parts.returns == [Returned.tensors(1)]
    assert parts.mutated == frozenset()
    calls = []
    k = torch.ones(2, 3, 4)
    result = parts.host([lambda *args: calls.append(args)], "w", k, 0.5)
    assert calls == [(3, 4, 0.5, "w", k, result)]


def test_every_kind_of_device_loop_and_of_host_loop():
    def kernel(x, n):
        for i in range(n):
            x[i] = 1
        for i in x:
            x[i] = 1
        for i in weft.grouped(x):
            x[i] = 1
        for _ in weft.serial(range(n)):
            for i in range(n):
                x[i] = 1
        for _ in weft.static(range(2)):
            x = x + 1
        while n:
            n -= 1
            for i in weft.ndrange(3):
                x[i] = 1
        if n:
            for i in range(n):
                x[i] = 1
        else:
            with torch.no_grad():
                for i in range(n):
                    x[i] = 1
        return x

    assert len(parts_of(kernel).regions) == 7


def test_an_alias_of_ndrange_is_known_by_what_it_is():
    from weft.lang.loops import ndrange as nd

    def kernel(x):
        for i in nd(3):
            x[i] = 1

    assert len(parts_of(kernel).regions) == 1


def test_captured_values_are_passed_and_known_names_are_not():
    offset = 2

    def kernel(x, y):
        for i in range(len(x)):
            y[i] = halves(x[i]) * SCALE + offset + CFG.eps + weft.sqrt(x[i]) + max(i, 1)

    (region,) = parts_of(kernel).regions
    captured = {arg.name for arg in region.args if arg.captured}
    assert captured == {"halves", "SCALE", "offset"}  # CFG is a class: its members are guarded
    assert names(region) == ["x", "halves", "SCALE", "offset", "y"]


def test_dotted_reads_are_passed_as_one_value():
    def kernel(self, cfg, x):
        for i in range(self.n):
            x[i] = cfg.inner.eps * self.scale + x.shape[0] + cfg.get(i)

    (region,) = parts_of(kernel).regions
    # x.shape is known from x; the object of a method call is passed whole.
    assert names(region) == ["self.n", "cfg.inner.eps", "self.scale", "cfg", "x"]


def test_reductions_are_results_and_loop_variables_are_not():
    def kernel(x):
        s, m, t = 0.0, x[0], 1
        for i in range(len(x)):
            t = x[i] * 2
            s += t
            m = max(m, t)
        return s, m

    parts = parts_of(kernel)
    (region,) = parts.regions
    assert region.results == ["s", "m"]
    assert names(region) == ["x", "s", "m"]
    assert parts.returns == [Returned.tensors(2)]
    assert parts.host([lambda *args: ("sum", "most")], torch.ones(3)) == ("sum", "most")


def test_a_host_name_assigned_anew_in_each_iteration_is_private():
    def kernel(x, y):
        t = 0
        for i in range(len(x)):
            t = x[i]
            y[i] = t

    (region,) = parts_of(kernel).regions
    assert region.results == []
    assert names(region) == ["x", "y"]


def test_the_host_function_keeps_defaults_keywords_closures_and_docstring():
    depth = [7]

    def kernel(a, b=2, *rest, c=3, **more):
        "What it does."
        return a, b, rest, c, more, depth[0], SCALE

    host = parts_of(kernel).host
    assert host((), 1, c=5, d=6) == (1, 2, (), 5, {"d": 6}, 7, 3.0)
    assert host.__doc__ == "What it does."
    depth[0] = 8
    assert host((), 1, 2, 3)[2:] == ((3,), 3, {}, 8, 3.0)


def test_private_names_of_a_class_are_mangled():
    class Model:
        def __init__(self):
            self.__secret = 5

        def kernel(self):
            return self.__secret

    assert parts_of(Model.kernel).host((), Model()) == 5


def test_a_traceback_shows_the_line_and_the_place():
    def kernel(x):
        n = len(x)
        return n / 0

    with pytest.raises(ZeroDivisionError) as caught:
        parts_of(kernel).host((), [1])
    (frame,) = traceback.extract_tb(caught.value.__traceback__)[-1:]
    assert frame.filename == __file__
    assert frame.line == "return n / 0"
    assert frame.lineno == kernel.__code__.co_firstlineno + 2
    text = "".join(traceback.format_exception(caught.value))
    assert "           ~~^~~" in text


# --- what is written ------------------------------------------------------------
def written(function):
    return parts_of(function).mutated


def test_stores_in_device_loops_are_mutations():
    def kernel(x, y, z, n):
        for i in range(n):
            x[i] = 1
            y[i] += z[i]

    assert written(kernel) == {"x", "y"}


def test_mutations_are_seen_through_views_and_aliases():
    def kernel(x, y, z, w):
        v = x.view(-1)
        u = y if z is None else v.t()
        a, b = z[0], w.clone()
        for i in range(3):
            u[i] = 1
            b[i] = 1
        a.add_(1)

    assert written(kernel) == {"x", "y", "z"}


def test_fresh_tensors_and_scalars_are_not_mutations():
    def kernel(x, eps):
        out = torch.empty_like(x)
        twice = x * 2
        s = eps
        for i in range(3):
            out[i] = 1
            twice[i] = eps
            t = x[i]
            t += 1
            s += t
        return out

    assert written(kernel) == frozenset()


def test_in_place_methods_out_and_atomics_are_mutations():
    def kernel(a, b, c, d, e):
        a.fill_(0)
        torch.add(b, 1, out=c)
        torch.relu_(d)
        for i in range(3):
            weft.atomic_add(e[i], 1)

    assert written(kernel) == {"a", "c", "d", "e"}


def test_host_stores_and_augmented_assignments_are_mutations():
    def kernel(x, y, z):
        x[0] = 1.0
        y += 1
        n = z.shape[0]
        n += 1
        return n

    assert written(kernel) == {"x", "y"}


def test_mutation_inside_a_called_function():
    def kernel(x, y):
        for i in range(3):
            fill_first(x, y[i])

    assert written(kernel) == {"x"}


def test_mutation_through_unpacked_arguments():
    def kernel(x, y, z):
        pair = (x, 1.0)
        fill_first(*pair)
        named = {"y": y}
        for i in range(3):
            fill_first(value=z[i], **named)

    assert written(kernel) == {"x", "y", "z"}


def bent(x, i):
    v = weft.Vector([x[i, 0], x[i, 1]])
    v[0] += 1
    return v


def first_row(x, y):
    y[0] += x[0]
    return x[0]


def test_vectors_are_values_also_those_that_a_function_returns():
    def kernel(x, y, z):
        out = torch.empty_like(x)
        for i in range(3):
            v = bent(x, i)
            v[1] -= x[i, 1]
            m = weft.Matrix([[x[i, 0], 0.0], [0.0, 1.0]])
            m[0, 1] = v[0]
            out[i, 0] = m[0, 1]
        row = first_row(y, z)
        row += 1
        return out

    assert written(kernel) == {"y", "z"}


# --- what is refused ------------------------------------------------------------
def test_refused_name_read_after_the_loop():
    def kernel(x):
        for i in range(len(x)):
            t = x[i]
            x[i] = t
        return t

    line = kernel.__code__.co_firstlineno + 1
    assert error_text(KernelNameError, kernel) == (
        f"in kernel `kernel`: `t` is read after the device loop that assigns it (line {line})\n"
        "    return t\n"
        "           ^\n"
        "help: each iteration has a `t` of its own: store it in a tensor, or accumulate into a "
        "value from before the loop (`t += ...`; of a place, after one that finds the value: "
        "`t = min(t, i)`)"
    )


def test_refused_index_read_after_the_loop():
    def kernel(x):
        for i, j in x:
            x[i, j] = 0.0
        return j

    assert error_text(KernelNameError, kernel).endswith(
        "help: each iteration has a `j` of its own: store it in a tensor, or write what it is "
        "last, by the bounds of the loop"
    )


def test_refused_name_read_in_the_next_round_of_a_host_loop():
    def kernel(x, n):
        last = 0
        for _ in weft.serial(range(n)):
            print(last)
            for i in range(3):
                last = x[i]
                x[i] = last

    assert "`last` is read after the device loop" in error_text(KernelNameError, kernel)


def test_a_name_assigned_again_by_the_host_may_be_read():
    def kernel(x):
        for i in range(3):
            t = x[i]
            x[i] = t
        t = 5
        for i in range(3):
            x[i] += t
        return t

    assert len(parts_of(kernel).regions) == 2


def test_refused_loop_over_something_else():
    def kernel(x):
        for i in zip(x, x, strict=True):
            print(i)

    assert error_text(KernelSyntaxError, kernel) == (
        "in kernel `kernel`: a kernel cannot loop over `zip(x, x, strict=True)`\n"
        "    for i in zip(x, x, strict=True):\n"
        "             ^^^^^^^^^^^^^^^^^^^^^^\n"
        "help: a device loop goes over range(...), weft.ndrange(...) or a tensor; write "
        "`for ... in weft.serial(...)` for a loop of the host part"
    )


def test_refused_else_of_a_device_loop():
    def kernel(x):
        for i in range(3):
            x[i] = 1
        else:
            x[0] = 2

    assert error_text(KernelSyntaxError, kernel) == (
        "in kernel `kernel`: `else` of a device loop\n"
        "    x[0] = 2\n"
        "    ^^^^^^^^\n"
        "help: write the statements after the loop: it cannot be left by `break`"
    )


def test_refused_return_in_a_device_loop():
    def kernel(x):
        for i in range(3):
            return x[i]
        return None

    assert error_text(KernelSyntaxError, kernel) == (
        "in kernel `kernel`: `return` inside a device loop\n"
        "    return x[i]\n"
        "    ^^^^^^^^^^^\n"
        "help: store the result in a tensor and return that after the loop"
    )


REFUSED = {
    "yield x": (
        "`yield` in a kernel, or in a function that it defines", "yield x",
        "both run to their end: return tensors, from such a function a list"),
    "global SCALE; SCALE = 1": (
        "`global` in a kernel", "global SCALE", "return the value, or write it into a tensor"),
    "class A: pass": (
        "a class defined inside a kernel", "class A: pass", "define it outside of the kernel"),
    "def f(y=x): pass": (
        "a function defined inside a kernel", "def f(y=x): pass",
        "define it outside of it, or in the loops: the host part may define what device loops "
        "alone call, its defaults constants"),
}  # fmt: skip


@pytest.mark.parametrize("statement", REFUSED)
def test_refused_statement(statement, tmp_path):
    file = tmp_path / "refused.py"
    file.write_text(f"def kernel(x):\n    {statement}\n")
    scope = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)
    message, marked, help = REFUSED[statement]
    with pytest.raises(KernelSyntaxError) as caught:
        parts_of(scope["kernel"])
    assert str(caught.value) == textwrap.dedent(f"""\
        {file}:2: in kernel `kernel`: {message}
            {statement}
            {"^" * len(marked)}
        help: {help}""")
    assert (caught.value.lineno, caught.value.offset) == (2, 5)


def test_a_generator_function_of_the_host_part_is_refused() -> None:
    @weft.kernel
    def called(x):
        def numbers(n):
            yield n

        for i in x:
            for v in numbers(3):
                x[i] += v

    with pytest.raises(KernelSyntaxError) as caught:
        called(torch.zeros(2))
    message, _, help = REFUSED["yield x"]
    assert (caught.value.message, caught.value.help) == (message, help)


@weft.kernel
def halved(x, n: int):
    """Divide and conquer: the kernel calls itself in its host part."""
    if x.shape[0] == 1:
        return x + n
    half = x.shape[0] // 2
    left, right = halved(x[:half], 2 * n), halved(x[half:], 2 * n + 1)
    out = torch.empty_like(x)
    for i in range(half):
        out[i] = left[i] * 2.0
        out[half + i] = right[i] - left[i]
    return out


@weft.kernel
def counted_down(x, n: int):
    for i in x:
        x[i] += n
    if n > 1:
        counted_down(x, n - 1)


def test_a_kernel_calls_itself_in_its_host_part() -> None:
    x = torch.arange(8.0)
    assert torch.equal(halved(x, 1), halved.interpret(x, 1))
    x = torch.zeros(3)
    counted_down(x, 4)
    assert x.tolist() == [10.0, 10.0, 10.0]
    assert counted_down.mutated == {"x"}

    @weft.kernel
    def inner(x, n: int):  # its own name is a closure variable
        y = torch.empty_like(x)
        for i in y:
            y[i] = x[i] * 2.0
        return inner(y, n - 1) if n else y

    x = torch.ones(2, requires_grad=True)
    inner(x, 2).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [8.0, 8.0]


class Recursive:
    step = 1.0

    @weft.kernel
    def down(self, x, n: int):
        for i in x:
            x[i] += self.step
        return self.down(x, n - 1) if n else x


def test_a_method_calls_itself() -> None:
    assert Recursive().down(torch.zeros(2), 3).tolist() == [4.0, 4.0]
