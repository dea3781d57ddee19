"""What a token costs when a language model generates text with a cache of fixed size.

Every step has the same shapes, and a batch of one: little is computed, so what is around operators counts.
`python -m baselines.decode --help`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.table import Table

from baselines.shared import csv_files, terminal
from baselines.shared.arguments import CsvFile, choose, one
from torchrlopt.api.bench.process import Worker, WorkerError

#: Sizes of Llama-like models: width, layers, heads, heads of keys and values, words.
MODELS: dict[str, tuple[int, int, int, int, int]] = {
    "llama_2m": (128, 4, 4, 2, 1000),
    "llama_30m": (512, 8, 8, 4, 8000),
    "llama_110m": (768, 12, 12, 4, 16000),
}
#: How the model is called; the first is the base of every ratio.
WAYS: dict[str, dict[str, Any] | None] = {
    "eager": None,
    "inductor": {},
    "torchrlopt": {"backend": "rlopt"},
    "torchrlopt_frozen": {"backend": "rlopt", "options": {"weights": "frozen"}},
}
CSV_COLUMNS = ("model", "way", "dtype", "threads", "round", "ms_per_token", "first_s")
_PROMPT = 16
_TIMEOUT_S = 900.0


def main(
    models: Annotated[str, typer.Option(help=f"Of {', '.join(MODELS)}, separated by commas.")] = "all",
    ways: Annotated[str, typer.Option(help=f"Of {', '.join(WAYS)}, separated by commas.")] = "all",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    tokens: Annotated[int, typer.Option(min=2, help="Of each generation.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Generations of each way, in turn.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="Of the kernels.")] = 2,
    csv: CsvFile = None,
) -> None:
    """Time greedy generation, each model and way in a process of its own, taking turns.

    The clock starts when the first token is there: what the prompt takes does not count. Every way has
    to give eager PyTorch's tokens.

    Example: python -m baselines.decode --models llama_30m --rounds 7 --csv decode.csv
    """
    chosen_models = choose(models, tuple(MODELS), "model")
    chosen_ways = list(dict.fromkeys(["eager", *choose(ways, tuple(WAYS), "way")]))
    dtype = one(dtype, ("float32", "bfloat16"), "dtype")
    console = terminal.console()
    console.print(terminal.machine(), highlight=False)
    found: list[Row] = []
    with terminal.progress(console) as progress:
        task = progress.add_task("", total=len(chosen_models) * len(chosen_ways) * (rounds + 1))
        for model in chosen_models:
            settings = [Setting(model, way, dtype, threads) for way in chosen_ways]
            for what in measured(settings, tokens, rounds, found):
                progress.update(task, advance=1, description=what)
            if csv is not None:
                csv_files.write(csv, CSV_COLUMNS, [cells for row in found for cells in row.cells()])
    console.print(render(found))
    for row in found:
        if row.reason:
            console.print(f"{row.setting.model}, {row.setting.way}: {row.reason}", style="red", markup=False)
    if all(row.reason for row in found):
        raise typer.Exit(1)


@dataclasses.dataclass(frozen=True)
class Setting:
    """A model and how it is called."""

    model: str
    way: str
    dtype: str
    threads: int


@dataclasses.dataclass
class Row:
    """What was measured of a setting.

    Attributes:
        setting: which one.
        tokens: of the first generation.
        first_s: seconds that took, compilation included.
        ms: milliseconds for a token, of each round.
        reason: why there are no times; empty where there are.
    """

    setting: Setting
    tokens: list[int] = dataclasses.field(default_factory=list)
    first_s: float = 0.0
    ms: list[float] = dataclasses.field(default_factory=list)
    reason: str = ""

    def cells(self) -> list[tuple[object, ...]]:
        """In the order of `CSV_COLUMNS`, one for each round."""
        own = dataclasses.astuple(self.setting)
        return [(*own, at, f"{ms:.4f}", f"{self.first_s:.2f}") for at, ms in enumerate(self.ms)]


def measured(settings: list[Setting], tokens: int, rounds: int, found: list[Row]) -> Iterator[str]:
    """Measure the ways of one model, and add their rows to `found`; says what is being done."""
    with contextlib.ExitStack() as stack:
        pairs = []
        for setting in settings:
            yield f"{setting.model}: {setting.way} compiles"
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
            worker = Worker(_command(setting, tokens), _environment(setting, folder), folder, _TIMEOUT_S)
            stack.callback(worker.close)
            row = Row(setting)
            found.append(row)
            pairs.append((worker, row))
            with _noting(row):
                reply = worker.ask("prepare")
                row.tokens, row.first_s = reply["tokens"], reply["first_s"]
                if row.tokens != pairs[0][1].tokens:
                    row.reason = "other tokens than eager PyTorch's"
        for number in range(rounds):
            for worker, row in pairs:
                yield f"{row.setting.model}: round {number + 1} of {rounds}"
                if not row.reason:
                    with _noting(row):
                        row.ms.append(worker.ask("time")["ms_per_token"])


@contextlib.contextmanager
def _noting(row: Row) -> Iterator[None]:
    try:
        yield
    except WorkerError as error:
        row.reason = str(error)


def _command(setting: Setting, tokens: int) -> list[str]:
    return [sys.executable, "-m", "baselines.decode", json.dumps([dataclasses.asdict(setting), tokens])]


def _environment(setting: Setting, folder: Path) -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[1])
    return os.environ | {
        "OMP_NUM_THREADS": str(setting.threads),
        "PYTHONPATH": os.pathsep.join([root, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TORCHRLOPT_CACHE_DIR": str(folder / "torchrlopt"),
        "HF_HUB_OFFLINE": "1",
    }


def render(rows: list[Row]) -> Table:
    """Medians, quartiles and the ratio of medians to eager PyTorch's."""
    table = Table(title="milliseconds for a token", title_justify="left")
    for name in ("model", "way", "median", "quartiles", "speed-up", "first generation, s"):
        table.add_column(name, justify="left" if name in ("model", "way") else "right", no_wrap=True)
    base = {row.setting.model: row.ms for row in rows if row.setting.way == "eager"}
    for row in rows:
        if row.ms:
            low, median, high = np.percentile(row.ms, [25, 50, 75])
            of_eager = base.get(row.setting.model)
            speed_up = f"{statistics.median(of_eager) / median:.2f}x" if of_eager else "-"
            figures = (f"{median:.2f}", f"{low:.2f} to {high:.2f}", speed_up, f"{row.first_s:.1f}")
            table.add_row(row.setting.model, row.setting.way, *figures)
    return table


# ---- in the process of a way


def build(name: str, dtype: str) -> Any:
    """The model, with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    width, layers, heads, key_heads, words = MODELS[name]
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        max_position_embeddings=512,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval().to(getattr(torch, dtype))
    # `generate` may compile by itself; here the way says what compiles.
    model.generation_config.disable_compile = True
    return model


def serve(setting: Setting, tokens: int) -> None:
    """Obey commands on standard input: "prepare" and "time"."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print joins the log
    torch.set_num_threads(setting.threads)
    model = build(setting.model, setting.dtype)
    how = WAYS[setting.way]
    if how is not None:
        model.forward = torch.compile(model.forward, **how)
    prompt = torch.arange(_PROMPT).reshape(1, -1) * 7 % 1000
    for line in sys.stdin:
        try:
            with torch.inference_mode():
                reply = _answer(json.loads(line)["do"], lambda: generated(model, prompt, tokens))
        except Exception as error:  # noqa: BLE001  # whatever a compiler raises is its result
            reply = {"error": f"{type(error).__name__}: {error}"[:500]}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


class _Clock:
    """What `generate` shows each token to, the prompt first."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def put(self, tokens: torch.Tensor) -> None:
        self.seconds.append(time.perf_counter())

    def end(self) -> None:
        """Called behind the last token."""


def generated(model: Any, prompt: torch.Tensor, count: int) -> tuple[list[int], float]:
    """`count` tokens behind `prompt` (1 x words), and the milliseconds that each but the first took."""
    clock = _Clock()
    found = model.generate(
        prompt, max_new_tokens=count, do_sample=False, cache_implementation="static",
        cache_config={"max_cache_len": 256}, streamer=clock,
    )  # fmt: skip
    first, last = clock.seconds[1], clock.seconds[-1]
    return [int(token) for token in found[0, prompt.shape[1] :]], (last - first) / (count - 1) * 1e3


def _answer(do: str, generate: Callable[[], tuple[list[int], float]]) -> dict[str, Any]:
    start = time.perf_counter()
    tokens, ms = generate()
    if do == "time":
        return {"ms_per_token": ms}
    first_s = time.perf_counter() - start
    generate()
    return {"tokens": tokens, "first_s": first_s}


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("["):
        of_setting, number_of_tokens = json.loads(sys.argv[1])
        serve(Setting(**of_setting), number_of_tokens)
    else:
        typer.run(main)
