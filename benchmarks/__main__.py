"""All benchmarks, or those named: ``python -m benchmarks [--quick] [stencil brick ...]``."""

import importlib

from benchmarks import first_call, harness

MODULES = (
    "call_overhead",
    "elementwise",
    "stencil",
    "brick",
    "causal_conv",
    "softmax",
    "matmul",
    "nests",
    "reduction",
    "gradients",
)


def main() -> None:
    """Run the subjects, print their tables, write ``out/bench.json`` and ``out/bench.md``."""
    parser = harness.parser("benchmarks")
    parser.add_argument("subject", nargs="*", choices=[[], "first_call", *MODULES])
    options = parser.parse_args()
    harness.machine()  # the load before this run adds to it
    wanted = options.subject or ["first_call", *MODULES]
    rows: list[harness.Row] = []
    if "first_call" in wanted:
        rows += first_call.run(quick=options.quick, threads=options.threads, only=options.only)
    for name in MODULES:
        if name in wanted:
            subjects = importlib.import_module(f"benchmarks.{name}").SUBJECTS
            rows += harness.run(
                name, subjects, quick=options.quick, threads=options.threads, only=options.only
            )
    harness.write(rows, options.threads)
    print(f"\nwritten: {harness.OUT / 'bench.md'}, {harness.OUT / 'bench.json'}")


if __name__ == "__main__":
    main()
