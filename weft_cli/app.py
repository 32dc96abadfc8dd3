"""The commands. Each calls a function of ``weft.workbench``, imported when it is asked for."""

from __future__ import annotations

from typing import Annotated

import typer

from weft_cli.show import answer, write

app = typer.Typer(
    help="Checks, measures and looks at weft's kernels.",
    rich_markup_mode=None,  # importing rich for the help takes longer than all the rest
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
)  # fmt: skip

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def doctor(
    json: Json = False,
    measure: Annotated[bool, typer.Option(help="Measure the rates of each device.")] = True,
) -> None:
    """What this machine can do for kernels, and what is missing.

    It says what that costs and how to get it. Exit code 1: a kernel does not run here.
    """
    with answer(json) as show:
        from weft.workbench.doctor import doctor  # imports torch

        show(doctor(measure))


@app.command()
def cache(
    action: Annotated[str, typer.Argument(help="show, list, clear or prune")] = "show",
    json: Json = False,
    megabytes: Annotated[float | None, typer.Option(help="prune: to at most so many.")] = None,
    days: Annotated[
        float | None, typer.Option(help="prune: what was not used for so long.")
    ] = None,
) -> None:
    """Where compiled loops are kept, and how many; deletes them."""
    with answer(json) as show:
        from weft.workbench.cache import cache  # imports torch

        show(cache(action, megabytes, days))


Kernel = Annotated[
    str, typer.Argument(metavar="FILE:KERNEL", help="model.py:blur, or package.module:blur")
]
Args = Annotated[
    str,
    typer.Option(
        "--args", help="Arguments as Python: 'torch.randn(8, 3), 2'. Names are the file's."
    ),
]
Sweep = Annotated[
    list[str] | None,
    typer.Option(help="Sizes: n=1000,2000 or, doubled each time, n=1024..65536. Repeatable."),
]
Size = Annotated[
    list[str] | None, typer.Option(help="A size of arguments that are made: n=64. Repeatable.")
]
Beside = Annotated[str, typer.Option(help="Functions of the file, with commas.")]


@app.command()
def check(
    kernel: Kernel,
    args: Args = "",
    implementation: Annotated[
        str, typer.Option(metavar="NAME", help="What kernel.implementation registered, instead.")
    ] = "",
    json: Json = False,
    seconds: Annotated[float, typer.Option(help="What is begun within so many is finished.")] = 60,
) -> None:
    """A kernel against its undecorated Python, and as an operator.

    Without --args, arguments are made by a function KERNEL_arguments(size=2, ...) of the file, or
    from annotations: Float[Tensor, "b c t"]. Exit code 1: something is wrong with the kernel.
    """
    with answer(json) as show:
        from weft.workbench.check import check  # imports torch
        from weft.workbench.sources import load  # likewise

        source = load(kernel)
        given = source.evaluate(args)
        show(check(source.kernel, *given, implementation=implementation, seconds=seconds,
                   names=source.names))  # fmt: skip


@app.command()
def bench(
    kernel: Kernel,
    args: Args = "",
    sweep: Sweep = None,
    size: Size = None,
    beside: Beside = "",
    compile: Annotated[bool, typer.Option(help="What torch.compile makes of each, too.")] = False,
    backward: Annotated[bool, typer.Option(help="Time the gradient.")] = False,
    cold: Annotated[bool, typer.Option(help="Empty the caches before each call.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda; the GPU if there is one.")] = "",
    seconds: Annotated[float, typer.Option(help="For each provider at each size.")] = 0.1,
    csv: Annotated[str, typer.Option(metavar="FILE", help="Write the table there.")] = "",
    plot: Annotated[str, typer.Option(metavar="FILE", help="Draw a .png, .svg or .pdf.")] = "",
    json: Json = False,
) -> None:
    """A kernel beside others: checked, then timed over sizes.

    FILE:NAME of a weft.benchmark runs that. Rates are put beside what this machine was measured to
    reach. Exit code 1: a provider computes other numbers, or fails.
    """
    with answer(json) as show:
        from weft.workbench import bench as core  # imports torch
        from weft.workbench.sources import load, parsed_sizes, parsed_sweep  # likewise

        source = load(kernel, core.Benchmark)
        if isinstance(source.kernel, core.Benchmark):
            found = source.kernel.run()
        else:
            given = source.evaluate(args)
            others = [name for name in beside.split(",") if name]
            found = core.bench(
                source.kernel, *given, sweep=parsed_sweep(sweep or []), device=device,
                beside=core.beside_of(source.names, others, compile), cold=cold,
                backward=backward, seconds=seconds, names=source.names,
                sizes=parsed_sizes(size or []),
            )  # fmt: skip
        if csv:
            write(csv, found.table.csv())
        if plot and any(row.median for row in found.rows):
            found.plot(plot)
        show(found)


Device = Annotated[str, typer.Option(help="cpu or cuda; the GPU if there is one.")]


@app.command()
def inspect(
    kernel: Kernel,
    args: Args = "",
    stage: Annotated[
        list[str] | None,
        typer.Option(help="source, ir, 'ir after hoist', llvm, assembly, gradient, all, ..."),
    ] = None,
    gpu: Annotated[str, typer.Option(help="For a GPU that need not be here: sm_90.")] = "",
    size: Size = None,
    device: Device = "",
    json: Json = False,
) -> None:
    """What becomes of a kernel: IR, schedule, LLVM, assembly, PTX."""
    with answer(json) as show:
        from weft.workbench import stages  # imports torch
        from weft.workbench.sources import load, parsed_sizes  # likewise

        source = load(kernel)
        given = source.evaluate(args)
        show(stages.inspect(source.kernel, *given, stages=stage or (), gpu=gpu, device=device,
                            sizes=parsed_sizes(size or []), names=source.names))  # fmt: skip


@app.command()
def report(
    kernel: Kernel,
    args: Args = "",
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="KERNEL.html by itself.")
    ] = "",
    gpu: Annotated[str, typer.Option(help="For a GPU that need not be here: sm_90.")] = "",
    size: Size = None,
    sweep: Sweep = None,
    beside: Beside = "",
    measure: Annotated[bool, typer.Option(help="Time it, and what this machine reaches.")] = True,
    device: Device = "",
    json: Json = False,
) -> None:
    """One HTML page: source beside IR and machine code, and times."""
    with answer(json) as show:
        from weft.workbench import bench, report_page  # imports torch
        from weft.workbench.sources import load, parsed_sizes, parsed_sweep  # likewise

        source = load(kernel)
        others = [name for name in beside.split(",") if name]
        show(report_page.report(
            source.kernel, *source.evaluate(args), path=output, gpu=gpu, device=device,
            beside=bench.beside_of(source.names, others, False), sizes=parsed_sizes(size or []),
            sweep=parsed_sweep(sweep or []), measure=measure, names=source.names,
        ))  # fmt: skip


@app.command(context_settings={"allow_interspersed_args": False})
def profile(
    program: Annotated[
        list[str],
        typer.Argument(metavar="SCRIPT [ARGS]...", help="train.py, a module, or FILE:FUNCTION."),
    ],
    range: Annotated[
        str, typer.Option(help="Only what is inside of weft.profile.range(NAME).")
    ] = "",
    skip: Annotated[int, typer.Option(help="So many of these ranges are left out.")] = 1,
    trace: Annotated[
        str, typer.Option(metavar="FILE", help="Write a Chrome trace: .json or .json.gz")
    ] = "",
    ncu: Annotated[bool, typer.Option(help="Counters of the GPU by Nsight Compute.")] = False,
    nsys: Annotated[bool, typer.Option(help="Kernels by Nsight Systems.")] = False,
    perf: Annotated[bool, typer.Option(help="Source lines of the CPU by Linux's perf.")] = False,
    seconds: Annotated[
        float, typer.Option(min=1.0, help="For each of ncu, nsys and perf, which run it again.")
    ] = 60.0,
    kernels: Annotated[
        int, typer.Option(min=1, help="Those that ncu looks at: so many that took most time.")
    ] = 6,
    rows: Annotated[int, typer.Option(help="Of each table.")] = 15,
    json: Json = False,
) -> None:
    """Runs a program, and says which operators and lines take its time.

    Options come before SCRIPT. Exit code 1: the program ended with an error of its own.
    """
    with answer(json) as show:
        from weft.workbench.profile_program import profile_program  # imports torch

        tools = [name for name, on in (("ncu", ncu), ("nsys", nsys), ("perf", perf)) if on]
        show(profile_program(program, range=range, skip=skip, trace=trace, tools=tools, rows=rows,
                             quiet=json, kernels=kernels, seconds=seconds))  # fmt: skip


@app.command()
def tune(
    kernel: Kernel,
    args: Args = "",
    size: Size = None,
    backward: Annotated[bool, typer.Option(help="The loops of the gradient, too.")] = False,
    most: Annotated[int, typer.Option(help="Schedules of a loop that are measured.")] = 16,
    save: Annotated[str, typer.Option(metavar="FILE", help="For weft.tuned, in a program.")] = "",
    device: Device = "",
    json: Json = False,
) -> None:
    """Measures schedules of each loop, and keeps the fastest."""
    with answer(json) as show:
        from weft.workbench.sources import load, parsed_sizes  # imports torch
        from weft.workbench.tuning import tuned_kernel  # likewise

        source = load(kernel)
        given = source.evaluate(args)
        sizes = parsed_sizes(size or [])
        show(tuned_kernel(source.kernel, *given, backward=backward, most=most, save=save,
                          device=device, sizes=sizes, names=source.names))  # fmt: skip


@app.command()
def demo(
    path: Annotated[str, typer.Argument(help="A Python file, which is made.")] = "weft_demo.py",
    json: Json = False,
) -> None:
    """Writes a kernel to begin with, checks it and times it."""
    with answer(json) as show:
        from weft.workbench.demo import demo  # imports torch

        show(demo(path))
