"""All benchmarks, or those named: ``python -m benchmarks [--quick] [stencil brick ...]``."""

import importlib

from benchmarks import first_backward, first_call, gradient_cost, harness

OWN_WAYS = {  # of measuring: new processes, pairs in one process
    "first_call": first_call.run,
    "first_backward": first_backward.run,
    "gradient_cost": gradient_cost.run,
}
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
    parser.add_argument("subject", nargs="*", choices=[[], *OWN_WAYS, *MODULES])
    options = parser.parse_args()
    harness.machine()  # the load before this run adds to it
    wanted = options.subject or [*OWN_WAYS, *MODULES]
    rows: list[harness.Row] = []
    for name, run in OWN_WAYS.items():
        if name in wanted:
            rows += run(quick=options.quick, threads=options.threads, only=options.only)
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
