"""What training says of itself, step by step: metrics.jsonl, and curves for TensorBoard.

metrics.jsonl has a line a step, {"step", "epoch", "learning_rate", "loss"}, and one after an epoch with held-out
rows, {"step", "epoch", "holdout": {...}}. It holds no times, so two runs of one configuration write the same
bytes. It is a log, appended to as training goes; a resumed run first drops what the checkpoint has not seen.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ewe import progress, store

NAME = "metrics.jsonl"
CURVES = {
    "loss": "train/loss",
    "learning_rate": "train/learning_rate",
    "precision": "holdout/precision",
    "recall": "holdout/recall",
    "f1": "holdout/f1",
}


class Journal:
    """The open log of a run; a context manager.

    Args:
        run: the run's folder.
        step: the last step that counts; later lines, and a line cut short, are dropped.
        keeps: whether it is written to the disk; of several processes one does.

    Attributes:
        losses: of steps 1, 2, ...
    """

    def __init__(self, run: Path, step: int, *, keeps: bool = True) -> None:
        self.path, self.keeps = run / NAME, keeps
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True) if self.path.is_file() else []
        whole = [(line, json.loads(line)) for line in lines if line.endswith("\n")]
        kept = [(line, record) for line, record in whole if record["step"] <= step]
        if keeps:
            store.publish_text(self.path, "".join(line for line, _ in kept))
        self.losses = [float(record["loss"]) for _, record in kept if "loss" in record]
        self.file = (self.path if keeps else Path(os.devnull)).open("a", encoding="utf-8", newline="\n")
        self.curves = _curves(run, step) if keeps else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()
        if self.curves:
            self.curves.close()

    def write(self, record: dict[str, Any]) -> None:
        """Add a record; it is in the file after `flush`."""
        self.file.write(json.dumps(record) + "\n")
        step = record["step"]
        if "loss" in record:
            self.losses.append(record["loss"])
        for name, value in {**record, **record.get("holdout", {})}.items():
            if self.curves and name in CURVES:
                self.curves.add_scalar(CURVES[name], value, step)

    def flush(self) -> None:
        """Let other processes see what has been written."""
        self.file.flush()

    def sync(self) -> None:
        """Bring the log to the disk, before a checkpoint that relies on it."""
        if self.keeps:
            os.fsync(self.file.fileno())


def _curves(run: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError:
        progress.say("No curves for TensorBoard: pip install tensorboard to get them.")
        return None
    return SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)
