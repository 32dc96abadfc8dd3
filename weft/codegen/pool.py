"""The code that all kernels share: chunks of a loop, run here or by OpenMP's threads.

``RUN`` decides how many chunks there are. One chunk it runs itself; several go to the *worker*, run
by each thread, which takes chunks of its own share, then of the others'. Where chunks begin depends
on the sizes alone, so a reduction gives the same bits with any number of threads.

It is written out as LLVM IR and compiled once, so that the object code of a kernel is its loop and
little else: LLVM would take longer for this than for most loops.
"""

from __future__ import annotations

from weft.codegen import interrupt
from weft.schedule.machine import CpuMachine

MAX_CHUNKS = 256
CHUNK_COST = 32_768  # operations: about a microsecond or more, below which sharing is not worth it

# Words of the frame that a kernel hands over, and that chunks read, too. What the kernel's own
# chunks need follows. RECORD is a place that is not 0 after a failed check.
# WAITS: whether the caller asks for handlers while the other threads finish, for an iteration of
# theirs may take long.
SLOTS, SHARES, THREADS, CHUNKS, SIZE, TOTAL, PARTIALS, STOP, CHUNK, KINDS, RECORD = range(11)
WAITS, FIRST = 11, 12
MOST_COPIES = 64
COPY_BYTES = 16 << 20  # of all copies
ELEMENT_COST = 16  # operations of a chunk that pay for an element of a copy: cleared, and added
_LINE = 8  # words of a cache line: the next chunk of each share has a line of its own
_READY = MAX_CHUNKS * _LINE  # behind them: how many threads have no chunk left, the caller aside
_SPINS = 64  # looks at that, before the caller sleeps, longer each time
_LONGEST = 4000  # microseconds of sleep

# i64 (ptr frame, i64 row, double work, i1 alone): runs the loop, gives the number of chunks. It
# reads SLOTS, TOTAL (iterations), PARTIALS (KINDS words for each chunk), STOP (0), CHUNK, KINDS and
# RECORD. ``row``: chunks of more than so many iterations are made of whole rows. ``work``: a guess
# of the operations in all. ``alone``: only the calling thread takes part.
RUN = "weft.run"
# i64 (double work, i64 elements, i64 bytes): how a loop accumulates into arrays of so much. 0: by
# atomic operations; 1: plainly, alone; more: that many chunks, each into copies of its own, whose
# number depends on the sizes alone where there are threads to share the work.
COPIES = "weft.copies"
# i64 (): how many threads there are to share a loop.
AVAILABLE = "weft.threads"
# void (ptr slots, ptr frame, i64 begin, i64 end, ptr partial): what stands in CHUNK.
EXPORTS = (RUN, COPIES, AVAILABLE, interrupt.DUE)
DECLARATION = f"declare i64 @{RUN}(ptr, i64, double, i1)"

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
define i64 @{RUN}(ptr %frame, i64 %row, double %work, i1 %alone) nounwind {{
entry:
  %shares = alloca [{(MAX_CHUNKS + 1) * _LINE} x i64], align 64
  %ready = getelementptr i64, ptr %shares, i64 {_READY}
  store i64 0, ptr %ready, align 8
{_load("slots", SLOTS, "ptr")}
{_load("total", TOTAL)}
{_load("partials", PARTIALS, "ptr")}
{_load("chunk", CHUNK, "ptr")}
{_load("record", RECORD, "ptr")}
  %wished = fmul double %work, {1 / CHUNK_COST!r}
  %limited = call double @llvm.minnum.f64(double %wished, double {MAX_CHUNKS}.0)
  %count = fptosi double %limited to i64
  %few = icmp slt i64 %count, 2
  br i1 %few, label %one, label %cut
cut:
  %last = add i64 %total, -1
  %raised = add i64 %last, %count
  %even = udiv i64 %raised, %count
  %long = icmp sgt i64 %even, 256
  %line = select i1 %long, i64 64, i64 1  ; vectors of a chunk begin where lines do
  %rows = icmp sgt i64 %even, %row
  %unit = select i1 %rows, i64 %row, i64 %line
  %below = add i64 %unit, -1
  %above = add i64 %even, %below
  %units = udiv i64 %above, %unit
  %rounded = mul i64 %units, %unit
  %size = call i64 @llvm.smax.i64(i64 %rounded, i64 1)
  %reach = add i64 %last, %size
  %chunks = udiv i64 %reach, %size
  %several = icmp sgt i64 %chunks, 1
  br i1 %several, label %share, label %one
one:
  %some = icmp sgt i64 %total, 0
  %failed = load i64, ptr %record, align 8
  %fine = icmp eq i64 %failed, 0
  %go = and i1 %some, %fine
  br i1 %go, label %run, label %skip
run:
  call void %chunk(ptr %slots, ptr %frame, i64 0, i64 %total, ptr %partials)
  ret i64 1
skip:
  %none = zext i1 %some to i64
  ret i64 %none
share:
{_store("shares", SHARES, "ptr")}
{_store("chunks", CHUNKS)}
{_store("size", SIZE)}
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
  ret i64 %chunks
here:
  store i64 1, ptr %threads.to, align 8
  store i64 0, ptr %shares, align 8
  call void @weft.worker(ptr %frame)
  ret i64 %chunks
}}
"""

_COPIES = f"""
define i64 @{COPIES}(double %work, i64 %elements, i64 %bytes) nounwind {{
entry:
  %wished = fmul double %work, {1 / CHUNK_COST!r}
  %limited = call double @llvm.minnum.f64(double %wished, double {MOST_COPIES}.0)
  %chunks = fptosi double %limited to i64
  %one = icmp slt i64 %chunks, 2
  br i1 %one, label %alone, label %several
several:
  %size = call i64 @llvm.smax.i64(i64 %bytes, i64 1)
  %fit = udiv i64 {COPY_BYTES}, %size
  %cost = uitofp i64 %elements to double
  %each = fmul double %cost, {float(ELEMENT_COST)!r}
  %pays = fdiv double %work, %each
  %bounded = call double @llvm.minnum.f64(double %pays, double {MOST_COPIES}.0)
  %paid = fptosi double %bounded to i64
  %less = call i64 @llvm.smin.i64(i64 %fit, i64 %paid)
  %count = call i64 @llvm.smin.i64(i64 %less, i64 %chunks)
  %threads = call i64 @{AVAILABLE}()
  %busy = call i64 @llvm.smin.i64(i64 %threads, i64 %chunks)
  %wanted = call i64 @llvm.smax.i64(i64 %busy, i64 2)
  %enough = icmp sge i64 %count, %wanted
  br i1 %enough, label %private, label %other
private:
  ret i64 %count
other:
  %single = icmp slt i64 %threads, 2
  br i1 %single, label %alone, label %atomic
alone:
  ret i64 1
atomic:
  ret i64 0
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
{_load("size", SIZE)}
{_load("total", TOTAL)}
{_load("partials", PARTIALS, "ptr")}
{_load("chunk", CHUNK, "ptr")}
{_load("kinds", KINDS)}
{_load("record", RECORD, "ptr")}
  %stop = getelementptr i64, ptr %frame, i64 {STOP}
  %number32 = call i32 @omp_get_thread_num()
  %number = sext i32 %number32 to i64
  %own = urem i64 %number, %threads  ; alone, it may be any thread's number
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
  %taken = atomicrmw add ptr %counter, i64 1 monotonic, align 8
  %mine = icmp slt i64 %taken, %end
  br i1 %mine, label %run, label %out
run:
  %from = mul i64 %taken, %size
  %beyond = add i64 %from, %size
  %to = call i64 @llvm.smin.i64(i64 %total, i64 %beyond)
  %first = mul i64 %taken, %kinds
  %partial = getelementptr i64, ptr %partials, i64 %first
  call void %chunk(ptr %slots, ptr %frame, i64 %from, i64 %to, ptr %partial)
  %due = call i1 @{interrupt.DUE}(ptr %asked, ptr %stop)
  br i1 %due, label %out, label %take
out:
  %next = add i64 %offset, 1
  %more = icmp slt i64 %next, %threads
  br i1 %more, label %share, label %leave
leave:
{_load("waits", WAITS)}
  %together = icmp sgt i64 %threads, 1
  %wanted = icmp ne i64 %waits, 0
  %meets = and i1 %together, %wanted
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
  %eighth = lshr i32 %looks, 3
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
    own = interrupt.timed(_RUN + _COPIES + _AVAILABLE + _WORKER + interrupt.TEXT, machine.clock)
    return own + (_OPENMP if openmp else _SERIAL)
