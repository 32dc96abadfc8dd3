"""The list of the tests that take long."""

from tests.long import functions, long_ones


def test_the_quickest_of_a_function_stays() -> None:
    lines = ["0.40s call     t.py::f[a b]", "0.40s setup    t.py::f[a b]",
             "1.00s call     t.py::f[c]", "0.90s call     t.py::g", "9.00s call     t.py::h[a]",
             "0.70s teardown t.py::i[gone]", "9.50s call     t.py::h[b]",
             "====== 7 passed in 30.00s ======"]  # fmt: skip
    every = ["t.py::f[a b]", "t.py::f[c]", "t.py::g", "t.py::h[a]", "t.py::h[b]", "t.py::j"]
    assert long_ones(lines, every) == ["t.py::f[c]", "t.py::h[a]", "t.py::h[b]"]
    assert long_ones(lines, [*every, "t.py::f[d]"])[:2] == ["t.py::f[a b]", "t.py::f[c]"]
    assert functions(every) == {"t.py::f", "t.py::g", "t.py::h", "t.py::j"}
