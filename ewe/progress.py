"""Progress bars and news on stderr, silent when quiet, bars without a terminal too; warnings stay."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_quiet = False


def set_quiet(quiet: bool) -> None:
    """Silence bars and `say` (warnings stay) for the rest of the process."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Whether bars and `say` are silent."""
    return _quiet


def say(message: str) -> None:
    """Print one line of news on stderr, unless quiet."""
    if not _quiet:
        print(message, file=sys.stderr, flush=True)


def warn(message: str) -> None:
    """Print one warning on stderr, quiet or not."""
    print(f"warning: {message}", file=sys.stderr, flush=True)


@contextmanager
def bar(what: str, total: int | None, unit: str, done: int = 0) -> Iterator[Callable[..., None]]:
    """A bar with count, rate and time left; yields `advance(n=1, note="")`.

    Args:
        what: the work, in a word or two.
        total: units in all, or None where nobody knows.
        unit: plural noun of what is counted ("rows", "examples").
        done: units finished by an earlier run.
    """
    if _quiet or not sys.stderr.isatty():
        yield lambda *_args, **_fields: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(TextColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed or 0:,.0f} {unit}/s", style="cyan")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(""), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=total, completed=done, note="")
        yield lambda n=1, note="": progress.update(task, advance=n, note=note)
