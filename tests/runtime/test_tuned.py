"""Records of tuning: the disk cache, files that ship with a model, and who may read them."""

from __future__ import annotations

import json
import logging
import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from weft.options import Options
from weft.runtime import tuned
from weft.runtime.tuned import Record, Records, TunedFileError, machine_of, size_class

RECORD = Record("schedule", "blur", "a1", "some GPU", "x 64", "unroll_jam(i, 2)", 2.0, 1.0)


def found(records: Records, options: Options, **other: str) -> Record | None:
    r = replace(RECORD, **other)
    return records.find(options, "schedule", r.name, r.digest, r.machine, r.sizes)


@pytest.fixture
def options(tmp_path) -> Options:
    return Options(cache_dir=tmp_path / "cache")


def test_size_classes_are_powers_of_two():
    sizes = (0, 1, 2, 3, 4, 5, 64, 65, 1000, -3)
    assert [size_class(n) for n in sizes] == [0, 1, 2, 4, 4, 8, 64, 128, 1024, -4]


def test_a_cpu_is_named():
    assert machine_of(torch.device("cpu")).endswith(f", {torch.get_num_threads()} threads")


def test_the_cache_gives_what_was_kept_for_the_same_text_machine_and_sizes(options):
    records = Records()
    assert found(records, options) is None
    records.keep(options, [RECORD])
    assert found(Records(), options) == RECORD
    for other in ("digest", "machine", "sizes"):
        assert found(records, options, **{other: "another"}) is None
    assert found(records, replace(options, cache=False)) is None


def test_a_file_is_readable_and_goes_before_the_cache(options, tmp_path):
    path = tmp_path / "model.json"
    faster = replace(RECORD, choice="unroll_jam(i, 8)", milliseconds=0.5)
    tuned.write(path, [RECORD])
    tuned.write(path, [faster, replace(RECORD, sizes="x 128")])
    data = json.loads(path.read_text())
    assert (data["format"], data["version"], len(data["records"])) == ("weft-tuned", 1, 2)
    assert data["records"][1] == {
        "kind": "schedule", "name": "blur", "digest": "a1", "machine": "some GPU", "sizes": "x 64",
        "choice": "unroll_jam(i, 8)", "default_milliseconds": 2.0, "milliseconds": 0.5,
    }  # fmt: skip
    records = Records()
    records.keep(options, [RECORD])
    assert found(records, options) == RECORD
    assert len(records.read(path)) == 2
    assert found(records, options) == faster
    assert [p.name for p in tmp_path.iterdir() if "model" in p.name] == ["model.json"]


def test_stale_records_of_a_file_are_logged(options, tmp_path, caplog):
    path = tmp_path / "model.json"
    tuned.write(path, [RECORD])
    records = Records()
    records.read(path)
    with caplog.at_level(logging.DEBUG, "weft.tune"):
        assert found(records, options, digest="b2") is None
        assert found(records, options, machine="other GPU") is None
        assert found(records, options, sizes="x 1") is None
        assert found(records, options, name="other") is not None, "names are for people"
    assert [r.message for r in caplog.records] == [
        f"{path}: `blur` was tuned with another text, or other dtypes and layouts: the default",
        f"{path}: `blur` was tuned on another machine (some GPU): the default",
    ]


def test_choosers_are_told_of_new_records(options, tmp_path):
    class Chooser:
        told = 0

        def forget(self) -> None:
            self.told += 1

    records, chooser = Records(), Chooser()
    records.announce(chooser)
    records.keep(options, [RECORD])
    assert chooser.told == 0
    records.tell()
    tuned.write(tmp_path / "model.json", [RECORD])
    records.read(tmp_path / "model.json")
    assert chooser.told == 2


HELP = "\nhelp: weft.tuned(path, table) writes such a file, with what weft.tune has given"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("[]", 'its "format" is not "weft-tuned"'),
        ('{"format": "weft-tuned", "version": 9}', "it is of version 9, and this weft reads 1"),
        ('{"format": "weft-tuned", "version": 1, "records": [{}]}',
         "each record has kind, name, digest, machine, sizes, choice, default_milliseconds, "
         "milliseconds"),
    ],
)  # fmt: skip
def test_other_files_are_refused(text, why, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(TunedFileError) as caught:
        tuned.read(path)
    assert str(caught.value) == f"{path} has no records of tuning: {why}{HELP}"
    with pytest.raises(TunedFileError):
        tuned.write(path, [RECORD])
    assert path.read_text() == text


def add(path: Path, number: int) -> None:
    for k in range(8):
        tuned.write(path, [replace(RECORD, sizes=f"{number} {k}")])


def test_processes_may_write_one_file(tmp_path):
    path = tmp_path / "model.json"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=add, args=(path, n)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert {r.sizes for r in tuned.read(path)} == {f"{n} {k}" for n in range(4) for k in range(8)}
