"""Every file's Arrow schema, with a description a column: dictionary, card and checks come from here."""

from __future__ import annotations

import pyarrow as pa

from ewe.errors import DataError


def _field(name: str, kind: pa.DataType, description: str, nullable: bool = True) -> pa.Field:
    return pa.field(name, kind, nullable=nullable, metadata={"description": description})


def _localized() -> pa.DataType:
    return pa.list_(pa.struct([("text", pa.string()), ("language", pa.string()), ("truncated", pa.bool_())]))


def _published_codes() -> pa.DataType:
    kinds = [("code", pa.string()), ("inventive", pa.bool_()), ("first", pa.bool_()), ("tree", pa.list_(pa.string()))]
    return pa.list_(pa.struct(kinds))


# What sql/grants.sql reads of patents-public-data.patents.publications; --input must hold it.
PUBLICATIONS = pa.schema(
    [
        _field("publication_number", pa.string(), "Country, number and kind: US-7654321-B2"),
        _field("application_number", pa.string(), "Number of the application; '' where unknown"),
        _field("country_code", pa.string(), "Two-letter code of the office"),
        _field("kind_code", pa.string(), "B1 and B2 are US utility grants"),
        _field("application_kind", pa.string(), "A is a patent application"),
        _field("family_id", pa.string(), "Simple family in DOCDB"),
        _field("title_localized", _localized(), "Titles by language"),
        _field("claims_localized", _localized(), "Claims by language, one string each"),
        _field("filing_date", pa.int64(), "yyyymmdd, 0 where unknown"),
        _field("grant_date", pa.int64(), "yyyymmdd, 0 where not granted"),
        _field(
            "assignee_harmonized",
            pa.list_(pa.struct([("name", pa.string()), ("country_code", pa.string())])),
            "Assignees",
        ),
        _field("ipc", _published_codes(), "IPC codes with flags, in no meaningful order"),
        _field("cpc", _published_codes(), "CPC codes with flags, in no meaningful order"),
    ]
)

CODES = pa.list_(pa.struct([("code", pa.string()), ("first", pa.bool_()), ("inventive", pa.bool_())]))

_RAW = [
    _field("publication_number", pa.string(), "Country, number and kind: US-7654321-B2", nullable=False),
    _field("patent_id", pa.string(), "The number alone, PatentsView's key: 7654321"),
    _field("application_number", pa.string(), "Number of the application"),
    _field("family_id", pa.string(), "Simple family: patents of one invention share it"),
    _field("kind_code", pa.string(), "B1 (no earlier publication) or B2", nullable=False),
    _field("filing_date", pa.date32(), "Day of filing"),
    _field("grant_date", pa.date32(), "Day of grant", nullable=False),
    _field("title", pa.string(), "Title in English"),
    _field("claims", pa.string(), "All claims as published, one string"),
    _field("assignees", pa.list_(pa.string()), "Names of the owners at grant"),
    _field("cpc", CODES, "CPC codes as the source has them; the array's order means nothing, `first` does"),
    _field("ipc", CODES, "IPC codes as the source has them; the array's order means nothing, `first` does"),
]

RAW = pa.schema(_RAW)

RAW_WITH_ABSTRACT = RAW.insert(
    RAW.get_field_index("claims"), _field("abstract", pa.string(), "Abstract in English, where it was asked for")
)

# What sql/labels.sql gives: the labels without any text.
LABELS = pa.schema(
    [
        _field("publication_number", pa.string(), "Country, number and kind: US-7654321-B2", nullable=False),
        _field("grant_date", pa.date32(), "Day of grant", nullable=False),
        _field("split", pa.string(), "The split its grant date falls in; null outside of all"),
        _field("first", pa.string(), "Subclass of the first-listed CPC code; null where no code is flagged first"),
        _field("later", pa.list_(pa.string()), "Subclasses of the other codes, sorted; empty where first is null"),
    ]
)

DATASET = pa.schema(
    [field for field in _RAW if field.name != "claims"]
    + [
        _field("split", pa.string(), "The split its grant date falls in", nullable=False),
        _field("text", pa.string(), "The first claims, cleaned and joined by one space", nullable=False),
        _field("claim_offsets", pa.list_(pa.int32()), "Where each claim starts in text, in characters", nullable=False),
        _field("n_claims", pa.int16(), "Claims of the whole patent", nullable=False),
        _field("first", pa.string(), "Subclass of the first-listed code; null in no_first/"),
        _field("later", pa.list_(pa.string()), "Subclasses of the other codes, sorted; null in no_first/"),
        _field("label_names", pa.list_(pa.string()), "First-X and Later-Y, in label order; null in no_first/"),
        _field("labels", pa.list_(pa.int16()), "label_names as indices into labels.json's position names"),
        _field(
            "unordered_labels", pa.list_(pa.int16()), "All subclasses as indices into labels.json's unordered names"
        ),
    ]
)

DROPPED = pa.schema(
    [
        _field("publication_number", pa.string(), "The row of raw/ that is in no split", nullable=False),
        _field("reason", pa.string(), "outside_split, no_claims or no_codes: the first that applies", nullable=False),
    ]
)

PAIRS = pa.schema(
    [
        _field("group", pa.int64(), "The group both belong to, as in groups.parquet", nullable=False),
        _field("publication_number_a", pa.string(), "One of the two; of train where one is", nullable=False),
        _field("publication_number_b", pa.string(), "The other", nullable=False),
        _field(
            "similarity",
            pa.float64(),
            "Jaccard similarity of their sets of five-word shingles, lower-cased; 1 also where the texts are equal",
            nullable=False,
        ),
        _field(
            "in_forest",
            pa.bool_(),
            "True: one of the n - 1 pairs that hold a group of n together; false: shows a leak beside them",
            nullable=False,
        ),
    ]
)

GROUPS = pa.schema(
    [
        _field("group", pa.int64(), "Number of the group, by its first row, train first", nullable=False),
        _field("publication_number", pa.string(), "A row of relabeled/ or no_first/", nullable=False),
        _field("config", pa.string(), "Which of the two it is in: relabeled or no_first", nullable=False),
        _field("split", pa.string(), "Its split", nullable=False),
        _field("family_id", pa.string(), "Its simple family"),
        _field(
            "leak",
            pa.string(),
            "Of a test row with a near-copy in train: same_family where one is of its own family, else other_family",
        ),
    ]
)


def describe(schema: pa.Schema) -> dict[str, str]:
    """Column name -> description."""
    return {field.name: field.metadata[b"description"].decode() for field in schema}


def _fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column can be read as `wanted`: the same, wider strings and integers, or more struct fields."""
    if pa.types.is_struct(wanted):
        read = [field for field in wanted if field.name != "tree"]  # which is empty everywhere
        return bool(pa.types.is_struct(found)) and all(
            found.get_field_index(field.name) >= 0 and _fits(found.field(field.name).type, field.type) for field in read
        )
    if pa.types.is_list(wanted):
        is_list = pa.types.is_list(found) or pa.types.is_large_list(found)
        return bool(is_list and _fits(found.value_type, wanted.value_type))
    if pa.types.is_string(wanted):
        return bool(pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found))
    if pa.types.is_integer(wanted):
        return bool(pa.types.is_integer(found))
    return bool(found.equals(wanted))


def check(found: pa.Schema, wanted: pa.Schema, where: str, then: str) -> None:
    """Raise DataError naming the first column of `wanted` that `found` lacks or mistypes.

    Args:
        found: the file's schema.
        wanted: the columns that must be there; others may stand beside them.
        where: the file, for the sentence.
        then: what to do about it, the sentence's end.
    """
    for field in wanted:
        index = found.get_field_index(field.name)
        if index < 0:
            raise DataError(f"{where} has no column {field.name}; {then}.")
        if not _fits(found.field(index).type, field.type):
            raise DataError(f"{where}: column {field.name} is {found.field(index).type}, not {field.type}; {then}.")
