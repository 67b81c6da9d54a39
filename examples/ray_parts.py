"""relabel, dedup and encode on a Ray cluster: the very functions of the commands, over parts, as tasks.

    python examples/ray_parts.py RAW DATASET TENSORS [--workers N]

The commands' own functions run here and hold the folders; what is local to a part (relabeling a shard's months,
signing a stretch of rows, encoding a shard) goes to the cluster instead of to a thread. The folders are, byte for
byte, those of one process, and the same call again goes on where it stopped. They lie on a disk that all machines see
under one path. The cluster is the one that RAY_ADDRESS names, or a local one of N workers.
"""

import copy
import importlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import ray
import typer

from ewe.pipeline import dedup, encode, relabel
from ewe.store import Store, publish


class Files:
    """A folder's store as a task sees it: what it writes is recorded by the process that holds the folder."""

    def __init__(self, folder: Path, finished: frozenset[str] = frozenset()) -> None:
        self.folder, self.has, self.facts = folder, finished.__contains__, {}

    @contextmanager
    def write(self, name: str, facts: dict[str, Any] | None = None) -> Iterator[Path]:
        """As Store.write."""
        with publish(self.folder / name) as temporary:
            yield temporary
        self.facts[name] = facts or {}


@ray.remote
def run(files: Files, module: str, function: str, *arguments: Any) -> tuple[Any, dict[str, dict[str, Any]]]:
    """One part of a step; returns what it does, and what there is to record of the files that it wrote."""
    result = getattr(importlib.import_module(module), function)(files, *arguments)
    return result, files.facts


def on_cluster(store: Store, module: str, function: str, *arguments: Any) -> Any:
    """One part of a step as a task, its files recorded here."""
    files = Files(store.folder, frozenset(store.manifest["files"]))
    result, facts = ray.get(run.remote(files, module, function, *arguments))
    for name, fact in facts.items():
        store.record(name, fact)
    return result


def silent(_rows: int) -> None:
    """Progress that a task shows: none."""


def write_shard(
    store: Store, shard: relabel.Shard, how: relabel.How, labels: dict[str, list[str]], advance: Callable[[int], None]
) -> Any:
    """As relabel's own."""
    tally = on_cluster(store, relabel.__name__, "_write_shard", shard, how, labels, silent)
    advance(shard.rows)
    return tally


def encode_split(store: Store, source: Any, name: str, split: encode.Split, form: encode.Form) -> None:
    """As encode's own, a task a shard; the arrays of all shards are joined here."""
    layout = {f"{name}.{part}.npy": kind for part, kind in encode._layout(split, form).items()}
    if all(map(store.has, layout)):
        return
    parts = []
    for number, shard in enumerate(source._files[name]):
        alone, folder = copy.copy(source), store.folder / ".shards" / f"{name}-{number}"
        alone._files = {name: [shard]}
        parts.append((folder, run.remote(Files(folder), encode.__name__, "_encode_split", alone, name, split, form)))
    parts = [(folder, ray.get(done)[1]) for folder, done in parts]
    for file, kind in layout.items():
        facts = sum((Counter(facts[file]) for _, facts in parts), Counter())
        facts = {key: facts[key] for key in parts[0][1][file]} | {"rows": split.rows}
        with encode._grow(store, file, *kind, facts) as array:
            end = 0
            for rows in (np.load(folder / file, mmap_mode="r") for folder, _ in parts):
                starts = file.endswith("indptr.npy")  # each shard's begin at 0
                array.append(rows[bool(array.rows) :] + end if starts else rows)
                end += rows[-1] if starts else 0
    shutil.rmtree(store.folder / ".shards")


def main(raw: Path, dataset: Path, tensors: Path, workers: int | None = None) -> None:
    """Make DATASET and TENSORS of RAW on the cluster that RAY_ADDRESS names, or on a local one."""
    raw, dataset, tensors = (path.resolve() for path in (raw, dataset, tensors))
    ray.init(num_cpus=workers, include_dashboard=False if workers else None)
    relabel._write_shard = write_shard
    dedup._sign = lambda store, part: on_cluster(store, dedup.__name__, "_sign", part)
    encode._encode_split = encode_split
    relabel.WORKERS = dedup.WORKERS = int(ray.cluster_resources()["CPU"])
    relabel.relabel_folder(raw, dataset)
    dedup.dedup_folder(dataset)
    encode.encode_folder(dataset, tensors)


if __name__ == "__main__":
    typer.run(main)
