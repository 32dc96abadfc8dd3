"""How the threads of a CPU share the loops of kernels: what each of them was busy for.

While it is measured, the jump by which kernels have a team run a loop (``cpu.Teams``) leads to a
function that notes when each thread begins and ends. Loops of one chunk, which the calling thread
runs, are not among them.
"""

from __future__ import annotations

import array
from collections.abc import Sequence
from typing import Self

from weft.codegen.libraries import address_of
from weft.codegen.pool import CHUNK
from weft.runtime.cpu import LOADED, teams
from weft.runtime.link import Linked
from weft.values import frozen

_MOST = 1 << 18  # records
_WORDS = 6  # of one: the launch, the chunk's function, the team's size, the thread, begin, end
_TEXT = """
define void @weft.timed(ptr %body, ptr %frame, i32 %threads, i32 %flags) {{
  %own = alloca [4 x i64], align 8
  %launch = atomicrmw add ptr inttoptr (i64 {counters} to ptr), i64 1 monotonic
  store ptr %body, ptr %own, align 8
  %own.1 = getelementptr i64, ptr %own, i64 1
  store ptr %frame, ptr %own.1, align 8
  %own.2 = getelementptr i64, ptr %own, i64 2
  store i64 %launch, ptr %own.2, align 8
  %size = sext i32 %threads to i64
  %own.3 = getelementptr i64, ptr %own, i64 3
  store i64 %size, ptr %own.3, align 8
  call void inttoptr (i64 {parallel} to ptr)(
    ptr @weft.timed.body, ptr %own, i32 %threads, i32 %flags)
  ret void
}}

define internal i64 @weft.now() {{
  %at = alloca [2 x i64], align 8
  %failed = call i32 inttoptr (i64 {clock} to ptr)(i32 1, ptr %at)
  %seconds = load i64, ptr %at, align 8
  %at.1 = getelementptr i64, ptr %at, i64 1
  %rest = load i64, ptr %at.1, align 8
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %rest
  ret i64 %now
}}

define internal void @weft.timed.body(ptr %own) {{
entry:
  %body = load ptr, ptr %own, align 8
  %own.1 = getelementptr i64, ptr %own, i64 1
  %frame = load ptr, ptr %own.1, align 8
  %own.2 = getelementptr i64, ptr %own, i64 2
  %launch = load i64, ptr %own.2, align 8
  %own.3 = getelementptr i64, ptr %own, i64 3
  %size = load i64, ptr %own.3, align 8
  %chunk.at = getelementptr i64, ptr %frame, i64 {chunk}
  %chunk = load i64, ptr %chunk.at, align 8
  %begin = call i64 @weft.now()
  call void %body(ptr %frame)
  %end = call i64 @weft.now()
  %thread32 = call i32 inttoptr (i64 {thread} to ptr)()
  %thread = sext i32 %thread32 to i64
  %k = atomicrmw add ptr inttoptr (i64 {records} to ptr), i64 1 monotonic
  %fits = icmp ult i64 %k, {most}
  br i1 %fits, label %note, label %leave
note:
  %word = mul i64 %k, {words}
  %to = getelementptr i64, ptr inttoptr (i64 {buffer} to ptr), i64 %word
  store i64 %launch, ptr %to, align 8
  %to.1 = getelementptr i64, ptr %to, i64 1
  store i64 %chunk, ptr %to.1, align 8
  %to.2 = getelementptr i64, ptr %to, i64 2
  store i64 %size, ptr %to.2, align 8
  %to.3 = getelementptr i64, ptr %to, i64 3
  store i64 %thread, ptr %to.3, align 8
  %to.4 = getelementptr i64, ptr %to, i64 4
  store i64 %begin, ptr %to.4, align 8
  %to.5 = getelementptr i64, ptr %to, i64 5
  store i64 %end, ptr %to.5, align 8
  br label %leave
leave:
  ret void
}}
"""


@frozen
class Shared:
    """One loop that a team of ``threads`` ran, ``launches`` times. Milliseconds of all launches:
    ``elapsed`` from the first thread's begin to the last one's end, ``busy`` of each thread."""

    loop: str
    launches: int
    threads: int
    elapsed: float
    busy: tuple[float, ...]

    @property
    def balance(self) -> float:
        """The part of the team's time that its threads worked: 1 where all end together."""
        return sum(self.busy) / (self.threads * self.elapsed) if self.elapsed else 1.0


class Balance:
    """``with Balance() as found:`` measures; ``found.shared()`` says what, afterwards. ``why``: why
    it cannot be measured here, "" where it can."""

    why = ""

    def __init__(self) -> None:
        self._counters = array.array("q", [0, 0])  # launches, records
        self._records = array.array("q")
        self._code: Linked | None = None
        if not teams().address:
            self.why = "only on x86-64, with OpenMP, is it known what each thread does"

    def __enter__(self) -> Self:
        if self.why:
            return self
        from weft.runtime import jit  # LLVM, for this text alone

        self._records = array.array("q", bytes(8 * _WORDS * _MOST))
        counters = self._counters.buffer_info()[0]
        text = _TEXT.format(
            counters=counters, records=counters + 8, buffer=self._records.buffer_info()[0],
            parallel=teams().usual, clock=address_of("clock_gettime"), chunk=CHUNK,
            thread=address_of("omp_get_thread_num"), words=_WORDS, most=_MOST,
        )  # fmt: skip
        self._code = jit.link(jit.emit(text), ["weft.timed"], {})
        teams().cell.value = self._code.addresses["weft.timed"]
        return self

    def __exit__(self, *_: object) -> None:
        teams().cell.value = teams().usual

    @property
    def lost(self) -> int:
        """Records for which there was no room."""
        return max(0, self._counters[1] - _MOST)

    def shared(self, spans: Sequence[tuple[int, int]] = ()) -> list[Shared]:
        """What was measured, by loops, those that took longest first. ``spans``: only launches that
        began within one of these, each from and to a ``time.monotonic_ns()``; all, where there are
        none."""
        launches: dict[int, list[tuple[int, ...]]] = {}
        for k in range(min(self._counters[1], _MOST)):
            record = tuple(self._records[_WORDS * k : _WORDS * (k + 1)])
            launches.setdefault(record[0], []).append(record)
        found: dict[tuple[str, int], list[list[tuple[int, ...]]]] = {}
        for records in launches.values():
            began = min(r[4] for r in records)
            if spans and not any(begin <= began <= end for begin, end in spans):
                continue
            _, chunk, size, *_ = records[0]
            found.setdefault((LOADED.at(chunk) or "?", size), []).append(records)
        every: list[Shared] = []
        for (symbol, size), teamwork in found.items():
            busy = [0] * size
            elapsed = 0
            for records in teamwork:
                elapsed += max(r[5] for r in records) - min(r[4] for r in records)
                for _, _, _, thread, begin, end in records:
                    busy[thread] += end - begin
            every.append(Shared(symbol.removeprefix("weft_"), len(teamwork), size, elapsed / 1e6,
                                tuple(b / 1e6 for b in busy)))  # fmt: skip
        return sorted(every, key=lambda one: -one.elapsed)
