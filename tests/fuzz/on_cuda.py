"""Random programs of every form on a CUDA device, against the undecorated Python on the CPU.

``python -m tests.fuzz.on_cuda --seconds 600`` draws them in several processes until the time is
over, or until each form has had ``--each`` of them, prints what became of each form, and ends with
1 where something differs. ``--log`` names a file that has what is
known so far, whatever becomes of the process. ``--seed`` repeats one program of one form.

The programs are those of ``make fuzz``. While one runs, a call of a kernel moves what it is given
to the device, and what it has written back: the Python, and what compares, stay on the CPU. (What
``torch.compile`` makes of a call stays there, too.)

With ``--device cpu`` nothing is moved, and ``--each 20000`` is ``make fuzz N=20000`` but for what
needs WebGPU: of some forms, a part of that number.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import math
import os
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection, wait
from random import Random
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from tests.processes import CONTEXT
from weft.errors import KernelValueError
from weft.lang.structs import StructField

LONGEST = 300.0  # seconds of one program: long ones have second derivatives of 40 s
TOLD = 4  # programs of a form that are told, if more differ
LOGGED = 30.0  # seconds from one table of a log to the next


class Form(NamedTuple):
    """Programs of one form, of which ``make fuzz`` draws a part of the number that it is given (of
    "queues" and "staged" none). Those for the CPU alone set what CUDA does not read, run what they
    compile on an emulated grid, compile for a GPU themselves, compare sizes, keep tensors around
    kernels, or have views of one tensor under transforms, which would be copies on the device."""

    check: Callable[[Random], Any]
    part: float = 1.0
    cpu_only: bool = False


def forms(device: str) -> dict[str, Form]:
    """The programs of each form, run against the Python. Imported in processes of their own."""
    from tests.fuzz import (
        conditions,
        deciding,
        draws,
        element_loops,
        every_schedule,
        generate,
        graphs,
        jagged,
        joins,
        jumps,
        moves,
        nests,
        objects,
        orders,
        overlaps,
        places,
        programs,
        queues,
        results,
        row_values,
        rows,
        slices,
        special,
        structs,
        tables,
        taken,
        totals,
        transforms,
        updates,
        windows,
    )
    from tests.fuzz.check import check
    from tests.fuzz.gradients import check_gradients, check_recurrences

    def kernels(*drawn: Callable[[Random], Any]) -> Callable[[Random], None]:
        return lambda random: check(random, draw=random.choice(drawn) if drawn[1:] else drawn[0])

    def under(
        condition: Callable[[], AbstractContextManager[None]], check: Callable[[Random], Any]
    ) -> Callable[[Random], Any]:
        def checked(random: Random) -> Any:
            with condition():
                return check(random)

        return checked

    def tapes(random: Random) -> str:
        return random.choice((check_gradients, check_recurrences))(random)

    plain, nest, row, window = generate.kernel, nests.kernel, rows.kernel, windows.kernel
    parts = {"complexes": 0.1, "collections": 0.1, "recurrences": 0.25, "second": 0.2,
             "histories": 0.25, "ties": 0.25, "staged": 0.1}  # fmt: skip
    found = {name: Form(each, parts.get(name, 1.0))
             for name, each in every_schedule.checks().items()}  # fmt: skip
    found |= {
        "taken": Form(kernels(taken.kernel)), "queues": Form(kernels(queues.kernel), 0.1),
        "structs": Form(structs.check, 0.1), "tables": Form(tables.check, 0.2),
        "objects": Form(objects.check, 0.2), "moves": Form(moves.check, 0.2),
        "jumps": Form(jumps.check, 0.2), "joins": Form(joins.check, 0.2),
        "row values": Form(row_values.check, 0.2), "orders": Form(orders.check, 0.2),
        "element loops": Form(functools.partial(element_loops.check, device=device)),
        "programs": Form(programs.check, 0.2), "updates": Form(updates.check, 0.2),
        "totals": Form(totals.check, 0.2),
        "overlaps": Form(overlaps.check),
        "slices": Form(under(conditions.many_chunks, slices.check)),
        "results": Form(results.check_results, 0.25),
        "special": Form(special.check_special, 0.25),
        "transforms": Form(transforms.check_transforms, 0.25),
        "graphs": Form(graphs.check_graphs, 0.25),
        "parts": Form(overlaps.check_derivatives, 0.25, True),
        "sizes": Form(deciding.check, 0.1, True), "places": Form(places.check, 0.1, True),
        "jagged": Form(jagged.check, 0.2, True),
        "chunks": Form(under(conditions.many_chunks, kernels(plain, nest)), 1.0, True),
        "streams": Form(
            under(conditions.past_caches, kernels(plain, nest, window, row)), 1.0, True
        ),
        "draws": Form(under(conditions.many_chunks, draws.check), 0.1, True),
        "tapes": Form(under(conditions.tapes_in_chunks, tapes), 0.25, True),
    }  # fmt: skip
    for name in every_schedule.FORMS:
        each = functools.partial(_by_every_schedule, name)
        found[f"schedules of {name}"] = Form(each, 1 / (40 * len(every_schedule.FORMS)), True)
    return {name: form for name, form in found.items() if device == "cpu" or not form.cpu_only}


def _by_every_schedule(form: str, random: Random) -> None:
    from tests.fuzz.every_schedule import check_every_schedule

    check_every_schedule(form, random.randrange(1 << 40))


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
            batched = torch._C._functorch.is_batchedtensor(value)  # which torch counts no writes to
            if moved._version != version or (batched and not _same_memory(value, moved)):
                value.copy_(moved)

    def here(self, value: Any) -> Any:
        """A result: the argument itself, or a view of it, if it is one there."""
        if dataclasses.is_dataclass(value) and not isinstance(value, type):  # which no tree walks
            own = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            found = {name: pytree.tree_map(self.here, held) for name, held in own.items()}
            changed = any(found[name] is not held for name, held in own.items())
            return dataclasses.replace(value, **found) if changed else value
        if not isinstance(value, torch.Tensor) or value.device.type != self.device:
            return value
        for own, moved, _ in self.followed:
            if value is moved:
                return own
        if not _is_followed(value):
            for own, there in self.storages.values():
                if there.data_ptr() == value.untyped_storage().data_ptr() and there.nbytes():
                    return _view(value, own)
        if value.grad_fn is not None and not _is_watched(value):
            # torch's register_hook ends the process for a view whose base has changed since, unless
            # grad_fn has been asked for.
            value.register_hook(_as_one)
        return value.to("cpu", copy=True)


def _as_one(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """A gradient whose places all have one value is one element, as it was before it was moved."""
    if gradient is None or torch.is_grad_enabled() or _is_watched(gradient):
        return None
    if not gradient.dim() or not gradient.numel():
        return None
    first = gradient[(slice(1),) * gradient.dim()].expand(gradient.shape)
    return first if torch.equal(gradient, first) else None


def _is_followed(tensor: torch.Tensor) -> bool:
    """Whether autograd, a transform or a mode has to see what becomes of it."""
    return tensor.requires_grad or _is_watched(tensor)


def _is_watched(tensor: torch.Tensor) -> bool:
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        or torch.autograd.forward_ad._current_level >= 0
    )


def _same_memory(value: torch.Tensor, moved: torch.Tensor) -> bool:
    """Whether what the levels of transforms hold of both is equal; False where it is traced."""
    if torch._C._len_torch_dispatch_stack() > 0:
        return False
    value, moved = map(_unwrapped, (value, moved))
    with torch._C._DisableFuncTorch():  # what is compared is a number for each of the batch
        return torch.equal(value.detach().cpu(), moved.detach().cpu())


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


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


_TWO_DEVICES = ("on one device", "Expected all tensors to be on the same device")


def outcome(form: str, seed: int, device: str) -> str:
    """What became of a program: "agrees", or another word of its check. Raises where it differs."""
    try:
        with on_device(device) if device != "cpu" else contextlib.nullcontext():
            found = forms(device)[form].check(Random(seed))
    except (KernelValueError, RuntimeError) as error:
        # Under a mode that traces, what is around the host part, or made there, is not there.
        if form != "graphs" or not any(text in str(error) for text in _TWO_DEVICES):
            raise
        return "not there"
    return found.partition(":")[0] if isinstance(found, str) else "agrees"


def _told(device: str, number: int, there: Connection) -> None:
    """What a process does: carries out what it is told to, and tells what became of it. Processes
    share the GPUs that there are."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that draws ends this one
    os.environ["WEFT_CACHE"] = "0"
    if device == "cuda":
        torch.cuda.set_device(number % torch.cuda.device_count())
    torch.set_num_threads(2 if device == "cpu" else 1)
    if device == "cpu":  # as in tests
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".torch.jit.script", DeprecationWarning)
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
        self.asked: tuple[str, int] = ("", 0)
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


class Found:
    """What became of programs of each form, and those that differ: form, seed, message. All of it
    goes to the file ``log``, too, at once and every ``LOGGED`` seconds."""

    def __init__(self, forms: Mapping[str, int], log: str = "") -> None:
        self.words = {form: Counter[str]() for form in forms}
        self.wrong = list[tuple[str, int, str]]()
        self.log, self.begin, self.told = log, time.monotonic(), time.monotonic()

    def add(self, form: str, seed: int, word: str, message: str) -> None:
        self.words[form][word] += 1
        if message:
            self.wrong.append((form, seed, message))
            self._write(f"{form} {seed}:\n{message}\n")
        if time.monotonic() - self.told > LOGGED:
            self.tell()

    def tell(self) -> None:
        self.told = time.monotonic()
        self._write(f"after {self.told - self.begin:.0f} s:\n{self}\n")

    def _write(self, text: str) -> None:
        if self.log:
            with open(self.log, "a") as file:
                file.write(text + "\n")

    def __str__(self) -> str:
        lines = [
            f"{form:24} {words.total():6}  " + ", ".join(f"{n} {w}" for w, n in words.items())
            for form, words in self.words.items()
        ]
        count = sum(words.total() for words in self.words.values())
        return "\n".join([*lines, f"{count} programs, {len(self.wrong)} to look at"])


def run(
    most: Mapping[str, int], seconds: float, processes: int, device: str, log: str = ""
) -> Found:
    """Draws programs of each form, ``most`` of it if there is time."""
    found = Found(most, log)
    until, random = time.monotonic() + seconds, Random()
    given = Counter[str]()

    def ask(worker: Worker) -> bool:
        left = [form for form in most if given[form] < most[form]]
        if not left or time.monotonic() > until:
            return False
        form = min(left, key=lambda form: given[form] / most[form])
        given[form] += 1
        worker.ask((form, random.randrange(1 << 40)))
        return True

    busy = [worker for worker in (Worker(device, n) for n in range(processes)) if ask(worker)]
    found.tell()
    try:
        asked = time.monotonic()
        while busy:
            ready = wait([worker.here for worker in busy], timeout=1)
            late = time.monotonic() - asked > 1  # then all of them are asked
            asked = time.monotonic() if late else asked
            for worker in [w for w in busy if late or w.here in ready]:
                if (answer := worker.answer()) is None:
                    continue
                busy.remove(worker)
                found.add(*worker.asked, *answer)
                if answer[1]:  # on a GPU, nothing may go on in a process that met an error
                    worker.process.kill()
                    worker = Worker(device, worker.number)
                if ask(worker):
                    busy.append(worker)
                else:
                    worker.here.send(None)
    finally:  # as where it is interrupted, too
        found.tell()
    return found


def _end(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--each", type=int, default=1 << 30, metavar="N", help="at most, of a form")
    parser.add_argument("--forms", default="", help="by commas; all, if not given")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--log", default="", metavar="FILE", help="what is found goes there, too")
    parser.add_argument("--seed", type=int, help="this program, of the first of the forms")
    asked = parser.parse_args()
    there = forms(asked.device)
    names = asked.forms.split(",") if asked.forms else [*there]
    if unknown := [name for name in names if name not in there]:
        parser.error(f"no form is called {unknown[0]!r}: there are {', '.join(there)}")
    if asked.seed is not None:
        print(outcome(names[0], asked.seed, asked.device))
        return 0
    signal.signal(signal.SIGTERM, _end)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # of the processes
    parts = {name: there[name].part if asked.device == "cpu" else 1.0 for name in names}
    most = {name: math.ceil(asked.each * part) for name, part in parts.items()}
    found = run(most, asked.seconds, asked.processes, asked.device, asked.log)
    told = Counter[str]()
    for form, seed, message in found.wrong:
        told[form] += 1
        if told[form] <= TOLD:
            print(f"{form} {seed}:\n{message}\n")
    print(found)
    return bool(found.wrong)


if __name__ == "__main__":
    sys.exit(main())
