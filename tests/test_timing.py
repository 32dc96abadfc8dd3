"""timing: stages nest, add up, and cost nothing when nobody records."""

from __future__ import annotations

import threading
import time
from contextvars import copy_context

from weft.timing import record, stage


def test_stages_add_up_and_know_their_depth():
    with record() as times:
        with stage("compile"):
            for _ in range(2):
                with stage("llvm"):
                    time.sleep(0.002)
        with stage("load"):
            pass
    assert list(times.stages) == ["compile", "llvm", "load"]
    assert times.depth == {"compile": 0, "llvm": 1, "load": 0}
    assert times.stages["compile"] >= times.stages["llvm"] >= 4
    lines = times.report().splitlines()
    assert [line.split()[0] for line in lines] == ["compile", "llvm", "load"]
    assert lines[1].startswith("  llvm ")
    assert all(line.endswith(" ms") for line in lines)


def test_an_inner_recording_counts_in_the_outer_one():
    with record() as outer, stage("all"):
        with record() as inner, stage("part"):
            pass
        assert list(inner.stages) == ["part"]
    assert list(outer.stages) == ["all", "part"]
    assert outer.depth == {"all": 0, "part": 1}


def test_a_stage_that_raises_is_timed_and_closed():
    with record() as times:
        try:
            with stage("a"):
                raise ValueError
        except ValueError:
            pass
        with stage("b"):
            pass
    assert times.depth == {"a": 0, "b": 0}


def test_threads_record_only_where_their_context_does():
    def work() -> None:
        for _ in range(100):
            with stage("work"):
                time.sleep(0.0001)

    with record() as times:
        threads = [threading.Thread(target=copy_context().run, args=(work,)) for _ in range(2)]
        threads.append(threading.Thread(target=work))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert list(times.stages) == ["work"]
    assert times.stages["work"] >= 20


def test_nothing_is_kept_when_nobody_records():
    assert stage("a") is stage("b")


def test_an_empty_report_is_empty():
    with record() as times:
        pass
    assert times.report() == ""
