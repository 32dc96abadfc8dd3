"""What launching needs to know of a kernel, read back from the disk cache."""

from __future__ import annotations

from typing import Any

from weft.codegen.interface import Check, Slot
from weft.codegen.launching import Even, Facts, InStep, Jam, Mapping


def decode(header: dict[str, Any]) -> Facts | None:
    """The facts in a cached header; None where it is not of this form."""
    try:
        mapping, even = header["mapping"], header["even"]
        return Facts(
            str(header["symbol"]),
            tuple(Slot(str(s["kind"]), int(s["arg"]), int(s["axis"])) for s in header["slots"]),
            tuple(
                Check(c["kind"], c["message"], c["tensor"], c["axis"], tuple(c["values"]),
                      tuple(c["span"]) if c["span"] is not None else None)  # type: ignore[arg-type]
                for c in header["checks"]
            ),
            tuple((tuple(parts), tuple(kinds)) for parts, kinds in header["prints"]),
            tuple(list(step) for step in header["steps"]),
            tuple((int(a), int(b), int(c)) for a, b, c in header["bounds"]),
            tuple(map(int, header["needed"])),
            tuple((int(step), tuple(map(int, of))) for step, of in header["divisions"]),
            None if mapping is None else Mapping(
                tuple(mapping["order"]), mapping["vector"],
                tuple((int(a), int(b)) for a, b in mapping["aligned"]), mapping["private"],
                (int(mapping["sides"][0]), int(mapping["sides"][1])), mapping["apart"],
                mapping["shift"], mapping["lasting"], tuple(mapping["block"]),
                _steps(mapping["steps"]), int(mapping["side"]),
                tuple(map(int, mapping["streamed"])),
                tuple((int(low), int(high)) for low, high in mapping["team"]),
                bool(mapping["columns"]),
            ),
            tuple(map(str, header["kinds"])),
            None if even is None else Even(
                int(even["count"]), tuple((int(a), int(b)) for a, b in even["aligned"]),
                tuple(map(int, even["multiples"])), tuple(map(int, even["divisors"])),
            ),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError):
        return None


def _steps(header: dict[str, Any]) -> InStep:
    jams = tuple(
        Jam(int(jam["axis"]), int(jam["copies"]), int(jam["apart"]), int(jam["own"]))
        for jam in header["jams"]
    )
    return InStep(jams, int(header["loads"]), int(header["most"]))
