"""Weft's own frames: tracebacks without them (all of them with ``WEFT_TRACEBACK=full``), and what
torch.compile does not look into."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, TracebackType
from typing import ParamSpec, TypeVar

from torch._C._dynamo import eval_frame

from weft.errors import InternalError, WeftError
from weft.options import full_traceback

P = ParamSpec("P")
R = TypeVar("R")
# pyright: reportPrivateUsage=false
_SKIPPED = eval_frame._FrameExecStrategy(
    eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP
)  # this frame, and those of what it calls


def eager(function: Callable[P, R]) -> Callable[P, R]:
    """``function``, of which torch.compile does not compile the frame, nor those of what it calls,
    where it broke a graph in front of it; where it is called in a graph, it is traced."""
    assert isinstance(function, FunctionType)
    eval_frame.set_code_exec_strategy(function.__code__, _SKIPPED)
    return function


def user_frames(function: Callable[P, R]) -> Callable[P, R]:
    """``function``, whose errors show the user's frames: see ``shorten``."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            shorten(error)
            raise

    return call


def entries(error: BaseException) -> list[TracebackType]:
    """The traceback of ``error``, the outermost frame first."""
    found: list[TracebackType] = []
    following = error.__traceback__
    while following is not None:
        found.append(following)
        following = following.tb_next
    return found


def shorten(error: BaseException) -> None:
    """Takes weft's own frames out of the traceback of ``error``, and torch's that they called.

    A bare ``raise`` must follow: it adds no frame. What weft did not raise on purpose keeps all of
    its frames where it comes from weft's code: it is a mistake of weft's, to be reported.
    """
    found = entries(error)
    owners = list(map(_owner, found))
    meant = isinstance(error, WeftError) and not isinstance(error, InternalError)
    if full_traceback() or not (meant or _user_is_last(owners)):
        return
    kept, before = [], ""
    for entry, owner in zip(found, owners, strict=True):
        before = owner if owner != "torch" else before
        if before != "weft":
            kept.append(entry)
    made: TracebackType | None = None
    for entry in reversed(kept):
        made = TracebackType(made, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    error.__traceback__ = made


def of_user(error: BaseException) -> bool:
    """Whether the user's code raised ``error``; its traceback has no frames of weft's then, its
    command line included."""
    shorten(error)
    found = entries(error)
    own = [entry for entry in found if _owner(entry) != "weft_cli"]
    if full_traceback() or not own or any(_owner(entry) == "weft" for entry in own):
        return False
    error.__traceback__ = own[0]
    return True


def _owner(entry: TracebackType) -> str:
    """The package whose code a frame runs."""
    if entry.tb_frame.f_code.co_filename.startswith("<weft "):  # generated
        return "weft"
    return str(entry.tb_frame.f_globals.get("__name__", "")).partition(".")[0]


def _user_is_last(owners: list[str]) -> bool:
    """Whether a user's frame, or what it called of others, is within all of weft's."""
    others = [k for k, owner in enumerate(owners) if owner not in ("weft", "torch")]
    return bool(others) and "weft" not in owners[others[-1] :]
