"""The two commands, `ewe-data` and `ewe`: paths in, one call, one summary out.

What they do lives in the functions they call; heavy libraries load only inside a command.
"""

import datetime as dt
import functools
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

if __name__ == "cli":  # the link at the repository's root, there for readers
    raise ImportError("cli at the root is a link; import ewe.cli.")

from ewe import __version__, progress
from ewe.config import PRESETS, TrainConfig
from ewe.errors import EweError, UsageError

EXTRAS = {  # module -> the extra that brings it
    "torch": "train",
    "safetensors": "train",
    "google": "bigquery",
    "grpc": "bigquery",
    "lxml": "uspto",
    "matplotlib": "report",
    "great_tables": "report",
    "jinja2": "report",
    "tokenizers": "models",
    "transformers": "models",
    "sklearn": "models",
    "huggingface_hub": "models",
}
SETTINGS: dict[str, Any] = {
    "no_args_is_help": True,
    "add_completion": False,
    "rich_markup_mode": None,  # halves the time of --help
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}

data = typer.Typer(help="Patents from a SQL query to a relabeled dataset and its tensors.", **SETTINGS)
ewe = typer.Typer(help="Train, evaluate and use models that read words as letters.", **SETTINGS)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no news; warnings stay.")]


def _date(value: str | dt.date) -> dt.date:
    return dt.date.fromisoformat(str(value))


def _day(help_text: str) -> Any:
    return typer.Option(parser=_date, metavar="YYYY-MM-DD", help=help_text)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@data.callback()
@ewe.callback()
def _main(
    version: Annotated[  # noqa: ARG001 - acts by its callback
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    # Read when torch loads: its threads sleep while they wait. Spinning costs a shared machine half its speed.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _render(summary: dict[str, Any]) -> str:
    """A summary as aligned lines for a person."""
    width = max(len(name) for name in summary)
    gap = "\n" + " " * (width + 2)
    return "\n".join(f"{name.replace('_', ' '):<{width}}  {_value(value, gap)}" for name, value in summary.items())


def _command(
    app: typer.Typer, render: Callable[[dict[str, Any]], str] = _render
) -> Callable[[Callable[..., dict[str, Any]]], Callable[..., dict[str, Any]]]:
    """Register a function that returns a summary as a command with --json and --quiet and exit codes."""

    def register(function: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        @functools.wraps(function)
        def run(**options: Any) -> None:
            as_json = options.pop("as_json")
            progress.set_quiet(options.pop("quiet"))
            signal.signal(signal.SIGTERM, _terminate)
            _run(functools.partial(_tell, function, options, _as_json if as_json else render))

        switches = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
            for name, kind in (("as_json", Json), ("quiet", Quiet))
        ]
        signature = inspect.signature(function)
        run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *switches])  # type: ignore[attr-defined]
        run.__annotations__ = {name: each.annotation for name, each in run.__signature__.parameters.items()}  # type: ignore[attr-defined]
        app.command()(run)
        return function

    return register


def _as_json(summary: dict[str, Any]) -> str:
    return json.dumps(summary, ensure_ascii=False, default=str)


def _tell(
    function: Callable[..., dict[str, Any]], options: dict[str, Any], render: Callable[[dict[str, Any]], str]
) -> None:
    """Call a command's function and print its summary."""
    summary = function(**options)
    if summary.get("made_up"):
        progress.say("These patents are made up: the figures show that the path works, nothing about patents.")
    if summary:  # of several processes that train, the first alone has one
        print(render(summary), flush=True)


def _run(work: Callable[[], None]) -> None:
    """Do a command's work; a failure the user can mend is one sentence and its exit code."""
    try:
        return work()
    except EweError as error:
        message, code = str(error), error.exit_code
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").split(".")[0])
        if not extra:
            raise
        message, code = f"This needs {error.name}; run: pip install 'ewe-patents[{extra}]'.", UsageError.exit_code
    except BrokenPipeError:  # who reads has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return None
    except OSError as error:
        message, code = f"{error.filename or 'A file'}: {error.strerror or error}; check the path and the disk.", 1
    except KeyboardInterrupt:
        message, code = "Interrupted; what is finished stays: run the same command again.", 130
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(code)


def _terminate(*_: object) -> None:
    print("error: Terminated; what is finished stays: run the same command again.", file=sys.stderr)
    sys.exit(143)


def _value(value: Any, gap: str = ", ") -> str:
    if isinstance(value, list):
        return gap.join(map(_value, value))
    if isinstance(value, dict) and any(isinstance(each, dict) for each in value.values()):
        return gap.join(f"{name}: {_value(each)}" for name, each in value.items())
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value(each)}" for name, each in value.items()) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


# -- ewe-data ---------------------------------------------------------------------------------------------------------


@_command(data)
def sample(
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    rows: Annotated[int, typer.Option(min=1, help="Rows of the table.")] = 5000,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other patents.")] = 0,
) -> dict[str, Any]:
    """Write a table of made-up patents in the shape of Google's publications table."""
    from ewe.pipeline.sample import write_sample

    return write_sample(out, rows=rows, seed=seed)


class Source(StrEnum):
    """Where grants come from."""

    parquet = "parquet"
    bigquery = "bigquery"
    uspto = "uspto"
    patentsview = "patentsview"


class Issued(StrEnum):
    """Which CPC labels of PatentsView's."""

    current = "current"
    at_issue = "at-issue"


@_command(data)
def fetch(
    out: Annotated[Path, typer.Option(help="Folder to write: RAW.")],
    source: Annotated[Source | None, typer.Option(help="Where the grants come from.")] = None,
    input_: Annotated[
        Path | None, typer.Option("--input", help="Publications Parquet, weekly XML or PatentsView tables.")
    ] = None,
    start: Annotated[dt.date, _day("First grant date.")] = dt.date(2006, 1, 1),
    end: Annotated[dt.date, _day("Last grant date.")] = dt.date(2015, 12, 31),
    project: Annotated[str | None, typer.Option(help="BigQuery: the project that pays.")] = None,
    table: Annotated[str | None, typer.Option(help="BigQuery: a dated snapshot, or a table like it.")] = None,
    max_bytes: Annotated[str | None, typer.Option(help="BigQuery: the most a scan may bill; else 500GB.")] = None,
    with_abstract: Annotated[bool, typer.Option("--with-abstract", help="BigQuery: fetch abstracts too.")] = False,
    labels_only: Annotated[bool, typer.Option("--labels-only", help="BigQuery: First and Later, no text.")] = False,
    pay_again: Annotated[bool, typer.Option("--pay-again", help="BigQuery: scan anew once expired.")] = False,
    labels: Annotated[Issued | None, typer.Option(help="PatentsView: which CPC labels; else current.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it reads and costs; write nothing.")] = False,
) -> dict[str, Any]:
    """Fetch the US utility grants of a window into RAW, a Parquet shard a month."""
    from ewe.pipeline.fetch import fetch_grants, fetch_labels, plan

    engine = _engine(
        source,
        input_,
        project=project,
        table=table,
        max_bytes=max_bytes,
        with_abstract=with_abstract,
        labels_only=labels_only,
        pay_again=pay_again,
        labels=labels,
    )
    if dry_run:
        return plan(engine, start=start, end=end)
    return (fetch_labels if labels_only else fetch_grants)(engine, out, start=start, end=end)


def _engine(source: Source | None, path: Path | None, **flags: Any) -> Any:
    """The engine that the flags of `fetch` name; those of another one are refused, not passed over."""
    if source is None or (path is None and source != Source.bigquery):
        raise UsageError(
            "Say where the grants come from: --source parquet, uspto or patentsview with --input, "
            "or --source bigquery with --project."
        )
    for name, value in flags.items():
        owner = Source.patentsview if name == "labels" else Source.bigquery
        if value and source != owner:
            raise UsageError(f"--{name.replace('_', '-')} belongs to --source {owner}; leave it out.")
    if path is None or source == Source.bigquery:
        if flags["project"] is None or path is not None:
            raise UsageError("--source bigquery needs --project, the project that pays, and no --input.")
        from ewe.pipeline.bigquery import MAX_BYTES, TABLE, BigQueryEngine
        from ewe.pipeline.price import parse_bytes

        return BigQueryEngine(
            flags["project"],
            table=flags["table"] or TABLE,
            query="labels" if flags["labels_only"] else "grants",
            max_bytes=parse_bytes(flags["max_bytes"]) if flags["max_bytes"] else MAX_BYTES,
            with_abstract=flags["with_abstract"],
            pay_again=flags["pay_again"],
        )
    if source == Source.uspto:
        from ewe.pipeline.uspto import UsptoEngine

        return UsptoEngine(path)
    if source == Source.patentsview:
        from ewe.pipeline.patentsview import PatentsviewEngine

        issued: Any = flags["labels"] or Issued.current
        return PatentsviewEngine(path, issued.value)
    from ewe.pipeline.local import ParquetEngine

    return ParquetEngine(path)


class Scheme(StrEnum):
    """Which classification."""

    cpc = "cpc"
    ipc = "ipc"


@_command(data)
def relabel(
    raw: Annotated[Path, typer.Argument(help="Folder that fetch made.")],
    out: Annotated[Path, typer.Option(help="Folder to write: DATASET.")],
    max_claims: Annotated[int, typer.Option(min=1, help="Claims to join.")] = 20,
    scheme: Annotated[Scheme, typer.Option(help="Which codes to label by.")] = Scheme.cpc,
    split: Annotated[
        list[str] | None, typer.Option(help="NAME=FROM:TO by grant date, repeated; default: the paper's three.")
    ] = None,
) -> dict[str, Any]:
    """Join the first claims and label each patent by the position of its codes."""
    from ewe.pipeline.relabel import relabel_folder
    from ewe.pipeline.split import parse_splits

    splits = parse_splits(split or [])
    return relabel_folder(raw, out, max_claims=max_claims, scheme=scheme.value, splits=splits)


class Tokenizer(StrEnum):
    """How a text becomes materials."""

    whitespace = "whitespace"
    bytes = "bytes"
    wordpiece = "wordpiece"
    codepoints = "codepoints"


class Labels(StrEnum):
    """Which labels of a dataset."""

    position = "position"
    unordered = "unordered"


def _number_or_file(value: str | int | Path) -> int | Path:
    text = str(value)
    return int(text) if text.isdecimal() else Path(text)


@_command(data)
def encode(
    source: Annotated[
        Path, typer.Argument(metavar="INPUT", help="A dataset folder, or Parquet or JSON lines with text, label_names.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write: TENSORS.")],
    words: Annotated[int, typer.Option(min=3, help="u, materials a text, [CLS] and [SEP] included.")] = 128,
    letters: Annotated[
        int | None, typer.Option(min=1, help="v, letters a material, of whitespace and bytes; default: 16.")
    ] = None,
    tokenizer: Annotated[Tokenizer, typer.Option(help="What a material is.")] = Tokenizer.whitespace,
    labels: Annotated[Labels, typer.Option(help="Of a dataset: by position, or without it.")] = Labels.position,
    vocabulary: Annotated[
        Any,
        typer.Option(
            parser=_number_or_file,
            metavar="NUMBER|FILE",
            help="Of wordpiece: ids to learn from train, or a tokenizer.json or vocab.txt; default: 30522.",
        ),
    ] = None,
    drop_leaks: Annotated[
        bool, typer.Option("--drop-leaks", help="Leave out a dataset's test patents that have a near-copy in train.")
    ] = False,
) -> dict[str, Any]:
    """Encode texts as memory-mapped tensors of letters, tokens or code points."""
    from ewe.pipeline.encode import encode_folder

    how: dict[str, Any] = {"tokenizer": tokenizer.value, "labels": labels.value, "vocabulary": vocabulary}
    return encode_folder(source, out, words=words, letters=letters, drop_leaks=drop_leaks, **how)


@_command(data)
def dedup(
    dataset: Annotated[Path, typer.Argument(help="Folder that relabel made.")],
    jaccard: Annotated[float, typer.Option(help="Least similarity of two near-copies' 5-word shingles.")] = 0.8,
) -> dict[str, Any]:
    """Find near-copies, and test patents that have one in train."""
    from ewe.pipeline.dedup import dedup_folder

    return dedup_folder(dataset, jaccard=jaccard)


@_command(data)
def release(dataset: Annotated[Path, typer.Argument(help="Folder that relabel made.")]) -> dict[str, Any]:
    """Complete a dataset's card, Croissant, data dictionary, checksums and report."""
    from ewe.pipeline.release import release_folder

    return release_folder(dataset)


def _render_diff(report: dict[str, Any]) -> str:
    from ewe.pipeline.diff import render_moves

    counts = {name: value for name, value in report.items() if not isinstance(value, dict | list)}
    return f"{_render(counts)}\n\n{render_moves(report)}"


@_command(data, _render_diff)
def diff(
    a: Annotated[Path, typer.Argument(help="RAW or DATASET.")],
    b: Annotated[Path, typer.Argument(help="Another one.")],
    scheme: Annotated[Scheme, typer.Option(help="Which codes of a RAW to label by.")] = Scheme.cpc,
) -> dict[str, Any]:
    """Say which rows and labels differ between two folders."""
    from ewe.pipeline.diff import diff_labels

    return diff_labels(a, b, scheme.value)


@_command(data)
def verify(folder: Annotated[Path, typer.Argument(help="Any folder the commands made.")]) -> dict[str, Any]:
    """Check every file of a folder against its manifest."""
    from ewe import store

    return {"folder": str(folder), **store.verify(folder)}


# -- ewe --------------------------------------------------------------------------------------------------------------


def _with_training_options(*without: str) -> Callable[[Callable[..., dict[str, Any]]], Callable[..., dict[str, Any]]]:
    """Give a command one option for each field of TrainConfig but these; None, its default, leaves the preset's."""

    def give(function: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        own = [each for each in inspect.signature(function).parameters.values() if each.kind is not each.VAR_KEYWORD]
        options = []
        for field in fields(TrainConfig):
            if field.name in without:
                continue
            kind: Any = {"bool": bool, "int": int, "float": float, "str": str}[str(field.type)]
            help_text = f"{field.metadata['help']}  [paper: {str(field.default).lower()}]"
            annotation = Annotated[kind | None, typer.Option(help=help_text)]
            options.append(
                inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            )
        function.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
        return function

    return give


Preset = Annotated[str, typer.Option(help=f"Which recipe to start from: {', '.join(PRESETS)}.")]


@_command(ewe)
@_with_training_options("options")
def train(
    tensors: Annotated[Path, typer.Argument(help="Folder that encode made.")],
    out: Annotated[Path, typer.Option(help="Folder to write: RUN.")],
    preset: Preset = "paper",
    option: Annotated[list[str] | None, typer.Option(help="NAME=VALUE of the model's own, repeated.")] = None,
    **choices: Any,
) -> dict[str, Any]:
    """Train a model; the same command again resumes."""
    from ewe.models import options
    from ewe.train import train_model

    return train_model(tensors, out, preset=preset, options=options(option or []), **choices)


Run = Annotated[Path, typer.Argument(help="Folder that train made.")]
Split = Annotated[str | None, typer.Option(help="One split of tensors; default: all but train.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Precision = Annotated[str, typer.Option(help="auto, fp32, bf16 or fp16.")]
Threshold = Annotated[
    str | None, typer.Option(help="Number, or global, labels or first as ewe tune found; default: the run's.")
]


@_command(ewe)
def evaluate(
    run: Run,
    tensors: Annotated[Path, typer.Argument(help="Folder that encode made.")],
    split: Split = None,
    threshold: Threshold = None,
    device: Device = "auto",
    precision: Precision = "auto",
) -> dict[str, Any]:
    """Evaluate a run: micro and macro F1, First and Later apart, each label."""
    from ewe.evaluate import evaluate_run

    return evaluate_run(run, tensors, split=split, threshold=threshold, device=device, precision=precision)


@_command(ewe)
def predict(
    run: Run,
    source: Annotated[
        Path,
        typer.Argument(metavar="INPUT", help="tensors/, text or JSON lines, - for stdin, or Parquet (text or claims)."),
    ],
    out: Annotated[Path, typer.Option(help="File to write: .jsonl or .parquet.")],
    top_k: Annotated[int | None, typer.Option(help="The k best labels; default: those above the threshold.")] = None,
    split: Split = None,
    threshold: Threshold = None,
    device: Device = "auto",
    precision: Precision = "auto",
) -> dict[str, Any]:
    """Predict the labels of texts or raw claims."""
    from ewe.predict import predict_file

    how: dict[str, Any] = {"threshold": threshold, "device": device, "precision": precision}
    return predict_file(run, source, out, top_k=top_k, split=split, **how)


@_command(ewe)
def tune(
    run: Run,
    tensors: Annotated[Path, typer.Argument(help="Folder that it was trained on.")],
    device: Device = "auto",
    precision: Precision = "auto",
) -> dict[str, Any]:
    """Find better thresholds than 0.3 on the held-out rows, and say what they gain on the test splits."""
    from ewe.tune import tune_run

    return tune_run(run, tensors, device=device, precision=precision)


def _render_table(summary: dict[str, Any]) -> str:
    return (Path(summary["out"]) / "table.md").read_text(encoding="utf-8").rstrip()


@_command(ewe, _render_table)
@_with_training_options("options", "model", "seed")
def compare(
    tensors: Annotated[list[Path], typer.Argument(help="Folders that encode made of one dataset, one a tokenizer.")],
    out: Annotated[Path, typer.Option(help="Folder to write: the table, and the runs.")],
    models: Annotated[
        str, typer.Option(help="Names (NAME@FOLDER: on those tensors), or paper, byt5, baselines, all; by comma.")
    ] = "paper",
    run: Annotated[list[Path] | None, typer.Option(help="A finished run to take as it is, repeated.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Train each with so many seeds: mean and deviation.")] = 1,
    preset: Preset = "paper",
    **choices: Any,
) -> dict[str, Any]:
    """Train several systems and write one table: sizes, speeds, scores, beside what the paper prints."""
    from ewe.compare import compare_models

    names = [name.strip() for name in models.split(",") if name.strip()]
    return compare_models(tensors, out, names=names, runs=run or (), seeds=seeds, preset=preset, **choices)


@_command(ewe)
def focus(
    run: Run,
    text: Annotated[str, typer.Argument(help="The text itself, a file of it, or - for stdin.")],
    out: Annotated[Path, typer.Option(help="Page to write: .html.")],
    label: Annotated[str | None, typer.Option(help="Explain this label; default: the most probable.")] = None,
    device: Device = "auto",
) -> dict[str, Any]:
    """Show what heads attend to in one text, and which letters speak for a label."""
    from ewe.focus import focus_text

    return focus_text(run, text, out, label=label, device=device)


def _render_info(report: dict[str, Any]) -> str:
    """Models as a table of their sizes; a run as other summaries."""
    if "notes" not in report:
        return _render(report)
    known = ("total", "embedding", "elements", "focus", "tokens", "tables", "without_gradient", "table_1")
    parts = [part for part in known if any(part in model for model in report["models"].values())]
    rows = [["model", *(part.replace("_", " ") for part in parts)]]
    rows += [[name, *(_value(model.get(part, "–")) for part in parts)] for name, model in report["models"].items()]
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(first), *map(str.rjust, row[1:], others)]) for row in rows]
    rest = {name: value for name, value in report.items() if name != "models"}
    return "\n".join([*lines, "", _render(rest | {"others": ", ".join(rest["others"])})])


@_command(ewe, _render_info)
def info(
    run: Annotated[Path | None, typer.Argument(help="Folder that train made; none: the paper's Table 1.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every model.")] = False,
    model: Annotated[str | None, typer.Option(help="Which model, without a RUN; default: bert-ewe.")] = None,
    labels: Annotated[int | None, typer.Option(min=1, help="L, without a RUN; default: the paper's 1328.")] = None,
) -> dict[str, Any]:
    """Say what a run is, or how large a model is beside the paper's Table 1."""
    from ewe import models

    if run and (every or model or labels):
        raise UsageError("--all, --model and --labels are for models without a RUN; leave them or RUN out.")
    return models.info_run(run) if run else models.info(None if every else model or "bert-ewe", labels or 1328)
