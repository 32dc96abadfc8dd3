"""What ``conftest.py`` asks of tests."""

from __future__ import annotations

import time

import pytest


def test_a_test_that_takes_long_fails(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins = request.config.pluginmanager.get_plugins()
    conftest = next(p for p in plugins if hasattr(p, "MOST_SECONDS"))
    with monkeypatch.context() as patch:
        patch.setattr(conftest, "MOST_SECONDS", 0.05)
        around = conftest.pytest_runtest_call(request.node)
        next(around)
        time.sleep(0.2)  # does not count
        with pytest.raises(StopIteration):
            next(around)
        around = conftest.pytest_runtest_call(request.node)
        next(around)
        begin = time.thread_time()
        while time.thread_time() - begin < 0.06:
            pass
        with pytest.raises(pytest.fail.Exception, match=r"took 0\.\d s of the processor"):
            next(around)
