"""The office's weekly XML: every grant, claim and position of real files; broken ones counted, never fatal."""

import datetime as dt
import io
import itertools
import json
import os
import re
import xml.etree.ElementTree as ET
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sources import GRANTS, Grant, Symbol, as_xml, write_week

from ewe.errors import DataError, EweError, UsageError
from ewe.pipeline import uspto
from ewe.pipeline.fetch import fetch_grants, plan
from ewe.pipeline.uspto import UsptoEngine
from ewe.store import read_manifest, verify
from ewe.text import clean, split_claims

SYMBOL = ("section", "class", "subclass", "main-group", "subgroup")
SINCE_2005 = {"start": dt.date(2005, 1, 1), "end": dt.date(2015, 12, 31)}


def fetched(
    folder: Path, out: Path, window: dict[str, dt.date] = SINCE_2005
) -> tuple[list[dict[str, object]], dict[str, object]]:
    """The rows and the manifest of a fetch."""
    fetch_grants(UsptoEngine(folder), out, **window)
    rows = [row for path in sorted(out.glob("grants-*.parquet")) for row in pq.read_table(path).to_pylist()]
    return rows, read_manifest(out, "raw")


def broken(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "broken.jsonl").read_text().splitlines()]


# -- real files, against an independent reading of them ----------------------------------------------------------------


def real_documents(real: Path) -> list[ET.Element]:
    """Every document, by the standard library (which drops comments and processing instructions)."""
    found = []
    for path in sorted((real / "uspto-xml").glob("*.zip")):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                pieces = re.split(r"(?=<\?xml )", archive.read(name).decode())
                found += [ET.fromstring(piece) for piece in pieces if piece.strip()]  # noqa: S314  the test's own data
    return found


@pytest.fixture(scope="module")
def raw(real: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("real") / "raw"
    fetch_grants(UsptoEngine(real / "uspto-xml"), out, **SINCE_2005)
    return out


@pytest.fixture(scope="module")
def rows(raw: Path) -> dict[str, dict[str, object]]:
    return {row["publication_number"]: row for row in pl.read_parquet(raw / "*.parquet").iter_rows(named=True)}


@pytest.fixture(scope="module")
def utility(real: Path) -> dict[str, ET.Element]:
    found = {}
    for root in real_documents(real):
        number = root.findtext(".//publication-reference/document-id/doc-number", "").lstrip("0")
        kind = root.findtext(".//publication-reference/document-id/kind")
        if root.tag == "us-patent-grant" and kind in ("B1", "B2"):
            found[f"US-{number}-{kind}"] = root
    return found


def test_every_real_utility_grant_is_found(real: Path, raw: Path, rows: dict, utility: dict) -> None:
    assert rows.keys() == utility.keys()
    facts = read_manifest(raw, "raw")
    kinds = Counter(
        root.findtext(".//publication-reference//kind") if root.tag == "us-patent-grant" else root.tag
        for root in real_documents(real)
    )
    assert facts["left_out"] == {kind: n for kind, n in kinds.items() if kind not in ("B1", "B2")}
    assert facts["documents"] == kinds.total()
    assert facts["grants"] == len(utility)
    assert facts["broken"] == facts["repeated"] == facts["outside_window"] == 0
    assert not (raw / "broken.jsonl").exists()


def test_every_real_claim_equals_its_markup(rows: dict, utility: dict) -> None:
    for number, root in utility.items():
        marked = [clean("".join(claim.itertext())) for claim in root.iterfind("claims/claim")]
        expected = [re.sub(r"^[0-9]+\. ?", "", claim) for claim in marked]
        assert split_claims(rows[number]["claims"]) == expected


def test_every_real_position_is_kept(rows: dict, utility: dict) -> None:
    for number, root in utility.items():
        for scheme, tag in (("cpc", "classification-cpc"), ("ipc", "classification-ipcr")):
            expected = [
                (
                    "{}{}{}{}/{}".format(*map(code.findtext, SYMBOL)),
                    code.findtext("symbol-position") == "F",
                    code.findtext("classification-value") == "I",
                )
                for code in root.iter(tag)
            ]
            if not expected and root.find("us-bibliographic-data-grant/classification-ipc") is not None:
                continue  # 2005: see the next test
            assert [tuple(code.values()) for code in rows[number][scheme]] == expected


def test_real_codes_of_2005(rows: dict, utility: dict) -> None:
    seen = 0
    for number, root in utility.items():
        codes = root.find("us-bibliographic-data-grant/classification-ipc")
        if codes is None:
            continue
        printed = [code.text for code in codes if code.tag.endswith("-classification")]
        kept = [code["code"] for code in rows[number]["ipc"]]
        expected = [re.sub(r"^(....)0*", r"\1", re.sub("[ /]", "", code)) for code in printed]
        assert [re.sub("/", "", code) for code in kept] == expected
        assert all(re.fullmatch(r"[A-H][0-9]{2}[A-Z][1-9][0-9]*/[0-9]{2,}", code) for code in kept)
        assert [code["first"] for code in rows[number]["ipc"]] == [code.tag.startswith("main") for code in codes][1:]
        seen += len(kept)
    assert seen > 30


def test_real_rows_agree_with_the_publications_table(real: Path, rows: dict) -> None:
    published = {
        row["publication_number"]: row for row in pl.read_parquet(real / "publications.parquet").iter_rows(named=True)
    }
    truth = dict(pl.read_parquet(real / "claims_truth.parquet").iter_rows())
    common = rows.keys() & published.keys()
    assert len(common) > 100
    for number in common:
        row, table = rows[number], published[number]
        assert row["title"] == table["title_localized"][0]["text"]
        assert f"{row['grant_date']:%Y%m%d}" == str(table["grant_date"])
        assert [name.upper() for name in row["assignees"]] == [
            clean(each["name"]) for each in table["assignee_harmonized"]
        ]
        assert row["cpc"] == [{key: code[key] for key in ("code", "first", "inventive")} for code in table["cpc"]]
        if "In-line Formulae" not in str(truth[number]):  # a processing instruction, which truth took for text
            assert split_claims(row["claims"]) == split_claims(table["claims_localized"][0]["text"])
            assert split_claims(row["claims"]) == [re.sub(r"^[0-9]+\. ?", "", clean(claim)) for claim in truth[number]]


# -- one document ------------------------------------------------------------------------------------------------------


def test_a_document_becomes_a_row(tmp_path: Path) -> None:
    grant = Grant()
    rows, facts = fetched(write_week(tmp_path / "in", [as_xml(grant)]), tmp_path / "raw")
    assert rows == [
        {
            "publication_number": "US-7654321-B2",
            "patent_id": "7654321",
            "application_number": "11700001",
            "family_id": None,
            "kind_code": "B2",
            "filing_date": dt.date(2007, 3, 2),
            "grant_date": dt.date(2010, 1, 5),
            "title": "A thing & its use",
            "claims": "1. A thing comprising a part.\n2. The thing of claim 1, wherein the part is red.",
            "assignees": ["Things Inc."],
            "cpc": [
                {"code": "G06Q10/06", "first": True, "inventive": True},
                {"code": "A01B1/02", "first": False, "inventive": True},
                {"code": "A01B33/00", "first": False, "inventive": False},
            ],
            "ipc": [
                {"code": "G06Q10/00", "first": True, "inventive": True},
                {"code": "A01B1/00", "first": False, "inventive": False},
            ],
        }
    ]
    assert facts["made_up"] is False
    assert facts["labels"] == "at-issue"


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("H<sub>2</sub>O at 10<sup>18 </sup>cm<sup>&#8722;3</sup>", "H2O at 1018 cm−3"),
        ('as in <claim-ref idref="CLM-00001">claim 1</claim-ref>, wherein', "as in claim 1, wherein"),
        ("<b>1</b>, <i>x</i><u>y</u>", "1, xy"),
        (
            "comprising:<claim-text>a part; and</claim-text><claim-text>a lid.</claim-text>",
            "comprising: a part; and a lid.",
        ),
        ("of <maths><math><mrow><mi>a</mi><mo>=</mo><mn>2</mn></mrow></math></maths> mm", "of a=2 mm"),
        ('of <chemistry id="C"><img id="I" file="x.TIF" alt="embedded image"/></chemistry> or salts', "of or salts"),
        (
            "<tables><table><tgroup><tbody><row><entry>1</entry><entry>2</entry></row></tbody></tgroup></table></tables>",
            "1 2",
        ),
        ("one<br/>two", "one two"),
        ('a <?in-line-formulae description="In-line Formulae" end="lead"?>b<!-- c --> d', "a b d"),
        ("R&amp;D &lt; &#945;&#8290;&#xF603;", "R&D < α\u2062\uf603"),
        ("<![CDATA[1 < 2]]>", "1 < 2"),
        ("known as &bull; here", "known as • here"),
    ],
)
def test_the_one_rule_for_markup(tmp_path: Path, markup: str, text: str) -> None:
    document = as_xml(Grant(claims=(f"<!-- -->{markup}",)))
    rows, _ = fetched(write_week(tmp_path / "in", [document]), tmp_path / "raw")
    assert split_claims(rows[0]["claims"]) == [text]


def test_combination_sets_are_kept_as_codes(tmp_path: Path) -> None:
    one = "<combination-set><group-number>1</group-number><combination-rank><rank-number>1</rank-number>"
    code = re.search(
        r"<classification-cpc>.*?</classification-cpc>", as_xml(Grant(cpc=(Symbol("H04W84/18"),))), re.DOTALL
    )
    assert code
    document = as_xml(Grant()).replace(
        "</further-cpc>", f"{one}{code[0]}</combination-rank></combination-set></further-cpc>"
    )
    rows, _ = fetched(write_week(tmp_path / "in", [document]), tmp_path / "raw")
    assert rows[0]["cpc"][-1] == {"code": "H04W84/18", "first": False, "inventive": True}


@pytest.mark.parametrize(
    ("printed", "code"),
    [
        ("A45F  504", "A45F5/04"),
        ("B21D 2602", "B21D26/02"),
        ("C07C24900", "C07C249/00"),
        ("G06F015/163", "G06F15/163"),
        ("H01L", "H01L"),
    ],
)
def test_ipc_codes_before_2006(tmp_path: Path, printed: str, code: str) -> None:
    old = f"<classification-ipc><main-classification>{printed}</main-classification></classification-ipc>"
    document = as_xml(Grant(ipc=())).replace("<classifications-ipcr>\n</classifications-ipcr>", old)
    rows, _ = fetched(write_week(tmp_path / "in", [document]), tmp_path / "raw")
    assert rows[0]["ipc"] == [{"code": code, "first": True, "inventive": None}]


def test_what_is_absent_is_null(tmp_path: Path) -> None:
    document = as_xml(Grant(cpc=(), ipc=(), assignees=(), claims=(), title=""))
    document = re.sub(r"<application-reference.*?</application-reference>", "", document, flags=re.DOTALL)
    rows, facts = fetched(write_week(tmp_path / "in", [document]), tmp_path / "raw")
    row = rows[0]
    assert [row[name] for name in ("application_number", "filing_date", "title", "claims")] == [None] * 4
    assert [row[name] for name in ("assignees", "cpc", "ipc")] == [[], [], []]
    assert facts["without_claims"] == 1


def test_a_person_as_assignee(tmp_path: Path) -> None:
    person = "<addressbook><last-name>Doe</last-name><first-name>Jane</first-name></addressbook>"
    document = re.sub("<addressbook>.*?</addressbook>", person, as_xml(Grant()), flags=re.DOTALL)
    rows, _ = fetched(write_week(tmp_path / "in", [document]), tmp_path / "raw")
    assert rows[0]["assignees"] == ["Jane Doe"]


# -- what is left out, and what is broken ------------------------------------------------------------------------------

LISTING = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE sequence-cwu SYSTEM "x.dtd" [ ]>\n<sequence-cwu id="S"/>\n'


def test_other_documents_are_left_out_and_counted(tmp_path: Path, window: dict[str, dt.date]) -> None:
    kinds = [Grant(str(n), kind) for n, kind in enumerate(["S1", "P2", "P3", "E1", "H1", "S1", "B1"], 1)]
    early, late = Grant("10", granted=dt.date(2005, 12, 27)), Grant("11", granted=dt.date(2016, 1, 5))
    edges = [Grant("12", granted=window["start"]), Grant("13", granted=window["end"])]
    documents = [*map(as_xml, [*kinds, early, late, *edges]), LISTING]
    rows, facts = fetched(write_week(tmp_path / "in", documents), tmp_path / "raw", window)
    assert [row["publication_number"] for row in rows] == ["US-12-B2", "US-7-B1", "US-13-B2"]
    assert facts["left_out"] == {"E1": 1, "H1": 1, "P2": 1, "P3": 1, "S1": 2, "sequence-cwu": 1}
    assert (facts["grants"], facts["outside_window"], facts["documents"]) == (3, 2, 12)


BOMB = (
    '<?xml version="1.0"?>\n<!DOCTYPE us-patent-grant [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">'
    '<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;"><!ENTITY d "&c;&c;&c;&c;&c;&c;&c;&c;">]>\n'
    "<us-patent-grant>&d;</us-patent-grant>\n"
)
FILE = (
    '<?xml version="1.0"?>\n<!DOCTYPE us-patent-grant [<!ENTITY f SYSTEM "file:///etc/passwd">]>\n'
    "<us-patent-grant>&f;</us-patent-grant>\n"
)
DECLARED = '<?xml version="1.0" encoding="UTF-8"?>\n'


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (as_xml(Grant()).replace("</description>", ""), "is not well-formed: "),
        (as_xml(Grant())[:900] + "\n", "is not well-formed: "),
        (as_xml(Grant()).replace("thing", "thing & more"), "is not well-formed: "),
        (as_xml(Grant()).encode().replace(b"thing", b"th\xffng"), "is not well-formed: "),
        (DECLARED, "is not well-formed: "),
        (f"{DECLARED}<us-patent-grant/>\n", "has no publication-reference"),
        (as_xml(Grant()).replace("<doc-number>07654321</doc-number>", ""), "has no number or no kind"),
        (as_xml(Grant()).replace("<kind>B2</kind>", "<kind> </kind>"), "has no number or no kind"),
        (as_xml(Grant()).replace("<date>20100105</date>", "<date>20100000</date>"), "has no date of grant"),
        (BOMB, "declares entities, which are never resolved"),
        (FILE, "declares entities, which are never resolved"),
        (f"{DECLARED}{'<a>' * 100_000}\n", "is not well-formed: "),
        (as_xml(Grant(), description="<p>" + "x" * 2_000_000 + "</p>"), "is larger than 1 MiB"),
    ],
    ids=itertools.count(),
)
@pytest.mark.parametrize("zipped", [True, False])
def test_a_broken_document_is_counted_with_file_number_and_reason(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    document: str | bytes,
    reason: str,
    zipped: bool,
) -> None:
    monkeypatch.setattr(uspto, "MOST_BYTES", 1 << 20)
    folder = write_week(tmp_path / "in", [as_xml(GRANTS[0]), document, as_xml(GRANTS[1])])
    if not zipped:
        with zipfile.ZipFile(folder / "ipg100105.zip") as archive:
            archive.extractall(folder)
        (folder / "ipg100105.zip").unlink()
    rows, facts = fetched(folder, tmp_path / "raw")
    assert [row["patent_id"] for row in rows] == [GRANTS[0].number, GRANTS[1].number]
    assert (facts["documents"], facts["grants"], facts["broken"]) == (3, 2, 1)
    [record] = broken(tmp_path / "raw")
    assert (record["file"], record["document"]) == ("ipg100105.zip" if zipped else "ipg100105.xml", 2)
    assert record["reason"].startswith(reason)
    assert "documents left out: 1 broken, 0 repeated; " in capsys.readouterr().err
    verify(tmp_path / "raw")


def test_a_broken_document_keeps_its_name(tmp_path: Path) -> None:
    fetched(
        write_week(tmp_path / "in", [as_xml(GRANTS[1]), as_xml(Grant()).replace("</claims>", "")]), tmp_path / "raw"
    )
    [record] = broken(tmp_path / "raw")
    assert record["name"] == "US07654321-20100105.XML"


@pytest.mark.parametrize("run_bytes", [1, 1 << 20])
def test_a_patent_under_two_months_is_kept_in_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_bytes: int
) -> None:
    monkeypatch.setattr("ewe.pipeline.runs.RUN_BYTES", run_bytes)  # in memory, and spilled
    february = Grant(title="Again", granted=dt.date(2010, 2, 2))
    write_week(tmp_path / "in", [as_xml(february), as_xml(GRANTS[1])], "ipg100101")
    write_week(tmp_path / "in", [as_xml(Grant()), as_xml(february)])
    rows, facts = fetched(tmp_path / "in", tmp_path / "raw")

    assert sorted((row["patent_id"], str(row["grant_date"])[:7]) for row in rows) == [
        ("7654321", "2010-01"),
        ("7654322", f"{GRANTS[1].granted:%Y-%m}"),
    ]
    assert (facts["grants"], facts["repeated"], facts["rows"], facts["documents"]) == (2, 2, 2, 4)
    assert [(each["file"], each["publication_number"]) for each in broken(tmp_path / "raw")] == [
        ("ipg100101.zip", "US-7654321-B2"),
        ("ipg100105.zip", "US-7654321-B2"),
    ]


def test_a_patent_that_stands_there_twice_is_kept_once(tmp_path: Path) -> None:
    write_week(tmp_path / "in", [as_xml(Grant()), as_xml(GRANTS[1]), as_xml(Grant())])
    write_week(tmp_path / "in", [as_xml(Grant(title="Later"))], "ipg100112")
    rows, facts = fetched(tmp_path / "in", tmp_path / "raw")
    assert [(row["patent_id"], row["title"]) for row in rows] == [
        ("7654321", "A thing & its use"),
        ("7654322", "Another"),
    ]
    assert (facts["grants"], facts["repeated"], facts["rows"]) == (2, 2, 2)
    assert [(each["file"], each["publication_number"]) for each in broken(tmp_path / "raw")] == [
        ("ipg100105.zip", "US-7654321-B2"),
        ("ipg100112.zip", "US-7654321-B2"),
    ]


@given(
    st.lists(
        st.sampled_from(["<?xml version='1.0'?>", "<?xml-style?>", "<a>", "<?x", "\n", "ml ", "<?xml "]), max_size=12
    ),
    st.integers(1, 9),
)
def test_documents_are_cut_alike_whatever_the_blocks(pieces: list[str], block: int) -> None:
    text = "".join(pieces).encode()
    expected = [piece.lstrip() for piece in re.split(rb"(?=<\?xml\s)", text) if piece.strip()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uspto, "BLOCK", block)
        assert list(uspto._cut(io.BytesIO(text))) == expected


# -- files a person will meet ------------------------------------------------------------------------------------------


def application(_: object = None) -> str:
    return as_xml(Grant()).replace("us-patent-grant", "us-patent-application")


def zip_of(path: Path, **members: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_", "."), content)
    return path


def spoil(path: Path, at: float) -> None:
    """Flip bytes inside a zip's data; its directory at the end stays whole."""
    data = bytearray(path.read_bytes())
    middle = int(len(data) * at)
    data[middle : middle + 40] = bytes(each ^ 0xFF for each in data[middle : middle + 40])
    path.write_bytes(data)


def make_folder(folder: Path, what: str) -> None:
    folder.mkdir()
    whole = write_week(folder, map(as_xml, GRANTS)) / "ipg100105.zip"
    if what == "empty folder":
        whole.unlink()
    elif what == "pictures":
        whole.rename(folder / "grant_pdf_20100105.tar")
    elif what == "cut short":
        whole.write_bytes(whole.read_bytes()[:-200])
    elif what == "empty file":
        whole.write_bytes(b"")
    elif what == "damaged":
        long = "".join(f"<p>{n * 7919 % 1000003}</p>" for n in range(20_000))
        write_week(folder, [as_xml(Grant(), description=long)])
        spoil(whole, 0.5)
    elif what == "web page":
        whole.write_text("<!DOCTYPE html><html><body>Sign in</body></html>")
    elif what == "web page inside":
        zip_of(whole, ipg100105_xml="<html><body>Sign in</body></html>")
    elif what == "no zip":
        whole.write_bytes(b"\x1f\x8b\x08\x00 some other archive")
    elif what == "zip in zip":
        zip_of(folder / "2010.zip", ipg100105_zip=whole.read_bytes())
    elif what == "pdf":
        zip_of(whole, grant_pdf=b"%PDF-1.4")
    elif what == "applications":
        write_week(folder, [application()], "ipa100107")
    elif what == "before 2005":
        write_week(
            folder,
            ['<?xml version="1.0"?>\n<!DOCTYPE PATDOC SYSTEM "ST32-US-Grant-025xml.dtd" [\n]>\n<PATDOC/>'],
            "pg041228",
        )
    elif what == "front pages":
        bare = re.sub(r"<description.*</claims>", "", as_xml(Grant()), flags=re.DOTALL)
        write_week(folder, [bare], "ipgb20100105_wk01")
    elif what == "same week":
        (folder / "unpacked").mkdir()
        (folder / "unpacked" / "ipg100105.xml").write_text(as_xml(Grant()))


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("empty folder", "holds no .zip or .xml file; give --input the folder of ipgYYMMDD.zip files."),
        ("pictures", "holds no .zip or .xml file"),
        ("cut short", "ipg100105.zip is cut short; download it again."),
        ("empty file", "ipg100105.zip is empty; download it again."),
        ("damaged", r"ipg100105.zip is damaged \(.*\); download it again."),
        ("web page", "ipg100105.zip is a web page, not the file it is named after; download it again, signed in."),
        ("web page inside", "ipg100105.zip holds a web page"),
        ("no zip", "ipg100105.zip is no zip file; download it again."),
        ("zip in zip", r"2010.zip holds another zip \(ipg100105.zip\); unpack it once, and give the folder."),
        ("pdf", "ipg100105.zip holds no .xml file; download the grants' full text"),
        ("applications", r"ipa100107.zip holds published applications \(ipa\), not grants"),
        ("before 2005", "pg041228.zip is of the format before 2005"),
        ("front pages", r"ipgb20100105_wk01.zip holds front pages without claims \(ipgb\)"),
        ("same week", "are the same week; remove one of them."),
    ],
)
def test_one_sentence_for_each(tmp_path: Path, what: str, sentence: str) -> None:
    make_folder(tmp_path / "in", what)
    with pytest.raises(DataError, match=sentence):
        fetched(tmp_path / "in", tmp_path / "raw")
    assert not list(tmp_path.glob("raw/grants*"))


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist; give --input"):
        UsptoEngine(tmp_path / "nowhere")


def test_files_in_subfolders_and_beside_others(tmp_path: Path) -> None:
    write_week(tmp_path / "in" / "2010", [as_xml(GRANTS[0])])
    write_week(tmp_path / "in" / "2011" / "deep", [as_xml(GRANTS[3])], "ipg110816")
    (tmp_path / "in" / "readme.txt").write_text("notes")
    (tmp_path / "in" / "._ipg100105.zip").write_bytes(b"left by another system")
    zip_of(
        tmp_path / "in" / "one.zip",
        **{"a/US1_xml": as_xml(Grant("1")), "a/notes_html": "<html/>", "US2_XML": as_xml(Grant("2"))},
    )
    rows, facts = fetched(tmp_path / "in", tmp_path / "raw")
    assert {row["patent_id"] for row in rows} == {"7654321", "8000000", "1", "2"}
    assert facts["input_files"] == 3


def test_one_file(tmp_path: Path) -> None:
    folder = write_week(tmp_path / "in", [as_xml(Grant())])
    rows, _ = fetched(folder / "ipg100105.zip", tmp_path / "raw")
    assert len(rows) == 1


# -- several files, resumed --------------------------------------------------------------------------------------------


def weeks(folder: Path, count: int = 5) -> Path:
    for week in range(count):
        granted = dt.date(2010, 1, 5) + dt.timedelta(weeks=week)
        documents = [as_xml(Grant(str(7_000_000 + 100 * week + n), granted=granted)) for n in range(20)]
        write_week(folder, [*documents, DECLARED], f"ipg{granted:%y%m%d}")
    return folder


def content(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir() if path.suffix in (".parquet", ".jsonl", ".json")}


def test_in_parallel_one_by_one_and_resumed_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = weeks(tmp_path / "in")
    monkeypatch.setattr(uspto.os, "cpu_count", lambda: 2)
    fetched(folder, tmp_path / "parallel")
    monkeypatch.setattr(uspto.os, "cpu_count", lambda: 1)
    rows, facts = fetched(folder, tmp_path / "single")
    assert content(tmp_path / "single") == content(tmp_path / "parallel")
    assert (len(rows), facts["grants"], facts["broken"]) == (100, 100, 5)
    assert [(each["file"], each["document"]) for each in broken(tmp_path / "single")] == [
        (f"ipg{dt.date(2010, 1, 5) + dt.timedelta(weeks=week):%y%m%d}.zip", 21) for week in range(5)
    ]

    scan_file, scanned = uspto._scan_file, []

    def interrupted(job: uspto._Job) -> uspto._Found:
        if len(scanned) == 2:
            raise KeyboardInterrupt
        scanned.append(job.path.name)
        return scan_file(job)

    monkeypatch.setattr(uspto, "_scan_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetched(folder, tmp_path / "resumed")
    done = list(scanned)
    monkeypatch.setattr(uspto, "_scan_file", lambda job: scanned.append(job.path.name) or scan_file(job))
    fetched(folder, tmp_path / "resumed")
    assert sorted(scanned) == sorted({*scanned})
    assert scanned[:2] == done
    assert content(tmp_path / "resumed") == content(tmp_path / "single")


def test_a_failure_in_one_of_several_processes_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uspto.os, "cpu_count", lambda: 2)
    folder = weeks(tmp_path / "in", 3)
    long = "".join(f"<p>{n * 7919 % 1000003}</p>" for n in range(20_000))
    write_week(folder, [as_xml(Grant(), description=long)], "ipg100302")
    spoil(folder / "ipg100302.zip", 0.5)
    with pytest.raises(DataError, match=r"ipg100302.zip is damaged"):
        fetched(folder, tmp_path / "raw")


def die(_: object) -> None:
    os._exit(9)


def test_a_process_that_is_killed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uspto.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(uspto, "_scan_file", die)
    with pytest.raises(EweError, match="A process ended unasked"):
        fetched(weeks(tmp_path / "in", 2), tmp_path / "raw")


def test_another_input_is_refused_and_finished_work_stays(tmp_path: Path) -> None:
    folder = write_week(tmp_path / "in", [as_xml(Grant())])
    fetched(folder, tmp_path / "raw")
    before = content(tmp_path / "raw")
    fetched(folder, tmp_path / "raw")
    assert content(tmp_path / "raw") == before
    write_week(folder, [as_xml(Grant(title="Other"))])
    with pytest.raises(DataError, match="was made differently"):
        fetched(folder, tmp_path / "raw")


def test_the_plan_writes_nothing(tmp_path: Path) -> None:
    folder = write_week(tmp_path / "in", [as_xml(Grant())])
    assert plan(UsptoEngine(folder), **SINCE_2005)["input_files"] == 1


def test_no_grant_in_the_window(tmp_path: Path) -> None:
    folder = write_week(tmp_path / "in", [as_xml(replace(Grant(), granted=dt.date(2020, 1, 7)))])
    with pytest.raises(DataError, match="No US utility grant"):
        fetched(folder, tmp_path / "raw")
