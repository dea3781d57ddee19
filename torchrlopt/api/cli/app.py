"""The command line: `torchrlopt optimise`, `bench`, `device`, `profile`, `info` and the others.

Exit status 0: success. 1: an error, or a check that failed. 2: a wrong command line. 130: Ctrl-C. 143:
SIGTERM. 129: SIGHUP.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from torchrlopt import __version__
from torchrlopt.api.cli import cache, substitutions
from torchrlopt.api.cli.models import HELP, load_model, of_the_model
from torchrlopt.api.optimise import optimise_onnx as rewrite
from torchrlopt.errors import OptionsError, RlOptError
from torchrlopt.plain_text import printable
from torchrlopt.storage.checked_json import decoded

_STATUS = (
    "Exit status: 0 all is well, 1 an error or a check that fails, 2 a wrong command line, 130 Ctrl-C, "
    "143 and 129 ended by SIGTERM and SIGHUP."
)

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Rewrite models by proved or tested substitutions.",
    epilog=_STATUS,
)
app.add_typer(substitutions.app, name="substitutions")
app.add_typer(cache.app, name="cache")
agent = typer.Typer(no_args_is_help=True, help="The agent that guides the search.")
app.add_typer(agent, name="agent")


_INTERRUPTED = 130

MaxError = Annotated[
    str | None,
    typer.Option(help="The option max_error, such as 1e-2 or bfloat16: lower precision within it."),
]


def _default_threads() -> int:
    """PyTorch's default: one thread for each core that this process may use."""
    return len(os.sched_getaffinity(0))


@app.command()
def version() -> None:
    """Print the version.

    Example: torchrlopt version
    """
    typer.echo(__version__)


@app.command()
def info(as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False) -> None:
    """Show versions, the executors that run here, how to install others, the agent and the cache directory.

    Example: torchrlopt info --json
    """
    from torchrlopt.api.cli import installation  # heavy

    found = installation.look()
    typer.echo(json.dumps(found, indent=2) if as_json else installation.render(found))


@agent.command("info")
def agent_info(
    path: Annotated[Path | None, typer.Argument(help="A checkpoint; default: the agent in use.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all metadata as JSON.")] = False,
) -> None:
    """Show how an agent was made: its row, its training, and the versions it was trained with.

    Example: torchrlopt agent info runs/retrain/agent.safetensors
    """
    from torchrlopt.api.cli import installation  # heavy

    found = installation.look_at_agent(path)
    typer.echo(json.dumps(found, indent=2) if as_json else installation.render_agent(found))


@app.command("optimize-onnx", hidden=True)
@app.command()
def optimise_onnx(
    path_in: Annotated[Path, typer.Argument(help="The ONNX model.", exists=True, dir_okay=False)],
    path_out: Annotated[Path, typer.Argument(help="Where the rewritten model goes.", dir_okay=False)],
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", help="name=value of an option, such as searcher=beam; may be repeated."
        ),
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option("--for", help="What will run it: onnxruntime, openvino or tensorrt; as -o executor=."),
    ] = None,
    opset: Annotated[
        int | None, typer.Option(help="Version of the ONNX operators to write; by default the file's.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write the report as a page to this file.", dir_okay=False)
    ] = None,
) -> None:
    """Rewrite an ONNX file; the result contains only standard operators.

    Both files are timed in the runtime, if it is installed (TensorRT times none), else in ONNX Runtime. The
    original is written if the result is slower, or neither faster nor smaller, if a stage fails, or if the
    check finds the result wrong or cannot run; the report says so, and what was left alone and why.

    Example: torchrlopt optimise-onnx model.onnx faster.onnx --for onnxruntime
    """
    _require_folder(html)
    options = _parsed(option or [])
    if runtime is not None:
        options["executor"] = runtime
    report = rewrite(path_in, path_out, opset=opset, **options)
    if html is not None:
        report.save(html, path_in.name)
    typer.echo(report.to_json() if as_json else str(report))


@app.command("optimize", hidden=True)
@app.command()
def optimise(
    model: Annotated[str, typer.Argument(help=HELP)],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Where the result goes: .onnx, .rlopt or .pt2.", dir_okay=False),
    ],
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="name=value of an option, such as searcher=beam; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Rewrite a model and write it as ONNX, as .rlopt, or as a program of torch.export (.pt2).

    An .onnx result is one of optimise-onnx. An .rlopt result runs our kernels on packed weights and is loaded
    by torchrlopt.load; a .pt2 result runs in PyTorch and is loaded by torch.export.load as well. These two
    are not timed.

    Example: torchrlopt optimise my_module:make_model -o fast.rlopt
    """
    from torchrlopt.api.cli.optimise import to_file  # heavy

    report = to_file(model, out, _parsed(option or []))
    typer.echo(report.to_json() if as_json else str(report))


@app.command()
def bench(
    model: Annotated[str, typer.Argument(help=HELP)],
    contestants: Annotated[
        str,
        typer.Option("--in", help="Names separated by commas; 'all' that are installed here."),
    ] = "all",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each, in turn.")] = 5,
    seconds: Annotated[float, typer.Option(min=0, help="Of timed calls, in a round of each.")] = 0.2,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each.")] = _default_threads(),
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that one compilation may take.")] = 600.0,
    max_error: MaxError = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
    csv: Annotated[Path | None, typer.Option(help="Write the rows into this file.", dir_okay=False)] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the times into this file; needs matplotlib.", dir_okay=False)
    ] = None,
) -> None:
    """Time a model in everything that is installed: eager, inductor, onnxruntime, openvino, torchrlopt.

    Each runs in its own process. They compile one after the other and then alternate, round by round, so that
    disturbances of the machine affect all of them. The ratio is the median over the rounds. torchrlopt runs
    with its default options, with weights=frozen and with executor=auto, each with --max-error if that is
    given; it uses cached plans if there are any. Ctrl-C shows what has been measured so far.

    Example: torchrlopt bench model.onnx --in eager,onnxruntime,torchrlopt --rounds 7 --csv times.csv
    """
    from torchrlopt.api.bench.rounds import Settings  # heavy
    from torchrlopt.api.cli import bench as command
    from torchrlopt.options import Options

    _require_folder(csv)
    _require_folder(plot)
    command.check_plot(plot)
    budget = Options(**_with_budget({}, max_error)).precision.max_error
    settings = Settings(rounds, seconds, threads, timeout, budget)
    rows, is_whole = command.run(model, command.chosen(contestants), settings)
    if csv is not None:
        command.write_csv(model, rows, settings, csv)
    if plot is not None:
        command.write_plot(model, rows, plot)
    found = command.data(model, rows, settings, is_whole)
    typer.echo(json.dumps(found, indent=2) if as_json else command.render(model, rows, settings))
    if not is_whole:
        raise typer.Exit(_INTERRUPTED)
    if any(row.reason for row in rows):
        raise typer.Exit(1)


@app.command()
def device(
    again: Annotated[bool, typer.Option("--again", help="Probe although it is known.")] = False,
    where: Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:1.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Probe this machine (once, under 2 seconds) and print the numbers that plans are priced with.

    From then on plans are priced with these numbers instead of a typical machine's; the option prices=typical
    turns that off.

    Example: torchrlopt device --again
    """
    from torchrlopt.api.cli import measure  # heavy

    found = measure.look(where, again)
    typer.echo(json.dumps(found, indent=2) if as_json else measure.render(found))


@app.command()
def profile(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help=HELP),
    ],
    seconds: Annotated[float, typer.Option(min=0, help="Time for each model.")] = 60.0,
    executor: Annotated[str, typer.Option(help="What runs the graphs.")] = "eager",
    seed: Annotated[int, typer.Option(help="Of the walks to other graphs.")] = 0,
) -> None:
    """Time the operators of models, and those that substitutions would replace them with.

    Each timing is saved at once: Ctrl-C loses nothing, and the next run continues where this one ended. From
    then on plans are priced with the timings; the option prices=typical turns that off.

    Example: torchrlopt profile model.onnx --seconds 60 --executor eager
    """
    from torchrlopt.api.cli import measure  # heavy

    measure.fill(models, executor, seconds, seed)


@app.command()
def explain(
    model: Annotated[str, typer.Argument(help=HELP)],
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="name=value of an option; may be repeated.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write the plan for one executor as a page.", dir_okay=False)
    ] = None,
    executor: Annotated[
        str | None,
        typer.Option(help="Of which --html shows the plan; default: the measured one, or eager's."),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also optimise the model, and measure each part of the gain.")
    ] = False,
    max_error: MaxError = None,
    leave_out: Annotated[
        bool, typer.Option("--leave-out", help="Time the plan for eager PyTorch without each of its groups.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Plan a model for every available executor, and describe each plan.

    Example: torchrlopt explain baselines.models:build:repvgg_a0 --measure --html plan.html
    """
    from torchrlopt.api.explain import explain as plan  # heavy

    _require_folder(html)
    module, inputs = load_model(model)
    with of_the_model(module, inputs, model):
        options = _with_budget(_parsed(option or []), max_error)
        found = plan(module, inputs, leave_out=leave_out, measure=measure, **options)
    if html is not None:
        found.save(html, executor, model)
    typer.echo(found.to_json() if as_json else str(found))


def _with_budget(options: dict[str, Any], max_error: str | None) -> dict[str, Any]:
    """Add --max-error to the options."""
    return options if max_error is None else {**options, **_parsed([f"max_error={max_error}"])}


def _require_folder(path: Path | None) -> None:
    """Fail early if a result could not be written at the end.

    Raises:
        OptionsError: the file's folder does not exist.
    """
    if path is not None and not path.parent.is_dir():
        raise OptionsError("the folder of the file is not there", where=str(path), todo="make it first")


def _parsed(assignments: list[str]) -> dict[str, Any]:
    """Parse options from `name=value` texts; values that are not JSON are taken as text."""
    options: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise OptionsError("an option has no value", expected="name=value", got=assignment)
        try:
            options[name] = decoded(value)
        except ValueError:
            options[name] = value
    return options


def _end(number: int, _frame: object) -> None:
    """Exit as on Ctrl-C: incomplete files are removed, processes are ended."""
    sys.exit(128 + number)  # the shells' convention


def main() -> None:
    """Run the command line; our errors and file errors print one line. See above for the exit status."""
    # Processes that a command starts must not import modules from the user's current folder.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` ignores SIGHUP
            signal.signal(number, _end)
    try:
        app()
    except (RlOptError, OSError) as error:
        typer.echo(f"error: {printable(' '.join(str(error).split()))}", err=True)
        sys.exit(2 if isinstance(error, OptionsError) else 1)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(_INTERRUPTED)
