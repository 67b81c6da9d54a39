"""relabel, dedup and encode on a Ray cluster: the commands' functions, with the cluster as their pool.

    python examples/ray_parts.py RAW DATASET TENSORS [--workers N]

Any executor of concurrent.futures will do, Ray's tasks become one in a few lines. What is local to a part (relabeling a
shard's months, signing a stretch of rows, encoding a shard) runs there; this process holds the folders. They are, byte
for byte, those of one process, and the same call again goes on where it stopped. They lie on a disk that all machines
see under one path. The cluster is the one that RAY_ADDRESS names, or a local one of N workers.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import ray
import typer

from ewe.pipeline.dedup import dedup_folder
from ewe.pipeline.encode import encode_folder
from ewe.pipeline.relabel import relabel_folder


@ray.remote
def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """A task of the cluster."""
    return function(*arguments)


class Cluster(Executor):
    """Ray's tasks as an executor."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        """Start a task; it cannot be cancelled, as it may be at work."""
        future = call.remote(function, *arguments).future()
        future.cancel = lambda: False
        return future


def main(raw: Path, dataset: Path, tensors: Path, workers: int | None = None) -> None:
    """Make DATASET and TENSORS of RAW on the cluster that RAY_ADDRESS names, or on a local one."""
    raw, dataset, tensors = (path.resolve() for path in (raw, dataset, tensors))
    ray.init(num_cpus=workers, include_dashboard=False if workers else None)
    with Cluster() as pool:
        relabel_folder(raw, dataset, pool=pool)
        dedup_folder(dataset, pool=pool)
        encode_folder(dataset, tensors, pool=pool)


if __name__ == "__main__":
    typer.run(main)
