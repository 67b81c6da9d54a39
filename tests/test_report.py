import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from browser import chromium
from datasets_made import make_dataset, some_patents
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("matplotlib", reason="the report extra is not installed")
pytest.importorskip("great_tables", reason="the report extra is not installed")

from ewe.pipeline import report
from ewe.pipeline.charts import histogram, short
from ewe.pipeline.dedup import dedup_folder
from ewe.pipeline.release import release_folder


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dataset = make_dataset(tmp_path_factory.mktemp("report"), some_patents())
    dedup_folder(dataset)
    release_folder(dataset)
    return dataset


@pytest.fixture(scope="module")
def figures(released: Path) -> dict[str, Any]:
    return json.loads((released / "report.json").read_text())


def rows(dataset: Path, split: str) -> pl.DataFrame:
    return pl.read_parquet(dataset / f"relabeled/{split}-*.parquet")


# -- the numbers ------------------------------------------------------------------------------------------------------


def test_every_fetched_patent_is_somewhere(figures: dict[str, Any]) -> None:
    counted = figures["rows"]

    assert counted["source"] == counted["relabeled"] + counted["no_first"] + sum(counted["dropped"].values())
    assert counted["relabeled"] == sum(each["rows"] for each in figures["splits"].values())
    assert counted["no_first"] == sum(each["no_first"] for each in figures["splits"].values())


def test_label_counts_equal_those_of_the_rows(released: Path, figures: dict[str, Any]) -> None:
    train = rows(released, "train")
    first = Counter(train["first"])
    later = Counter(symbol for symbols in train["later"] for symbol in symbols)

    assert {each["subclass"]: each["first"] for each in figures["subclasses"] if each["first"]} == first
    assert {each["subclass"]: each["later"] for each in figures["subclasses"] if each["later"]} == later
    relabeled = sorted([*first.values(), *later.values()], reverse=True)
    assert figures["rank_frequency"]["relabeled"] == relabeled
    raw = Counter(symbol for one, more in zip(train["first"], train["later"], strict=True) for symbol in {one, *more})
    assert figures["rank_frequency"]["raw"] == sorted(raw.values(), reverse=True)


def test_table_2_equals_its_definition(released: Path, figures: dict[str, Any]) -> None:
    labels = json.loads((released / "labels.json").read_text())["position"]
    counts = labels["counts"]["train"]
    order = sorted(range(len(counts)), key=lambda label: -counts[label])
    most = next(k for k in range(1, len(order) + 1) if sum(counts[i] for i in order[:k]) >= 0.9 * sum(counts))
    for split in figures["splits"]:
        theirs = np.array(labels["counts"][split], float)
        line = figures["table_2"][split]["relabeled"]
        assert line["total"] == pytest.approx(theirs.std())
        assert line["majors"] == pytest.approx(theirs[order[:most]].std())
        assert line["total_cv"] == pytest.approx(theirs.std() / theirs.mean())


def test_sections_and_years_equal_those_of_the_rows(released: Path, figures: dict[str, Any]) -> None:
    everything = pl.read_parquet(released / "relabeled/*.parquet")
    found = Counter(zip(everything["grant_date"].dt.year(), everything["first"].str.head(1), strict=True))

    assert {
        (int(year), section): n for year, sections in figures["sections"].items() for section, n in sections.items()
    } == found


def test_what_is_cut_equals_a_slow_count(released: Path, figures: dict[str, Any]) -> None:
    train, cut = rows(released, "train"), figures["cut"]
    claims = train["n_claims"].to_list()
    words = [text.split() for text in train["text"]]
    bytes_ = [len(word.encode()) for text in words for word in text]

    assert cut["claims_cut"]["patents"] == pytest.approx(sum(n > 20 for n in claims) / len(claims))
    assert cut["claims_cut"]["claims"] == pytest.approx(sum(max(0, n - 20) for n in claims) / sum(claims))
    assert cut["words_cut"]["patents"] == pytest.approx(sum(len(text) > 126 for text in words) / len(words))
    assert cut["words_cut"]["words"] == pytest.approx(sum(max(0, len(text) - 126) for text in words) / len(bytes_))
    assert cut["letters_cut"]["words"] == pytest.approx(sum(n > 16 for n in bytes_) / len(bytes_))
    assert cut["letters_cut"]["bytes"] == pytest.approx(sum(max(0, n - 16) for n in bytes_) / sum(bytes_))
    assert figures["splits"]["train"]["words_median"] == sorted(map(len, words))[-(-len(words) // 2) - 1]
    assert sum(figures["histograms"]["words"]) == len(words)
    assert sum(figures["histograms"]["letters"]) == len(bytes_)
    assert figures["histograms"]["claims"][4] == claims.count(5)


def test_drift_is_the_total_variation_distance(released: Path, figures: dict[str, Any]) -> None:
    train, test = Counter(rows(released, "train")["first"]), Counter(rows(released, "test_2015a")["first"])
    known = {label: n for label, n in test.items() if label in train}
    distance = sum(abs(train[label] / train.total() - known.get(label, 0) / sum(known.values())) for label in train) / 2

    assert figures["splits"]["test_2015a"]["drift"]["first"]["distance"] == pytest.approx(distance)
    assert figures["splits"]["train"]["drift"] is None


@given(st.lists(st.integers(1, 50), min_size=2, max_size=30), st.integers(50, 3000), st.integers(0, 2**32 - 1))
def test_chance_makes_the_distance_that_is_said(weights: list[int], size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    p = np.array(weights) / sum(weights)
    pairs = random.multinomial(size, p, (60, 2))
    found = np.mean([report._distance(a, b) for a, b in pairs])
    said = np.mean([report._by_chance(a, b) for a, b in pairs])

    assert said == pytest.approx(found, rel=0.35, abs=0.01)


def test_near_copies_equal_the_groups(released: Path, figures: dict[str, Any]) -> None:
    groups = pl.read_parquet(released / "duplicates/groups.parquet")
    sizes = groups.group_by("group").len()["len"].to_list()

    assert figures["duplicates"]["rows_in_groups"] == groups.height > 0
    assert figures["duplicates"]["groups_by_size"] == {str(size): n for size, n in sorted(Counter(sizes).items())}
    leaking = groups.filter(pl.col("leak").is_not_null()).group_by("split").len().rows()
    found = {split: each["leaking"] for split, each in figures["duplicates"]["leakage"].items() if each["leaking"]}
    assert found == dict(leaking) != {}


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0%"), (0.0003, "0.03%"), (0.001, "0.1%"), (0.0123, "1.2%"), (0.02, "2%"), (0.999, "99%"), (1, "100%")],
)
def test_percent(share: float, text: str) -> None:
    assert report.percent(share) == text


def test_numbers_in_few_digits() -> None:
    assert [short(n) for n in (0.5, 12, 372.2, 1800, 12_600, 1_910_000)] == [
        "0.5",
        "12",
        "372",
        "1.8k",
        "12.6k",
        "1.91M",
    ]
    assert [report.digits(n) for n in (0.5, 27, 372.2, 999.7, 12_600)] == ["0.500", "27.0", "372", "1k", "12.6k"]


# -- alerts -----------------------------------------------------------------------------------------------------------


def alerts(dataset: Path) -> str:
    release_folder(dataset)
    found = json.loads((dataset / "report.json").read_text())["alerts"]
    return "\n".join(f"{alert['level']}: {alert['text']}" for alert in found)


def test_alerts_say_what_is_wrong(released: Path, tmp_path: Path) -> None:
    assert "have a near-copy in train" in alerts(released)
    assert "note: CPC began in 2013" in alerts(released)
    few = [patent for patent in some_patents() if patent["grant_date"] < 20100000 or patent["grant_date"] > 20150700]  # type: ignore[operator]
    found = alerts(make_dataset(tmp_path, few))
    assert "warning: Split test_2015a has no row" in found
    assert "warning: No labelled patent was granted in 2010, 2011, 2012, 2013, 2014." in found
    assert "note: Near-copies have not been looked for yet" in found


def test_codes_that_are_no_symbols_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    patents = some_patents()
    for patent, code in zip(patents, ["N/A", "a01b1/00", "A01B1/00", "-"], strict=False):
        patent["cpc"] = [{"code": code, "first": True, "inventive": True}]
    found = alerts(make_dataset(tmp_path, patents))
    assert "warning: 3 subclasses are no CPC symbols (-, N/A, a01b); they stay" in capsys.readouterr().err
    assert "warning: 3 subclasses are no CPC symbols: -, N/A, a01b." in found


def test_made_up_patents_are_said_to_be(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, some_patents(), made_up=True)

    assert alerts(dataset).startswith("warning: These patents are made up")
    assert "These patents are made up" in (dataset / "report.html").read_text()
    assert "**These patents are made up**" in (dataset / "README.md").read_text()


# -- the page ---------------------------------------------------------------------------------------------------------


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_one_small_file_that_asks_for_nothing(released: Path) -> None:
    text = (released / "report.html").read_text()
    page = Elements(text)

    assert len(text.encode()) < 3_000_000
    assert "script" not in {tag for tag, _ in page.found}
    assert not re.search(r"url\((?!#)|@import|@font-face", text)
    for tag, attributes in page.found:
        for name in ("src", "href", "xlink:href", "data", "srcset", "action"):
            target = attributes.get(name) or "#"
            assert target.startswith(("#", "data:")) or (tag, name) == ("a", "href"), (tag, target)
    ids = [attributes["id"] for _, attributes in page.found if attributes.get("id")]
    assert len(ids) == len(set(ids))
    assert text.count("<svg") >= 8
    assert all(attributes["aria-label"] for tag, attributes in page.found if tag == "svg")


def test_the_page_shows_the_numbers_of_the_json(released: Path, figures: dict[str, Any]) -> None:
    text = " ".join(Elements((released / "report.html").read_text()).text.split())

    shown = [
        f"{figures['rows']['relabeled']:,}",
        f"{figures['labels']['position']:,}",
        *figures["commands"][0].split("\n"),
    ]
    shown += [alert["text"] for alert in figures["alerts"]]
    for lines in figures["table_2"].values():
        shown += [report.digits(line[key]) for line in lines.values() for key in ("total", "majors_cv")]
    shown += [report.percent(cut[key]) for cut in (figures["cut"]["words_cut"],) for key in cut]
    for each in shown:
        assert each.strip(" \\") in text


def test_a_dataset_of_next_to_nothing_has_a_page_too(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, some_patents()[:1])
    release_folder(dataset)

    assert "<svg" in (dataset / "report.html").read_text()


def test_a_cut_bar_is_cut_where_the_cut_is() -> None:
    drawn = histogram("test", [5, 5, 5, 5], 50, 126, across="words", up="texts")

    assert drawn == histogram("test", [5, 5, 5, 5], 50, 126, across="words", up="texts")
    assert "var(--one)" in drawn
    assert "var(--two)" in drawn
    assert not re.search(r"#00000\d", drawn)


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_chromium_shows_it_without_a_request_or_an_error(
    released: Path, tmp_path: Path, width: int, dark: bool
) -> None:
    with chromium(tmp_path) as page:
        page.open(released / "report.html", width=width, dark=dark)

        wide = page.value("document.documentElement.scrollWidth")
        background = page.value("getComputedStyle(document.body).backgroundColor")
        boxes = "[...document.querySelectorAll('svg')].map(each => each.getBoundingClientRect())"
        sizes = page.value(f"{boxes}.map(box => [box.width, box.height])")
        asked = [event["request"]["url"] for event in page.heard("Network.requestWillBeSent")]
        said = [
            *page.heard("Log.entryAdded"),
            *page.heard("Runtime.consoleAPICalled"),
            *page.heard("Runtime.exceptionThrown"),
        ]

    assert [url for url in asked if not url.startswith("data:")] == [(released / "report.html").as_uri()]
    assert said == []
    assert wide <= width  # nothing sticks out to the side
    assert all(w > 250 and h > 20 for w, h in sizes)
    assert (background == "rgb(255, 255, 255)") is not dark
