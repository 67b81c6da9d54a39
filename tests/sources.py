"""One set of made-up grants in every form that a source publishes."""

import datetime as dt
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

DTD = "us-patent-grant-v45-2014-04-03.dtd"


@dataclass(frozen=True)
class Symbol:
    """A CPC or IPC code as printed."""

    code: str
    first: bool = False
    inventive: bool = True

    @property
    def parts(self) -> tuple[str, str, str, str, str]:
        group, subgroup = self.code[4:].split("/")
        return self.code[0], self.code[1:3], self.code[3], group, subgroup


@dataclass(frozen=True)
class Grant:
    number: str = "7654321"
    kind: str = "B2"
    granted: dt.date = dt.date(2010, 1, 5)
    filed: dt.date = dt.date(2007, 3, 2)
    application: str = "11700001"
    title: str = "A thing & its use"
    claims: tuple[str, ...] = ("A thing comprising a part.", "The thing of claim 1, wherein the part is red.")
    assignees: tuple[str, ...] = ("Things Inc.",)
    cpc: tuple[Symbol, ...] = (
        Symbol("G06Q10/06", first=True),
        Symbol("A01B1/02"),
        Symbol("A01B33/00", inventive=False),
    )
    ipc: tuple[Symbol, ...] = (Symbol("G06Q10/00", first=True), Symbol("A01B1/00", inventive=False))

    @property
    def publication_number(self) -> str:
        return f"US-{self.number}-{self.kind}"


GRANTS = [
    Grant(),
    Grant("7654322", "B1", title="Another", assignees=()),
    Grant("7700001", granted=dt.date(2010, 4, 20), cpc=(), ipc=(Symbol("C07D401/14", first=True),)),
    Grant(
        "8000000",
        granted=dt.date(2011, 8, 16),
        claims=tuple(f"Claim number {n}, of SEQ ID NO: {n}." for n in range(1, 31)),
    ),
    Grant("8000001", granted=dt.date(2011, 8, 16), claims=("A method: 1. heat; 2. cool 3. serve.",)),
    Grant("9000000", granted=dt.date(2015, 4, 7), title="Ärzte", assignees=("Jane Doe", "Ω & Söhne GmbH")),
]


# -- the office's weekly XML ------------------------------------------------------------------------------------------


def xml_symbol(tag: str, symbol: Symbol) -> str:
    section, class_, subclass, group, subgroup = symbol.parts
    other = "A" if tag == "classification-cpc" else "N"
    return (
        f"<{tag}>\n<section>{section}</section>\n<class>{class_}</class>\n<subclass>{subclass}</subclass>\n"
        f"<main-group>{group}</main-group>\n<subgroup>{subgroup}</subgroup>\n"
        f"<symbol-position>{'F' if symbol.first else 'L'}</symbol-position>\n"
        f"<classification-value>{'I' if symbol.inventive else other}</classification-value>\n</{tag}>\n"
    )


def xml_claims(claims: Iterable[str]) -> str:
    """Claims as the office marks them up; a claim that holds a tag stands as it is."""
    return "".join(
        f'<claim id="CLM-{n:05d}" num="{n:05d}">\n<claim-text>{n}. {_marked(claim)}</claim-text>\n</claim>\n'
        for n, claim in enumerate(claims, 1)
    )


def _marked(claim: str) -> str:
    return claim if "<" in claim else escape(claim)


def as_xml(grant: Grant, description: str = "<p>Some words.</p>", dtd: str = DTD) -> str:
    cpc = ""
    if grant.cpc:
        first, *further = (xml_symbol("classification-cpc", symbol) for symbol in grant.cpc)
        cpc = f"<main-cpc>\n{first}</main-cpc>\n<further-cpc>\n{''.join(further)}</further-cpc>\n"
        cpc = f"<classifications-cpc>\n{cpc}</classifications-cpc>\n"
    ipc = "".join(xml_symbol("classification-ipcr", symbol) for symbol in grant.ipc)
    owners = "".join(
        f"<assignee>\n<addressbook>\n<orgname>{escape(name)}</orgname>\n<role>02</role>\n</addressbook>\n</assignee>\n"
        for name in grant.assignees
    )
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE us-patent-grant SYSTEM "{dtd}" [ ]>\n'
        f'<us-patent-grant lang="EN" file="US{grant.number:0>8}-{grant.granted:%Y%m%d}.XML" country="US">\n'
        "<us-bibliographic-data-grant>\n<publication-reference>\n<document-id>\n<country>US</country>\n"
        f"<doc-number>{grant.number:0>8}</doc-number>\n<kind>{grant.kind}</kind>\n<date>{grant.granted:%Y%m%d}</date>\n"
        '</document-id>\n</publication-reference>\n<application-reference appl-type="utility">\n<document-id>\n'
        f"<country>US</country>\n<doc-number>{grant.application}</doc-number>\n<date>{grant.filed:%Y%m%d}</date>\n"
        f"</document-id>\n</application-reference>\n<classifications-ipcr>\n{ipc}</classifications-ipcr>\n{cpc}"
        f'<invention-title id="d0e1">{escape(grant.title)}</invention-title>\n<assignees>\n{owners}</assignees>\n'
        f'</us-bibliographic-data-grant>\n<description id="description">\n{description}\n</description>\n'
        "<us-claim-statement>What is claimed is:</us-claim-statement>\n"
        f'<claims id="claims">\n{xml_claims(grant.claims)}</claims>\n'
        "</us-patent-grant>\n"
    )


def write_week(folder: Path, documents: Iterable[str | bytes], name: str = "ipg100105") -> Path:
    """A weekly file, zipped as the office does it."""
    folder.mkdir(parents=True, exist_ok=True)
    text = b"".join(each.encode() if isinstance(each, str) else each for each in documents)
    with zipfile.ZipFile(folder / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}.xml", text)
    return folder


# -- PatentsView's tables ---------------------------------------------------------------------------------------------

COLUMNS = {
    "g_patent": "patent_id patent_type patent_date patent_title wipo_kind num_claims withdrawn filename",
    "g_application": "application_id patent_id patent_application_type filing_date series_code rule_47_flag",
    "g_claims": "patent_id claim_sequence claim_text dependent claim_number exemplary",
    "g_cpc_current": "patent_id cpc_sequence cpc_section cpc_class cpc_subclass cpc_group cpc_type",
    "g_cpc_at_issue": "patent_id cpc_sequence cpc_version_indicator cpc_section cpc_class cpc_subclass cpc_group "
    "cpc_type cpc_action_date",
    "g_ipc_at_issue": "patent_id ipc_sequence classification_level section ipc_class subclass main_group subgroup "
    "classification_value classification_status classification_data_source action_date ipc_version_indicator",
    "g_assignee_disambiguated": "patent_id assignee_sequence assignee_id disambig_assignee_individual_name_first "
    "disambig_assignee_individual_name_last disambig_assignee_organization assignee_type location_id",
}
Rows = list[tuple[object, ...]]


def as_tables(grants: Iterable[Grant], current: dict[str, tuple[Symbol, ...]] | None = None) -> dict[str, Rows]:
    """Rows of every table; `current` gives the codes of today where they moved."""
    tables: dict[str, Rows] = {name: [] for name in COLUMNS if name != "g_claims"}
    for grant in grants:
        number = grant.number
        tables["g_patent"].append(
            (number, "utility", grant.granted, grant.title, grant.kind, len(grant.claims), 0, "ipg.xml")
        )
        tables["g_application"].append(
            (f"{grant.application[:2]}/{grant.application[2:]}", number, 11, grant.filed, 11, 0)
        )
        claims = tables.setdefault(f"g_claims_{grant.granted.year}", [])
        for n, claim in enumerate(grant.claims):
            claims.append((number, n, f"{n + 1}. {claim}", "", f"{n + 1:05d}", int(n == 0)))
        for n, symbol in enumerate((current or {}).get(number, grant.cpc)):
            kind = "inventional" if symbol.inventive else "additional"
            tables["g_cpc_current"].append(
                (number, n, symbol.code[0], symbol.code[:3], symbol.code[:4], symbol.code, kind)
            )
        for n, symbol in enumerate(grant.cpc, 1):
            kind = "inventional" if symbol.inventive else "additional"
            code = (symbol.code[0], symbol.code[:3], symbol.code[:4], symbol.code)
            tables["g_cpc_at_issue"].append((number, n, "2013-01-01", *code, kind, grant.granted))
        for n, symbol in enumerate(grant.ipc):
            value = "I" if symbol.inventive else "N"
            tables["g_ipc_at_issue"].append(
                (number, n, "A", *symbol.parts, value, "B", "H", grant.granted, "2006-01-01")
            )
        for n, name in enumerate(grant.assignees):
            tables["g_assignee_disambiguated"].append((number, n, f"id-{name}", "", "", name, 2, "place"))
    return tables


def write_tsv(folder: Path, name: str, rows: Rows, zipped: bool = True) -> None:
    """A table as published: strings in quotes, quotes doubled, line breaks kept, numbers bare."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = COLUMNS["g_claims" if name.startswith("g_claims_") else name].split()
    lines = ["\t".join(f'"{column}"' for column in columns), *("\t".join(map(_cell, row)) for row in rows)]
    text = "\n".join(lines) + "\n"
    if not zipped:
        (folder / f"{name}.tsv").write_text(text, encoding="utf-8")
        return
    with zipfile.ZipFile(folder / f"{name}.tsv.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}.tsv", text)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else '"' + str(value).replace('"', '""') + '"'


def write_tables(folder: Path, tables: dict[str, Rows]) -> Path:
    for name, rows in tables.items():
        write_tsv(folder, name, rows)
    return folder
