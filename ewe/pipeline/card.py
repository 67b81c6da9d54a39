"""README.md of dataset/: the Hub's YAML that makes `load_dataset(DIR)` right, and what the folder is.

relabel writes the YAML, the columns and a notice; release writes the whole card, with duplicates and provenance.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from ewe.pipeline import schema

Manifest = Mapping[str, Any]

FOLDERS = {"relabeled": ("relabeled",), "unordered": ("relabeled", "no_first")}  # config -> the folders it reads
_DTYPES = {
    pa.string(): "string",
    pa.date32(): "date32",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.float64(): "float64",
    pa.bool_(): "bool",
}
_SIZES = ((1e3, "n<1K"), (1e4, "1K<n<10K"), (1e5, "10K<n<100K"), (1e6, "100K<n<1M"), (1e7, "1M<n<10M"))


class Licence(NamedTuple):
    """Under what the texts and codes may be used, by where they come from."""

    yaml: str
    name: str
    url: str
    attribution: str
    creators: tuple[str, ...]


_GOOGLE = Licence(
    "license: cc-by-4.0",
    "CC BY 4.0",
    "https://creativecommons.org/licenses/by/4.0/",
    "Source: Google Patents Public Data, provided by IFI CLAIMS Patent Services and Google, used under "
    "CC BY 4.0; the texts were cleaned and cut, the codes turned into labels.",
    ("IFI CLAIMS Patent Services", "Google"),
)
_PATENTSVIEW = Licence(
    "license: cc-by-4.0",
    "CC BY 4.0",
    "https://creativecommons.org/licenses/by/4.0/",
    "Source: PatentsView, United States Patent and Trademark Office, used under CC BY 4.0; the texts were cleaned "
    "and cut, the codes turned into labels.",
    ("PatentsView", "United States Patent and Trademark Office"),
)
_OFFICE = Licence(
    "license: other\nlicense_name: us-government-work\nlicense_link: https://www.uspto.gov/terms-use-uspto-websites",
    "US government work",
    "https://www.uspto.gov/terms-use-uspto-websites",
    "Source: the full-text files of the United States Patent and Trademark Office; the texts were cleaned and cut, "
    "the codes turned into labels.",
    ("United States Patent and Trademark Office",),
)
_MADE_UP = Licence(
    "license: apache-2.0",
    "Apache-2.0",
    "https://www.apache.org/licenses/LICENSE-2.0",
    "Made up by `ewe-data sample`; no real patent is in it.",
    ("The ewe-patents developers",),
)
_LICENCES = {"patentsview": _PATENTSVIEW, "uspto": _OFFICE}


def licence(manifest: Manifest) -> Licence:
    """The licence of a dataset's source."""
    return _MADE_UP if manifest["made_up"] else _LICENCES.get(manifest["source"]["source"], _GOOGLE)


def title(manifest: Manifest) -> str:
    """What the dataset is called, the same in whatever folder it lies."""
    days = [day for window in manifest["config"]["splits"].values() for day in window]
    made_up = "Made-up patents" if manifest["made_up"] else "US utility patents"
    first, last = min(days)[:4], max(days)[:4]
    years = first if first == last else f"{first} to {last}"
    return f"{made_up} {years}, position-aware {manifest['config']['scheme'].upper()} labels"


def rows(manifest: Manifest, fact: str = "rows") -> dict[str, dict[str, int]]:
    """A fact of the shards ("rows", "size", "arrow_bytes") by config and split, the unordered config included."""
    files, splits = manifest["files"], manifest["config"]["splits"]
    return {
        config: {
            split: sum(
                record[fact]
                for name, record in files.items()
                for each in folders
                if name.startswith(f"{each}/{split}-")
            )
            for split in splits
        }
        for config, folders in FOLDERS.items()
    }


def write_card(manifest: Manifest, labels: Mapping[str, list[str]], duplicates: Manifest | None = None) -> str:
    """README.md as relabel leaves it, and the first half of what release makes of it.

    Args:
        manifest: of the dataset; `load_dataset` cannot read a split without rows, so such a one is not offered to it.
        labels: label names by kind, "position" and "unordered".
        duplicates: the manifest of duplicates/, where there is one.
    """
    return front_matter(manifest, labels, duplicates) + "\n" + introduction(manifest)


# -- the Hub's YAML ---------------------------------------------------------------------------------------------------


def front_matter(manifest: Manifest, labels: Mapping[str, list[str]], duplicates: Manifest | None = None) -> str:
    """The Hub's metadata: licence, configs with their files, features with class names, and sizes of splits."""
    examples, arrow, parquet = (rows(manifest, fact) for fact in ("rows", "arrow_bytes", "size"))
    total = sum(examples["unordered"].values())
    lines = [
        "---",
        f"pretty_name: {title(manifest)}",
        licence(manifest).yaml,
        "language: [en]",
        "task_categories: [text-classification]",
        "task_ids: [multi-label-classification]",
        f"tags: [patents, {manifest['config']['scheme']}]",
        f"size_categories: ['{next((name for most, name in _SIZES if total < most), 'n>10M')}']",
        "configs:",
    ]
    features = "\n".join(_feature(field, labels) for field in schema.DATASET)
    sizes = []
    for config, folders in FOLDERS.items():
        lines += [f"- config_name: {config}", *(["  default: true"] if config == "relabeled" else []), "  data_files:"]
        kept = [split for split, n in examples[config].items() if n]
        for split in kept:
            lines += [f"  - split: {split}", "    path:", *(f"    - {each}/{split}-*.parquet" for each in folders)]
        sizes += _sizes(
            config,
            features,
            {split: (arrow[config][split], examples[config][split]) for split in kept},
            sum(parquet[config][split] for split in kept),
        )
    for config, name, columns in DUPLICATES:
        if duplicates and duplicates["files"][name]["rows"]:
            lines += [f"- config_name: {config}", "  data_files:", f"  - split: {name.removesuffix('.parquet')}"]
            lines += [f"    path: duplicates/{name}"]
            sizes += [f"- config_name: {config}", "  features:", *(_feature(field, {}) for field in columns)]
    return "\n".join([*lines, "dataset_info:", *sizes, "---"]) + "\n"


DUPLICATES = (("duplicates", "groups.parquet", schema.GROUPS), ("duplicate_pairs", "pairs.parquet", schema.PAIRS))


def _sizes(config: str, features: str, splits: Mapping[str, tuple[int, int]], download: int) -> list[str]:
    lines = [f"- config_name: {config}", "  features:", features, "  splits:"]
    for split, (num_bytes, num_examples) in splits.items():
        lines += [f"  - name: {split}", f"    num_bytes: {num_bytes}", f"    num_examples: {num_examples}"]
    total = sum(num_bytes for num_bytes, _ in splits.values())
    return [*lines, f"  download_size: {download}", f"  dataset_size: {total}"]


def _feature(field: pa.Field, labels: Mapping[str, list[str]]) -> str:
    names = {"labels": "position", "unordered_labels": "unordered"}.get(field.name)
    if names:
        entries = "\n".join(f"          '{index}': {name}" for index, name in enumerate(labels[names]))
        return f"  - name: {field.name}\n    list:\n      class_label:\n        names:\n{entries}"
    if not pa.types.is_list(field.type):
        return f"  - name: {field.name}\n    dtype: {_DTYPES[field.type]}"
    value = field.type.value_type
    if pa.types.is_struct(value):
        inner = "\n".join(f"    - name: {each.name}\n      dtype: {_DTYPES[each.type]}" for each in value)
        return f"  - name: {field.name}\n    list:\n{inner}"
    return f"  - name: {field.name}\n    list: {_DTYPES[value]}"


# -- the card itself --------------------------------------------------------------------------------------------------


def summary(manifest: Manifest) -> str:
    """The dataset in a few lines."""
    config = manifest["config"]
    return (
        f"Each patent's first {config['max_claims']} claims, and its {config['scheme'].upper()} subclasses with their "
        "position: `First-X` is the subclass of the first-listed code, `Later-Y` that of any other, told by each "
        "code's `first` flag and never by the order of an array, which means nothing in the source."
    )


def introduction(manifest: Manifest) -> str:
    """Title, notice, what the labels are, and the columns."""
    notice = (
        f"**These patents are made up** ({_sampled(manifest['source'])}): they show that the pipeline works and say "
        "nothing about real ones.\n\n"
        if manifest["made_up"]
        else ""
    )
    columns = _table(["column", "what it is"], [(f"`{name}`", text) for name, text in _columns(schema.DATASET)])
    return f"""# {title(manifest)}

{notice}{summary(manifest)}

- `relabeled` (default): rows with a code flagged first; `labels` are indices of `label_names`.
- `unordered`: these and the rows without one; read `unordered_labels`, the label sets of earlier literature.

## Columns

{columns}
"""


def write_full_card(
    manifest: Manifest,
    labels: Mapping[str, list[str]],
    duplicates: Manifest | None,
    leaks: Mapping[str, Mapping[str, int]],
) -> str:
    """README.md as release leaves it.

    Args:
        manifest: of the dataset.
        labels: label names by kind, "position" and "unordered".
        duplicates: the manifest of duplicates/, where there is one.
        leaks: leakage.json: by split, how many rows it has, how many are "leaking", and these by family.
    """
    examples, parquet = rows(manifest), rows(manifest, "size")
    splits = [
        (split, f"{start} to {end}", *(f"{examples[config][split]:,}" for config in FOLDERS), _megabytes(size))
        for (split, (start, end)), size in zip(
            manifest["config"]["splits"].items(), parquet["unordered"].values(), strict=True
        )
    ]
    terms = licence(manifest)
    files_table = _table(["file", "what it holds"], [(f"`{name}`", text) for name, text in files(duplicates).items()])
    return f"""{write_card(manifest, labels, duplicates)}
{USE}
## Splits

By day of grant, first and last day inclusive.

{_table(["split", "granted", "relabeled", "unordered", "Parquet"], splits)}

## Files

{files_table}

## Near-copies

{_near_copies(duplicates, leaks)}

## How it was made

{_table(["", ""], provenance(manifest))}

```bash
{chr(10).join(commands(manifest, duplicates))}
```

## Known limits

{chr(10).join(f"- {limit}" for limit in limits(manifest))}

## Licence and attribution

[{terms.name}]({terms.url}). {terms.attribution} `CITATION.cff` says how to cite it.
"""


USE = """\
## Use it

```python
import datasets, duckdb, pandas as pd, polars as pl

datasets.load_dataset("DIR")["train"].features["labels"].feature.names[:3]
pl.read_parquet("DIR/relabeled/*.parquet")
pd.read_parquet("DIR/relabeled")
duckdb.sql("SELECT first, count(*) FROM 'DIR/relabeled/*.parquet' GROUP BY first ORDER BY 2 DESC")
```
"""


def files(duplicates: Manifest | None) -> dict[str, str]:
    """What each file of a released dataset holds."""
    found = {
        "relabeled/SPLIT-*.parquet": "rows with a code flagged first, by day of grant and number",
        "no_first/SPLIT-*.parquet": "rows with codes of which none is flagged first, the same columns",
        "labels.json": "label names in the order of their indices, and how many rows of each split have each",
        "stats.json": "every figure of the report that is counted from the rows",
        "dropped.parquet": "rows of the source that are in neither folder, and why",
    }
    if duplicates:
        found |= {
            "duplicates/groups.parquet": "rows that have a near-copy, by group, and which of them leak from train",
            "duplicates/pairs.parquet": "the pairs that hold the groups together, with their exact similarity",
            "duplicates/leakage.json": "how many test rows have a near-copy in train",
        }
    return found | {
        "report.html, report.json": "the dataset in pictures, and the numbers in them",
        "croissant.json, datadict.json": "the columns for machines: Croissant, and a plain data dictionary",
        "CITATION.cff": "how to cite it",
        "manifest.json, SHA256SUMS": "what `ewe-data verify DIR` and `sha256sum -c SHA256SUMS` check",
    }


def _near_copies(duplicates: Manifest | None, leaks: Mapping[str, Mapping[str, int]]) -> str:
    if duplicates is None:
        return "Not looked for yet: `ewe-data dedup DIR` finds near-copies and test rows that have one in train."
    threshold = duplicates["config"]["jaccard"]
    rows_in_groups = duplicates["files"]["groups.parquet"]["rows"]
    leaking = ", ".join(f"{counts['leaking']:,} of {split}" for split, counts in leaks.items() if counts["leaking"])
    found = (
        f"Rows whose sets of five-word shingles have a Jaccard similarity of at least {threshold} are near-copies: "
        f"{rows_in_groups:,} rows have one. Test rows with a near-copy in train: {leaking or 'none'}."
    )
    if not rows_in_groups:  # load_dataset knows no config without rows
        return found
    return (
        f"{found} Config `duplicates` holds the rows of every group, with a column `leak`, and `duplicate_pairs` the "
        "pairs with their similarity; `ewe-data encode --drop-leaks` leaves leaking rows out."
    )


_SOURCES = {
    "parquet": "Parquet in the columns of `patents-public-data.patents.publications`",
    "bigquery": "BigQuery",
    "uspto": "weekly full-text XML of the patent office; codes as printed on the grant",
    "patentsview": "PatentsView's tables",
}
_FACTS = {  # of the source -> what to call them
    "table": "Table",
    "snapshot": "Snapshot",
    "labels": "Codes",
    "sql_sha256": "SHA-256 of the query",
    "billed_bytes": "Bytes billed",
    "input_sha256": "SHA-256 of the input's names, sizes and footers or checksums",
    "input_rows": "Rows read",
    "rows": "US utility grants among them",
}


def provenance(manifest: Manifest) -> list[tuple[str, str]]:
    """Where the rows come from and what was done to them, as (what, value)."""
    source, config = manifest["source"], manifest["config"]
    kind = f"made up by {_sampled(source)}" if manifest["made_up"] else _SOURCES[source["source"]]
    found = [("Source", kind), ("Grant dates", f"{source['start']} to {source['end']}")]
    found += [(name, _value(source[key])) for key, name in _FACTS.items() if source.get(key) is not None]
    return [
        *found,
        ("SHA-256 of raw/", config["raw_sha256"]),
        ("Scheme", config["scheme"].upper()),
        ("Claims joined", f"the first {config['max_claims']}"),
        ("Made with", ", ".join(f"{name} {number}" for name, number in manifest["made_with"].items())),
    ]


def _sampled(source: Mapping[str, Any]) -> str:
    seed = f", seed {source['seed']}" if "seed" in source else ""
    return f"`ewe-data sample`, {source['input_rows']:,} rows{seed}"


def commands(manifest: Manifest, duplicates: Manifest | None) -> list[str]:
    """What makes this dataset again from its source, byte for byte."""
    source, config = manifest["source"], manifest["config"]
    given = {"bigquery": f"--project PROJECT --table {source.get('table')}"}.get(source["source"], "--input INPUT")
    given += " --with-abstract" if source.get("with_abstract") else ""
    given += f" --labels {source['labels']}" if source["source"] == "patentsview" else ""
    window = f"--start {source['start']} --end {source['end']}"
    splits = "".join(f" \\\n  --split {name}={start}:{end}" for name, (start, end) in config["splits"].items())
    relabel = f"ewe-data relabel raw --out dataset --scheme {config['scheme']} --max-claims {config['max_claims']}"
    return [
        f"ewe-data fetch --out raw --source {source['source']} {given} \\\n  {window}",
        relabel + splits,
        *([f"ewe-data dedup dataset --jaccard {duplicates['config']['jaccard']}"] if duplicates else []),
        "ewe-data release dataset",
        "ewe-data verify dataset",
    ]


def limits(manifest: Manifest) -> list[str]:
    """What a reader must know before drawing conclusions."""
    cpc = manifest["config"]["scheme"] == "cpc"
    current = manifest["source"].get("labels", "current") == "current"
    early = min(start for start, _ in manifest["config"]["splits"].values()) < "2013"
    found = []
    if cpc and early:
        found.append(
            "CPC began in 2013: codes of earlier grants, and which of them is first, were assigned afterwards."
        )
    if cpc and current:
        found.append(
            "CPC codes move with every revision of the scheme: labels are those of the snapshot, not of the grant."
        )
    if not cpc:
        found.append(
            "IPC is the classification printed on the grant; many grants list codes of which none is flagged first."
        )
    return [
        *found,
        "US utility grants alone: no designs, plants, reissues or applications.",
        "Formulas, chemical structures and tables are holes in the source's text.",
        f"`text` ends after {manifest['config']['max_claims']} claims; `n_claims` counts all of them.",
        "`later` knows no order: only the first-listed code has a position of its own.",
        "Subclasses that no training row has are no labels: test rows keep them in `label_names` and not in `labels`.",
        "Splits follow the day of grant, so patents of one family may stand on both sides.",
    ]


def _columns(columns: pa.Schema) -> Iterable[tuple[str, str]]:
    return schema.describe(columns).items()


def _table(header: list[str], lines: Iterable[Iterable[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, ["---"] * len(header), *lines])


def _value(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
