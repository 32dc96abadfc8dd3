"""Programs in processes of their own that have imported torch already.

A process is forked, by ``multiprocessing``'s server, from one that imported torch and nothing of
weft: weft, and what it reads of the environment, is as in a new process. Importing torch takes two
seconds. (What torch itself reads when it is imported, ``OMP_NUM_THREADS`` for one, is the
server's.)
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch"])


def run(
    file: Path, environment: Mapping[str, str], folder: str | Path = "."
) -> subprocess.CompletedProcess[str]:
    """Runs the program in ``file``, as ``subprocess.run([sys.executable, file])`` would."""
    with tempfile.TemporaryDirectory() as outputs:
        names = [os.path.join(outputs, name) for name in ("stdout", "stderr")]
        given = (str(file), dict(environment), os.path.abspath(folder), names)
        process = CONTEXT.Process(target=_main, args=given)
        process.start()
        process.join()
        out, err = (Path(name).read_text() for name in names)
    assert process.exitcode is not None
    return subprocess.CompletedProcess([str(file)], process.exitcode, out, err)


def _main(file: str, environment: dict[str, str], folder: str, outputs: list[str]) -> None:
    assert not any(name.partition(".")[0] == "weft" for name in sys.modules)
    for number, name in enumerate(outputs, 1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = [file]
    sys.path[:0] = [os.path.dirname(file), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    module = types.ModuleType("__main__")
    module.__file__ = file
    sys.modules["__main__"] = module
    try:
        exec(compile(Path(file).read_text(), file, "exec"), module.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        sys.excepthook(type(error), error, trace and trace.tb_next)
        sys.exit(1)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
