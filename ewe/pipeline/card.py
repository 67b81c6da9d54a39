"""README.md of dataset/: the Hub's YAML that makes `load_dataset(DIR)` right, and what the folder is."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from ewe.pipeline import schema

_DTYPES = {pa.string(): "string", pa.date32(): "date32", pa.int16(): "int16", pa.int32(): "int32", pa.bool_(): "bool"}


def front_matter(folder: Path, rows: dict[str, dict[str, int]], labels: dict[str, list[str]], *, made_up: bool) -> str:
    """The text of README.md as relabel leaves it.

    Args:
        folder: the dataset, for its name.
        rows: by config ("relabeled", "no_first") and split; `load_dataset` cannot read a split
            without rows, so such a one is not offered to it.
        labels: label names by kind, "position" and "unordered".
        made_up: whether the patents are.
    """
    features = "\n".join(_feature(field, labels) for field in schema.DATASET)
    configs = {"relabeled": ["relabeled"], "unordered": ["relabeled", "no_first"]}
    lines = ["---", "license: cc-by-4.0", "task_categories: [text-classification]", "configs:"]
    for config, folders in configs.items():
        lines += [f"- config_name: {config}", *(["  default: true"] if config == "relabeled" else []), "  data_files:"]
        for split in [split for split in rows["relabeled"] if any(rows[each][split] for each in folders)]:
            lines += [f"  - split: {split}", "    path:", *(f"    - {each}/{split}-*.parquet" for each in folders)]
    lines.append("dataset_info:")
    for config in configs:
        lines += [f"- config_name: {config}", "  features:", features]
    lines.append("---")
    return "\n".join(lines) + "\n\n" + _body(folder.name, made_up)


def _feature(field: pa.Field, labels: dict[str, list[str]]) -> str:
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


def _body(name: str, made_up: bool) -> str:
    notice = (
        "**These patents are made up** (`ewe-data sample`): they show that the pipeline works and say nothing "
        "about real ones.\n\n"
        if made_up
        else ""
    )
    columns = "\n".join(f"| `{column}` | {text} |" for column, text in schema.describe(schema.DATASET).items())
    return f"""# {name}

{notice}US utility patents with position-aware classification labels: `First-X` for the subclass of the
first-listed code, `Later-Y` for those of the others, told by each code's `first` flag.

- `relabeled` (default): rows with a code flagged first; `labels` are indices of `label_names`.
- `unordered`: these and the rows without one; read `unordered_labels`, the label sets of earlier literature.

| column | what it is |
|---|---|
{columns}
"""
