"""Several systems on the same rows, labels and metric, in one table: the paper's Tables 1, 3, 4 and 5 for any data.

Each system is trained and measured in a process of its own, so that its peak memory is its own. A comparison that
is interrupted goes on: finished runs stay, and what was measured is kept beside them.

    OUT/runs/SYSTEM/seed-S/       the runs, as `ewe train` makes them
    OUT/measured/SYSTEM/seed-S.json
    OUT/table.md .csv .json .svg
"""

from __future__ import annotations

import csv
import io
import multiprocessing
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ewe import models, progress, published, store
from ewe.batches import Meta, Split
from ewe.config import TrainConfig, configure
from ewe.errors import DataError, EweError, UsageError
from ewe.evaluate import evaluate_split
from ewe.metrics import POSITIONS, Counts, count, scores
from ewe.models import MODELS
from ewe.run import check_labels, load, misfit
from ewe.train import train_model

GUESS = "most frequent labels"  # the row that any system must beat
HEAD, MAJORS = 0.5, 0.9  # shares of all labels of train: what head labels hold, and head and middle together
SHOWN = {  # figures of a split, and their headings
    "f1": "F1",
    "precision": "precision",
    "recall": "recall",
    "first": "First F1",
    "later": "Later F1",
    "head": "head F1",
    "middle": "middle F1",
    "tail": "tail F1",
}
NOTE = (
    "Micro-averaged, in per cent. Head labels are the most frequent ones, which hold half of train's labels; "
    "with the middle ones they hold 90%."
)
PUBLISHED_NOTE = (
    "Published: 1.91M grants of 2006-2014, 1,328 labels, 10 epochs of batches of 32. "
    "† other data here, ‡ another budget here: not to be compared."
)
PAPER = {"epochs": 10, "batch_size": 32, "labels": 1328, "threshold": 0.3}
PAPER_ROWS = (1_800_000, 2_000_000)  # 1.91M, give or take what the table has gained and lost since


@dataclass(frozen=True)
class System:
    """A row of the table: a model on the tensors that it reads, or a run that somebody has trained."""

    name: str
    model: str
    tensors: Path
    run: Path | None = None


def compare_models(
    tensors: Sequence[Path],
    out: Path,
    *,
    names: Sequence[str] = ("paper",),
    runs: Sequence[Path] = (),
    seeds: int = 1,
    preset: str = "paper",
    **choices: Any,
) -> dict[str, Any]:
    """Train (or take) systems, evaluate them on every split but train, and write the table; the same call resumes.

    Args:
        tensors: folders that encode made of one dataset, one a tokenizer.
        out: folder to write.
        names: models, each perhaps as MODEL@FOLDER to choose among the tensors that it could read, by the folder's
            own name; and groups: "paper", "byt5", "baselines", "all" stand for those of them that the tensors allow;
            a warning and the table say which they do not.
        runs: finished runs to take as they are, a row each.
        seeds: how often each is trained; the table then has mean and standard deviation.
        preset: a key of ewe.config.PRESETS, for all.
        choices: fields of TrainConfig, for all.

    Returns:
        A summary: the table's rows and where it is.

    Raises:
        UsageError: a model is unknown, or no tensors are there that it reads, or two folders of them have one name.
        DataError: the tensors are not of the same rows and labels, or a run has other labels.
    """
    folders = {path: Meta.read(path) for path in tensors}
    _check_same(folders)
    splits = [name for name in next(iter(folders.values())).splits if name != "train"]
    if not splits:
        raise UsageError(f"{tensors[0]} has no split besides train to compare on; encode one.")
    config = configure(preset, **choices)
    systems = _systems(names, runs, folders)
    for system in systems:
        if not system.run:
            _check_fits(system, folders[system.tensors], config)
    if left_out := _left_out(names, folders):
        progress.warn(
            f"{out} goes without {_listed(left_out)}, as no tensors named are of that --tokenizer; encode them and "
            "name their folder too."
        )
    decides = {
        "systems": {system.name: system.run and store.read_manifest(system.run, "run")["files"] for system in systems},
        "tensors": {path.name: meta.manifest["config_sha256"] for path, meta in folders.items()},
        "seeds": seeds,
        "training": {"preset": preset, **asdict(config)},
    }
    with store.Store(out, "comparison", decides) as comparison:
        if comparison.finished:
            progress.say(f"{out} is finished; nothing to do.")
            return {"out": str(out), **comparison.manifest["summary"]}
        comparison.write_json("plan.json", {system.name: str(system.tensors) for system in systems})
        measured: dict[str, list[dict[str, Any]]] = {system.name: [] for system in systems}  # of each seed
        how = {"device": config.device, "precision": config.precision}
        with progress.bar("compare", len(systems) * seeds, "runs") as advance:
            for system in systems:
                for seed in range(1 if system.run else seeds):
                    name = f"measured/{system.name}/seed-{seed}.json"
                    if not comparison.has(name):
                        progress.say(f"{system.name}, seed {seed}")
                        run = system.run or out / "runs" / system.name / f"seed-{seed}"
                        settings = {"preset": preset, **choices, "model": system.model, "seed": seed}
                        given = (system.tensors, run, splits, how, None if system.run else settings)
                        comparison.write_json(name, _apart(_measure, *given))
                    measured[system.name].append(store.read_json(out / name))
                    advance()
        table = _table(systems, measured, splits, folders) | {"left_out": left_out}
        comparison.write_json("table.json", table)
        comparison.write_text("table.md", markdown(table))
        comparison.write_text("table.csv", _csv(table))
        comparison.write_text("table.svg", _figure(table))
        rows = {row["system"]: {split: row[split]["f1"]["mean"] for split in splits} for row in table["rows"]}
        comparison.finish(summary={"f1": rows, "made_up": table["made_up"]})
    return {"out": str(out), "f1": rows, "made_up": table["made_up"]}


def _check_same(folders: Mapping[Path, Meta]) -> None:
    """All folders must hold the same rows in the same order, with the same labels, each under a name of its own."""
    if not folders:
        raise UsageError("Name at least one tensors folder.")
    names: dict[str, Path] = {}
    for path in folders:
        if names.setdefault(path.name, path) != path:
            raise UsageError(
                f"{names[path.name]} and {path} are both named {path.name}, as which MODEL@{path.name} and the "
                "comparison know a folder; rename one."
            )
    first, *others = folders
    for other in others:
        a, b = folders[first], folders[other]
        if list(a.splits) != list(b.splits):
            raise DataError(f"{first} and {other} do not have the same splits; encode one dataset for both.")
        if a.labels_sha256 != b.labels_sha256:
            raise DataError(f"{first} and {other} do not have the same labels; encode one dataset for both.")
        for split in a.splits:
            for part in ("ids", "labels.indptr", "labels.indices"):
                name = f"{split}.{part}.npy"
                if a.manifest["files"][name]["sha256"] != b.manifest["files"][name]["sha256"]:
                    raise DataError(f"{first / name} and {other / name} differ; encode one dataset for both.")


def _groups(name: str) -> list[str]:
    """The models that a group's name stands for; none where it is no group's."""
    groups = {
        "paper": list(published.SCORES),
        "byt5": [model for model in MODELS if model.startswith("byt5")],
        "baselines": [model for model, each in MODELS.items() if each.home.startswith("ewe.baselines")],
        "all": list(MODELS),
    }
    return groups.get(name, [])


def _systems(names: Sequence[str], runs: Sequence[Path], folders: Mapping[Path, Meta]) -> list[System]:
    found: dict[str, System] = {}
    for name in names:
        group = _groups(name)
        for each in group or [name]:
            model, _, folder = each.partition("@")
            fitting = _fitting(model, folder, folders)
            if not fitting and group:
                continue
            if not fitting:
                wanted = " or ".join(models.find(model).tokenizers) or "any"
                where = f" in a folder named {folder}" if folder else ""
                raise UsageError(
                    f"{model} reads tensors of --tokenizer {wanted}{where}, and none are named; encode them and name "
                    "their folder too."
                )
            found[each] = System(each, model, fitting[0])
    for run in runs:
        manifest = store.read_manifest(run, "run")
        config = store.read_recorded(run, manifest, "config.json")
        name = f"{config['model']} ({run.name})"
        if name in found:
            raise UsageError(f"Two runs of {config['model']} are named {run.name}; name each once, or rename one.")
        reasons = {path: misfit(run, config, path, meta) for path, meta in folders.items()}
        fitting = [path for path, reason in reasons.items() if not reason]
        if not fitting:
            raise UsageError(f"--run {run} fits none of these tensors: {next(iter(reasons.values()))}")
        check_labels(run, store.read_recorded(run, manifest, "labels.json"), fitting[0], folders[fitting[0]])
        found[name] = System(name, config["model"], fitting[0], run)
    if not found:
        raise UsageError(f"No model of {', '.join(names)} reads these tensors; see ewe info --all.")
    return list(found.values())


def _fitting(model: str, folder: str, folders: Mapping[Path, Meta]) -> list[Path]:
    """Tensors that a model reads, those of its published number of letters first."""
    known = models.find(model)
    fitting = [path for path, meta in folders.items() if not known.tokenizers or meta.tokenizer in known.tokenizers]
    fitting = [path for path in fitting if not folder or path.name == folder]
    return sorted(fitting, key=lambda path: known.letters not in (0, folders[path].v))


def _left_out(names: Sequence[str], folders: Mapping[Path, Meta]) -> dict[str, str]:
    """The models of the named groups that no tensors fit, and the tokenizer that each needs."""
    grouped = dict.fromkeys(model for name in names for model in _groups(name))
    return {model: " or ".join(models.find(model).tokenizers) for model in grouped if not _fitting(model, "", folders)}


def _listed(left_out: Mapping[str, str]) -> str:
    """As `bert-orig, albert-orig (--tokenizer wordpiece), canine-orig (--tokenizer codepoints)`."""
    found: dict[str, list[str]] = {}
    for model, tokenizer in left_out.items():
        found.setdefault(tokenizer, []).append(model)
    return ", ".join(f"{', '.join(each)} (--tokenizer {tokenizer})" for tokenizer, each in found.items())


def _check_fits(system: System, meta: Meta, config: TrainConfig) -> None:
    """Have every shape refused before anything is trained."""
    try:
        models.shape(system.model, models.sizes_of(config, meta), meta.tokenizer, config.options)
    except UsageError as error:
        raise UsageError(f"{system.name}: {error}") from None


# -- one system, in a process of its own ------------------------------------------------------------------------------


def _apart(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Call a function in a fresh process and return what it returns, or raise what it raises."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, progress.is_quiet(), function, arguments))
    try:
        with _uninterrupted():
            process.start()
        sender.close()
        result: dict[str, Any] | EweError = receiver.recv()
    except EOFError:
        process.join()
        raise EweError(_died(process.exitcode or 0)) from None
    finally:
        if process.pid:
            process.terminate()  # where this process is being stopped: training keeps a checkpoint
            process.join()
    if isinstance(result, EweError):
        raise result
    return result


def _died(code: int) -> str:
    """Of a process that ended without a word: a signal, which is what a lack of memory looks like, or its own error."""
    if code < 0:
        return f"A process was ended by signal {-code} before its result; for want of memory? Run the command again."
    return f"A process ended with {code} before its result; mend what it says above and run the command again."


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Have a process that is started here ignore Ctrl-C, from its first import on.

    A terminal sends it to parent and child; the parent alone answers, and ends the child.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which a new process inherits
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _send(sender: Connection, quiet: bool, function: Callable[..., dict[str, Any]], arguments: Any) -> None:
    progress.set_quiet(quiet)
    try:
        sender.send(function(*arguments))
    except EweError as error:
        sender.send(error)


def _measure(
    tensors: Path, run: Path, splits: list[str], how: dict[str, str], settings: dict[str, Any] | None
) -> dict[str, Any]:
    """Train, unless the run is given; evaluate; say what it took.

    Inference is timed on the largest split, from tensors/, after the evaluation has warmed everything up.

    Args:
        tensors: what the run reads.
        run: its folder.
        splits: what to evaluate.
        how: device and precision of the evaluation.
        settings: arguments of `train_model`, device and precision among them; None for a finished run.
    """
    trained = train_model(tensors, run, **settings) if settings else {}
    opened, meta = load(run, **how), Meta.read(tensors)
    evaluations = {}
    for split in splits:
        report, counts = evaluate_split(opened, tensors, meta, split)
        evaluations[split] = report | {"groups": _by_frequency(np.array(opened.labels["counts"]), counts)}
    largest = Split.open(tensors, max(splits, key=lambda name: meta.splits[name]["rows"]), meta, opened.reads)
    begun = time.perf_counter()
    count(
        opened.model,
        opened.compute,
        largest,
        np.arange(len(largest)),
        opened.names,
        opened.threshold,
        opened.batch_size,
    ).report()
    seconds = time.perf_counter() - begun
    config, summary = opened.config, store.read_manifest(run, "run")["summary"]
    return {
        "model": config["model"],
        "sizes": models.sizes(config["model"], config["shape"]),
        "stored_numbers": summary["parameters"],
        "training": config["training"],
        "preset": config["preset"],
        "steps": summary.get("steps"),
        "training_rows": summary["rows"],
        "epochs": summary.get("epochs"),
        "train_examples_per_second": trained.get("examples_per_second"),
        "inference_examples_per_second": len(largest) / seconds if len(largest) else None,
        "peak_memory_bytes": _peak_memory(),
        "compute": str(opened.compute),
        "evaluations": evaluations,
    }


def _peak_memory() -> int:
    """Bytes: on the card where one is used, else of this process."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if status.is_file():  # Linux passes a parent's peak on to ru_maxrss
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _by_frequency(trained: NDArray[np.int64], counts: Counts) -> dict[str, dict[str, Any]]:
    """Micro figures over head, middle and tail labels, told apart by how often train has them: `trained` (L,).

    Head is the shortest run of most frequent labels that holds half of train's, head and middle together hold 90%
    (the paper's majors).
    """
    tp, predicted, support = (each.cpu().numpy() for each in (counts.tp, counts.predicted, counts.support))
    order = np.argsort(-trained, kind="stable")
    before = (trained[order].cumsum() - trained[order]) / max(trained.sum(), 1)
    group = np.empty(len(order), np.int64)
    group[order] = np.digitize(before, [HEAD, MAJORS])
    return {
        name: {
            "labels": int((group == i).sum()),
            **scores(tp[group == i], predicted[group == i], support[group == i])["micro"],
        }
        for i, name in enumerate(("head", "middle", "tail"))
        if (group == i).any()
    }


# -- the table --------------------------------------------------------------------------------------------------------


def _table(
    systems: Sequence[System],
    measured: Mapping[str, Sequence[dict[str, Any]]],
    splits: Sequence[str],
    folders: Mapping[Path, Meta],
) -> dict[str, Any]:
    """Every figure as JSON values: a row a system, the guess last; `measured` has those of each seed by its name."""
    rows = [_row(system, measured[system.name], splits, folders[system.tensors]) for system in systems]
    first = measured[systems[0].name][0]
    guess: dict[str, Any] = {"system": GUESS, "tokenizer": None, "table_1": [], "published": {}, "differs": []}
    guess |= dict.fromkeys(("parameters", "embedding", "train_examples_per_second", "inference_examples_per_second"))
    guess |= {"peak_memory_bytes": None, "threshold": None, "training_rows": None, "epochs": None}
    for split in splits:
        evaluation = first["evaluations"][split]["most_frequent"]
        guess[split] = {name: _spread([value]) for name, value in _figures(evaluation).items()}
    meta = next(iter(folders.values()))
    return {
        "splits": {split: meta.splits[split]["rows"] for split in splits},
        "training_rows": meta.splits["train"]["rows"],
        "labels": len(meta.label_names),
        "compute": first["compute"],
        "seeds": max(map(len, measured.values())),
        "made_up": meta.made_up,
        "rows": [*rows, guess],
    }


def _row(system: System, measured: Sequence[dict[str, Any]], splits: Sequence[str], meta: Meta) -> dict[str, Any]:
    sizes = measured[0]["sizes"]
    row: dict[str, Any] = {
        "system": system.name,
        "tokenizer": meta.tokenizer if MODELS[system.model].tokenizers else "words",
        "parameters": sizes["total"] or measured[0]["stored_numbers"],
        "embedding": sizes["embedding"],
        "table_1": published.SIZES.get(system.model, []),
        "published": published.SCORES.get(system.model, {}),
        "differs": _differences(measured[0], meta),
        "training_rows": measured[0]["training_rows"],
        "epochs": measured[0]["epochs"],
        "threshold": measured[0]["training"]["threshold"],
    }
    for name in ("train_examples_per_second", "inference_examples_per_second", "peak_memory_bytes"):
        values = [each[name] for each in measured if each[name] is not None]
        row[name] = statistics.mean(values) if values else None
    for split in splits:
        figures = [_figures(each["evaluations"][split]) for each in measured]
        row[split] = {name: _spread([each[name] for each in figures]) for name in figures[0]}
    return row


def _figures(evaluation: Mapping[str, Any]) -> dict[str, float]:
    figures = {name: evaluation["micro"][name] for name in ("f1", "precision", "recall")}
    figures |= {name: evaluation[name]["micro"]["f1"] for name in POSITIONS if name in evaluation}
    return figures | {name: group["f1"] for name, group in evaluation.get("groups", {}).items()}


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, and the standard deviation (ddof 1) where there are several."""
    spread = {"deviation": statistics.stdev(values)} if len(values) > 1 else {}
    return {"mean": statistics.mean(values), **spread}


def _differences(measured: Mapping[str, Any], meta: Meta) -> list[str]:
    """In what a run is not the published one: data, budget."""
    rows = meta.splits["train"]["rows"]
    data = meta.made_up or len(meta.label_names) != PAPER["labels"] or not PAPER_ROWS[0] < rows < PAPER_ROWS[1]
    training = measured["training"]
    budget = measured["preset"] != "paper" or any(training[name] != PAPER[name] for name in ("epochs", "batch_size"))
    return ["data"] * data + ["budget"] * budget


def markdown(table: Mapping[str, Any]) -> str:
    """The table for people: sizes and speeds, then scores a split, in per cent."""
    rows, seeds = table["rows"], table["seeds"]
    about = f"{table['training_rows']:,} training rows, {table['labels']:,} labels, {table['compute']}"
    about += f", {seeds} seeds: mean ± standard deviation." if seeds > 1 else "."
    lines = ["# Systems compared", "", about]
    if table["made_up"]:
        lines += ["", "These patents are made up: the figures show that the path works, nothing about patents."]
    lines += ["", "## Sizes and speed", ""]
    shown: list[tuple[str, Callable[[Mapping[str, Any]], str]]] = [
        ("system", lambda row: row["system"]),
        ("reads", lambda row: row["tokenizer"]),
        ("parameters", lambda row: _whole(row["parameters"])),
        ("of them embedding", lambda row: _whole(row["embedding"])),
        ("in Table 1", lambda row: " / ".join(row["table_1"]) or "–"),
        ("training rows × epochs", lambda row: _seen(row["training_rows"], row["epochs"])),
        ("training examples/s", lambda row: _whole(row["train_examples_per_second"])),
        ("inference examples/s", lambda row: _whole(row["inference_examples_per_second"])),
        ("peak memory", lambda row: f"{row['peak_memory_bytes'] / 1e9:.2f} GB"),
    ]
    if not any(row["table_1"] for row in rows):
        del shown[4]
    trained = [row for row in rows if row["parameters"]]
    lines += _lines([name for name, _ in shown], [[cell(row) for _, cell in shown] for row in trained], left=2)
    for split, N in table["splits"].items():
        lines += ["", f"## {split}: {N:,} rows", "", *_scores(rows, split)]
    lines += ["", NOTE]
    if others := [f"{row['system']} above {row['threshold']}" for row in rows if _has_other_threshold(row)]:
        lines += ["", f"§ Labels above another probability than {PAPER['threshold']}: {', '.join(others)}."]
    if table["left_out"]:
        lines += ["", f"Left out, as no tensors of that --tokenizer are here: {_listed(table['left_out'])}."]
    if any(split in row["published"] for row in rows for split in table["splits"]):
        lines += ["", PUBLISHED_NOTE]
    return "\n".join(lines) + "\n"


def _has_other_threshold(row: Mapping[str, Any]) -> bool:
    return row["threshold"] not in (None, PAPER["threshold"])


def _scores(rows: Sequence[Mapping[str, Any]], split: str) -> list[str]:
    names = [name for name in SHOWN if any(name in row[split] for row in rows)]
    compared = any(split in row["published"] for row in rows)
    best = max(row[split]["f1"]["mean"] for row in rows)
    lines = []
    for row in rows:
        figures = [_per_cent(row[split].get(name)) for name in names]
        if row[split]["f1"]["mean"] == best:
            figures[0] = f"**{figures[0]}**"
        name = row["system"] + " §" * _has_other_threshold(row)
        lines.append([name, *figures, *([_printed(row, split)] if compared else [])])
    heads = [SHOWN[name] for name in names]
    return _lines(["system", *heads, *(["published F1 / P / R"] if compared else [])], lines, left=1)


def _printed(row: Mapping[str, Any], split: str) -> str:
    if split not in row["published"]:
        return "–"
    marks = "".join({"data": "†", "budget": "‡"}[what] for what in row["differs"])
    return " / ".join(f"{value:.2f}" for value in row["published"][split]) + (f" {marks}" if marks else "")


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """A Markdown table whose first columns are set left, the others right."""
    rules = ["---"] * left + ["---:"] * (len(head) - left)
    return ["| " + " | ".join(map(str, cells)) + " |" for cells in (head, rules, *rows)]


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _seen(rows: int, epochs: int | None) -> str:
    """What a system has learned from; some learn without epochs."""
    return f"{rows:,}" + (f" × {epochs:,}" if epochs else "")


def _per_cent(figure: Mapping[str, float] | None) -> str:
    if figure is None:
        return "–"
    return f"{100 * figure['mean']:.2f}" + (f" ± {100 * figure['deviation']:.2f}" if "deviation" in figure else "")


def _csv(table: Mapping[str, Any]) -> str:
    """A line a system and split, with every figure as a share of 1."""
    text = io.StringIO()
    own = [
        "tokenizer",
        "parameters",
        "embedding",
        "train_examples_per_second",
        "inference_examples_per_second",
        "peak_memory_bytes",
        "threshold",
        "training_rows",
        "epochs",
    ]
    spreads = [f"{name}_deviation" for name in SHOWN]
    writer = csv.DictWriter(
        text, ["system", "split", *SHOWN, *spreads, *own, "published_f1", "differs"], lineterminator="\n"
    )
    writer.writeheader()
    for row in table["rows"]:
        for split in table["splits"]:
            line = {"system": row["system"], "split": split, **{name: row[name] for name in own}}
            for name, figure in row[split].items():
                line |= {name: figure["mean"], f"{name}_deviation": figure.get("deviation")}
            if split in row["published"]:
                line["published_f1"] = round(row["published"][split][0] / 100, 4)
            writer.writerow(line | {"differs": " ".join(row["differs"])})
    return text.getvalue()


def _figure(table: Mapping[str, Any]) -> str:
    """F1 of each system, and of First and Later apart where labels have positions: a panel a split, as SVG."""
    rows, splits = table["rows"][::-1], list(table["splits"])
    marks = [("f1", "F1", "o", "#1f5fa8"), ("first", "First", "^", "#d9822b"), ("later", "Later", "v", "#4d8f57")]
    with mpl.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "compare", "font.family": "sans-serif", "font.size": 11}
    ):
        figure = Figure(figsize=(3.2 + 3.6 * len(splits), 1.4 + 0.34 * len(rows)), layout="constrained")
        for number, split in enumerate(splits):
            axes = figure.add_subplot(1, len(splits), number + 1)
            axes.set_title(split, loc="left")
            for key, label, marker, colour in marks:
                found = [(y, row[split][key]) for y, row in enumerate(rows) if key in row[split]]
                if found:
                    x, y = [100 * value["mean"] for _, value in found], [at for at, _ in found]
                    spread = [100 * value.get("deviation", 0.0) for _, value in found]
                    axes.errorbar(x, y, xerr=spread, fmt="none", color=colour)
                    size = 7 if key == "f1" else 4.5
                    axes.plot(x, y, marker, color=colour, markersize=size, label=label, clip_on=False, zorder=3)
            axes.set_yticks(range(len(rows)), [row["system"] for row in rows] if not number else [""] * len(rows))
            axes.set_xlim(left=0)
            axes.set_ylim(-0.6, len(rows) - 0.4)
            axes.set_xlabel("micro-F1, %")
            axes.grid(axis="both", color="#dddddd", linewidth=0.7)
            axes.set_axisbelow(True)
            axes.spines[["top", "right", "left"]].set_visible(False)
            axes.tick_params(length=0)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower right", ncols=3, frameon=False)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
