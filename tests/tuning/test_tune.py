"""``weft.tune`` and ``weft.tuned``: schedules that are measured, kept, shipped and stale."""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from tests.schedule.test_stage import state
from tests.tuning.conftest import Stopwatch
from weft.errors import KernelTypeError
from weft.frontend.lower import Lowered
from weft.options import Options
from weft.runtime import build, gpu
from weft.schedule.language import Cooperate, UnrollJam, parse
from weft.tuning import tune as module
from weft.tuning.neighbours import proposals


def correlate(w, x):
    n, m = x.shape
    out = torch.empty_like(x)
    for i, j in weft.ndrange(n, m):
        s = 0.0
        for k in range(j + 1):
            s += w[k] * x[i, j - k]
        out[i, j] = s
    return out


def given(n: int = 3, m: int = 20) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(m), torch.randn(n, m)


def ran(kernel: Any) -> list[str]:
    """The tuned schedules that calls of the kernel's loops went by."""
    return [text for launcher in kernel.launchers for special in launcher.forms.compiled.values()
            for text, made in special.compiled.tuned.items() if made is not None]  # fmt: skip


def as_before(kernel: Any, *args: torch.Tensor) -> None:
    torch.testing.assert_close(kernel(*args), kernel.function(*args), rtol=1e-4, atol=1e-4)


def test_the_fastest_schedule_is_kept_and_used():
    kernel, args = weft.kernel(correlate), given()
    for _ in range(6):  # what serves later calls is made anew, too
        kernel(*args)
    table = weft.tune(kernel, *args, most=3, measure=Stopwatch(4.0, 3.0, 1.0, 2.0))
    (record,) = table.records
    texts = [row.schedule for row in table.rows]
    assert texts[0] == "default"
    assert len(texts) == 4
    assert [row.best for row in table.rows] == [False, False, True, False]
    assert (record.kind, record.name, record.choice) == ("schedule", "correlate_0", texts[2])
    assert (record.default_milliseconds, record.milliseconds) == (4.0, 1.0)
    assert str(table) == (
        f"correlate_0: 32, 4 x 32, 4 x 32\n"
        f"*          1 ms   4.00 x  {texts[2]}\n"
        f"           2 ms   2.00 x  {texts[3]}\n"
        f"           3 ms   1.33 x  {texts[1] or 'no steps'}\n"
        f"           4 ms   1.00 x  default"
    )
    assert ran(kernel) == []
    for _ in range(6):
        as_before(kernel, *args)
    assert ran(kernel) == [texts[2]]
    assert kernel.inspect(*args)["schedule"] == (texts[2] or "nothing: LLVM vectorises")
    (taken,) = kernel.schedules(*args).taken
    assert (taken.schedule, taken.origin) == (texts[2], "tuned")
    assert "\n      tuned; taken: the first whose guards hold" in str(kernel.schedules(*args))
    other = weft.kernel(correlate)  # as another process
    as_before(other, *given(4, 17))  # of the same size class
    assert ran(other) == [texts[2]]
    as_before(other, *given(4, 64))
    assert len(ran(other)) == 1


def test_what_is_hardly_faster_is_not_kept():
    kernel, args = weft.kernel(correlate), given()
    table = weft.tune(kernel, *args, most=2, measure=Stopwatch(1.0, 0.99))
    assert [row.schedule for row in table.rows if row.best] == ["default"]
    assert table.records[0].choice == "default"
    as_before(kernel, *args)
    assert ran(kernel) == []


def test_a_real_measurement_of_a_small_kernel():
    kernel, args = weft.kernel(correlate), given()
    table = weft.tune(kernel, *args, most=2)
    assert all(row.milliseconds > 0 for row in table.rows)
    as_before(kernel, *args)


@pytest.mark.slow
def test_gradients_are_tuned():
    kernel, (w, x) = weft.kernel(correlate), given()
    table = weft.tune(kernel.backward, w, x, most=2, measure=Stopwatch(2.0, 1.0))
    names = {record.name for record in table.records}
    assert names
    assert all("adjoint" in name for name in names)
    both = weft.tune(kernel, w, x, most=2, backward=True, measure=Stopwatch(2.0, 1.0))
    assert {record.name for record in both.records} == {"correlate_0", *names}
    w.requires_grad_()
    x.requires_grad_()
    kernel(w, x).square().sum().backward()
    ours = w.grad, x.grad
    w.grad = x.grad = None
    weft.kernel(strict_math=True)(correlate)(w, x).square().sum().backward()
    torch.testing.assert_close(ours, (w.grad, x.grad), rtol=1e-3, atol=1e-3)
    steps = [made for _, loop in kernel.backward.loops() for kept in loop._adjoints.values()
             for step in kept.steps for made in step.run._made.values()]  # fmt: skip
    assert steps
    assert all([*made.tuned] for made in steps)


def test_arguments_stay_as_they_are():
    @weft.kernel
    def smooth(x, out):
        noise = torch.rand(())
        for i, j in weft.ndrange(x.shape[0], x.shape[1]):
            for k in range(2):
                x[i, j] = x[i, j] * 0.5 + k
            out[i, j] += x[i, j]
        return noise

    base = torch.randn(4, 40)
    x, out = base[:, 1::2], torch.zeros(4, 20)
    before, versions = base.clone(), (base._version, out._version)
    torch.manual_seed(3)
    weft.tune(smooth, x, out, most=2, measure=Stopwatch(2.0, 1.0))
    assert torch.equal(base, before)
    assert (base._version, out._version) == versions
    assert not out.any()
    noise = smooth(x, out)
    torch.manual_seed(3)
    assert noise == torch.rand(())
    assert torch.equal(out, x)


def test_methods_and_kernels_with_configs():
    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = torch.nn.Parameter(torch.tensor([2.0]))

        @weft.autotune([weft.Config(N=1), weft.Config(N=2)], measure=Stopwatch(1.0))
        @weft.kernel
        def forward(self, x, N: weft.template()):
            out = torch.empty_like(x)
            for i, j in weft.ndrange(x.shape[0], x.shape[1]):
                s = 0.0
                for k in range(j + 1):
                    s += x[i, k] * self.factor[0]
                out[i, j] = s
            return out

    scale, x = Scale(), torch.randn(3, 20)
    table = weft.tune(scale.forward, x, most=1, backward=True, measure=Stopwatch(2.0, 1.0))
    assert len(table.records) >= 2
    assert scale.factor.grad is None
    torch.testing.assert_close(scale(x), 2 * x.cumsum(1))


def test_a_persons_schedule_goes_before_a_tuned_one():
    kernel, args = weft.kernel(correlate), given()
    weft.tune(kernel, *args, most=2, measure=Stopwatch(2.0, 1.0))
    kernel.schedule("cpu", "unroll_jam(i, 2)")
    as_before(kernel, *args)
    assert ran(kernel) == []
    kernel.schedule("cpu", None)
    as_before(kernel, *args)
    assert len(ran(kernel)) == 1


def test_a_file_ships_what_was_tuned(tmp_path):
    path, args = tmp_path / "model.json", given()
    quiet = Options(cache=False)
    kernel = weft.kernel(correlate)
    kernel.options = quiet
    table = weft.tune(kernel, *args, most=2, measure=Stopwatch(2.0, 1.0))
    other = weft.kernel(correlate)
    other.options = quiet
    as_before(other, *args)
    assert ran(other) == []
    assert weft.tuned(path, table) == list(table.records)
    as_before(other, *args)
    assert ran(other) == [table.records[0].choice]
    assert json.loads(path.read_text())["records"][0]["choice"] == table.records[0].choice


def test_a_stale_record_is_the_default_and_a_line_in_the_log(tmp_path, caplog):
    path, args = tmp_path / "model.json", given()
    kernel = weft.kernel(correlate)
    kernel.options = Options(cache=False)
    table = weft.tune(kernel, *args, most=1, measure=Stopwatch(2.0, 1.0))
    weft.tuned(path, table)

    def with_choice(choice: str) -> None:
        data = json.loads(path.read_text())
        data["records"][0]["choice"] = choice
        path.write_text(json.dumps(data))
        weft.tuned(path)

    def correlate_2(w, x):
        out = torch.empty_like(x)
        for i, j in weft.ndrange(x.shape[0], x.shape[1]):
            out[i, j] = w[j] + x[i, j]
        return out

    correlate_2.__name__ = "correlate"
    edited = weft.kernel(correlate_2)
    edited.options = kernel.options
    with caplog.at_level(logging.DEBUG, "weft.tune"):
        for choice in ("unroll_jam(i, 64)", "shuffle(i)"):
            with_choice(choice)
            as_before(kernel, *args)
            assert ran(kernel) == []
        edited(*args)
    illegal, unknown, edited_text = (r.message for r in caplog.records)
    assert illegal == (
        "correlate_0: not by `unroll_jam(i, 64)`, which was tuned: `unroll_jam(i, 64)`: `copies` "
        "are 1 to 8 iterations"
    )
    assert unknown.startswith(
        "correlate_0: not by `shuffle(i)`, which was tuned: there is no step `shuffle`: "
    )
    assert edited_text == (
        f"{path}: `correlate_0` was tuned with another text, or other dtypes and layouts: the "
        "default"
    )


def test_a_schedule_that_computes_something_else_is_refused(monkeypatch):
    kernel, args = weft.kernel(correlate), given()
    found = iter(["all differ"])
    monkeypatch.setattr(module, "difference", lambda *_: next(found, ""))
    table = weft.tune(kernel, *args, most=1, measure=Stopwatch(2.0, 1.0))
    refused = next(row for row in table.rows if row.refused)
    assert f"\n  refused  {refused.schedule}: all differ" in str(table)
    assert not refused.best


def test_what_is_no_kernel_is_refused():
    with pytest.raises(KernelTypeError) as caught:
        weft.tune(torch.nn.Linear(2, 2), torch.ones(2))
    assert str(caught.value) == (
        "weft.tune takes a kernel, a method that is one, or kernel.backward, not Linear\n"
        "help: tune each kernel that it calls: weft.tune(kernel, *args)"
    )


@pytest.mark.filterwarnings("ignore::weft.runtime.overlap.OverlapWarning")
def test_loops_whose_arguments_share_memory_are_left_alone():
    @weft.kernel
    def shift(x, y):
        for i in range(x.shape[0]):
            y[i] = x[i] + 1

    z = torch.zeros(11)
    assert weft.tune(shift, z[:-1], z[1:], measure=Stopwatch(1.0)).rows == ()
    assert not z.any()
    assert len(weft.tune(shift, z[:5], z[6:], measure=Stopwatch(1.0)).records) == 1


def test_an_empty_call_and_no_loop():
    kernel = weft.kernel(correlate)
    table = weft.tune(kernel, torch.ones(0), torch.ones(0, 0), measure=Stopwatch(1.0))
    assert str(table) == "no loop was launched"


def for_a_gpu(kernel: weft.Kernel) -> Callable[..., Any]:
    """Compiles the loop of a kernel, which was called here, for a GPU, as schedules ask for."""
    (special,) = kernel.launchers[0].forms.compiled.values()
    lowered = Lowered(special.compiled.function, [], [], "")

    def made(*schedules: tuple[str, str, str]) -> Any:
        options = Options(cache=False, schedules=schedules)
        return build.compile_region(gpu.CUDA, None, None, {}, options, lowered=lowered)

    return made


def block_of(made: Any, sizes: dict[str, tuple[int, ...]]) -> bytes:
    """The argument block of a call with these sizes."""
    names = [arg.name for arg in made.optimized.args]
    words = [sizes[names[s.arg]][s.axis] if s.kind in ("size", "int") else 0 for s in made.slots]
    return struct.pack(f"<{len(words)}q", *words)


def test_more_turns_and_fewer_are_staged() -> None:
    kernel = weft.kernel(state.function)
    b, t, n, k = 2, 9, 64, 16
    kernel(torch.rand(b, t, k), torch.rand(b, t, k), torch.rand(b, t, n), torch.rand(b, t), k)
    own = for_a_gpu(kernel)()
    sizes = {"w": (b, t, k), "k": (b, t, k), "v": (b, t, n), "out": (b, t, n), "g": (b, t)}
    sizes |= {"B": (b,), "T": (t,), "N": (n,)}
    texts = proposals(own, block_of(own, sizes))
    assert {f"unroll((j, j_)); stage(t, {turns}, 64)" for turns in (8, 16, 32)} <= {*texts}


def test_candidates_for_a_gpu_are_legal_and_begin_with_its_own():
    kernel = weft.kernel(correlate)
    kernel(*given())
    made = for_a_gpu(kernel)
    own = made()

    def block(n: int, m: int) -> bytes:
        return block_of(own, {"w": (m,), "x": (n, m), "out": (n, m), "n": (n,), "m": (m,)})

    texts = proposals(own, block(8192, 512))
    assert "unroll_jam" in texts[0]
    assert len(texts) > 20
    assert any(isinstance(step, Cooperate) for text in texts for step in parse(text))
    jams = [step for text in texts for step in parse(text) if isinstance(step, UnrollJam)]
    assert {jam.axis for jam in jams} == {"i", "j"}
    assert proposals(own, block(8, 8))[0] == "", "there are few iterations"
    for text in texts[:12]:
        assert made(("cuda", "correlate_0", text)).facts.asked > 0, text
