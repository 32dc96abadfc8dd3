"""Random programs of every form on a CUDA device, against the undecorated Python on the CPU.

``python -m tests.fuzz.on_cuda --seconds 600`` draws them in several processes until the time is
over, or until each form has had ``--each`` of them, prints what became of each form, and ends with
1 where something differs. ``--seed`` repeats one program of one form.

The programs are those of ``make fuzz``. While one runs, a call of a kernel moves what it is given
to the device, and what it has written back: the Python, and what compares, stay on the CPU. (What
``torch.compile`` makes of a call stays there, too. Of loops over elements, integers modulo 0
differ: torch raises on CPUs alone.)
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from random import Random
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.processes import CONTEXT
from weft.errors import KernelValueError
from weft.lang.structs import StructField

LONGEST = 120.0  # seconds of one program
TOLD = 4  # programs of a form that are told, if more differ


def checks() -> dict[str, Callable[[Random], Any]]:
    """The programs of each form, run against the Python. Imported in processes of their own."""
    from tests.fuzz import (
        element_loops,
        every_schedule,
        graphs,
        moves,
        objects,
        overlaps,
        programs,
        queues,
        results,
        special,
        structs,
        tables,
        taken,
        transforms,
    )
    from tests.fuzz.check import check

    return every_schedule.checks() | {
        "taken": lambda random: check(random, draw=taken.kernel),
        "queues": lambda random: check(random, draw=queues.kernel),
        "structs": structs.check, "tables": tables.check, "objects": objects.check,
        "moves": moves.check, "element loops": element_loops.check, "programs": programs.check,
        "overlaps": overlaps.check, "results": results.check_results,
        "special": special.check_special, "transforms": transforms.check_transforms,
        "graphs": graphs.check_graphs,
    }  # fmt: skip


class Moved:
    """The arguments of one call on ``device``. Tensors that share memory share it there."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.storages = dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]]()
        self.followed = list[tuple[torch.Tensor, torch.Tensor, int]]()

    def there(self, value: Any) -> Any:
        if isinstance(value, StructField):
            members = {name: self.there(member) for name, member in value.members.items()}
            return StructField(members, value.type)
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
            return value
        if _is_followed(value):
            moved = value.to(self.device, copy=True)
            self.followed.append((value, moved, moved._version))
            return moved
        own = value.untyped_storage()
        if own.data_ptr() not in self.storages:
            self.storages[own.data_ptr()] = own, _copied(own, self.device)
        _, storage = self.storages[own.data_ptr()]
        return _view(value, storage)

    def back(self) -> None:
        """Copies what the call has written."""
        for own, there in self.storages.values():
            own.copy_(there)
        for value, moved, version in self.followed:
            if moved._version != version:
                value.copy_(moved)

    def here(self, value: Any) -> Any:
        """A result: the argument itself, or a view of it, if it is one there."""
        if not isinstance(value, torch.Tensor) or value.device.type != self.device:
            return value
        for own, moved, _ in self.followed:
            if value is moved:
                return own
        if not _is_followed(value):
            for own, there in self.storages.values():
                if there.data_ptr() == value.untyped_storage().data_ptr() and there.nbytes():
                    return _view(value, own)
        return value.to("cpu", copy=True)


def _is_followed(tensor: torch.Tensor) -> bool:
    """Whether autograd, a transform or a mode has to see what becomes of it."""
    return (
        tensor.requires_grad
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        or torch.autograd.forward_ad._current_level >= 0
    )


def _copied(storage: torch.UntypedStorage, device: str) -> torch.UntypedStorage:
    return torch.UntypedStorage(storage.nbytes(), device=device).copy_(storage)


def _view(like: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    made = torch.empty(0, dtype=like.dtype, device=storage.device)
    made.set_(storage, like.storage_offset(), like.size(), like.stride())
    if type(like) is not torch.Tensor:
        made = made.as_subclass(type(like))
        vars(made).update(vars(like))
    return made.conj() if like.is_conj() else made


@contextlib.contextmanager
def on_device(device: str) -> Iterator[None]:
    """Kernels that are called with tensors on the CPU run on ``device``."""
    from weft.kernel import Kernel

    call = Kernel.__call__

    def called(kernel: Kernel, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return call(kernel, *args, **kwargs)
        moved = Moved(device)
        args, kwargs = pytree.tree_map(moved.there, (args, kwargs))
        try:
            with torch.device(device):
                result = call(kernel, *args, **kwargs)
        finally:
            moved.back()
        return pytree.tree_map(moved.here, result)

    Kernel.__call__ = called
    try:
        yield
    finally:
        Kernel.__call__ = call


def outcome(form: str, seed: int, device: str) -> str:
    """What became of a program: "agrees", or another word of its check. Raises where it differs."""
    try:
        with on_device(device):
            found = checks()[form](Random(seed))
    except KernelValueError as error:
        # Under a mode that traces, what the host part makes is not made on the device.
        if form != "graphs" or "on one device" not in str(error):
            raise
        return "not there"
    return found.partition(":")[0] if isinstance(found, str) else "agrees"


def _told(device: str, number: int, there: Connection) -> None:
    """What a process does: carries out what it is told to, and tells what became of it. Processes
    share the GPUs that there are."""
    os.environ["WEFT_CACHE"] = "0"
    if device == "cuda":
        torch.cuda.set_device(number % torch.cuda.device_count())
    torch.set_num_threads(1)
    while (asked := there.recv()) is not None:
        try:
            there.send((outcome(*asked, device), ""))
        except Exception:
            there.send(("wrong", traceback.format_exc()))


class Worker:
    """A process that has one program at a time."""

    def __init__(self, device: str, number: int) -> None:
        self.number = number
        self.here, there = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=_told, args=(device, number, there), daemon=True)
        self.process.start()
        there.close()
        self.asked: tuple[str, int] | None = None
        self.since = 0.0

    def ask(self, asked: tuple[str, int]) -> None:
        self.asked, self.since = asked, time.monotonic()
        self.here.send(asked)

    def answer(self) -> tuple[str, str] | None:
        """None: not yet. ("ended", ...): the process is no more."""
        try:
            if self.here.poll():
                return self.here.recv()
        except EOFError:
            self.process.join()
            return "ended", f"the process ended: exit code {self.process.exitcode}"
        if time.monotonic() - self.since < LONGEST:
            return None
        self.process.kill()
        return "ended", f"no end within {LONGEST:.0f} s"


def run(
    forms: Sequence[str], seconds: float, each: int, processes: int, device: str
) -> tuple[dict[str, Counter[str]], list[tuple[str, int, str]]]:
    """What became of programs of each form, and those that differ: form, seed, message."""
    found = {form: Counter[str]() for form in forms}
    wrong = list[tuple[str, int, str]]()
    until, random = time.monotonic() + seconds, Random()
    given = Counter[str]()

    def ask(worker: Worker) -> bool:
        left = [form for form in forms if given[form] < each]
        if not left or time.monotonic() > until:
            return False
        form = min(left, key=lambda form: given[form])
        given[form] += 1
        worker.ask((form, random.randrange(1 << 40)))
        return True

    busy = [worker for worker in (Worker(device, n) for n in range(processes)) if ask(worker)]
    while busy:
        wait([worker.here for worker in busy], timeout=1)
        for worker in list(busy):
            if (answer := worker.answer()) is None:
                continue
            busy.remove(worker)
            assert worker.asked is not None
            form, seed = worker.asked
            word, message = answer
            found[form][word] += 1
            if message:
                wrong.append((form, seed, message))
            if message:  # on a GPU, nothing may go on in a process that met an error
                worker.process.kill()
                worker = Worker(device, worker.number)
            if ask(worker):
                busy.append(worker)
            else:
                worker.here.send(None)
    return found, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--each", type=int, default=1 << 30, metavar="N", help="at most, of a form")
    parser.add_argument("--forms", default="", help="by commas; all, if not given")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, help="this program, of the first of the forms")
    asked = parser.parse_args()
    forms = asked.forms.split(",") if asked.forms else [*checks()]
    if asked.seed is not None:
        print(outcome(forms[0], asked.seed, asked.device))
        return 0
    found, wrong = run(forms, asked.seconds, asked.each, asked.processes, asked.device)
    told = Counter[str]()
    for form, seed, message in wrong:
        told[form] += 1
        if told[form] <= TOLD:
            print(f"{form} {seed}:\n{message}\n")
    for form, words in found.items():
        print(f"{form:14} {words.total():6}  " + ", ".join(f"{n} {w}" for w, n in words.items()))
    print(f"{sum(words.total() for words in found.values())} programs, {len(wrong)} to look at")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
