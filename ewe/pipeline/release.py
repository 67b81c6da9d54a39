"""dataset/ completed: the whole card, Croissant, data dictionary, citation, checksums and the report.

Parquet is never rewritten: relabel wrote it for reuse. Every byte follows from the dataset's own files, so the same
call again changes nothing, and after dedup it brings everything up to date.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from ewe.pipeline import card, croissant, report, schema
from ewe.pipeline.dedup import FOLDER, read_duplicates
from ewe.progress import say
from ewe.store import MANIFEST, Store, changed, is_sealed, json_text, read_manifest, read_recorded


def release_folder(dataset: Path) -> dict[str, Any]:
    """Complete DATASET: README.md, croissant.json, datadict.json, CITATION.cff, report.html, report.json, SHA256SUMS.

    Returns:
        A summary: out, files, bytes, report, alerts, made_up.

    Raises:
        DataError: DATASET is no dataset folder, its manifest is not as relabel wrote it, or its duplicates/ is of
            another one.
        IncompleteError: DATASET, or its duplicates/, is unfinished.
    """
    manifest = read_manifest(dataset, "dataset")
    if not is_sealed(dataset / MANIFEST, manifest):
        raise changed(dataset, [MANIFEST])
    with Store(dataset, "dataset", manifest["config"]) as store:
        duplicates = read_duplicates(dataset) if (dataset / FOLDER / MANIFEST).is_file() else None
        leaks = read_recorded(dataset / FOLDER, duplicates, "leakage.json") if duplicates else {}
        labels = read_recorded(dataset, manifest, "labels.json")
        names = {kind: labels[kind]["names"] for kind in ("position", "unordered")}
        figures = report.gather(dataset, manifest, labels, duplicates, leaks)
        texts = {
            "README.md": card.write_full_card(manifest, names, duplicates, leaks),
            "CITATION.cff": write_citation(manifest),
            "croissant.json": json_text(croissant.describe_dataset(manifest, names, duplicates)),
            "datadict.json": json_text(describe_files(duplicates is not None)),
            "report.html": report.draw(figures),
            "report.json": json_text(figures),
        }
        if not store.release(texts):
            say(f"{dataset} is finished already.")
        records = [*store.manifest["files"].values(), *store.manifest["released"].values()]
        records += duplicates["files"].values() if duplicates else []
    return {
        "out": str(dataset),
        "files": len(records),
        "bytes": sum(record["size"] for record in records),
        "report": str(dataset / "report.html"),
        "alerts": [alert["text"] for alert in figures["alerts"] if alert["level"] == "warning"],
        "made_up": manifest["made_up"],
    }


def describe_files(duplicates: bool) -> dict[str, Any]:
    """The value of datadict.json: of each Parquet file every column's type, whether it may be null, and its meaning."""
    tables = {
        "relabeled/*.parquet": schema.DATASET,
        "no_first/*.parquet": schema.DATASET,
        "dropped.parquet": schema.DROPPED,
    }
    if duplicates:
        tables |= {f"{FOLDER}/{name}": columns for _, name, columns in card.DUPLICATES}
    return {name: {field.name: _describe(field) for field in columns} for name, columns in tables.items()}


def _describe(field: pa.Field) -> dict[str, Any]:
    description = field.metadata[b"description"].decode()
    return {"type": str(field.type), "nullable": field.nullable, "description": description}


def write_citation(manifest: card.Manifest) -> str:
    """The text of CITATION.cff: the dataset, its source, and the paper whose labels it follows."""
    terms = card.licence(manifest)
    spdx = {"license: cc-by-4.0": "license: CC-BY-4.0", "license: apache-2.0": "license: Apache-2.0"}
    authors = "\n".join(f'  - name: "{name}"' for name in terms.creators)
    return f"""cff-version: 1.2.0
type: dataset
title: "{card.title(manifest)}"
message: "If you use this dataset, please cite it, its source and the paper whose labels it follows."
{spdx.get(terms.yaml, f"license-url: {terms.url}")}
abstract: "{terms.attribution.replace("`", "")}"
version: "{manifest["config_sha256"][:12]}"
authors:
{authors}
references:
  - type: software
    title: "ewe-patents"
    version: "{manifest["made_with"]["ewe-patents"]}"
    authors:
      - name: "The ewe-patents developers"
  - type: article
    title: "Elementwise Language Representation"
    authors:
      - family-names: Kim
      - family-names: Kim
    year: 2023
    identifiers:
      - type: other
        value: "arXiv:2302.13475"
"""
