"""Other threads of Python while a loop runs."""

import sys
import threading
import time

import pytest
import torch

import weft


@weft.kernel
def scattered(x, n: int):
    for i in range(n):
        x[i % 4] += 1.0


@weft.kernel
def summed(x, n: int):
    s = 0.0
    for i in range(n):
        s += x[i % 4]
    return s


@pytest.mark.parametrize("kernel", [scattered, summed])
def test_a_long_loop_over_few_elements_lets_them_run(kernel):
    x = torch.zeros(4)
    for _ in range(3):  # the third call is a builtin's
        kernel(x, 3)
    passed, ready, go = 0, threading.Event(), True

    def count() -> None:
        nonlocal passed
        while go:
            passed += 1
            ready.set()
            time.sleep(0.0001)

    thread = threading.Thread(target=count)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)  # who has the GIL keeps it until it is given back
    thread.start()
    try:
        ready.wait()
        before = passed
        kernel(x, 30_000_000)
        after = passed
    finally:
        go = False
        sys.setswitchinterval(interval)
        thread.join()
    assert after > before
