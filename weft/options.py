"""Options of a kernel, and the environment variables that set their defaults.

The only module that reads the environment:

    WEFT_DEBUG=1          check every subscript, and races that cannot be decided
    WEFT_STRICT_MATH=1    no contraction, no reassociation
    WEFT_FUSE=0           no loop is fused with PyTorch's own by Inductor
    WEFT_INTERPRET=1      run kernels as plain Python, with checks
    WEFT_VERIFY=1         verify the IR after each pass
    WEFT_LINES=1          machine code has source lines, for profilers; it is not cached
    WEFT_CACHE=0          no disk cache
    WEFT_CACHE_DIR=...    where it is
    WEFT_CACHE_MB=512     its size limit
    WEFT_SPECIALIZATIONS=256  how many compiled forms of a loop are kept
    WEFT_TAPE_MB=16       longer tapes of a gradient are replaced by checkpoints
    WEFT_STREAMING_MB=32  loops on a CPU whose tensors take more store past its caches
    WEFT_TRACEBACK=full   errors show weft's own frames, too
    WEFT_LOGS=...         see ``set_up_logs``
"""

from __future__ import annotations

import logging
import os
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

from weft.values import frozen

# What ``WEFT_LOGS`` may name, each with what it says. What comes from the disk cache was not
# compiled: ``passes``, ``races``, ``llvm`` and ``asm`` are silent about it.
LOG_NAMES = (
    "specialize",  # which loops are compiled for which arguments, and why
    "source",  # the loop with the types of what it assigns
    "ir",  # the IR that the frontend makes
    "races",  # what was proven of each array, what is atomic, what is checked at run time
    "passes",  # each pass: milliseconds, operations before and after
    "llvm",  # LLVM IR
    "asm",  # assembly, or PTX
    "cache",  # hits of the disk cache, and what is stored
    "time",  # milliseconds of each stage
    "launch",  # each new exact set of arguments: device, threads or grid, bytes
    "schedule",  # by which schedule each new exact set of arguments runs, and why not by others
    "tune",  # what was measured and chosen, and which records of tuning are not used
)


@frozen
class Options:
    """How kernels are compiled. ``debug`` and ``strict_math`` are part of a specialisation."""

    debug: bool = False
    asserts: bool = True  # without debug: whether those that are written are checked
    strict_math: bool = False
    interpret: bool = False
    on: str = ""  # the device that CPU tensors are copied to: "webgpu"
    autocast: Any = None  # which arguments torch.autocast casts (see ``pytorch/autocast.py``)
    fuse: bool | None = None  # with Inductor's loops: False not at all, True also where slower
    verify: bool = False
    lines: bool = False  # machine code says which source lines it comes from
    cache: bool = True
    cache_dir: Path | None = None  # None: the user's cache folder
    cache_bytes: int = 512 << 20
    tape_bytes: int = 16 << 20
    streaming_bytes: int | None = None  # None: the machine's last cache, <= 32 MB
    specializations: int = 256  # of a loop that are kept
    tuned: bool = True  # schedules by records of tuning
    # What people ask for: device, name of the loop, text.
    schedules: tuple[tuple[str, str, str], ...] = ()

    def asked(self, device: str, loop: str) -> str | None:
        """The text of the schedule that a loop is to have on "cpu" or "cuda"; None if nobody asks
        for one."""
        return next((text for d, name, text in self.schedules if (d, name) == (device, loop)), None)

    @property
    def attributes(self) -> dict[str, bool]:
        """What of the options the function says that code is made of."""
        return {name: True for name in ("strict_math", "lines") if getattr(self, name)}


def asked(device: str) -> str:
    """``Options.on`` of a device. Raises ``ValueError``."""
    if device not in ("webgpu", "cpu"):
        raise ValueError(
            f"{device!r} is no device that a kernel may be asked to run on: write "
            '.on("webgpu"); kernels of tensors on "cuda" or "mps" run there by themselves'
        )
    return "" if device == "cpu" else device


def _flag(name: str, default: bool) -> bool:
    text = os.environ.get(name, "").strip().lower()
    if text in ("", "1", "0", "true", "false", "yes", "no", "on", "off"):
        return default if not text else text in ("1", "true", "yes", "on")
    raise ValueError(f"{name}={text!r}: write {name}=1 or {name}=0")


def _megabytes(name: str, default: int) -> int:
    """A number of megabytes, in bytes."""
    return _count(name, default, " of megabytes") << 20


def _megabytes_if_set(name: str) -> int | None:
    return _megabytes(name, 32) if os.environ.get(name, "").strip() else None


def _count(name: str, default: int, of: str = "") -> int:
    text = os.environ.get(name, "").strip()
    if text and not (text.isascii() and text.isdigit()):
        raise ValueError(f"{name}={text!r}: write a whole number{of}, {name}={default}")
    return int(text or default)


def _folder(name: str) -> Path | None:
    """An absolute path; a relative one is below the folder in which the process started."""
    text = os.environ.get(name, "").strip()
    return Path(_START, Path(text).expanduser()) if text else None


def _start() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return "/"


STARTED = time.time_ns()
_START = _start()  # a later os.chdir does not lead to another cache


@cache
def full_traceback() -> bool:
    """Whether tracebacks keep weft's own frames."""
    return os.environ.get("WEFT_TRACEBACK", "").strip().lower() not in ("", "short")


def own_breakpoint() -> bool:
    """Whether ``breakpoint()`` stops in pdb, as far as the environment says."""
    return not os.environ.get("PYTHONBREAKPOINT")


@cache
def default_options() -> Options:
    """The options that the environment asks for; it is read once."""
    shown = os.environ.get("WEFT_TRACEBACK", "").strip().lower()
    if shown not in ("", "short", "full"):
        raise ValueError(f"WEFT_TRACEBACK={shown!r}: write WEFT_TRACEBACK=full or nothing")
    set_up_logs(os.environ.get("WEFT_LOGS", ""))
    return Options(
        debug=_flag("WEFT_DEBUG", False),
        strict_math=_flag("WEFT_STRICT_MATH", False),
        interpret=_flag("WEFT_INTERPRET", False),
        fuse=None if _flag("WEFT_FUSE", True) else False,
        verify=_flag("WEFT_VERIFY", False),
        lines=_flag("WEFT_LINES", False),
        cache=_flag("WEFT_CACHE", True),
        cache_dir=_folder("WEFT_CACHE_DIR"),
        cache_bytes=_megabytes("WEFT_CACHE_MB", 512),
        tape_bytes=_megabytes("WEFT_TAPE_MB", 16),
        streaming_bytes=_megabytes_if_set("WEFT_STREAMING_MB"),
        specializations=_count("WEFT_SPECIALIZATIONS", 256),
    )


def set_up_logs(names: str) -> None:
    """Turns on the loggers named in ``names`` (``"specialize,ir"`` or ``"all"``), to stderr.

    Each is a logger of the standard library, ``weft.specialize`` and so on.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        return
    root = logging.getLogger("weft")
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
        root.addHandler(handler)
        root.propagate = False
    for name in LOG_NAMES if "all" in wanted else wanted:
        if name not in LOG_NAMES:
            root.warning("WEFT_LOGS: no log is called %r; there are %s", name, ", ".join(LOG_NAMES))
            continue
        logging.getLogger(f"weft.{name}").setLevel(logging.DEBUG)
