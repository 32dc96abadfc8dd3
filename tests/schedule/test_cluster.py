"""Rows that the registers of several blocks hold: clusters, whose blocks are as one."""

from __future__ import annotations

import pytest
import torch

import weft
from benchmarks.rows import log_sum_exp
from examples.softmax import softmax
from tests.cuda.emulator import EmulatedCall, emulated, gradients
from weft.codegen import ptx
from weft.errors import ScheduleError
from weft.schedule.grid import cluster, in_cluster
from weft.schedule.guards import Clusters
from weft.schedule.language import Cooperate, KeepRow, StripMine, only, parse
from weft.schedule.machine import GpuMachine


def test_how_many_blocks_a_row_takes():
    assert [cluster(n) for n in (32, 1024, 2048, 4096)] == [1, 1, 4, 8]
    assert in_cluster(131_072, 64, 4, 48, 64) == (4096, 8)
    assert in_cluster(40_000, 32, 4, 48, 64) == (2048, 6)
    assert in_cluster(20_480, 4, 4, 96, 16) == (2048, 3)
    assert in_cluster(131_072, 65, 4, 48, 64) == (0, 0)  # each processor has a row
    assert in_cluster(131_072, 3, 4, 48, 64) == (0, 0)  # more blocks do better
    assert in_cluster(131_072, 64, 4, 24, 64) == (0, 0)  # too few registers
    assert in_cluster(131_076, 64, 4, 48, 64) == in_cluster(40_001, 64, 4, 96, 64) == (0, 0)


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device="meta")


def test_long_rows_are_kept_by_clusters_where_there_are_any():
    def schedule(kernel: weft.Kernel, *shape: int, clusters: bool = True):
        machine = GpuMachine(132, 50 << 20, clusters)
        (row,) = kernel.schedules(meta(*shape), device="cuda", machine=machine).taken
        return row

    row = schedule(softmax, 64, 131_072)
    assert only(parse(row.schedule), Cooperate).threads == 4096
    assert (row.grid, row.block) == ((512, 1, 1), (512, 1, 1))
    assert row.accessed == row.bytes  # each element is read once
    without = parse(schedule(softmax, 64, 131_072, clusters=False).schedule)
    assert only(without, Cooperate).threads == 1024
    assert only(without, StripMine) is not None
    assert only(parse(schedule(log_sum_exp, 64, 131_072).schedule), StripMine) is not None
    assert only(parse(schedule(log_sum_exp, 16, 131_072).schedule), Cooperate).threads == 4096
    few = parse(schedule(softmax, 8192, 8192).schedule)
    assert (only(few, Cooperate).threads, only(few, KeepRow)) == (512, KeepRow(4, 4, whole=True))


@pytest.mark.parametrize("kernel", [softmax, log_sum_exp], ids=lambda k: k.__name__)
def test_values_and_gradients(kernel, monkeypatch):
    def allowed(found):
        return Clusters() in found.guards or not found.guards

    torch.manual_seed(3)
    monkeypatch.setattr("weft.schedule.grid._LEAST_CLUSTERS", 1)
    x = torch.randn(1, 1032, requires_grad=True)
    other = {"softmax": lambda x: x.softmax(1), "log_sum_exp": lambda x: x.logsumexp(1)}
    wide = x.detach().double().requires_grad_()
    expected = other[kernel.__name__](wide)
    grad = torch.randn(expected.shape)
    monkeypatch.setattr(EmulatedCall, "allowed", staticmethod(allowed))
    EmulatedCall.seen.clear()
    torch.testing.assert_close(emulated(kernel)(x.detach()), expected.float())
    (found,) = gradients(kernel, x, grad=grad)
    assert [only(s, Cooperate).threads for s in EmulatedCall.seen[-2:]] == [2048, 2048]
    (reference,) = torch.autograd.grad(expected, wide, grad.double())
    torch.testing.assert_close(found, reference.float())


def test_blocks_wait_for_each_other():
    kernel = weft.kernel(softmax.function).schedule("cuda", "cooperate((), 4096); keep_row(4, 2)")
    (loop,) = weft.compile_for("sm_90", kernel, meta(9, 64))
    text = loop.ptx
    assert ".maxntid 512" in text
    assert ".reqnctapercluster 8, 1, 1" in text
    # Threads of a block wait for each other, then blocks for each other, for each of two values:
    # what blocks read of others is the first, which all have read before they wait for the second.
    assert text.count("bar.sync") == text.count("barrier.cluster.wait") == 2
    assert text.count("mapa") == 2
    if ptx.ptxas() is not None:
        assert ptx.usage(text, "sm_90")["weft_softmax_0"].spill_loads == 0


def test_gpus_without_clusters_do_without():
    codes = weft.compile_for("sm_80", softmax, meta(9, 64), every_schedule=True).loops[0].codes
    assert not any("cluster" in code.ptx for code in codes)
    kernel = weft.kernel(softmax.function).schedule("cuda", "cooperate((), 4096); keep_row(4, 2)")
    assert "cluster" not in weft.compile_for("sm_80", kernel, meta(9, 64)).ptx


def test_too_many_threads_are_refused():
    def refused(text: str) -> str:
        kernel = weft.kernel(softmax.function).schedule("cuda", text)
        with pytest.raises(ScheduleError) as error:
            weft.compile_for("sm_90", kernel, meta(9, 64))
        return str(error.value).splitlines()[0].partition(": `")[2]

    assert refused("cooperate((), 2048)") == (
        "cooperate((j, j_, j__), 2048)`: a group has a power of two of threads, 2 to 1024"
    )
    assert refused("cooperate((), 8192); keep_row(4, 4)") == (
        "cooperate((j, j_, j__), 8192)`: a group has a power of two of threads, 2 to 4096"
    )


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_blocks_neither_race_nor_miss_what_others_have(passes, monkeypatch):
    """Threads take turns in any order, and races between them are reported. Of one pass, blocks
    wait once more, so that none is gone before others have read what it has. (Groups of fewer
    threads than a GPU would make clusters of: each pair of these is looked at.)"""
    monkeypatch.setattr("weft.schedule.grid.MOST_MEMBERS", 128)
    monkeypatch.setattr("weft.schedule.grid.SEVERAL", 64)

    @weft.kernel(schedule={"cuda": "cooperate((), 256); keep_row(1, 1)"})
    def moments(x, passes: weft.template()):
        out = x.new_empty(x.shape[0])
        for i in range(x.shape[0]):
            last = 0.0
            for _ in weft.static(range(passes)):
                total = 0.0
                for j in range(x.shape[1]):
                    total += (x[i, j] - last) * 0.5
                last = total
            out[i] = last
        return out

    x = torch.arange(2 * 70.0).view(2, 70)
    (loop,) = weft.compile_for("sm_90", moments, meta(2, 70), passes)
    assert ".reqnctapercluster 4, 1, 1" in loop.ptx
    assert loop.ptx.count("barrier.cluster.wait") == max(passes, 2)
    monkeypatch.setattr(EmulatedCall, "interpreted", True)
    torch.testing.assert_close(emulated(moments)(x, passes), moments.interpret(x, passes))
    assert only(EmulatedCall.seen[-1], Cooperate).threads == 256
