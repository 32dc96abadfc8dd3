"""What ``conftest.py`` asks of tests."""

from __future__ import annotations

import time
import types

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


class Case:
    """A case of a test that is ``sampled``, as pytest has it."""

    def __init__(self, name: str, params: dict[str, object], one_in: int) -> None:
        self.name, self.nodeid, self.slow = name, f"tests/test_some.py::{name}", False
        self.callspec = types.SimpleNamespace(params=params)
        self.mark = pytest.mark.sampled(one_in).mark

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.mark if name == "sampled" else None

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        assert mark.name == "slow"
        self.slow = True


@pytest.mark.parametrize("one_in", [2, 5])
def test_a_sample_has_each_value_of_each_parameter(
    request: pytest.FixtureRequest, one_in: int
) -> None:
    plugins = request.config.pluginmanager.get_plugins()
    conftest = next(p for p in plugins if hasattr(p, "MOST_SECONDS"))
    first, second, third = "abcdefghij", (0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5), ("only",)
    cases = [Case(f"test[{a}-{b}]", {"a": a, "b": b, "c": third[0]}, one_in)
             for b in second for a in first]  # fmt: skip
    alone = [Case(f"test_alone[{k}]", {"k": k}, one_in) for k in range(200)]
    conftest.sample([*cases, *alone])
    kept = [case.callspec.params for case in cases if not case.slow]
    assert {p["a"] for p in kept} == {*first}
    assert {p["b"] for p in kept} == {*second}
    assert len(kept) < 80 / one_in + 17 + 10  # of each value one, at most
    assert 0.5 / one_in < sum(not case.slow for case in alone) / 200 < 1.5 / one_in


def test_a_test_that_takes_long_is_slow(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins = request.config.pluginmanager.get_plugins()
    conftest = next(p for p in plugins if hasattr(p, "MOST_SECONDS"))
    names = {"tests/test_some.py::f[1]", "tests/test_some.py::g"}
    monkeypatch.setattr(conftest.long, "named", lambda: frozenset(names))

    def marked(nodeids: list[str], selected: list[str]) -> dict[str, set[str]]:
        own: dict[str, set[str]] = {name: set() for name in nodeids}
        items = [types.SimpleNamespace(nodeid=name, get_closest_marker=lambda name: None,
                                       add_marker=lambda m, name=name: own[name].add(m.name))
                 for name in nodeids]  # fmt: skip
        config = types.SimpleNamespace(option=types.SimpleNamespace(file_or_dir=selected))
        conftest.pytest_collection_modifyitems(config, items)
        return own

    ids = ["tests/test_some.py::f[1]", "tests/test_some.py::f[2]", "tests/test_some.py::g"]
    assert marked(ids, []) == {ids[0]: {"long", "slow"}, ids[1]: set(), ids[2]: {"long", "slow"}}
    assert marked(ids[1:2], ["tests/test_some.py"]) == {ids[1]: set()}
    with pytest.raises(pytest.UsageError, match=r"make tests/long\.txt anew .*: no .*::g"):
        marked(ids[:2], [])
