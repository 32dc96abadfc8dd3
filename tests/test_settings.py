"""When Python looks for garbage while weft works."""

import gc
import weakref
from collections.abc import Generator

import pytest

from weft.settings import rarely_collected


class Held:
    """Something that can be in a cycle with itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def full() -> Generator[list[int]]:
    """Collections of all objects are noted, and due soon."""
    seen: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            seen.append(info["collected"])

    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.unfreeze()  # what the tests' own set-up froze
    gc.collect()
    gc.set_threshold(700, 1, 1)
    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)
    gc.set_threshold(*before)
    gc.unfreeze()
    if frozen:
        gc.freeze()


def test_what_weft_has_made_lets_nobody_look_through_all_objects(full: list[int]) -> None:
    """It was 70 ms of a first gradient, for torch's objects."""
    with rarely_collected:
        # More than a quarter of what there is; of more than 50,000 * 21, Python looks among them.
        made = [[] for _ in range(min(len(gc.get_objects()) // 3, 1_000_000))]
    after = [[] for _ in range(20_000)]
    assert not full
    assert gc.get_threshold() == (700, 1, 1)
    del made, after


def test_nor_does_what_has_been_looked_at_already(full: list[int]) -> None:
    """Python has just looked among new objects: few are new, of many that weft has made."""
    with rarely_collected:
        made = [[] for _ in range(min(len(gc.get_objects()) // 3, 900_000))]
        gc.collect(0)
        assert gc.get_count()[0] < 700
    after = [[] for _ in range(20_000)]
    assert not full
    del made, after


def test_garbage_of_weft_is_looked_for(full: list[int]) -> None:
    with rarely_collected:
        last = weakref.ref([Held() for _ in range(1_000)][-1])
    assert last() is None
    assert not full


def test_a_program_that_compiles_for_ever_is_looked_through(full: list[int]) -> None:
    made: list[list[int]] = []
    count = len(gc.get_objects()) // 20
    for _ in range(60):
        with rarely_collected:
            made += [[] for _ in range(count)]
        made += [[] for _ in range(2_000)]
        if full:
            break
    assert full


def test_nothing_is_collected_where_that_is_switched_off(full: list[int]) -> None:
    gc.disable()
    try:
        with rarely_collected:
            held = Held()
            last, others = weakref.ref(held), [Held() for _ in range(1_000)]
            del held, others
        assert last() is not None
    finally:
        gc.enable()


def test_frozen_objects_stay_so(full: list[int]) -> None:
    gc.freeze()
    count = gc.get_freeze_count()
    with rarely_collected:
        made = [[] for _ in range(1_000)]
    # Other threads may do away with a few meanwhile (of pytest-xdist's, with messages).
    assert gc.get_freeze_count() > 0.9 * count > 90_000
    del made
