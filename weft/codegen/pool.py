"""The code that all kernels share: chunks of a loop, run here or by OpenMP's threads.

``CUT`` says how many chunks there are, which ``RUN`` is told. One chunk it runs itself; several go
to the *worker*, run by each thread, which takes chunks of its own share, then of the others'.

It is written out as LLVM IR and compiled once, so that the object code of a kernel is its loop and
little else: LLVM would take longer for this than for most loops.
"""

from __future__ import annotations

from weft.codegen import interrupt
from weft.ir import chunks
from weft.schedule.machine import CpuMachine

# Words of the frame that a kernel hands over, and that chunks read, too. What the kernel's own
# chunks need follows. RECORD is a place that is not 0 after a failed check.
# WAITS: whether the caller asks for handlers while the other threads finish, for an iteration of
# theirs may take long.
SLOTS, SHARES, THREADS, CHUNKS, STOP, CHUNK, RECORD, WAITS, FIRST = range(9)
_LINE = 8  # words of a cache line: the next chunk of each share has a line of its own
_READY = chunks.MOST * _LINE  # behind them: how many threads have no chunk left, the caller aside
_SPINS = 1024  # looks at that, before the caller sleeps, longer each time
_LONGEST = 4000  # microseconds of sleep

# i1 (ptr frame, i64 chunks, i1 alone): runs the chunks; whether the function is to end, for a check
# failed or a handler raised. It reads SLOTS, STOP (0), CHUNK, RECORD and WAITS. ``alone``: only the
# calling thread takes part.
RUN = "weft.run"
# i64 (): how many threads there are to share a loop.
AVAILABLE = "weft.threads"
# void (ptr slots, ptr frame, i64 number): what stands in CHUNK.
# { i64, i64 } (i64 total, i64 row, double wished): see ``ir.chunks``.
CUT = "weft.chunks"
EXPORTS = (RUN, AVAILABLE, CUT, interrupt.DUE)
DECLARATION = f"declare i1 @{RUN}(ptr, i64, i1)"

# Without OpenMP there is one thread.
_SERIAL = """
define i32 @omp_get_max_threads() { ret i32 1 }
define i32 @omp_in_parallel() { ret i32 0 }
define i32 @omp_get_thread_num() { ret i32 0 }
define i32 @omp_get_num_threads() { ret i32 1 }
define void @GOMP_parallel(ptr %body, ptr %frame, i32 %threads, i32 %flags) {
  call void %body(ptr %frame)
  ret void
}
"""
_OPENMP = """
declare i32 @omp_get_max_threads()
declare i32 @omp_in_parallel()
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
declare void @GOMP_parallel(ptr, ptr, i32, i32)
"""


def _load(name: str, word: int, type: str = "i64") -> str:
    return (
        f"  %{name}.at = getelementptr i64, ptr %frame, i64 {word}\n"
        f"  %{name} = load {type}, ptr %{name}.at, align 8"
    )


def _store(name: str, word: int, type: str = "i64") -> str:
    return (
        f"  %{name}.to = getelementptr i64, ptr %frame, i64 {word}\n"
        f"  store {type} %{name}, ptr %{name}.to, align 8"
    )


_RUN = f"""
define i1 @{RUN}(ptr %frame, i64 %chunks, i1 %alone) nounwind {{
entry:
  %shares = alloca [{(chunks.MOST + 1) * _LINE} x i64], align 64
{_load("slots", SLOTS, "ptr")}
{_load("chunk", CHUNK, "ptr")}
{_load("record", RECORD, "ptr")}
  %failed = load i64, ptr %record, align 8
  %fine = icmp eq i64 %failed, 0
  %some = icmp sgt i64 %chunks, 0
  %go = and i1 %some, %fine
  br i1 %go, label %count, label %end
count:
  %several = icmp sgt i64 %chunks, 1
  br i1 %several, label %share, label %one
one:
  call void %chunk(ptr %slots, ptr %frame, i64 0)
  br label %end
share:
  %ready = getelementptr i64, ptr %shares, i64 {_READY}
  store i64 0, ptr %ready, align 8
{_store("shares", SHARES, "ptr")}
{_store("chunks", CHUNKS)}
  %threads.to = getelementptr i64, ptr %frame, i64 {THREADS}
  br i1 %alone, label %here, label %ask
ask:
  %available = call i64 @{AVAILABLE}()
  %threads = call i64 @llvm.smin.i64(i64 %available, i64 %chunks)
  %single = icmp slt i64 %threads, 2
  br i1 %single, label %here, label %first
first:
  store i64 %threads, ptr %threads.to, align 8
  br label %each
each:
  %thread = phi i64 [ 0, %first ], [ %next, %each ]
  %product = mul i64 %thread, %chunks
  %begin = udiv i64 %product, %threads
  %word = mul i64 %thread, {_LINE}
  %counter = getelementptr i64, ptr %shares, i64 %word
  store i64 %begin, ptr %counter, align 8
  %next = add i64 %thread, 1
  %more = icmp slt i64 %next, %threads
  br i1 %more, label %each, label %pool
pool:
  %threads32 = trunc i64 %threads to i32
  call void @GOMP_parallel(ptr @weft.worker, ptr %frame, i32 %threads32, i32 0)
  br label %end
here:
  store i64 1, ptr %threads.to, align 8
  store i64 0, ptr %shares, align 8
  call void @weft.worker(ptr %frame)
  br label %end
end:
{_load("stopped", STOP)}
  %checked = load i64, ptr %record, align 8
  %either = or i64 %stopped, %checked
  %ended = icmp ne i64 %either, 0
  ret i1 %ended
}}
"""

_CUT = f"""
define {{ i64, i64 }} @{CUT}(i64 %total, i64 %row, double %wished) nounwind {{
entry:
  %limited = call double @llvm.minnum.f64(double %wished, double {chunks.MOST}.0)
  %count = fptosi double %limited to i64
  %few = icmp slt i64 %count, 2
  br i1 %few, label %whole, label %cut
whole:
  %all = call i64 @llvm.smax.i64(i64 %total, i64 1)
  %any = call i64 @llvm.smin.i64(i64 %total, i64 1)
  br label %made
cut:
  %last = add i64 %total, -1
  %raised = add i64 %last, %count
  %even = udiv i64 %raised, %count
  %long = icmp sgt i64 %even, {chunks.LONG}
  %line = select i1 %long, i64 {chunks.LINE}, i64 1
  %rows = icmp sgt i64 %even, %row
  %some = call i64 @llvm.smax.i64(i64 %row, i64 1)
  %unit = select i1 %rows, i64 %some, i64 %line
  %below = add i64 %unit, -1
  %above = add i64 %even, %below
  %units = udiv i64 %above, %unit
  %rounded = mul i64 %units, %unit
  %least = call i64 @llvm.smax.i64(i64 %rounded, i64 1)
  %reach = add i64 %last, %least
  %chunks = udiv i64 %reach, %least
  br label %made
made:
  %size = phi i64 [ %all, %whole ], [ %least, %cut ]
  %number = phi i64 [ %any, %whole ], [ %chunks, %cut ]
  %first = insertvalue {{ i64, i64 }} undef, i64 %size, 0
  %both = insertvalue {{ i64, i64 }} %first, i64 %number, 1
  ret {{ i64, i64 }} %both
}}
"""

_AVAILABLE = f"""
define i64 @{AVAILABLE}() nounwind {{
entry:
  %available32 = call i32 @omp_get_max_threads()
  %available = sext i32 %available32 to i64
  %inside = call i32 @omp_in_parallel()
  %nested = icmp ne i32 %inside, 0
  %threads = select i1 %nested, i64 1, i64 %available
  ret i64 %threads
}}
"""

# What a thread does: the chunks of its own share, then what is left of the others'. A share is the
# same part of memory in every call, which stays in the caches of one core.
_WORKER = f"""
define internal void @weft.worker(ptr %frame) nounwind {{
entry:
  %asked = alloca i64, align 8
{_load("slots", SLOTS, "ptr")}
{_load("shares", SHARES, "ptr")}
{_load("threads", THREADS)}
{_load("chunks", CHUNKS)}
{_load("chunk", CHUNK, "ptr")}
{_load("record", RECORD, "ptr")}
  %stop = getelementptr i64, ptr %frame, i64 {STOP}
  %number32 = call i32 @omp_get_thread_num()
  %number = sext i32 %number32 to i64
  %own = urem i64 %number, %threads  ; alone, it may be any thread's number
  %several = icmp sgt i64 %threads, 1
  %now = call i64 @llvm.COUNTER()
  store i64 %now, ptr %asked, align 8
  br label %share
share:
  %offset = phi i64 [ 0, %entry ], [ %next, %out ]
  %sum = add i64 %own, %offset
  %thread = urem i64 %sum, %threads
  %word = mul i64 %thread, {_LINE}
  %counter = getelementptr i64, ptr %shares, i64 %word
  %following = add i64 %thread, 1
  %product = mul i64 %following, %chunks
  %end = udiv i64 %product, %threads
  br label %take
take:
  %stopped = load atomic i64, ptr %stop monotonic, align 8
  %failed = load atomic i64, ptr %record monotonic, align 8
  %either = or i64 %stopped, %failed
  %fine = icmp eq i64 %either, 0
  br i1 %fine, label %number_of, label %out
number_of:
  br i1 %several, label %shared, label %alone
shared:
  %free = atomicrmw add ptr %counter, i64 1 monotonic, align 8
  br label %numbered
alone:  ; an atomic operation would wait for all that the chunk before has stored
  %counted = load i64, ptr %counter, align 8
  %after = add i64 %counted, 1
  store i64 %after, ptr %counter, align 8
  br label %numbered
numbered:
  %taken = phi i64 [ %free, %shared ], [ %counted, %alone ]
  %mine = icmp slt i64 %taken, %end
  br i1 %mine, label %run, label %out
run:
  call void %chunk(ptr %slots, ptr %frame, i64 %taken)
  %due = call i1 @{interrupt.DUE}(ptr %asked, ptr %stop)
  br i1 %due, label %out, label %take
out:
  %next = add i64 %offset, 1
  %more = icmp slt i64 %next, %threads
  br i1 %more, label %share, label %leave
leave:
{_load("waits", WAITS)}
  %wanted = icmp ne i64 %waits, 0
  %meets = and i1 %several, %wanted
  br i1 %meets, label %meet, label %ready
meet:
  %done = getelementptr i64, ptr %shares, i64 {_READY}
  %caller = icmp eq i32 %number32, 0
  br i1 %caller, label %wait, label %tell
tell:
  %before = atomicrmw add ptr %done, i64 1 release, align 8
  ret void
wait:  ; not in OpenMP, which does not come back for a signal
  %looks = phi i32 [ 0, %meet ], [ %looked, %pause ]
  %others = load atomic i64, ptr %done acquire, align 8
  %team32 = call i32 @omp_get_num_threads()
  %team = sext i32 %team32 to i64
  %absent = sub i64 %team, %others
  %all = icmp slt i64 %absent, 2
  br i1 %all, label %ready, label %look
look:
  %ended = call i1 @{interrupt.DUE}(ptr %asked, ptr %stop)
  %looked = add i32 %looks, 1
  %spins = icmp slt i32 %looks, {_SPINS}
  br i1 %spins, label %yield, label %sleep
yield:
  %yielded = call i32 @sched_yield()
  br label %pause
sleep:
  %beyond = sub i32 %looks, {_SPINS - 64}
  %eighth = lshr i32 %beyond, 3
  %squared = mul i32 %eighth, %eighth
  %time = call i32 @llvm.umin.i32(i32 %squared, i32 {_LONGEST})
  %slept = call i32 @usleep(i32 %time)
  br label %pause
pause:
  br label %wait
ready:
  ret void
}}

declare i32 @sched_yield()
declare i32 @usleep(i32)
declare i32 @llvm.umin.i32(i32, i32)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare double @llvm.minnum.f64(double, double)
"""


def text(machine: CpuMachine, *, openmp: bool) -> str:
    """The module's LLVM IR."""
    own = interrupt.timed(_RUN + _CUT + _AVAILABLE + _WORKER + interrupt.TEXT, machine.clock)
    return own + (_OPENMP if openmp else _SERIAL)
