"""Signals during a long loop: Python's handlers run, and what they raise ends the loop."""

import os
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, threading, time
import torch, weft

torch.set_num_threads(2)


@weft.kernel
def parallel(x, n: int):
    for i in x:
        s = x[i]
        for j in range(n):
            s = s * 0.999 + 1.0
        x[i] = s


@weft.kernel
def reduced(x, n: int):
    s = 0.0
    for i in x:
        for j in range(n):
            s += x[i] * j
    return s


@weft.kernel
def in_order(x, n: int):
    for _ in range(1):
        for j in range(n):
            x[0] = x[0] * 0.999 + 1.0


@weft.kernel
def nested(x, n: int):
    for _ in range(1):
        for j in range(n):
            for k in range(3):
                x[k] = x[k] * 0.999 + 1.0


@weft.kernel
def counted(x, n: int):
    for _ in range(1):
        k = 0
        while k < n:
            x[0] = x[0] * 0.999 + 1.0
            k += 2


@weft.kernel
def few(x, n: int):
    for i in range(4):
        for k in range(n):
            x[i] = x[i] * 0.999 + 1.0


@weft.kernel
def few_reduced(x, n: int):
    s = 0.0
    for i in range(4):
        for k in range(n):
            s += x[i] * (k % 3)
    return s


@weft.kernel
def vectors(x, n: int):
    for i in x:
        for k in range(n):
            x[i] = x[i] * 0.999 + 1.0


@weft.kernel
def few_nested(x, n: int):
    for i in range(4):
        for j in range(3):
            k = 0
            while k < n:
                x[i] = x[i] * 0.999 + j
                k += 2


@weft.kernel
def uneven(x, n: int):
    for i in range(2):  # soon the calling thread has nothing left to do
        for k in range(n // 50 + i * n):
            x[i] = x[i] * 0.999 + 1.0


@weft.kernel
def in_slices(x, n: int):
    for s, k in weft.ndrange(2, n):  # a thread for each s
        weft.atomic_add(x[s, k * k % 7], 1.0)


def interrupt():
    global sent
    time.sleep(0.2)
    sent = time.process_time()  # not the time that other processes take
    os.kill(os.getpid(), signal.SIGINT)


calls = [(parallel, 20_000, 10**6), (reduced, 100_000, 10**6), (in_order, 3, 4 * 10**9),
         (nested, 3, 2 * 10**9), (counted, 3, 4 * 10**9), (few, 4, 10**9),
         (few_reduced, 4, 10**9), (vectors, 64, 10**9), (few_nested, 4, 10**9),
         (uneven, 2, 4 * 10**9), (in_slices, (2, 7), 8 * 10**9)]
for kernel, size, n in calls * 2:
    kernel(torch.ones(size), 3)  # compiled
    threading.Thread(target=interrupt).start()
    try:
        kernel(torch.ones(size), n)
        print(kernel.__name__, "was not interrupted")
    except KeyboardInterrupt:
        late = time.process_time() - sent
        print(kernel.__name__, "ok" if late < 1.0 else f"after {late} s")  # 0.2, of two threads

# Sound: what comes next is right.
x = torch.ones(3)
nested(x, 10)
expected = 1.0
for _ in range(10):
    expected = expected * 0.999 + 1.0
print(torch.allclose(x, torch.full((3,), expected)), float(reduced(torch.ones(10), 3)))

n = 200_003  # several strips
y = few(torch.ones(4), n), vectors(ones := torch.ones(64), n), few_reduced(torch.ones(4), n)
print(abs(float(ones.mean()) - 1000.0) < 0.1, float(y[-1]) == 4 * sum(k % 3 for k in range(n)))


class Expired(Exception):
    pass


def expire(*_):
    raise Expired


def note(*_):
    noted.append(threading.current_thread() is threading.main_thread())


signal.signal(signal.SIGALRM, expire)
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    in_order(torch.ones(3), 4 * 10**9)
except Expired:
    print("expired")

noted = []
signal.signal(signal.SIGALRM, note)
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
y = torch.zeros(1)
n = 0
while len(noted) < 3:  # handlers that raise nothing change nothing
    in_order(y, 10_000_000)
    n += 1
signal.setitimer(signal.ITIMER_REAL, 0)
print(all(noted), abs(float(y) - 1000.0) < 0.1)
"""


@pytest.mark.slow
def test_signals_during_long_loops(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    run = subprocess.run(
        [sys.executable, str(file)], cwd=os.getcwd(), capture_output=True, text=True, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    names = ["parallel", "reduced", "in_order", "nested", "counted",
             "few", "few_reduced", "vectors", "few_nested", "uneven",
             "in_slices"] * 2  # fmt: skip
    lines = [*(f"{name} ok" for name in names), "True 30.0", "True True", "expired", "True True"]
    assert run.stdout.splitlines() == lines, run.stderr
    assert run.stderr == ""
