"""Races that index sets cannot decide, found at run time by debug mode: as ``interpret`` does."""

import dataclasses
import re
from functools import partial
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weft
from examples import gallery
from tests.cuda.emulator import emulated
from tests.fuzz.check import function

debug = weft.kernel(debug=True)


def outcome(kernel, args):
    """What a call on copies gives: the error's text, or the tensors after it."""
    copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    try:
        kernel(*copies)
    except weft.RaceError as error:
        return str(error)
    return [a.tolist() for a in copies if isinstance(a, torch.Tensor)]


def scatter(x, idx, out):
    for i in range(x.shape[0]):
        out[idx[i]] = x[i]


def rows(x, idx, out):
    for i, j in weft.ndrange((1, x.shape[0]), x.shape[0]):
        out[idx[i]] = x[j]


def lattice(x, idx, out):
    for i in weft.grouped(x):
        out[idx[i]] = x[i]


def stepped(x, idx, out):
    for i in range(1, x.shape[0], 2):
        out[idx[i]] += x[i]
        out[idx[i]] *= 2


def gather_own(x, idx, out):
    for i in range(x.shape[0]):
        out[i] = x[i] + out[idx[i]]


def two_updates(x, idx, out):
    for i in range(x.shape[0]):
        weft.atomic_max(out[idx[i]], x[i])
        if i > 2:
            weft.atomic_min(out[idx[i]], x[i])


def divided(x, idx, out):
    for i in range(x.shape[0]):
        out[idx[i]] /= x[i] + 1


def conditional(x, idx, out):
    for i in range(x.shape[0]):
        if x[i] > 1:
            out[idx[i]] = out[i]


def inner_loop(x, idx, out):
    for i in range(x.shape[0]):
        j = 0
        while j < 2:
            out[idx[(i + j) % x.shape[0]]] = x[i]
            j += 1


def updates_meet(x, idx, out):
    for i in range(x.shape[0]):
        out[idx[i]] += x[i]
        out[idx[i]] -= 1


def exchanges_meet(x, idx, out):
    for i in range(x.shape[0]):
        before = weft.atomic_exchange(out[idx[i]], x[i])
        weft.atomic_cas(out[idx[i]], before, x[i])
        weft.atomic_add(out[idx[i]], 0.0)


def own_elements(x, idx, out):
    for i in range(x.shape[0]):
        out[idx[4 - i] // 4 + i] = x[i]
        out[idx[4 - i] // 4 + i] += out[i] * out[i + idx[0] // 4]


def swapped(x, idx, out):
    for i in range(x.shape[0]):
        weft.atomic_cas(out[idx[i]], 0.0, x[i])
        out[i] = 1.0


def exchanged(x, idx, out):
    for i in range(x.shape[0]):
        weft.atomic_exchange(out[idx[i]], x[i])
        out[i] = 1.0


RACING = [
    swapped, exchanged, scatter, rows, lattice, stepped, gather_own, two_updates, divided,
    conditional, inner_loop,
]  # fmt: skip


@pytest.mark.parametrize("plain", RACING, ids=lambda f: f.__name__)
def test_the_text_is_that_of_interpret(plain):
    args = torch.arange(5.0), torch.tensor([0, 1, 3, 1, 1]), torch.zeros(5)
    expected = outcome(weft.kernel(plain).interpret, args)
    assert "in a loop whose iterations run at once\n    " in expected
    name = {"swapped": "atomic_cas", "exchanged": "atomic_exchange"}.get(plain.__name__)
    assert name is None or f"updates (by {name})" in expected
    assert outcome(debug(plain), args) == expected


@pytest.mark.cpu
@pytest.mark.parametrize("plain", RACING, ids=lambda f: f.__name__)
def test_before_a_launch_on_a_gpu_the_text_is_the_same_and_nothing_is_written(plain):
    args = torch.arange(5.0), torch.tensor([0, 1, 3, 1, 1]), torch.zeros(5)
    on_gpu = emulated(weft.kernel(plain), debug=True)
    assert outcome(on_gpu, args) == outcome(debug(plain), args)
    with pytest.raises(weft.RaceError):
        on_gpu(*args)
    assert args[2].tolist() == [0.0] * 5
    apart = torch.arange(5.0), torch.tensor([2, 0, 4, 1, 3]), torch.zeros(5)
    assert outcome(on_gpu, apart) == outcome(debug(plain), apart)


@pytest.mark.cpu
def test_what_checks_for_a_gpu_prints_nothing_and_draws_the_same_numbers(capfd):
    def drawn(out):
        for i in range(out.shape[0]):
            k = weft.randint(0, 1000000) % out.shape[0]
            print("drawn", k)
            out[k] = i

    kernel, on_cpu = emulated(weft.kernel(drawn), debug=True), debug(drawn)
    for n, seed in ((2, 0), (2, 1), (2, 2), (9, 3)):
        found, states, printed = [], [], []
        for each in (on_cpu, kernel):
            torch.manual_seed(seed)
            capfd.readouterr()
            found.append(outcome(each, (torch.zeros(n),)))
            printed.append(capfd.readouterr().out.count("drawn"))
            states.append(torch.get_rng_state().tolist())
        assert found[0] == found[1]
        assert states[0] == states[1]
        assert printed[1] == (0 if isinstance(found[0], str) else n)


@pytest.mark.cpu
def test_memory_that_overlaps_does_so_in_the_copies():
    def copy(x, y):
        for i in range(x.shape[0]):
            y[i] = x[i] + 1

    base = torch.arange(6.0)
    on_gpu = emulated(weft.kernel(copy), debug=True)
    for x, y in ((base[:-1], base[1:]), (base[1:], base[:-1]), (base[::2], base[1::2])):
        found = []
        for kernel in (debug(copy), on_gpu):
            base.copy_(torch.arange(6.0))
            try:
                kernel(x, y)
                found.append(base.tolist())
            except weft.RaceError as error:
                found.append(str(error))
        assert found[0] == found[1]


@pytest.mark.parametrize("plain", [updates_meet, exchanges_meet, own_elements])
def test_what_may_meet_is_no_error(plain):
    args = torch.arange(5.0), torch.tensor([0, 1, 3, 1, 1]), torch.zeros(5)
    expected = outcome(weft.kernel(plain).interpret, args)
    assert isinstance(expected, list)
    assert outcome(debug(plain), args) == expected


def test_the_whole_text():
    with pytest.raises(weft.RaceError) as caught:
        debug(scatter)(torch.ones(3), torch.tensor([0, 0, 1]), torch.zeros(3))
    assert str(caught.value).partition(": ")[2] == (
        "in kernel `scatter`: iterations 0 and 1 both write `out[0]`, in a loop whose iterations "
        "run at once\n"
        "    out[idx[i]] = x[i]\n"
        "    ^^^^^^^^^^^\n"
        "help: write to an element of the iteration's own, add with `+=`, read from a copy, or "
        "run the loop in order: weft.loop_config(serialize=True) on the line before it"
    )
    assert caught.value.span.line == scatter.__code__.co_firstlineno + 2


@pytest.mark.parametrize("step", [-1, -2, 3])
def test_a_loop_that_goes_down_or_steps_names_real_indices(step):
    def down(x, idx, out, start, stop, step):
        for i in range(start, stop, step):
            out[idx[i]] = x[i]

    def known(x, idx, out):
        for i in range(x.shape[0] - 1, -1, -1):
            out[idx[i]] = x[i]

    start, stop = (0, 12) if step > 0 else (11, -1)
    indices = list(range(start, stop, step))
    a, b = sorted((indices[1], indices[3]))
    idx = torch.arange(12)
    idx[a] = idx[b]
    text = f"iterations {a} and {b} both write `out[{b}]`"
    out = torch.zeros(12)
    with pytest.raises(weft.RaceError, match=re.escape(text)):
        debug(known)(torch.ones(12), idx, out)
    kernel = debug(down)
    with pytest.raises(weft.RaceError, match=re.escape(text)):
        kernel(torch.ones(12), idx, out, start, stop, step)
    out = torch.zeros(12)
    kernel(torch.ones(12), torch.arange(12), out, start, stop, step)
    assert out.nonzero().flatten().tolist() == sorted(indices)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_find_the_race_of_two_iterations(threads):
    kernel, n = debug(scatter), 200_000
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(5):
            idx = torch.randperm(n)
            a, b = sorted(torch.randperm(n)[:2].tolist())
            x, out = torch.randn(n), torch.empty(n)
            kernel(x, idx, out)
            assert torch.equal(out[idx], x)
            idx[a] = idx[b]
            with pytest.raises(weft.RaceError) as caught:
                kernel(x, idx, out)
            text = f"iterations {a} and {b} both write `out[{int(idx[b])}]`"
            assert text in str(caught.value)
    finally:
        torch.set_num_threads(before)


def test_threads_find_a_read_of_what_another_iteration_writes():
    @debug
    def shift(idx, out):
        for i, j in weft.ndrange(idx.shape[0], 16):
            out[i, j] = out[idx[i], j] + 1

    n = 20_000
    out, idx = torch.zeros(n, 16), torch.arange(n)
    shift(idx, out)
    assert torch.equal(out, torch.ones(n, 16))
    for _ in range(5):
        a, b = torch.randperm(n)[:2].tolist()
        idx = torch.arange(n)
        idx[a] = b
        with pytest.raises(weft.RaceError) as caught:
            shift(idx, out)
        found = re.search(
            r"iteration \((\d+), (\d+)\) (\w+) and iteration \((\d+), (\d+)\) (\w+) "
            r"`out\[(\d+), (\d+)\]`", str(caught.value),
        )  # fmt: skip
        assert found is not None
        i, j, one, k, m, two, row, column = found.groups()
        sides = {one: (int(i), int(j)), two: (int(k), int(m))}
        assert (int(row), int(column)) == sides["writes"] == (b, int(column))
        assert sides["reads"] == (a, int(column))


DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.int16,
    torch.int32, torch.int64, torch.uint8, torch.bool,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.sampled(3)
def test_every_dtype_and_layout(dtype):
    @debug
    def put(x, idx, out):
        for i, j in x:
            out[idx[i], j] = x[i, j]

    x = torch.randint(0, 2, (5, 3)).to(dtype)
    idx = torch.randperm(5)
    zeros = partial(torch.zeros, dtype=dtype)
    for out in (zeros(5, 3), zeros(3, 5).T, zeros(11, 7)[1::2, 1:6:2], zeros(6, 4)[1:, 1:]):
        put(x, idx, out)
        assert torch.equal(out[idx], x)
        bad = idx.clone()
        bad[3] = bad[1]
        with pytest.raises(weft.RaceError, match=r"iterations \(1, 0\) and \(3, 0\) both write"):
            put(x, bad, out)


def test_arguments_that_are_one_memory():
    @debug
    def copy(x, y):
        for i in range(x.shape[0]):
            y[i] = x[i] + 1

    base = torch.arange(6.0)
    copy(base, base)
    assert base.tolist() == [1, 2, 3, 4, 5, 6]
    copy(base[::2], base[1::2])
    assert base.tolist() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(weft.RaceError, match=r"0 writes and iteration 1 reads `x\[1\]`"):
        copy(base[:-1], base[1:])
    with pytest.raises(weft.RaceError, match=r"0 writes and iteration 1 reads `x\[1\]`"):
        weft.kernel(copy.function).interpret(base[:-1], base[1:])
    wide = torch.arange(4, dtype=torch.int64)
    narrow = wide.view(torch.int16)
    copy(narrow[8:9], wide[:1])  # different elements of different sizes
    with pytest.raises(weft.RaceError, match="iteration 0 reads and iteration 1 writes"):
        copy(narrow[4::4], wide[:3])


@pytest.mark.cpu
def test_what_is_proven_or_local_costs_nothing():
    @debug
    def smooth(x, out):
        for i in range(1, x.shape[0] - 1):
            a = weft.zeros((3,), weft.f32)
            for k in range(3):
                a[k] = x[i + k - 1]
            out[i] = a[0] + a[1] + a[2]

    @debug
    def mixed(x, idx, out, other):
        for i in range(x.shape[0]):
            other[i] = x[i]
            out[idx[i]] = other[i]

    assert "weft.check_race" not in str(smooth.inspect(torch.ones(5), torch.zeros(5)))
    args = torch.ones(3), torch.arange(3), torch.zeros(3), torch.zeros(3)
    shown = mixed.inspect(*args)
    assert shown["ir after race_checks"].count("weft.check_race") == 1
    assert '"weft.check_race"(%out,' in shown["ir after race_checks"]
    assert "weft_met" in shown["llvm"]
    plain = weft.kernel(mixed.function).inspect(*args)
    assert "weft.check_race" not in str(plain)


def test_functions_that_are_called_and_five_dimensions():
    def put(t, k, v):
        t[k] = v

    @debug
    def deep(x, idx, out):
        for a, b, c, d, e in x:
            put(out, idx[a + b + c + d + e], x[a, b, c, d, e])

    x = torch.zeros(1, 2, 2, 1, 2)
    with pytest.raises(weft.RaceError) as caught:
        deep(x, torch.tensor([0, 1, 2, 3]), torch.zeros(4))
    assert (
        str(caught.value)
        .partition("`deep`: ")[2]
        .startswith("iterations (0, 0, 0, 0, 1) and (0, 0, 1, 0, 0) both write `t[1]`, in a loop")
    )
    assert caught.value.span.text.strip() == "t[k] = v"


def test_a_second_call_begins_anew_and_a_gradient_is_checked_too():
    kernel = debug(scatter)
    x = torch.randn(4, requires_grad=True)
    out = torch.zeros(4)
    for _ in range(2):
        kernel(x.detach(), torch.tensor([3, 1, 0, 2]), out)
    out = torch.zeros(4)
    kernel(x, torch.tensor([3, 1, 0, 2]), out)
    out.sum().backward()
    assert x.grad.tolist() == [1, 1, 1, 1]
    with pytest.raises(weft.RaceError, match="iterations 1 and 3 both write"):
        kernel(x, torch.tensor([3, 1, 0, 1]), torch.zeros(4))


def test_inside_torch_compile():
    kernel = debug(scatter)

    def call(x, idx, out):
        kernel(x, idx, out)
        return out + 1

    compiled = torch.compile(call, fullgraph=True, backend="eager")
    args = torch.ones(3), torch.tensor([2, 0, 1]), torch.zeros(3)
    assert compiled(*args).tolist() == [2, 2, 2]
    with pytest.raises(weft.RaceError, match="iterations 0 and 2 both write"):
        compiled(torch.ones(3), torch.tensor([1, 0, 1]), torch.zeros(3))


@pytest.mark.parametrize("example", gallery.EXAMPLES, ids=lambda e: e.kernel.__name__)
def test_the_gallery_has_no_races(example):
    kernel = debug(example.kernel.function)
    gallery.compare(dataclasses.replace(example, kernel=kernel), 17)


STATEMENTS = [
    "out[{a}] = x[{b}] + k", "out[{a}] = out[{b}] + k", "out[{a}] += x[{b}]", "out[{a}] *= 0.5",
    "s += out[{a}]", "two[{b}, {a}] = s", "s -= two[{a}, {b}]", "weft.atomic_max(two[0, {a}], s)",
    "weft.atomic_add(out[{a}], s)", "weft.atomic_cas(out[{a}], s, k)", "x[{a}] = two[{b}, 0]",
    "weft.atomic_exchange(x[{a}], s)",
]  # fmt: skip
HEADS = {
    "for k in range(1, 5):": "k", "for k, m in weft.ndrange(3, 2):": "k + m",
    "for k in weft.ndrange((0, 4)):": "k",
}  # fmt: skip


def random_text(random):
    """A kernel that touches elements which only the data tells, sometimes in branches and loops."""
    head = random.choice(list(HEADS))
    places = ["p[k]", "q[k]", f"p[{HEADS[head]}]", "k", "p[q[k]]", "0"]
    lines = ["def kernel(x, out, two, p, q):", f"    {head}", "        s = 1.0"]
    indent = " " * 8
    for _ in range(random.randint(1, 4)):
        draw = random.random()
        if draw < 0.2:
            lines.append(f"{indent}if x[q[k]] > 0:")
        elif draw < 0.4:
            lines.append(f"{indent}for j in range(q[k] - 3):")
        text = random.choice(STATEMENTS)
        inner = "    " * (draw < 0.4)
        filled = text.format(a=random.choice(places[:3]), b=random.choice(places))
        lines.append(indent + inner + filled)
    return "\n".join(lines) + "\n"


@pytest.mark.sampled(5)
@pytest.mark.parametrize("part", range(5))
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # fmt: skip
@given(seed=st.integers(0, 1 << 40))
def test_random_kernels_race_where_the_python_does(device, part, seed):
    random = Random(seed)
    text = random_text(random)
    plain = function(text)
    compiled, interpreted = debug(plain), weft.kernel(plain).interpret
    for shuffled in (True, True, False):
        if shuffled:
            p, q = (
                torch.tensor(random.sample(range(8), 8)),
                torch.tensor(random.sample(range(8), 8)),
            )
        else:
            p, q = (torch.tensor([random.randrange(8) for _ in range(8)]) for _ in range(2))
        values = [random.uniform(-1, 1) for _ in range(8)]
        args = torch.tensor(values), torch.zeros(8), torch.zeros(8, 8), p, q
        try:
            found = outcome(compiled, args)
        except weft.RaceError:
            raise AssertionError from None
        expected = outcome(interpreted, args)
        if isinstance(found, str) and "in a loop whose iterations run at once" not in found:
            return  # proven, and refused by the compiler
        assert isinstance(found, str) == isinstance(expected, str), f"{text}\n{found}\n{expected}"
        # What is left of exchanges that meet depends on their order, which is open on a GPU.
        if isinstance(found, list) and (device == "cpu" or "atomic_" not in text):
            assert all(
                torch.allclose(torch.tensor(a), torch.tensor(b))
                for a, b in zip(found, expected, strict=True)
            ), text


def test_a_kernel_that_has_moved_names_its_new_line():
    text = "def kernel(x, idx):\n    for i in range(3):\n        x[idx[i]] = 1.0\n"
    asserted = text + "        assert x[idx[i]] < 0\n"
    args = torch.zeros(3), torch.tensor([0, 0, 1])

    def waited(kernel):
        kernel(*args)
        weft.sync()  # on a GPU, who waits hears of it

    for above in (0, 2):
        with pytest.raises(weft.RaceError) as caught:
            debug(function("\n" * above + text))(*args)
        assert caught.value.span.line == above + 3
        with pytest.raises(weft.KernelAssertionError) as caught:
            waited(weft.kernel(function("\n" * above + asserted)))
        assert caught.value.span.line == above + 4
