"""Table 2 of the paper, and the dataset's other figures: what stats.json holds and the report draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ewe.kernel import kernel
from ewe.pipeline.buffers import text_buffers
from ewe.store import Store
from ewe.window import WINDOW, equal, lowest

Ints = NDArray[np.int64]
Counts = dict[tuple[str, str], Ints]  # (kind of labels, split) -> documents with each label (L,)
# kind of counts -> its column, and the configs whose rows it counts
KINDS = {
    "position": ("labels", ("relabeled",)),
    "raw": ("unordered_labels", ("relabeled",)),
    "unordered": ("unordered_labels", ("relabeled", "no_first")),
}
MAJORS = 0.9  # share of all labels that the "Majors" hold, in training
U, V = 128, 16  # encode's default materials and letters: what they cut off is counted here
CLAIMS, WORDS, LETTERS = (1, 100), (50, 60), (1, 40)  # histograms: width and number of bins, the last one open
LONGEST = 4096  # bytes of a word that are told apart
_NONE, _ONE = np.uint64(0), np.uint64(1)


def count_labels(tallies: Mapping[str, Tally]) -> Counts:
    """n_l of each kind and split; "raw" counts unordered labels over relabeled/'s rows alone, as Table 2 does."""
    return {(kind, split): tally.counts[kind] for split, tally in tallies.items() for kind in KINDS}


def majors(train: Ints) -> Ints:
    """Indices of the shortest descending prefix of labels that holds MAJORS of all (spec, section 4)."""
    order = np.argsort(-train, kind="stable")
    return order[: int(np.searchsorted(np.cumsum(train[order]), MAJORS * train.sum())) + 1]


def table_2(counts: Counts, splits: list[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Standard deviation (ddof 0) of n_l over all labels and over the majors, and both over their mean.

    The coefficients of variation stand beside them because part of the fall after relabeling is
    arithmetic: each label is split in two, and the mean halves.

    Returns:
        {split: {"raw" | "relabeled" | "unordered": {"total", "majors", "total_cv", "majors_cv", "labels"}}}
    """
    lines = {"raw": "raw", "relabeled": "position", "unordered": "unordered"}
    table: dict[str, dict[str, dict[str, float]]] = {split: {} for split in splits}
    for line, kind in lines.items():
        chosen = majors(counts[kind, "train"])
        for split in splits:
            total, most = counts[kind, split], counts[kind, split][chosen]
            table[split][line] = {
                "total": float(total.std()),
                "majors": float(most.std()),
                "total_cv": _variation(total),
                "majors_cv": _variation(most),
                "labels": len(total),
            }
    return table


def _variation(counts: Ints) -> float:
    return float(counts.std() / counts.mean()) if counts.any() else 0.0


def summarize(store: Store, tallies: Mapping[str, Tally], *, several_first: int, max_claims: int) -> dict[str, Any]:
    """What stats.json holds.

    Args:
        store: the dataset, its Parquet files finished.
        tallies: of every split's rows.
        several_first: rows where several codes were flagged first, so that the rule chose one.
        max_claims: claims joined in `text`.
    """
    files = {name: record["rows"] for name, record in store.manifest["files"].items() if "rows" in record}
    reasons = pl.read_parquet(store.folder / "dropped.parquet")["reason"].value_counts(sort=True).rows()
    counts = count_labels(tallies)
    return {
        "rows": {
            "relabeled": sum(rows for name, rows in files.items() if name.startswith("relabeled/")),
            "no_first": sum(rows for name, rows in files.items() if name.startswith("no_first/")),
            "dropped": dict(sorted(reasons)),
        },
        "several_first": several_first,
        "splits": {split: tally.describe(max_claims) for split, tally in tallies.items()},
        "table_2": table_2(counts, list(tallies)),
        "cut": {"max_claims": max_claims, "u": U, "v": V},
        "bins": {"claims": CLAIMS, "words": WORDS, "letters": LETTERS},
        "histograms": {split: tally.histograms() for split, tally in tallies.items()},
        "sections": _sections(tallies.values()),
        "raw_counts": {split: counts["raw", split].tolist() for split in tallies},
    }


# -- one pass over the rows of a split: counts of counts, bounded whatever the number of rows --------------------------


class Tally:
    """How many rows have 0, 1, 2, ... of something; quantiles of it are exact.

    Args:
        names: label names by kind, "position" and "unordered".

    Attributes:
        counts: by kind of KINDS n_l, the documents with label l.
        labels: labels a row.
        outside: labels that train does not know, in all.
        claims, words, characters: of a row.
        letters: bytes of a word.
        sections: rows by year of grant and section of the first-listed code.
    """

    def __init__(self, names: Mapping[str, Sequence[str]]) -> None:
        sizes = {kind: len(names["position" if kind == "position" else "unordered"]) for kind in KINDS}
        self.counts = {kind: np.zeros(size, np.int64) for kind, size in sizes.items()}
        self.labels = self.claims = self.words = self.characters = self.letters = np.zeros(1, np.int64)
        self.outside = 0
        self.sections: Counter[tuple[str, str]] = Counter()

    @property
    def rows(self) -> int:
        """Rows of relabeled/."""
        return int(self.labels.sum())

    def add(self, rows: pa.Table, config: str) -> None:
        """Count rows of dataset/ (columns COLUMNS, each in one piece); of no_first/ their labels alone."""
        for kind, (column, configs) in KINDS.items():
            if config in configs:
                flat = rows[column].chunk(0).flatten().to_numpy()
                self.counts[kind] += np.bincount(flat, minlength=len(self.counts[kind]))
        if config != "relabeled":
            return
        frame = pl.DataFrame(rows.select(["grant_date", "first", "n_claims"]))
        text, labels, names = (rows[column].chunk(0) for column in ("text", "labels", "label_names"))
        self.outside += len(names.flatten()) - len(labels.flatten())
        words, letters = count_words(text)
        self.labels = _plus(self.labels, _count(pc.list_value_length(labels).to_numpy()))
        self.claims = _plus(self.claims, _count(frame["n_claims"].to_numpy()))
        self.characters = _plus(self.characters, _count(pc.utf8_length(text).to_numpy()))
        self.words = _plus(self.words, _count(words))
        self.letters = _plus(self.letters, letters)
        placed = frame.select(year=pl.col("grant_date").dt.to_string("%Y"), section=pl.col("first").str.head(1))
        self.sections.update({(year, section): n for year, section, n in placed.group_by(pl.all()).len().iter_rows()})

    def merge(self, other: Tally) -> None:
        """Add another tally's counts."""
        for kind, counts in other.counts.items():
            self.counts[kind] += counts
        for name in ("labels", "claims", "words", "characters", "letters"):
            setattr(self, name, _plus(getattr(self, name), getattr(other, name)))
        self.outside += other.outside
        self.sections += other.sections

    def describe(self, max_claims: int) -> dict[str, Any]:
        """Figures of a split; a share of nothing is 0.

        `claims_cut`, `words_cut` and `letters_cut` are what the first claims, u and v leave out: the share of patents
        (of words) that lose something, and the share of claims (of words, of bytes) that is lost.
        """
        return {
            "rows": self.rows,
            "labels_a_row": _total(self.labels) / max(1, self.rows),
            "labels_outside_train": self.outside,
            **{
                f"{name}_{quantile}": _quantile(counts, share)
                for name, counts in (("claims", self.claims), ("words", self.words), ("characters", self.characters))
                for quantile, share in (("median", 0.5), ("p90", 0.9))
            },
            "claims_cut": dict(zip(("patents", "claims"), _cut(self.claims, max_claims), strict=True)),
            "words_cut": dict(zip(("patents", "words"), _cut(self.words, U - 2), strict=True)),
            "letters_cut": dict(zip(("words", "bytes"), _cut(self.letters, V), strict=True)),
        }

    def histograms(self) -> dict[str, list[int]]:
        """Rows by claims, rows by words and words by bytes, in the bins of CLAIMS, WORDS and LETTERS from 1 on."""
        return {
            "claims": _histogram(self.claims, *CLAIMS),
            "words": _histogram(self.words, *WORDS),
            "letters": _histogram(self.letters, *LETTERS),
        }


COLUMNS = ["grant_date", "text", "n_claims", "first", "label_names", "labels", "unordered_labels"]  # what Tally reads


def count_words(texts: pa.StringArray) -> tuple[Ints, Ints]:
    """Words of cleaned texts, in which one space stands between two words and none elsewhere.

    Returns:
        Words of each text (N,), and how many words have 0, 1, 2, ... bytes (LONGEST + 1,).
    """
    data, offsets = text_buffers(texts)
    words, letters = np.zeros(len(texts), np.int64), np.zeros(LONGEST + 1, np.int64)
    _count_words(data, offsets, words, letters)
    return words, letters


@kernel
def _count_words(data: NDArray[np.uint8], offsets: Ints, words: Ints, letters: Ints) -> None:
    for row in range(len(words)):
        i, end = offsets[row], offsets[row + 1]
        if i == end:
            continue
        begin, found = i, 1  # of the word that i stands in
        while i < end:
            if i + WINDOW <= len(data):
                blanks = equal(data, i, ord(" "))
                if i + WINDOW > end:
                    blanks &= (_ONE << np.uint64(end - i)) - _ONE
            else:
                blanks = _NONE
                for place in range(i, end):
                    blanks |= np.uint64(data[place] == ord(" ")) << np.uint64(place - i)
            while blanks:
                stop = i + lowest(blanks)
                letters[min(stop - begin, LONGEST)] += 1
                begin = stop + 1
                found += 1
                blanks &= blanks - _ONE
            i += WINDOW
        letters[min(end - begin, LONGEST)] += 1
        words[row] = found


def _sections(tallies: Iterable[Tally]) -> dict[str, dict[str, int]]:
    """{year: {section: rows}}, both sorted."""
    total = sum((tally.sections for tally in tallies), Counter[tuple[str, str]]())
    years = sorted({year for year, _ in total})
    return {year: {section: total[year, section] for y, section in sorted(total) if y == year} for year in years}


def _count(values: NDArray[Any]) -> Ints:
    return np.bincount(values.astype(np.int64))


def _plus(a: Ints, b: Ints) -> Ints:
    """The sum of two counts of different length."""
    total = np.zeros(max(len(a), len(b)), np.int64)
    total[: len(a)] += a
    total[: len(b)] += b
    return total


def _total(counts: Ints) -> int:
    return int(counts @ np.arange(len(counts)))


def _quantile(counts: Ints, share: float) -> int:
    """The smallest value that at least this share of rows does not exceed; 0 without rows."""
    return int(np.searchsorted(np.cumsum(counts), share * counts.sum()))


def _cut(counts: Ints, most: int) -> tuple[float, float]:
    """The share of rows that have more than `most`, and the share of all that lies beyond."""
    beyond = counts[most + 1 :]
    rows = beyond.sum() / max(1, int(counts.sum()))
    return float(rows), (_total(beyond) + int(beyond.sum())) / max(1, _total(counts))


def _histogram(counts: Ints, width: int, bins: int) -> list[int]:
    """Rows with 1 to width, width + 1 to 2 width, ...; the last bin holds all that is more."""
    place = np.minimum((np.arange(len(counts)) - 1) // width, bins - 1)
    histogram: list[int] = np.bincount(place[1:], counts[1:], minlength=bins).astype(np.int64).tolist()
    return histogram
