"""The steps of a schedule, as values with a text: ``parse(show(s)) == s``.

A schedule is a tuple of steps; its text joins them by semicolons:
``index_width(32); unroll_jam(t, 4, stride=32); bind(t, x); bind(c, y); cover()``.
Axes and arrays go by the names that ``nest.Nest`` gives them.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterable
from dataclasses import MISSING, field, fields
from typing import Any, Literal, TypeVar, get_args

from weft.errors import ScheduleError
from weft.values import frozen


@frozen
class IndexWidth:
    """Subscripts and indices of loops are integers of so many bits, 64 without this step. (A
    person writes 64 to have no other.)"""

    bits: Literal[32, 64]


@frozen
class FastDivision:
    """Divisions by numbers of the call are multiplications by their reciprocals."""


@frozen
class UnrollJam:
    """A thread computes ``copies`` iterations along ``axis``, ``stride`` from each other, and loads
    elements that they share once. ``overlap``: so many neighbours do so together, all of them
    always: the last of these groups overlaps the one before it. ``whole``: none has to."""

    axis: str
    copies: int
    stride: int = 1
    overlap: int = 0
    whole: bool = False


@frozen
class Vectorize:
    """A thread computes ``copies`` iterations along ``axis`` (0: ``width``), ``width`` of them side
    by side, the first of these ``stride`` vectors from each other. The first thread begins ``peel``
    iterations before the loop. ``divisible``: quotients and remainders in subscripts are shared by
    those side by side, because what is divided is a multiple of ``width``. ``reverse``: the first
    lane has the last of them."""

    axis: str
    width: int
    copies: int = field(default=0, metadata={"plain": True})
    stride: int = 1
    peel: int = 0
    divisible: bool = False
    reverse: bool = False


@frozen
class Align:
    """``array`` is loaded and stored in whole vectors of so many bytes: it and each of its rows
    begin at multiples of them."""

    array: str
    bytes: int


@frozen
class Bind:
    """Iterations along ``axis`` go to threads along this side of the grid; several axes on one side
    are collapsed."""

    axis: str
    side: Literal["x", "y", "z"]


@frozen
class Block:
    """A block has at most so many threads along x and y."""

    x: int
    y: int


@frozen
class BlockDim:
    """What the kernel's writer asked for by ``loop_config(block_dim=...)``: so many threads, or
    just these sides."""

    sides: tuple[int, ...]


@frozen
class Persist:
    """The grid has at most so many blocks for each multiprocessor, which go on to other
    iterations."""

    blocks: int


@frozen
class Cover:
    """The grid has a thread for each iteration (or vector): there are no loops over them."""


@frozen
class Privatize:
    """Each block accumulates into a copy of ``array`` in shared memory."""

    array: str


@frozen
class StreamingStores:
    """What is stored to ``arrays`` makes way first in the caches."""

    arrays: tuple[str, ...]


@frozen
class Unroll:
    """Every turn of the serial ``loops``, whose bounds are numbers, is written out: subscripts of
    local arrays become numbers, and these stay in registers."""

    loops: tuple[str, ...]


@frozen
class Prefetch:
    """A thread loads what the next ``steps`` turns of the serial ``loop`` load before it carries
    out these ``steps``."""

    loop: str
    steps: int


@frozen
class Stage:
    """What the ``threads`` of a block, neighbours along x, load alike in turns of the serial
    ``loop`` is in shared memory, with what follows from it alone. The block loads it together,
    ``steps`` turns ahead."""

    loop: str
    steps: int
    threads: int


@frozen
class SharedArrays:
    """Local arrays that registers cannot hold, because their subscripts are computed, are in shared
    memory, a place for each thread of the block: those that are accessed most often, as far as that
    reaches."""


@frozen
class CopyAhead:
    """What turns of the serial ``loop`` load for later ones is copied into shared memory, for
    ``steps`` turns at once, while a thread carries out the ``steps`` in front of these."""

    loop: str
    steps: int


@frozen
class LongestFirst:
    """Of blocks along y those start first whose threads have most turns, whatever their place along
    z: the last ones to start are short."""


@frozen
class Reverse:
    """Turns of the serial ``loop`` go from the last to the first."""

    loop: str


@frozen
class RegisterWindow:
    """What the next turn of the serial ``loop`` reads again stays in registers; ``turns`` of it
    become one. ``staged``: what a block's threads load of rows in so many turns is in shared
    memory (0: in none)."""

    loop: str
    turns: int
    staged: int = 0


@frozen
class Cooperate:
    """``threads`` have an iteration together and share its loops ``loops``: the lanes of a warp, or
    a whole block of at most so many threads. ``columns``: so many such groups stand side by side in
    a block, neighbouring threads in neighbouring groups."""

    loops: tuple[str, ...]
    threads: int
    columns: int = 0


@frozen
class SplitReduction(Cooperate):
    """Several such blocks have an iteration together and share its loops ``loops``: each leaves
    what it carried in memory, which a second launch combines in a fixed order. ``parts``: so many
    blocks (0: as the sizes of a call ask for)."""

    parts: int = 0


@frozen
class Scan(Cooperate):
    """Likewise, of loops in which each turn asks for what the one before it carried: a thread has
    ``turns`` neighbouring turns at a time, and what the threads carry through theirs is scanned.
    ``width``: so many of them are all there, or none. ``parts``: so many blocks have an iteration
    together (0: as the sizes of a call ask for), each those turns, in three launches for a loop."""

    width: int = 1
    turns: int = 4
    parts: int = 1


@frozen
class KeepRow:
    """Threads that cooperate go through rows by vectors of ``width`` neighbours, and each has its
    ``vectors`` of the whole row in registers, from the first loop to the last. ``whole``: these are
    all there, in each row."""

    width: int
    vectors: int
    whole: bool = False


@frozen
class StripMine:
    """Threads that cooperate go through rows by vectors of ``width`` neighbours, of which each
    loads ``vectors`` at a time."""

    width: int
    vectors: int


Step = (
    IndexWidth | FastDivision | UnrollJam | Vectorize | Align | Bind | Block | BlockDim | Persist
    | Cover | Privatize | StreamingStores | Cooperate | SplitReduction | Scan | Prefetch
    | Unroll | Stage | KeepRow | StripMine | RegisterWindow | Reverse
    | LongestFirst | SharedArrays | CopyAhead
)  # fmt: skip
Schedule = tuple[Step, ...]

STEPS: tuple[type[Any], ...] = get_args(Step)

# Steps in files of their own, by name: the module that has the class (see ``own.OwnStep``),
# imported where a text names the step.
ELSEWHERE: dict[str, str] = {}


T = TypeVar("T")


def only(schedule: Iterable[Any], kind: type[T]) -> T | None:
    """The first step of this kind."""
    return next((step for step in schedule if isinstance(step, kind)), None)


def several(schedule: Iterable[Any], kind: type[T]) -> list[T]:
    """The steps of this kind, in order."""
    return [step for step in schedule if isinstance(step, kind)]


def tiled(schedule: Schedule) -> bool:
    """Whether the threads of a block have a whole tile of iterations, always all of them."""
    return any(step.staged for step in several(schedule, RegisterWindow))


def brief(schedule: Schedule) -> str:
    """A short name of a form of a kernel, for logs: what tells it from its other forms."""
    words = ["i32" if only(schedule, IndexWidth) else "i64"]
    for step in schedule:
        match step:
            case Vectorize(copies=copies, divisible=divisible):
                words += [f"v{copies}", *["divisible"] * divisible]
            case UnrollJam(axis=axis, overlap=overlap, whole=whole):
                words += [f"jam-{axis}", *["whole" if whole else "overlap"] * (overlap > 0)]
            case SplitReduction(threads=threads, columns=columns):
                words.append(f"split{columns}x{threads}")
            case Scan(threads=threads, width=width, parts=parts):
                words.append(f"{'' if parts == 1 else 'split-'}scan{threads}x{width}")
            case Prefetch(steps=steps):
                words.append(f"ahead{steps}")
            case Stage(steps=steps, threads=threads):
                words.append(f"stage{steps}x{threads}")
            case CopyAhead(steps=steps):
                words.append(f"copies{steps}")
            case RegisterWindow(turns=turns, staged=staged):
                words.append(f"window{turns}" + "-any" * (not only(schedule, Align)))
                words += [f"staged{staged}"] * (staged > 0)
            case Cooperate(threads=threads, columns=columns):
                words.append(f"columns{columns}" if columns else f"team{threads}")
            case KeepRow(width=width, vectors=vectors) | StripMine(width=width, vectors=vectors):
                words.append(f"{_name(type(step)).split('_')[0]}{width}x{vectors}")
                words += ["any"] * (width > 1 and not only(schedule, Align))
                words += ["whole"] * (isinstance(step, KeepRow) and step.whole)
            case (
                Cover() | FastDivision() | LongestFirst() | Privatize() | Reverse()
                | SharedArrays() | StreamingStores() | Unroll()
            ):  # fmt: skip
                words.append(_name(type(step)).split("_")[0])
            case _:
                pass
    return "-".join(words)


# -- text


def show(items: Iterable[Any]) -> str:
    """The text of steps (or of guards, which are spelled alike)."""
    return "; ".join(map(_shown, items))


@functools.lru_cache(maxsize=4096)
def _shown(item: Any) -> str:
    words: list[str] = []
    for each in fields(item):
        value = getattr(item, each.name)
        if each.default is MISSING or (each.metadata and value != each.default):
            words.append(_word(value))
        elif value != each.default:
            words.append(f"{each.name}={_word(value)}")
    return f"{_name(type(item))}({', '.join(words)})"


def _word(value: Any) -> str:
    return f"({', '.join(map(str, value))})" if isinstance(value, tuple) else str(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _name(kind: type[Any]) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", kind.__name__).lower()


def parse(text: str) -> Schedule:
    """The schedule of a text. Raises ``ScheduleError``."""
    return tuple(read(text, STEPS))


def read(text: str, kinds: tuple[type[Any], ...]) -> list[Any]:
    """The items of a text, each of one of ``kinds``. Raises ``ScheduleError``."""
    return [_item(part.strip(), kinds) for part in text.split(";") if part.strip()]


@functools.lru_cache(maxsize=4096)
def _item(text: str, kinds: tuple[type[Any], ...]) -> Any:
    match = re.fullmatch(r"(\w+)\((.*)\)", text, re.DOTALL)
    if match is None:
        raise ScheduleError(f"`{text}` is no step: write it like `unroll_jam(t, 4)`")
    name, inside = match.groups()
    kind = _kind(name, kinds)
    names = [f.name for f in fields(kind)]
    given: dict[str, Any] = {}
    for k, word in enumerate(re.findall(r"(?:[^,()]|\([^)]*\))+", inside)):
        before, equals, after = word.strip().rpartition("=")
        if not equals and k >= len(names):
            raise ScheduleError(f"`{text}`: {name} takes {len(names)} values: {', '.join(names)}")
        name_of = before.strip() if equals else names[k]
        if name_of not in names or name_of in given:
            raise ScheduleError(f"`{text}`: {name} takes {', '.join(names)}, each once")
        given[name_of] = _typed(text, kind, name_of, _value(after.strip()))
    missing = [f.name for f in fields(kind) if f.default is MISSING and f.name not in given]
    if missing:
        raise ScheduleError(f"`{text}`: {name} needs {', '.join(missing)}")
    return kind(**given)


def _kind(name: str, kinds: tuple[type[Any], ...]) -> type[Any]:
    kind = next((kind for kind in kinds if _name(kind) == name), None)
    if kind is None and kinds is STEPS and name in ELSEWHERE:
        camel = "".join(word.capitalize() for word in name.split("_"))
        return getattr(importlib.import_module(ELSEWHERE[name]), camel)
    if kind is None:
        known = ", ".join([*map(_name, kinds), *(ELSEWHERE if kinds is STEPS else ())])
        raise ScheduleError(f"there is no step `{name}`: there are {known}")
    return kind


def _typed(text: str, kind: type[Any], field: str, value: Any) -> Any:
    """``value`` for a field, where it has its type: one for a tuple of one."""
    hint = str(next(f.type for f in fields(kind) if f.name == field))
    if hint.startswith("tuple"):
        items: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)  # pyright: ignore[reportUnknownVariableType]
        wanted = "numbers" if "int" in hint else "names"
        if all(isinstance(item, int) == ("int" in hint) for item in items):
            return items
    elif hint.startswith("Literal"):
        allowed = hint[len("Literal[") : -1].replace("'", "").replace('"', "").split(", ")
        wanted = "one of " + ", ".join(allowed)
        if str(value) in allowed:
            return value
    else:
        wanted = {"int": "a number", "bool": "True or False"}.get(hint, "a name")
        if type(value).__name__ == hint:
            return value
    form = f"{_name(kind)}({', '.join(f.name for f in fields(kind) if f.default is MISSING)})"
    raise ScheduleError(
        f"`{text}`: `{_word(value)}` is given for {field}, which is {wanted}", help=f"write {form}"
    )


def _value(word: str) -> Any:
    if word.startswith("("):
        return tuple(_value(part.strip()) for part in word[1:-1].split(",") if part.strip())
    if re.fullmatch(r"-?\d+", word):
        return int(word)
    return {"True": True, "False": False}.get(word, word)
