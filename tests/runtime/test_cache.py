"""The disk cache: right, shared between processes, and never in the way."""

import errno
import multiprocessing
import os
import stat
import time

import pytest

from weft.runtime.cache import CacheWarning, DiskCache

KEY = "a" * 64
HEADER = {"symbol": "f", "slots": [["pointer", 0, 0]]}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


def test_what_is_stored_is_loaded(folder):
    assert DiskCache(folder).load(KEY) is None
    assert DiskCache(folder).store(KEY, HEADER, b"\x00code")
    assert DiskCache(folder).load(KEY) == (HEADER, b"\x00code")
    assert DiskCache(folder).size() == (1, (folder / f"{KEY}.weft").stat().st_size)
    assert DiskCache(folder).clear() == 1
    assert DiskCache(folder).load(KEY) is None


def test_the_folder_is_the_users_alone(folder):
    DiskCache(folder).store(KEY, HEADER, b"x")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_others_may_write_to_is_closed(folder):
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    assert DiskCache(folder).store(KEY, HEADER, b"x")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("keep", [0, 5, 20, 50, 60, -1])
def test_a_truncated_entry_is_a_miss_and_is_overwritten(folder, keep):
    cache = DiskCache(folder)
    cache.store(KEY, HEADER, b"code")
    path = folder / f"{KEY}.weft"
    path.write_bytes(path.read_bytes()[:keep])
    assert cache.load(KEY) is None
    assert cache.store(KEY, HEADER, b"code")
    assert cache.load(KEY) == (HEADER, b"code")


def test_every_flipped_bit_is_noticed(folder):
    cache = DiskCache(folder)
    cache.store(KEY, HEADER, b"code")
    path = folder / f"{KEY}.weft"
    sound = path.read_bytes()
    for position in range(len(sound)):
        damaged = bytearray(sound)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        assert cache.load(KEY) is None, position


def test_a_header_that_is_no_object_is_a_miss(folder):
    cache = DiskCache(folder)
    cache.store(KEY, ["not", "an", "object"], b"code")
    assert cache.load(KEY) is None


def test_a_key_cannot_leave_the_folder(folder):
    with pytest.raises(ValueError, match="letters and digits"):
        DiskCache(folder).load("../../etc/passwd")


def _write_many(folder, number):
    cache = DiskCache(folder)
    for k in range(40):
        key = f"{k % 8:064d}"
        cache.store(key, {"k": k % 8}, bytes([k % 8]) * 50_000)
        entry = cache.load(key)
        assert entry == ({"k": k % 8}, bytes([k % 8]) * 50_000)


def test_eight_processes_at_once(folder):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write_many, args=(folder, n)) for n in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 8
    assert sorted(p.suffix for p in folder.iterdir()) == [".weft"] * 8


def _write_slowly(folder):
    os.write(os.open(folder / "tmp-dead", os.O_CREAT | os.O_WRONLY), b"half an ent")
    os._exit(9)


def test_a_killed_writer_leaves_no_entry_and_is_cleaned_up(folder):
    cache = DiskCache(folder)
    cache.store(KEY, HEADER, b"x")
    worker = multiprocessing.get_context("fork").Process(target=_write_slowly, args=(folder,))
    worker.start()
    worker.join()
    cache.trim()
    assert (folder / "tmp-dead").exists()  # it may be another process's that still writes
    old = time.time() - 7200
    os.utime(folder / "tmp-dead", (old, old))
    cache.trim()
    assert [p.name for p in folder.iterdir()] == [f"{KEY}.weft"]


def test_the_entries_used_longest_ago_are_dropped(folder):
    cache = DiskCache(folder, limit=3500)
    for k in range(4):
        cache.store(f"{k:064d}", {}, bytes(1000))
        os.utime(folder / f"{k:064d}.weft", (1000 + k, 1000 + k))
    cache.load(f"{0:064d}")  # used just now
    cache.trim()
    kept = {k for k in range(4) if cache.load(f"{k:064d}")}
    assert kept == {0, 2, 3}


def test_a_folder_of_another_user_is_refused(folder, monkeypatch):
    folder.mkdir(mode=0o700)
    owner = folder.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    cache = DiskCache(folder)
    with pytest.warns(CacheWarning, match="belongs to another user"):
        assert not cache.store(KEY, HEADER, b"x")
    assert cache.load(KEY) is None  # and no second warning
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_warning(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    cache = DiskCache(file / "cache")
    with pytest.warns(CacheWarning, match="compiled kernels are not kept"):
        assert cache.load(KEY) is None
    assert not cache.store(KEY, HEADER, b"x")


@pytest.mark.parametrize(
    ("number", "text"), [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "Read-only")]
)
def test_a_full_or_read_only_disk_is_one_warning(folder, monkeypatch, number, text):
    cache = DiskCache(folder)
    cache.store(KEY, HEADER, b"x")

    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", fail)
    with pytest.warns(CacheWarning, match=text):
        assert not cache.store("b" * 64, HEADER, b"x")
    assert not cache.store("c" * 64, HEADER, b"x")
    assert cache.load(KEY) == (HEADER, b"x")  # what is there is still used
    assert [p.name for p in folder.iterdir()] == [f"{KEY}.weft"]
