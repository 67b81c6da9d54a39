"""report.html and report.json: a dataset and its faults, in figures and in one page of pictures.

`gather` collects the figures, from what relabel and dedup have counted already; `draw` makes the page of them, so both
files hold the same numbers. The page is one file without scripts, and asks the network for nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
from great_tables import GT
from markupsafe import Markup, escape

from ewe import page
from ewe.pipeline import card, charts, codes
from ewe.pipeline.charts import short
from ewe.store import read_recorded

Figures = dict[str, Any]

# Table 2 of the paper (CPC, 1.91M patents in train): standard deviation over all labels, and over the majors.
PAPER = {
    "train": {"raw": (21_000, 35_400), "relabeled": (12_600, 21_000)},
    "test_2015a": {"raw": (1_800, 3_000), "relabeled": (1_100, 1_900)},
    "test_2015b": {"raw": (1_900, 3_200), "relabeled": (1_200, 2_000)},
}
SECTIONS = {
    "A": "human necessities",
    "B": "operations, transport",
    "C": "chemistry",
    "D": "textiles",
    "E": "construction",
    "F": "mechanics",
    "G": "physics",
    "H": "electricity",
    "Y": "new and crossing technologies",
}
RARE = 10  # training patents below which a label can hardly be learned
MOVED = 10  # subclasses shown of those whose share moved most

# Shares above which a figure becomes an alert.
MOST_DROPPED = 0.1
MOST_NO_FIRST = 0.05
MOST_UNKNOWN = 0.01
MOST_DRIFT = 0.1  # and twice what chance alone makes
LEAST_LABELS = 1.05  # a row, below which there is next to no Later


def gather(
    dataset: Path,
    manifest: card.Manifest,
    labels: Mapping[str, Any],
    duplicates: card.Manifest | None,
    leaks: Mapping[str, Mapping[str, int]],
) -> Figures:
    """The value of report.json.

    Args:
        dataset: the folder, for stats.json and the groups of near-copies.
        manifest: its manifest.
        labels: labels.json.
        duplicates: the manifest of duplicates/, where there is one.
        leaks: leakage.json.
    """
    stats = read_recorded(dataset, manifest, "stats.json")
    splits = _splits(manifest, labels, stats)
    figures: Figures = {
        "title": card.title(manifest),
        "made_up": manifest["made_up"],
        "scheme": manifest["config"]["scheme"],
        "rows": {"source": manifest["rows"], **stats["rows"]},
        "splits": splits,
        "labels": _count_labels(labels),
        "table_2": stats["table_2"],
        "paper_table_2": {split: lines for split, lines in PAPER.items() if split in splits},
        "rank_frequency": {
            "raw": _ranked(stats["raw_counts"]["train"]),
            "relabeled": _ranked(labels["position"]["counts"]["train"]),
        },
        "subclasses": _subclasses(labels),
        "sections": stats["sections"],
        "cut": {
            **stats["cut"],
            **{f"{of}_cut": splits["train"][f"{of}_cut"] for of in ("claims", "words", "letters")},
        },
        "bins": stats["bins"],
        "histograms": stats["histograms"]["train"],
        "moved": _moved(labels, splits),
        "duplicates": _duplicates(dataset, duplicates, leaks),
        "provenance": card.provenance(manifest),
        "commands": card.commands(manifest, duplicates),
        "limits": card.limits(manifest),
        "licence": card.licence(manifest)._asdict(),
    }
    return {**figures, "alerts": _alerts(figures, stats["several_first"])}


def _splits(manifest: card.Manifest, labels: Mapping[str, Any], stats: Mapping[str, Any]) -> Figures:
    found: Figures = {}
    rows = card.rows(manifest)
    train = _first_later(labels, "train")
    for split, (start, end) in manifest["config"]["splits"].items():
        figures = stats["splits"][split]
        inside = sum(labels["position"]["counts"][split])
        outside = figures["labels_outside_train"]
        drift = {
            name: {"distance": _distance(ours, theirs), "by_chance": _by_chance(ours, theirs)}
            for name, ours, theirs in zip(("first", "later"), _first_later(labels, split), train, strict=True)
        }
        found[split] = {
            "from": start,
            "to": end,
            "no_first": rows["unordered"][split] - rows["relabeled"][split],
            **figures,
            "unknown_labels": outside / max(1, inside + outside),
            "drift": None if split == "train" or not figures["rows"] else drift,
        }
    return found


def _first_later(labels: Mapping[str, Any], split: str) -> tuple[np.ndarray, np.ndarray]:
    """Patents with First-X and with Later-X, by subclass X."""
    counts = np.array(labels["position"]["counts"][split])
    return counts[: len(counts) // 2], counts[len(counts) // 2 :]


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """Total variation distance of two distributions, given as counts: 0 alike, 1 with nothing in common."""
    return float(np.abs(_shares(a) - _shares(b)).sum() / 2)


def _by_chance(a: np.ndarray, b: np.ndarray) -> float:
    """What `_distance` would be, on average, if both were drawn from one distribution (normal approximation)."""
    p = _shares(a + b)
    spread = np.sqrt(2 / np.pi * p * (1 - p) * (1 / max(1, a.sum()) + 1 / max(1, b.sum())))
    return float(np.minimum(spread, 2 * p).sum() / 2)


def _shares(counts: np.ndarray) -> np.ndarray:
    shares: np.ndarray = counts / max(1, counts.sum())
    return shares


def _count_labels(labels: Mapping[str, Any]) -> Figures:
    train = np.array(labels["position"]["counts"]["train"])
    return {
        "position": len(train),
        "subclasses": len(train) // 2,
        "unordered": len(labels["unordered"]["names"]),
        "without_training_row": int((train == 0).sum()),
        "rare": int((train < RARE).sum()),
        "no_symbols": codes.no_symbols(labels["unordered"]["names"]),
    }


def _ranked(counts: Sequence[int]) -> list[int]:
    return sorted((count for count in counts if count), reverse=True)


def _subclasses(labels: Mapping[str, Any]) -> list[Figures]:
    """Each subclass with its patents in train, the commonest first."""
    first, later = _first_later(labels, "train")
    names = [name.removeprefix("First-") for name in labels["position"]["names"][: len(first)]]
    found = [
        {"subclass": name, "first": int(f), "later": int(later_)}
        for name, f, later_ in zip(names, first, later, strict=True)
    ]
    return sorted(found, key=lambda each: (-each["first"] - each["later"], each["subclass"]))


def _moved(labels: Mapping[str, Any], splits: Figures) -> list[Figures]:
    """Shares of First by split, of the subclasses for which they differ most."""
    shares = {split: _shares(_first_later(labels, split)[0]) for split in splits if splits[split]["rows"]}
    if len(shares) < 2:
        return []
    spread = np.ptp(list(shares.values()), axis=0)
    names = labels["position"]["names"]
    return [
        {
            "subclass": names[index].removeprefix("First-"),
            **{split: float(share[index]) for split, share in shares.items()},
        }
        for index in np.argsort(-spread, kind="stable")[:MOVED]
        if spread[index]
    ]


def _duplicates(
    dataset: Path, duplicates: card.Manifest | None, leaks: Mapping[str, Mapping[str, int]]
) -> Figures | None:
    if duplicates is None:
        return None
    groups = pq.read_table(dataset / "duplicates" / "groups.parquet", columns=["group"])["group"]
    sizes = Counter(Counter(groups.to_pylist()).values())
    return {
        "jaccard": duplicates["config"]["jaccard"],
        "rows": duplicates["rows"],
        "texts": duplicates["texts"],
        "rows_in_groups": len(groups),
        "groups_by_size": {str(size): sizes[size] for size in sorted(sizes)},
        "leakage": leaks,
    }


# -- alerts -----------------------------------------------------------------------------------------------------------


def _alerts(figures: Figures, several_first: int) -> list[dict[str, str]]:
    """What a reader should know first: warnings, then notes."""
    warnings, notes = [], []
    rows, splits, labels = figures["rows"], figures["splits"], figures["labels"]
    scheme = figures["scheme"].upper()
    if figures["made_up"]:
        warnings.append("These patents are made up: the figures show that the path works, nothing about patents.")
    dropped = sum(rows["dropped"].values())
    if dropped > MOST_DROPPED * rows["source"]:
        warnings.append(f"{percent(dropped / rows['source'])} of the fetched patents were dropped.")
    kept = rows["relabeled"] + rows["no_first"]
    if rows["no_first"] > MOST_NO_FIRST * kept:
        warnings.append(
            f"{percent(rows['no_first'] / kept)} of the patents have no {scheme} code flagged first; "
            "they are in no_first/."
        )
    for split, each in splits.items():
        if not each["rows"]:
            warnings.append(f"Split {split} has no row; load_dataset is not offered it.")
        if each["unknown_labels"] > MOST_UNKNOWN:
            warnings.append(f"{percent(each['unknown_labels'])} of the labels in {split} are unknown to train.")
        for name, drift in (each["drift"] or {}).items():
            if drift["distance"] > max(MOST_DRIFT, 2 * drift["by_chance"]):
                warnings.append(
                    f"{name.title()} labels of {split} differ from train's by {percent(drift['distance'])}, "
                    f"where chance alone makes {percent(drift['by_chance'])}."
                )
    if splits["train"]["labels_a_row"] < LEAST_LABELS:
        warnings.append(f"{splits['train']['labels_a_row']:.2f} labels a patent: there is next to no Later to learn.")
    for split, each in (figures["duplicates"] or {"leakage": {}})["leakage"].items():
        if each["leaking"]:
            what = f"{each['leaking']:,} of {each['rows']:,} patents in {split} have a near-copy in train"
            warnings.append(f"{what} ({percent(each['leaking'] / each['rows'])}); encode --drop-leaks leaves them out.")
    if odd := labels["no_symbols"]:
        warnings.append(f"{len(odd):,} subclasses are no {scheme} symbols: {', '.join(odd[:5])}.")
    years = [int(year) for year in figures["sections"]]
    if gaps := [str(year) for year in range(min(years), max(years)) if year not in years]:
        warnings.append(f"No labelled patent was granted in {', '.join(gaps)}.")
    if figures["duplicates"] is None:
        notes.append("Near-copies have not been looked for yet; ewe-data dedup does.")
    if labels["rare"]:
        notes.append(
            f"{labels['rare']:,} of {labels['position']:,} labels have fewer than {RARE} patents in train"
            + (f", {labels['without_training_row']:,} of them none." if labels["without_training_row"] else ".")
        )
    if several_first:
        notes.append(f"{several_first:,} patents have several codes flagged first; the rule chose one.")
    if figures["scheme"] == "cpc" and min(years) < 2013:
        notes.append("CPC began in 2013: the first-listed code of earlier grants was assigned afterwards.")
    return [
        {"level": level, "text": text} for level, texts in (("warning", warnings), ("note", notes)) for text in texts
    ]


# -- the page ---------------------------------------------------------------------------------------------------------


def draw(figures: Figures) -> str:
    """The text of report.html."""
    drawings = {name: Markup(svg) for name, svg in _charts(figures).items()}  # noqa: S704  # matplotlib has escaped it
    found = {section for year in figures["sections"].values() for section in year}
    legend = {section: name for section, name in SECTIONS.items() if section in found}
    facts = {**figures, "charts": drawings, "tables": _tables(figures), "legend": legend}
    return page.render("pipeline/report.html.jinja", {"percent": percent, "digits": digits, "code": _code}, facts)


def _code(text: str) -> Markup:
    """Text with `words` in backticks as code."""
    return Markup(re.sub("`(.*?)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704  # escaped before


def digits(value: float) -> str:
    """A number in three digits, zeros at the end too: 1.50, 27.0, 372, 12.6k."""
    return f"{value:#.3g}".rstrip(".") if value < 999.5 else short(value)


def percent(share: float) -> str:
    """A share as text: 0%, 0.03%, 1.2%, 98%, and 100% of all alone."""
    value = 100 * share
    if value and value < 0.095:
        return f"{value:.1g}%"
    if value < 9.95:
        return f"{value:.1f}%".replace(".0%", "%")
    return f"{min(round(value), 99 if share < 1 else 100)}%"


def _charts(figures: Figures) -> dict[str, str]:
    cut, bins, counts = figures["cut"], figures["bins"], figures["histograms"]
    found = {
        "rank": charts.rank_frequency(**figures["rank_frequency"]),
        "first_later": charts.first_later(figures["subclasses"]),
        "sections": charts.sections(
            {
                year: {section: n / sum(sections.values()) for section, n in sections.items()}
                for year, sections in figures["sections"].items()
            }
        ),
        "claims": charts.histogram(
            "claims",
            counts["claims"],
            bins["claims"][0],
            cut["max_claims"],
            across="claims a patent",
            up="patents",
        ),
        "words": charts.histogram(
            "words",
            counts["words"],
            bins["words"][0],
            cut["u"] - 2,
            across="words a text",
            up="texts",
        ),
        "letters": charts.histogram(
            "letters",
            counts["letters"],
            bins["letters"][0],
            cut["v"],
            across="bytes a word",
            up="words",
        ),
        "kept": charts.bars("kept", "What became of the fetched patents", *_destinations(figures)),
    }
    if figures["moved"]:
        shown = [split for split in figures["moved"][0] if split != "subclass"]
        found["moved"] = charts.moved(figures["moved"], shown[:4])
    if figures["duplicates"] and figures["duplicates"]["groups_by_size"]:
        found["groups"] = charts.bars("groups", "Groups of near-copies by size", _sizes(figures["duplicates"]))
    return found


def _destinations(figures: Figures) -> tuple[dict[str, int], dict[str, str]]:
    """Rows by where they went, and the colours of those that were lost."""
    rows = figures["rows"]
    dropped = {f"dropped: {reason.replace('_', ' ')}": n for reason, n in rows["dropped"].items()}
    return {"relabeled": rows["relabeled"], "no code first": rows["no_first"], **dropped}, dict.fromkeys(
        dropped, charts.TWO
    )


def _sizes(duplicates: Figures) -> dict[str, int]:
    """Groups by size, sizes of ten and more together by their digits."""
    found: dict[str, int] = {}
    for size, n in ((int(size), n) for size, n in duplicates["groups_by_size"].items()):
        floor = 10 ** (len(str(size)) - 1)
        name = f"{size} patents" if size < 10 else f"{floor:,} to {10 * floor - 1:,}"
        found[name] = found.get(name, 0) + n
    return found


def _tables(figures: Figures) -> dict[str, Markup]:
    found = {"table_2": _table_2(figures), "splits": _split_table(figures["splits"])}
    if figures["duplicates"] and figures["duplicates"]["leakage"]:
        found["leakage"] = _leakage_table(figures["duplicates"]["leakage"])
    return found


def _table_2(figures: Figures) -> Markup:
    names = {"raw": "Raw", "relabeled": "First / Later", "unordered": "Unordered"}
    rows = []
    for split, lines in figures["table_2"].items():
        for line, name in names.items():
            total, most = figures["paper_table_2"].get(split, {}).get(line, (None, None))
            each = lines[line]
            rows.append(
                {
                    "split": split,
                    "line": name,
                    **{key: digits(each[key]) for key in ("total", "majors", "total_cv", "majors_cv")},
                    "paper_total": short(total) if total else "–",
                    "paper_majors": short(most) if most else "–",
                }
            )
    table = (
        GT(pl.DataFrame(rows), rowname_col="line", groupname_col="split", id="table-2")
        .tab_spanner("Deviation", ["total", "majors"])
        .tab_spanner("Variation", ["total_cv", "majors_cv"])
        .tab_spanner("Paper", ["paper_total", "paper_majors"])
        .cols_label(
            total="Total",
            majors="Majors",
            total_cv="Total",
            majors_cv="Majors",
            paper_total="Total",
            paper_majors="Majors",
        )
    )
    return _html(table, list(rows[0]))


def _split_table(splits: Figures) -> Markup:
    """A column a split, so that it fits a phone."""
    measures: dict[str, Any] = {
        "Granted from": lambda each: each["from"],
        "to": lambda each: each["to"],
        "Patents": lambda each: f"{each['rows']:,}",
        "without a first code": lambda each: f"{each['no_first']:,}",
        "Labels a patent": lambda each: f"{each['labels_a_row']:.2f}",
        "Claims, median (p90)": lambda each: f"{each['claims_median']} ({each['claims_p90']})",
        "Words, median (p90)": lambda each: f"{each['words_median']:,} ({each['words_p90']:,})",
        "Labels unknown to train": lambda each: percent(each["unknown_labels"]),
        "First, distance to train": lambda each: _drift(each, "first"),
        "Later, distance to train": lambda each: _drift(each, "later"),
    }
    rows = [
        {"measure": name, **{split: show(each) if each["rows"] else "–" for split, each in splits.items()}}
        for name, show in measures.items()
    ]
    return _html(GT(pl.DataFrame(rows), rowname_col="measure", id="splits"), list(splits))


def _drift(split: Figures, name: str) -> str:
    if split["drift"] is None:
        return "–"
    drift = split["drift"][name]
    return f"{percent(drift['distance'])} ({percent(drift['by_chance'])})"


def _leakage_table(leakage: Mapping[str, Mapping[str, int]]) -> Markup:
    rows = [
        {
            "split": split,
            "rows": f"{each['rows']:,}",
            "same_family": f"{each['same_family']:,}",
            "other_family": f"{each['other_family']:,}",
            "share": percent(each["leaking"] / max(1, each["rows"])),
        }
        for split, each in leakage.items()
    ]
    table = (
        GT(pl.DataFrame(rows), rowname_col="split", id="leakage")
        .tab_spanner("With a near-copy in train", ["same_family", "other_family", "share"])
        .cols_label(rows="Patents", same_family="Same family", other_family="Other family", share="Share")
    )
    return _html(table, list(rows[0]))


def _html(table: GT, columns: list[str]) -> Markup:
    """The table without its own style sheet, which knows neither dark nor phones; the page has one for all."""
    html = table.cols_align("right", columns=columns).as_raw_html()
    html = html[html.index("<table") : html.index("</table>")] + "</table>"
    return Markup(re.sub(r"\s*\n\s*", "", html))  # noqa: S704  # great-tables has escaped it
