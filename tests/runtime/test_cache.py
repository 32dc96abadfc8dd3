"""The disk cache: right, shared between processes, and never in the way."""

import errno
import multiprocessing
import os
import random
import stat
import time

import pytest

from weft.runtime.cache import CacheWarning, DiskCache, _encode

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


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o2775, 0o720])
def test_a_folder_that_others_may_write_to_is_left_as_it_is(folder, mode):
    folder.mkdir()
    folder.chmod(mode)
    (folder / f"{KEY}.weft").write_bytes(_encode(KEY, HEADER, b"planted"))
    private = folder / f"weft-{os.getuid()}"
    cache = DiskCache(folder)
    with pytest.warns(CacheWarning) as warned:
        assert cache.load(KEY) is None  # what others may have put there is not run
    assert [str(w.message) for w in warned] == [
        f"{folder} may be written to by other users: compiled kernels are kept in {private}, "
        "which is private"
    ]
    assert cache.store(KEY, HEADER, b"x")
    assert cache.load(KEY) == (HEADER, b"x")
    assert stat.S_IMODE(folder.stat().st_mode) == mode
    assert stat.S_IMODE(private.stat().st_mode) & 0o777 == 0o700
    assert os.listdir(private) == [f"{KEY}.weft"]


def test_a_private_folder_that_is_not_private_is_refused(folder):
    private = folder / f"weft-{os.getuid()}"
    private.mkdir(parents=True)
    for place in (folder, private):
        place.chmod(0o777)
    cache = DiskCache(folder)
    with pytest.warns(CacheWarning, match="kernels are not kept: .*may be written to by other"):
        assert not cache.store(KEY, HEADER, b"x")
    assert cache.load(KEY) is None
    assert os.listdir(private) == []


def test_a_folder_that_becomes_writable_for_others_is_no_longer_used(folder):
    cache = DiskCache(folder)
    assert cache.store(KEY, HEADER, b"x")
    folder.chmod(0o777)
    with pytest.warns(CacheWarning, match="no longer kept in .*may be written to by other users"):
        assert cache.load(KEY) is None
    assert not cache.store(KEY, HEADER, b"y")


def test_an_entry_that_others_may_write_to_is_a_miss(folder):
    cache = DiskCache(folder)
    cache.store(KEY, HEADER, b"x")
    for mode in (0o666, 0o660, 0o602):
        (folder / f"{KEY}.weft").chmod(mode)
        assert cache.load(KEY) is None
    (folder / f"{KEY}.weft").chmod(0o644)
    assert cache.load(KEY) == (HEADER, b"x")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_an_entry_of_another_user_is_a_miss(folder):
    cache = DiskCache(folder)
    cache.store(KEY, HEADER, b"x")
    os.chown(folder / f"{KEY}.weft", 65534, 65534)
    assert cache.load(KEY) is None
    os.chown(folder, 65534, 65534)
    with pytest.warns(CacheWarning, match="belongs to another user: compiled kernels are kept in"):
        assert DiskCache(folder).load(KEY) is None


def test_links_are_not_followed(folder, tmp_path):
    cache = DiskCache(folder)
    cache.store(KEY, HEADER, b"x")
    entry, elsewhere = folder / f"{KEY}.weft", tmp_path / "elsewhere"
    entry.rename(elsewhere)
    entry.symlink_to(elsewhere)
    assert cache.load(KEY) is None
    assert cache.store(KEY, HEADER, b"y")  # replaces the link, not what it names
    assert cache.load(KEY) == (HEADER, b"y")
    assert b"x" in elsewhere.read_bytes()[-1:]


@pytest.mark.parametrize("kind", ["pipe", "folder", "endless", "large"])
def test_what_is_no_entry_is_a_miss_at_once(folder, kind):
    cache = DiskCache(folder, limit=1 << 20)
    cache.store("b" * 64, HEADER, b"x")
    entry = folder / f"{KEY}.weft"
    if kind == "pipe":
        os.mkfifo(entry)
    elif kind == "folder":
        entry.mkdir()
    elif kind == "endless":
        entry.symlink_to("/dev/zero")
    else:
        with entry.open("wb") as file:
            file.truncate(1 << 40)  # no memory has so much
    assert cache.load(KEY) is None


def test_an_entry_under_another_key_is_a_miss(folder):
    cache, other = DiskCache(folder), "b" * 64
    cache.store(KEY, HEADER, b"x")
    cache.store(other, HEADER, b"y")
    a, b, c = folder / f"{KEY}.weft", folder / f"{other}.weft", folder / "c"
    a.rename(c)
    b.rename(a)
    c.rename(b)
    assert cache.load(KEY) is None
    assert cache.load(other) is None


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
    for k in range(3):
        cache.store(f"{k:064d}", {}, bytes(1000))
        os.utime(folder / f"{k:064d}.weft", (1000 + k, 1000 + k))
    cache.load(f"{0:064d}")  # used just now
    cache.store(f"{3:064d}", {}, bytes(1000))
    kept = {k for k in range(4) if cache.load(f"{k:064d}")}
    assert kept == {0, 2, 3}


def test_a_full_cache_is_looked_at_now_and_then(folder, monkeypatch):
    """Not by each process once: a hundred thousand entries take longer than a kernel."""
    limit, trims, trim = 1 << 20, [], DiskCache.trim

    def counted(cache):
        trims.append(1)
        return trim(cache)

    monkeypatch.setattr(DiskCache, "trim", counted)
    for k in range(4000):
        DiskCache(folder, limit).store(f"{k:064d}", {}, bytes(900))
    assert 4 * 32 < len(trims) < 4 * 128
    assert DiskCache(folder, limit).size()[1] < 1.15 * limit
    with monkeypatch.context() as patch:
        patch.setattr("os.scandir", None)  # what is large is looked for, whatever it is
        with pytest.raises(TypeError, match="NoneType"):
            DiskCache(folder, limit).store(KEY, HEADER, bytes(limit // 64))


def _store_until_killed(folder, ready):
    cache = DiskCache(folder, limit=1 << 20)
    for k in range(1_000_000):
        number = k % 7
        cache.store(f"{number:064d}", {"n": number}, bytes([number]) * (30_000 + 1000 * number))
        if k == 0:
            os.write(ready, b"!")


@pytest.mark.slow
def test_a_process_killed_a_hundred_times_leaves_sound_entries(folder):
    context, stream = multiprocessing.get_context("fork"), random.Random()
    cache = DiskCache(folder)
    for _ in range(100):
        waiting, ready = os.pipe()
        worker = context.Process(target=_store_until_killed, args=(folder, ready))
        worker.start()
        os.read(waiting, 1)
        time.sleep(stream.random() / 100)
        worker.kill()
        worker.join()
        os.close(waiting), os.close(ready)
        for number in range(7):
            code = bytes([number]) * (30_000 + 1000 * number)
            found = cache.load(f"{number:064d}")
            assert found in (None, ({"n": number}, code))
            assert found is not None or not (folder / f"{number:064d}.weft").exists()
    assert cache.size()[0] > 0


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
