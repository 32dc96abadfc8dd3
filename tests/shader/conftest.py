"""Makes the modules beside the tests of code generation importable, whose tests run here again."""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "codegen"))
