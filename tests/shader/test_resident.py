"""Tensors and fields that live on a device between kernels: who has the newest elements, and what
is copied."""

from __future__ import annotations

import copy
import io
import random
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

import weft
from tests.conftest import adapter
from weft.lang.field import Field
from weft.lang.resident import Resident

pytestmark = [pytest.mark.webgpu]


@pytest.fixture(autouse=True)
def found() -> None:
    adapter()


@weft.kernel
def _add_one(x):
    for i in range(x.shape[0]):
        x[i] += 1


@weft.kernel
def _doubled(x):
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = 2 * x[i]
    return out


@weft.kernel
def _doubled_into(x, make):
    out = make(x)  # by Python, at each call
    for i in range(x.shape[0]):
        out[i] += 2 * x[i]
    return out


doubled_into = _doubled_into.on("webgpu")
add_one, doubled = _add_one.on("webgpu"), _doubled.on("webgpu")


@pytest.fixture
def copied(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[tuple[int, int]]]]:
    """The bytes that each launch since the last call copied there and back. What all is already
    there says nothing."""

    def since() -> list[tuple[int, int]]:
        texts = [r.getMessage() for r in caplog.records if r.name == "weft.launch"]
        caplog.clear()
        words = [t.split() for t in texts if " copied there" in t]
        return [(int(w[w.index("bytes") - 1]), int(w[-2])) for w in words]

    with caplog.at_level("DEBUG", "weft.launch"):
        yield since


def buffer(x: torch.Tensor) -> torch.Tensor:
    from weft import webgpu

    return webgpu.buffer(x)


def plain(x: torch.Tensor) -> torch.Tensor:
    return x.as_subclass(torch.Tensor).clone()


def test_elements_stay_between_kernels(copied) -> None:
    start = torch.randn(50)
    x = buffer(start)
    for _ in range(5):
        add_one(x)
    assert copied()[0] == (200, 0)
    for _ in range(4):  # what a kernel makes like it lives there, too
        y = doubled(x)
        z = doubled(y)
        assert isinstance(z, Resident)
    assert all(pair == (0, 0) for pair in copied())
    torch.testing.assert_close(plain(z), 4 * (start + 5))


READS = {
    "sum": lambda x: x.sum().item(),
    "element": lambda x: x[3].item(),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy().copy(),
    "asarray": lambda x: np.asarray(x).copy(),
    "detach": lambda x: x.detach().clone(),
    "data": lambda x: x.data.clone(),
    "clone": lambda x: plain(x.clone()),
    "double": lambda x: x.double(),
    "stack": lambda x: torch.stack([x, x]),
    "out": lambda x: torch.add(torch.zeros(20), x, out=torch.empty(20)),
    "copy_": lambda x: torch.empty(20).copy_(x),
    "equal": lambda x: torch.equal(x, torch.ones(20)),
    "list": lambda x: [float(v) for v in x],
    "repr": lambda x: repr(x),
    "format": lambda x: f"{x}",
    "storage": lambda x: list(x.untyped_storage()),
    "dlpack": lambda x: torch.from_dlpack(x).clone(),
    "deepcopy": lambda x: plain(copy.deepcopy(x)),
    "vmap": lambda x: torch.vmap(lambda v: v * 2)(x),
    "derivative": lambda x: torch.func.grad(lambda v: (v * v).sum())(x),
    "kernel": lambda x: _doubled(x),
    "view": lambda x: x[2:9].clone(),
    "cpu": lambda x: x.cpu().sum(),
    "mean": lambda x: torch.nn.functional.softmax(x, 0),
    "saved": lambda x: _saved(x),
    "interpreted": lambda x: _doubled.interpret(x),
}


def _saved(x: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file)


def _same(one: object, two: object) -> None:
    if isinstance(one, torch.Tensor):
        assert torch.equal(plain(one), plain(two)), (one, two)  # type: ignore[arg-type]
    elif isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, two)
    else:
        assert one == two


@pytest.mark.parametrize("name", READS)
def test_what_reads_finds_the_newest(name: str) -> None:
    start = torch.arange(20.0)
    x, expected = buffer(start), start + 2
    add_one(x)
    add_one(x)
    _same(READS[name](x), READS[name](expected))
    add_one(x)
    _same(READS[name](x), READS[name](expected + 1))
    assert torch.equal(plain(x), start + 3)


def _in_place(change: Callable[[torch.Tensor], object]) -> Callable[[torch.Tensor], None]:
    def changed(x: torch.Tensor) -> None:
        change(x)

    return changed


WRITES = {
    "add_": lambda x: x.add_(3),
    "element": lambda x: x.__setitem__(4, 9.0),
    "slice": lambda x: x[3:8].mul_(2),
    "data": lambda x: x.data.fill_(5),
    "detach": lambda x: x.detach().zero_(),
    "numpy": lambda x: np.add(x.numpy(), 1, out=x.numpy()),
    "out": lambda x: torch.mul(torch.ones(20), 7, out=x),
    "foreach": lambda x: torch._foreach_add_([x], 2.0),
    "copy_": lambda x: x.copy_(torch.arange(20.0) + 100),
    "sort": lambda x: torch.sort(-x, out=(x, torch.empty(0, dtype=torch.int64))),
    "storage": lambda x: x.untyped_storage().fill_(0),
    "dlpack": lambda x: torch.from_dlpack(x).add_(1),
    "kernel": lambda x: _add_one(x),
    "optimizer": lambda x: _stepped(x),
    "interpreted": lambda x: _add_one.interpret(x),
    "apply_": lambda x: x.apply_(lambda v: v + 3),
}


def _stepped(x: torch.Tensor) -> None:
    x.requires_grad_()
    x.grad = torch.ones(20)
    torch.optim.SGD([x], lr=0.5).step()
    x.requires_grad_(False)


@pytest.mark.parametrize("name", WRITES)
def test_what_writes_is_known_to_the_next_kernel(name: str) -> None:
    expected = torch.arange(20.0)
    x = buffer(expected)
    for _ in range(2):
        add_one(x)
        _add_one(expected)
        WRITES[name](x)
        WRITES[name](expected)
    add_one(x)
    _add_one(expected)
    assert torch.equal(plain(x), expected)


ALIASES = {
    "view": lambda x: x[2:9],
    "alias": lambda x: x.as_subclass(torch.Tensor),
    "copy": copy.copy,
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "numpy": lambda x: torch.from_numpy(x.numpy()),
    "dlpack": lambda x: torch.from_dlpack(x),
    "storage": lambda x: torch.tensor([]).set_(x.untyped_storage()),
}


@pytest.mark.parametrize("name", ALIASES)
def test_what_shares_memory_is_never_stale(name: str, copied) -> None:
    """In both directions, as long as it is there; then elements stay on the device again."""
    x, expected = buffer(torch.arange(20.0)), torch.arange(20.0)
    add_one(x), _add_one(expected)
    alias, other = ALIASES[name](x), ALIASES[name](expected)
    for _ in range(2):
        add_one(x), _add_one(expected)
        assert torch.equal(alias, other)
        alias.mul_(2), other.mul_(2)
    add_one(x), _add_one(expected)
    copied()
    del alias, other
    add_one(x), add_one(x), _add_one(expected), _add_one(expected)
    assert copied() == [(80, 0)]
    assert torch.equal(plain(x), expected)


def test_an_address_that_is_known_is_always_up_to_date() -> None:
    import ctypes

    x = buffer(torch.zeros(4))
    memory = (ctypes.c_float * 4).from_address(x.data_ptr())
    for n in range(3):
        add_one(x)
        assert list(memory) == 4 * [n + 1.0]
    memory[2] = 40.0
    add_one(x)
    assert x.tolist() == [4, 4, 41, 4]


def test_gradients_of_what_lives_there() -> None:
    start = torch.randn(30)
    x = buffer(start).requires_grad_()
    for n in (1, 2, 3, 4):
        y = doubled(doubled(x))
        (y * y).sum().backward()
        torch.testing.assert_close(x.grad, n * 32 * start)
    assert isinstance(y, Resident)


@weft.kernel
def squared(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] * x[i]
    return out


def test_a_gradient_copies_nothing(copied) -> None:
    """The gradient's loops asked for addresses, from which on what lived there was copied."""
    x, w = buffer(torch.randn(20)).requires_grad_(), buffer(torch.randn(20))
    kernel = squared.on("webgpu")
    for turn in range(3):
        (found,) = torch.autograd.grad(kernel(x), x, w)
        moved = copied()
        assert not turn or set(moved) <= {(0, 0)}
    expected = 2 * plain(x).detach() * plain(w)
    torch.testing.assert_close(plain(found), expected)
    (again,) = torch.autograd.grad(squared.on("cpu")(x), x, w)
    torch.testing.assert_close(plain(again), expected)


def test_the_gradient_that_torch_accumulates_may_live_there() -> None:
    x = buffer(torch.ones(5)).requires_grad_()
    x.grad = buffer(torch.zeros(5))
    with torch.no_grad():
        add_one(x.grad)
    (x * 3).sum().backward()  # adds in C++
    with torch.no_grad():
        add_one(x.grad)
    assert x.grad.tolist() == 5 * [5.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8, torch.bool, torch.int32])
@pytest.mark.parametrize("n", [0, 1, 3, 17])
def test_sizes_and_dtypes(dtype: torch.dtype, n: int) -> None:
    x = buffer(torch.ones(n, dtype=dtype))
    y = doubled(x)
    assert torch.equal(plain(y), _doubled(torch.ones(n, dtype=dtype)))
    assert torch.equal(plain(x), torch.ones(n, dtype=dtype))


def test_strides_are_kept() -> None:
    start = torch.randn(7, 5).t()
    x = buffer(start)
    assert x.stride() == start.stride()
    assert torch.equal(plain(x), start)
    wide = buffer(torch.ones(1).expand(4))
    add_one(wide)
    assert wide.tolist() == [2, 2, 2, 2]


def test_memory_that_is_gone_is_taken_for_others() -> None:
    """An address of a tensor that is gone says nothing of the next one there."""
    for n in range(20):
        x = buffer(torch.full((64,), float(n)))
        add_one(x)
        assert x[5] == n + 1
        del x
        fresh = torch.full((64,), 100.0 + n)
        add_one(fresh)
        assert fresh[5] == 101 + n


def test_a_tensor_keeps_its_memory() -> None:
    x = buffer(torch.zeros(4))
    for move in (
        lambda: setattr(x, "data", torch.ones(3)),
        lambda: x.resize_(9),
        lambda: x.set_(torch.ones(3)),
        lambda: x.as_strided_((2,), (1,), 1),
        lambda: x.share_memory_(),
    ):
        with pytest.raises(weft.KernelTypeError, match=r"keeps its memory.*\n.*x.copy_\(y\)"):
            move()
    with pytest.raises(weft.KernelTypeError, match="a list has no buffer"):
        buffer([1, 2])  # type: ignore[arg-type]
    with pytest.raises(weft.KernelValueError, match="the tensor is on meta"):
        buffer(torch.zeros(3, device="meta"))


@weft.kernel
def _weighed(x, w):
    out = x.new_zeros(x.shape[0])
    for i in range(x.shape[0]):
        for k in range(x.shape[1]):
            out[i] += x[i, k] * w[k]
    return out


def test_parameters_of_modules_live_there(copied) -> None:
    given, wanted, results = torch.randn(8, 5), torch.randn(8), []
    begin = torch.randn(5)
    for kernel, place in ((_weighed, torch.clone), (_weighed.on("webgpu"), buffer)):
        module = torch.nn.ParameterDict({"w": torch.nn.Parameter(place(begin))})
        module = copy.deepcopy(module)
        optimizer, x = torch.optim.Adam(module.parameters(), 0.1), place(given)
        for _ in range(3):
            optimizer.zero_grad()
            (kernel(x, module["w"]) - wanted).square().mean().backward()
            optimizer.step()
        results.append(plain(module["w"].detach()))
    torch.testing.assert_close(*results)
    copied()
    with torch.no_grad():
        for _ in range(2):
            _weighed.on("webgpu")(x, module["w"])
    assert copied()[-1] == (32, 0)  # the zeros that the result begins with


def test_a_detached_tensor_keeps_what_the_first_one_had() -> None:
    x = buffer(torch.arange(300.0))
    y = doubled(x)
    z = y.detach()
    add_one(z)
    assert torch.equal(plain(y), 2 * torch.arange(300.0) + 1)
    home = y.home
    del y
    others = [doubled(x) for _ in range(3)]
    assert all(o.home is not home for o in others)
    add_one(z)
    assert torch.equal(plain(z), 2 * torch.arange(300.0) + 2)


SHAPES = {
    "t_": lambda x: x.t_(),
    "transpose_": lambda x: x.transpose_(0, 1),
    "swapaxes_": lambda x: x.swapaxes_(0, 1),
    "unsqueeze_": lambda x: x.unsqueeze_(1),
    "squeeze_": lambda x: x.unsqueeze_(0).squeeze_(0),
}


@pytest.mark.parametrize("name", SHAPES)
def test_an_operation_that_changes_the_shape_in_place_does_so(name: str) -> None:
    expected = torch.randn(2, 3)
    x = buffer(expected)
    doubled(x)
    SHAPES[name](x), SHAPES[name](expected)
    assert (x.shape, x.stride()) == (expected.shape, expected.stride())
    given = [x.tolist(), x.numpy(), x.clone(), x + 0, copy.deepcopy(x), doubled(x) / 2]
    assert all(torch.equal(torch.as_tensor(v), expected) for v in given)


def test_a_thousand_calls_wait_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.runtime.webgpu_device import Device, device

    x = buffer(torch.zeros(300))
    add_one(x)
    weft.sync()
    reads, submits = [], device().submits
    read = Device.read
    monkeypatch.setattr(Device, "read", lambda *args: (reads.append(args), read(*args))[1])
    groups = []
    group = Device.group
    monkeypatch.setattr(Device, "group", lambda *args: (groups.append(args), group(*args))[1])
    for _ in range(1000):
        add_one(x)
    assert not reads
    assert not groups  # nor is anything bound again
    assert device().submits - submits == 6  # of 16, 32, 64, 128, 256 and 256 calls
    weft.sync()
    assert len(reads) < 4  # with error records
    assert x[0] == 1001


def test_results_that_are_gone_lend_what_they_had(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.runtime.webgpu_device import device

    x = buffer(torch.arange(300.0))
    expected = 2 * torch.arange(300.0)
    for _ in range(3):
        doubled(x)
    found = [doubled(x) for _ in range(3)]  # all are kept
    assert len({y.home.buffer for y in found}) == 3
    for y in found:
        assert y.equal(expected)
    homes = {y.home for y in found}
    del found, y
    groups: list[object] = []
    group = type(device()).group
    monkeypatch.setattr(
        type(device()), "group", lambda *args: (groups.append(args), group(*args))[1]
    )
    for _ in range(50):
        y = doubled(x)  # the one before lives until this one is there
        assert y.home in homes
    assert len(groups) <= 3
    assert y.equal(expected)
    y = doubled(y)
    assert y.equal(2 * expected)


@pytest.mark.parametrize("make", [torch.zeros_like, lambda x: x.new_zeros(x.shape[0])])
def test_so_do_those_that_the_host_part_makes_by_python(make) -> None:
    x = buffer(torch.arange(300.0))
    expected = 2 * torch.arange(300.0)
    found = [doubled_into(x, make) for _ in range(3)]
    homes = {y.home for y in found}
    del found
    for _ in range(9):
        y = doubled_into(x, make)  # the one before lives until this one is there
        assert y.home in homes
    assert y.equal(expected)


@weft.kernel
def _tiled(x: torch.Tensor, n: int, m: int) -> torch.Tensor:
    out = x.new_zeros(n, m)
    for i, j in weft.ndrange(n, m):
        if i != j:
            out[i, j] = x[i % 2, j % 3] + n
    return out


@weft.kernel
def _turned(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(x.shape[1], x.shape[0], dtype=torch.int16)
    for i, j in weft.ndrange(x.shape[0], x.shape[1]):
        out[j, i] = 3 * x[i, j]
    return out


def test_results_of_sizes_of_their_own_are_made_without_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In half the time, once calls of these sizes were there a few times."""
    from weft.lang import resident

    tiled, turned = _tiled.on("webgpu"), _turned.on("webgpu")
    x, count, dispatched = weft.webgpu.buffer(torch.randn(2, 3)), 0, resident._dispatched

    def counted(*args: object) -> object:
        nonlocal count
        count += 1
        return dispatched(*args)  # type: ignore[arg-type]

    plain = x.as_subclass(torch.Tensor)
    for k in range(6):
        if k == 5:
            monkeypatch.setattr(resident, "_dispatched", counted)
        found = [(n, m, tiled(x, n, m)) for n, m in ((4, 5), (5, 4), (1, 1), (4, 5))]
        found_turned = turned(x), turned(weft.webgpu.buffer(plain.T.contiguous()))
        monkeypatch.undo()
        for n, m, result in found:
            assert type(result) is Resident
            assert torch.equal(result.as_subclass(torch.Tensor), _tiled(plain, n, m))
        for given, result in zip((plain, plain.T), found_turned, strict=True):
            assert result.tolist() == (3 * given).T.short().tolist()
    assert count == 0


def test_memory_of_results_is_not_lent_while_something_has_it() -> None:
    x = buffer(torch.arange(300.0))
    expected = 2 * torch.arange(300.0)
    kept: list[tuple[str, object]] = []
    kept.append(("a view", doubled(x)[3:]))
    kept.append(("an array", doubled(x).numpy()[3:]))
    kept.append(("a plain tensor", doubled(x).as_subclass(torch.Tensor)[3:]))
    kept.append(("detached", doubled(x).detach()[3:]))
    kept.append(("a capsule", torch.from_dlpack(doubled(x))[3:]))
    y = doubled(x)
    address = y.data_ptr()
    kept.append(("its address", y.home.memory.numpy()[3:]))
    del y
    x += 5
    for _ in range(20):
        y = doubled(x)
        assert y.home.address != address
        assert y.equal(expected + 10)
    for what, seen in kept:
        assert torch.as_tensor(seen).equal(expected[3:]), what
    views = [v for _, v in kept]
    for view in views:  # and what has it may change
        torch.as_tensor(view).zero_()
    assert doubled(x).equal(expected + 10)
    assert not any(torch.as_tensor(v).any() for v in views)


def test_a_result_that_is_gone_before_it_ran_is_what_the_next_kernel_reads() -> None:
    x = buffer(torch.arange(300.0))
    y = x
    for _ in range(6):  # each reads a result that is gone when it runs
        y = doubled(y)
    z = doubled(x)
    assert z.equal(2 * torch.arange(300.0))
    assert y.equal(64 * torch.arange(300.0))


def test_results_of_inference_are_not_lent_to_others() -> None:
    x = buffer(torch.arange(300.0))
    with torch.inference_mode():
        for _ in range(3):
            y = doubled(x)
    assert y.is_inference()
    del y
    for _ in range(3):
        y = doubled(x)
    assert not y.is_inference()
    w = torch.ones(300, requires_grad=True)
    (w * y).sum().backward()  # which saves it
    for _ in range(5):
        doubled(y)
    assert w.grad is not None
    assert w.grad.equal(2 * torch.arange(300.0))


def test_results_that_autograd_has_saved_stay() -> None:
    x = buffer(torch.arange(1.0, 301.0)).requires_grad_()
    y = doubled(x)
    loss = (y * y).sum()
    del y
    for _ in range(5):
        doubled(x.detach())
        doubled(x)
    loss.backward()
    assert x.grad is not None
    assert x.grad.equal(8 * torch.arange(1.0, 301.0))


def test_what_results_leave_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.lang import resident

    resident.SPARE.clear()
    monkeypatch.setattr(resident, "_MOST_SPARE", 64 << 10)
    x = buffer(torch.zeros(4096))
    kept = [doubled(x) for _ in range(10)]
    kept.clear()
    assert resident.SPARE.bytes == 64 << 10  # four of them
    small = buffer(torch.zeros(1024))  # of another layout: it has half of it after all
    for _ in range(3):
        y = doubled(small)
    assert resident.SPARE.bytes <= 36 << 10
    del y
    assert doubled(x).equal(x)
    assert resident.SPARE.bytes <= 64 << 10


@weft.kernel
def _moved(x, y, a: float, n: int):
    for i in range(y.shape[0]):
        y[i] = y[i] * a + x[i + n]


def test_each_call_is_of_its_own_arguments() -> None:
    """Calls by turns, of tensors, sizes and numbers, some of which are those of the last call; of
    tensors that are gone, and of others in their memory."""
    chance, kernel = random.Random(0), _moved.on("webgpu")
    here = [torch.randn(n) for n in (300, 300, 70, 300)]
    there = [buffer(v) for v in here]
    a, n, x, y = 0.5, 0, 0, 1
    for k in range(400):
        match chance.randrange(12):
            case 0:
                x, y = chance.choice([(0, 1), (1, 0), (0, 2), (1, 2), (3, 0), (0, 3)])
            case 1:
                a = chance.choice([0.5, 0.25, -0.5])
            case 2:
                n = chance.choice([0, 1])
            case 3 if k % 2:  # another tensor, and often the memory of this one
                there[3] = None  # type: ignore[call-overload]
                size = chance.choice([300, 300, 301])
                here[3] = torch.randn(size)
                there[3] = buffer(here[3])
            case 3:
                there[x][5] = here[x][5] = 7.0
            case _:
                pass
        count = min(here[x].shape[0] - n, here[y].shape[0])
        kernel(there[x], there[y][:count] if count < here[y].shape[0] else there[y], a, n)
        here[y][:count] = here[y][:count] * a + here[x][n : n + count]
    for found, expected in zip(there, here, strict=True):
        torch.testing.assert_close(plain(found), expected)


def test_large_tensors_are_copied_while_their_loop_is_compiled(
    copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weft.runtime.shaders import Compiled
    from weft.runtime.webgpu_device import Device

    where: list[tuple[bool, bool]] = []  # of each copy: in this thread, and while it compiles
    inside, done = threading.Event(), threading.Event()
    write, launch = Device._written, Compiled.launch

    def written(self: Device, *args: object) -> None:
        this = threading.current_thread() is threading.main_thread()
        where.append((this, inside.wait(0 if this else 20)))
        write(self, *args)
        done.set()

    def launched(self: Compiled, slots: bytes) -> object:
        inside.set()
        assert done.wait(20)
        try:
            return launch(self, slots)
        finally:
            inside.clear()

    monkeypatch.setattr(Device, "_written", written)
    monkeypatch.setattr(Compiled, "launch", launched)
    kernel = weft.kernel(_moved.function).on("webgpu")
    x, y = torch.randn(1 << 19), torch.randn(1 << 19)
    there, result = buffer(x), buffer(y)
    kernel(there, result, 0.5, 0)
    assert where[:2] == [(False, True)] * 2
    assert copied() == [(2 << 21, 0)]
    monkeypatch.undo()
    y = y * 0.5 + x
    assert result.equal(y)
    x[0] = there[0] = 5.0
    kernel(there, result, 0.5, 0)
    assert copied()[0] == (1 << 21, 0)
    torch.testing.assert_close(plain(result), y * 0.5 + x)


def test_what_is_not_compiled_leaves_tensors_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.runtime.shaders import Compiled

    launch = Compiled.launch
    monkeypatch.setattr(Compiled, "launch", lambda *args: 1 / 0)
    kernel = weft.kernel(_moved.function).on("webgpu")
    x = buffer(torch.ones(1 << 19))
    y = buffer(torch.ones(1 << 19))
    with pytest.raises(ZeroDivisionError):
        kernel(x, y, 0.5, 0)
    x[:] = 3.0
    monkeypatch.setattr(Compiled, "launch", launch)
    kernel(x, y, 0.5, 0)
    assert y.equal(torch.full((1 << 19,), 3.5))


def test_what_follows_a_pipeline_that_is_compiled_waits_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from weft.runtime.webgpu_device import device
    from weft.runtime.webgpu_pipelines import Pipelines

    @weft.kernel
    def slow(x, scale: float):
        for i in range(x.shape[0]):
            x[i] = scale * x[i] + 1

    x = buffer(torch.arange(300.0))
    add_one(x)
    weft.sync()
    gate, compiled = threading.Event(), Pipelines._compiled
    monkeypatch.setattr(Pipelines, "_compiled", lambda *a: (gate.wait(20), compiled(*a))[1])
    submits = device().submits
    slow.on("webgpu")(x, 3.0)
    add_one(x)
    slow.on("webgpu")(x, 2.0)
    y = doubled(x)
    assert device().submits == submits
    threading.Timer(0.1, gate.set).start()
    x[0] = 7.0  # has the others done first
    expected = 2 * (3 * (torch.arange(300.0) + 1) + 1 + 1) + 1
    assert y.equal(2 * expected)
    expected[0] = 7
    assert x.equal(expected)
    add_one(x)
    assert x.equal(expected + 1)


def test_a_pipeline_that_the_driver_refuses_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.runtime.webgpu_device import device
    from weft.runtime.webgpu_pipelines import Pipelines, WebGpuError

    @weft.kernel
    def refused(x):
        for i in range(x.shape[0]):
            x[i] = 5 * x[i] - 2

    def none(*_: object) -> None:
        raise device().wgpu.GPUValidationError("not this one")

    def run(x: torch.Tensor) -> None:
        refused.on("webgpu")(x)
        weft.sync()

    x, other = buffer(torch.arange(300.0)), buffer(torch.arange(300.0))
    add_one(other)
    with monkeypatch.context() as patch:
        patch.setattr(Pipelines, "_compiled", none)
        with pytest.raises(WebGpuError, match="refuses the loop of `refused_0`: not this one"):
            refused.on("webgpu")(torch.arange(300.0))
        with pytest.raises(WebGpuError, match="refuses the loop of `refused_0`: not this one"):
            run(x)
        weft.sync()
    add_one(other)
    assert other.equal(torch.arange(300.0) + 2)


def test_threads_lose_nothing() -> None:
    """A read that copies back, and a kernel of another thread."""
    x = buffer(torch.zeros(64))

    def work() -> None:
        for _ in range(20):
            add_one(x)
            x[0].item()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert x.tolist() == 64 * [60.0]


def test_checks_of_calls_that_nobody_waited_for() -> None:
    @weft.kernel
    def checked(x, most: float):
        for i in range(x.shape[0]):
            assert x[i] < most, f"x[{i}] is large"
            x[i] += 1.0

    x = buffer(torch.zeros(3))
    there = checked.on("webgpu")
    there(x, 5.0)
    there(x, 1.0)
    with pytest.raises(weft.KernelAssertionError, match="is large"):
        weft.sync()
    there(x, 5.0)
    weft.sync()


@pytest.fixture
def taichi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(Field, "defaults", Field.defaults)
    weft.init(arch=weft.vulkan)


def test_fields_live_there(taichi, copied) -> None:
    x = weft.field(float, shape=20)
    other = weft.Vector.field(2, float, shape=20)
    placed = weft.field(float)
    weft.root.dense(weft.i, 20).place(placed)

    @weft.kernel
    def step():
        for i in x:
            x[i] += 1.0 + placed[i]
            other[i] += weft.Vector([x[i], 1.0])

    step()
    step()
    assert copied() == [(4 * 20 * 4, 0)]
    assert (x[3], other[3][0], other[3].y) == (2.0, 3.0, 2.0)
    step()
    assert copied() == []  # reading left them there
    x[3] = 10.0
    other[4][1] = 7.0
    other[5].x = 8.0
    step()
    assert copied() == [(3 * 20 * 4, 0)]
    assert (x[3], x[4], other[4].y, other[5].x) == (11.0, 4.0, 8.0, 12.0)
    placed.fill(1.0)
    x.from_numpy(np.arange(20, dtype=np.float32))
    step()
    assert copied() == [(2 * 20 * 4, 0)]
    np.testing.assert_array_equal(x.to_numpy(), np.arange(20) + 2)
    x.from_torch(torch.arange(20.0))
    x.copy_from(placed)
    step()
    assert torch.equal(x.to_torch(), torch.full((20,), 3.0))
    part = x[2:5]
    step()
    assert torch.equal(part.as_subclass(torch.Tensor), torch.full((3,), 5.0))
    step.on("cpu")()
    assert x[7] == 7.0
    assert torch.equal(copy.deepcopy(x).to_torch(), x.to_torch())


def test_tapes_over_fields_that_live_there(taichi) -> None:
    x = weft.field(float, shape=8, needs_grad=True)
    loss = weft.field(float, shape=(), needs_grad=True)

    @weft.kernel
    def square():
        for i in x:
            loss[None] += x[i] * x[i]

    @weft.kernel
    def descend():
        for i in x:
            x[i] -= 0.25 * x.grad[i]

    x.from_torch(torch.arange(8.0))
    for n in range(3):
        with weft.ad.Tape(loss=loss):
            square()
        expected = torch.arange(8.0) / 2**n
        torch.testing.assert_close(plain(x.grad), 2 * expected)
        torch.testing.assert_close(loss[None].item(), (expected**2).sum().item())
        descend()
    torch.testing.assert_close(x.to_torch(), torch.arange(8.0) / 8)


@pytest.mark.slow
def test_a_compiled_function_breaks_its_graph_in_front_of_kernels() -> None:
    """torch.compile went into frames of weft's then, and failed there."""
    x = buffer(torch.randn(5))

    @torch.compile(backend="eager")
    def function(x: torch.Tensor) -> torch.Tensor:
        return doubled(x) + 1

    for _ in range(2):
        torch.testing.assert_close(plain(function(x)), 2 * plain(x) + 1)
    y = torch.randn(5)
    torch.testing.assert_close(function(y), 2 * y + 1)
