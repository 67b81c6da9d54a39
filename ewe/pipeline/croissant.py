"""croissant.json of dataset/: its files and columns in MLCommons' Croissant 1.0 (JSON-LD)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from ewe.pipeline import card, schema

Json = dict[str, Any]

PARQUET = "application/x-parquet"
# The context of the format's specification, which readers expect word for word.
CONTEXT: Json = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    **{name: {"@id": f"cr:{name}", "@type": "@json"} for name in ("data", "examples")},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "conformsTo": "dct:conformsTo",
    **{
        name: f"cr:{name}"
        for name in (
            *("citeAs", "column", "equivalentProperty", "extract", "field", "fileProperty", "fileObject", "fileSet"),
            *("format", "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet"),
            *("references", "regex", "repeated", "replace", "samplingRate", "separator", "source", "subField"),
            "transform",
        )
    },
}
_TYPES = {
    pa.string(): "sc:Text",
    pa.date32(): "sc:Date",
    pa.int16(): "cr:Int16",
    pa.int32(): "cr:Int32",
    pa.int64(): "cr:Int64",
    pa.float64(): "cr:Float64",
    pa.bool_(): "sc:Boolean",
}


def describe_dataset(
    manifest: Mapping[str, Any], labels: Mapping[str, list[str]], duplicates: Mapping[str, Any] | None
) -> Json:
    """The value of croissant.json.

    Args:
        manifest: of the dataset.
        labels: label names by kind, "position" and "unordered".
        duplicates: the manifest of duplicates/, where there is one.
    """
    terms = card.licence(manifest)
    files = {name: record for name, record in manifest["files"].items() if name.endswith(".parquet")}
    inner = duplicates["files"] if duplicates else {}
    files |= {f"duplicates/{name}": record for name, record in inner.items() if name.endswith(".parquet")}
    records = [
        *(_records(config, schema.DATASET) for config in card.FOLDERS),
        _records("dropped", schema.DROPPED),
        *(_records(config, columns) for config, _, columns in (card.DUPLICATES if duplicates else ())),
        *(_names(kind, names) for kind, names in labels.items()),
    ]
    folders = {config: [f"{each}/*.parquet" for each in parts] for config, parts in card.FOLDERS.items()}
    folders["dropped"] = ["dropped.parquet"]
    folders |= {config: [f"duplicates/{name}"] for config, name, _ in (card.DUPLICATES if duplicates else ())}
    source = manifest["source"]
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": card.title(manifest),
        "description": card.summary(manifest),
        "license": terms.url,
        "creator": [{"@type": "sc:Organization", "name": name} for name in terms.creators],
        "citeAs": terms.attribution,
        "version": manifest["made_with"]["ewe-patents"],
        # the state of the source, not the day of this file, which would differ each time
        "datePublished": (source.get("snapshot") or source["end"])[:10],
        "temporalCoverage": f"{source['start']}/{source['end']}",
        "inLanguage": "en",
        "keywords": ["patents", manifest["config"]["scheme"].upper(), "text classification"],
        "distribution": [
            *(_file(name, record) for name, record in sorted(files.items())),
            *(
                {"@type": "cr:FileSet", "@id": f"{name}-files", "encodingFormat": PARQUET, "includes": patterns}
                for name, patterns in folders.items()
            ),
        ],
        "recordSet": records,
    }


def _file(name: str, record: Mapping[str, Any]) -> Json:
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": name.rpartition("/")[2],
        "contentUrl": name,
        "contentSize": f"{record['size']} B",
        "encodingFormat": PARQUET,
        "sha256": record["sha256"],
    }


def _records(name: str, columns: pa.Schema) -> Json:
    return {"@type": "cr:RecordSet", "@id": name, "name": name, "field": list(_fields(name, columns))}


def _fields(records: str, columns: pa.Schema) -> Iterator[Json]:
    for field in columns:
        value = field.type.value_type if pa.types.is_list(field.type) else field.type
        source = {"fileSet": {"@id": f"{records}-files"}, "extract": {"column": field.name}}
        found = {"@type": "cr:Field", "@id": f"{records}/{field.name}", "name": field.name}
        found["description"] = field.metadata[b"description"].decode()
        if pa.types.is_list(field.type):
            found["repeated"] = True
        if pa.types.is_struct(value):
            parts = [_part(found["@id"], each, source) for each in value]
            yield found | {"subField": parts}
        else:
            yield found | {"dataType": _TYPES[value], "source": source}


def _part(of: str, field: pa.Field, source: Json) -> Json:
    return {
        "@type": "cr:Field",
        "@id": f"{of}/{field.name}",
        "name": field.name,
        "dataType": _TYPES[field.type],
        "source": {**source, "transform": {"jsonPath": field.name}},
    }


def _names(kind: str, names: list[str]) -> Json:
    """A vocabulary, its entries in the file itself."""
    records = f"{kind}_names"
    columns = {"index": "cr:Int16", "name": "sc:Text"}
    return {
        "@type": "cr:RecordSet",
        "@id": records,
        "name": records,
        "description": f"What each index of the {kind} labels stands for",
        "key": {"@id": f"{records}/index"},
        "field": [
            {"@type": "cr:Field", "@id": f"{records}/{name}", "name": name, "dataType": kind_of}
            for name, kind_of in columns.items()
        ],
        "data": [{f"{records}/index": index, f"{records}/name": name} for index, name in enumerate(names)],
    }
