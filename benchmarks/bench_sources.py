"""The account-free sources: XML a core, memory from one file to ten, and PatentsView's join at full size.

    python benchmarks/bench_sources.py [--weeks FOLDER] [--grants 20000] [--folder DIR]
    python benchmarks/bench_sources.py --full          1.9M grants, 35M claims: an hour and 30 GB of disk on two cores

    xml              one made-up weekly file (or those of --weeks, real ones) read by `ewe-data fetch --source uspto`'s
                     worker, in this process: MB of uncompressed text a second of processor time and of clock time
    xml, memory      peak of the main process and of its largest worker, for one file and for ten
    patentsview      made-up tables of every published patent, as many claims as the grants have; peak memory, seconds

Each measurement with a peak runs in a fresh process. Prints one JSON document.
"""

from __future__ import annotations

import argparse
import datetime as dt
import multiprocessing
import resource
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from result import keep

from ewe.pipeline.fetch import fetch_grants
from ewe.pipeline.patentsview import PatentsviewEngine
from ewe.pipeline.uspto import UsptoEngine, _Job, _scan_file

WINDOW = {"start": dt.date(2006, 1, 1), "end": dt.date(2015, 12, 31)}
TUESDAYS = [dt.date(2006, 1, 3) + dt.timedelta(weeks=n) for n in range(521)]
FULL = 1_900_000  # grants of the window
OTHERS = 3.8  # published patents outside of the window, a grant in it
CLAIMS = 18.4  # a grant, on average
CODES = 6.2  # a patent, on average, of today's
BLOCK = 1_000_000  # rows made at once


def make_words(random: np.random.Generator, count: int = 5000) -> list[str]:
    """Words of the lengths of English ones."""
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    return ["".join(random.choice(letters, max(1, int(size)))) for size in random.normal(5.5, 2.5, count)]


# -- weekly XML -------------------------------------------------------------------------------------------------------


def make_document(random: np.random.Generator, words: list[str], number: int, granted: dt.date) -> str:
    """A grant of real proportions: 80 KB, most of it description with references to figures in bold."""

    def text(length: int) -> str:
        chosen = [words[k] for k in random.zipf(1.3, length) % len(words)]
        for k in range(0, length, 12):
            chosen[k] = f"{chosen[k]} <b>{k}</b>"
        return " ".join(chosen)

    code = (
        "<section>G</section><class>06</class><subclass>F</subclass><main-group>17</main-group><subgroup>30</subgroup>"
    )
    ipc = "".join(
        f"<classification-ipcr>\n{code}<symbol-position>{position}</symbol-position>"
        "<classification-value>I</classification-value></classification-ipcr>\n"
        for position in "FLL"
    )
    citations = "".join(
        f"<citation>\n<patcit num='{n:05d}'>\n<document-id>\n<country>US</country>\n<doc-number>{n}</doc-number>\n"
        "<kind>A</kind>\n<name>Doe</name>\n<date>19990100</date>\n</document-id>\n</patcit>\n</citation>\n"
        for n in range(25)
    )
    claims = "".join(
        f'<claim id="CLM-{n:05d}" num="{n:05d}">\n<claim-text>{n}. The thing of <claim-ref idref="CLM-00001">claim 1'
        f"</claim-ref>, comprising:\n<claim-text>{text(30)};</claim-text>\n<claim-text>{text(25)}.</claim-text>\n"
        "</claim-text>\n</claim>\n"
        for n in range(1, 19)
    )
    description = "".join(f'<p id="p-{n:04d}" num="{n:04d}">{text(130)}</p>\n' for n in range(75))
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<!DOCTYPE us-patent-grant SYSTEM "us-patent-grant-v42-2006-08-23.dtd" [ ]>\n'
        f'<us-patent-grant lang="EN" file="US{number:08d}.XML">\n<us-bibliographic-data-grant>\n'
        f"<publication-reference>\n<document-id>\n<country>US</country>\n<doc-number>{number:08d}</doc-number>\n"
        f"<kind>B2</kind>\n<date>{granted:%Y%m%d}</date>\n</document-id>\n</publication-reference>\n"
        f"<classifications-ipcr>\n{ipc}</classifications-ipcr>\n<invention-title id='d0e1'>A thing</invention-title>\n"
        f"<references-cited>\n{citations}</references-cited>\n</us-bibliographic-data-grant>\n"
        f"<description id='d'>\n{description}</description>\n"
        f"<claims id='claims'>\n{claims}</claims>\n</us-patent-grant>\n"
    )


def make_weeks(folder: Path, count: int, documents: int = 300) -> Path:
    """Weekly files of equal content and other numbers."""
    folder.mkdir()
    random = np.random.default_rng(0)
    words = make_words(random)
    made = [make_document(random, words, n, TUESDAYS[0]) for n in range(1, documents + 1)]
    for week in range(count):
        with zipfile.ZipFile(folder / f"ipg{TUESDAYS[week]:%y%m%d}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            numbered = [each.replace("<doc-number>0", f"<doc-number>{week}", 1) for each in made]
            archive.writestr(f"ipg{TUESDAYS[week]:%y%m%d}.xml", "".join(numbered))
    return folder


def uncompressed(path: Path) -> int:
    """Bytes of a zip's content."""
    with zipfile.ZipFile(path) as archive:
        return sum(info.file_size for info in archive.infolist())


def time_xml(files: list[Path], raw: Path, rounds: int) -> dict[str, Any]:
    """The best of some rounds over the files, one process."""
    size = sum(map(uncompressed, files)) / 1e6
    best: dict[str, float] = {"clock": np.inf, "processor": np.inf}
    grants = 0
    for _ in range(rounds):
        clock, processor = time.perf_counter(), time.process_time()
        found = [_scan_file(_Job(path, raw, dt.date(2005, 1, 1), dt.date(2030, 1, 1))) for path in files]
        best["clock"] = min(best["clock"], time.perf_counter() - clock)
        best["processor"] = min(best["processor"], time.process_time() - processor)
        grants = sum(each.counts["grants"] for each in found)
    return {
        "mb": round(size, 1),
        "grants": grants,
        "mb_a_second_of_processor_time": round(size / best["processor"], 1),
        "mb_a_second_of_clock_time": round(size / best["clock"], 1),
    }


# -- PatentsView's tables ---------------------------------------------------------------------------------------------


def write_table(folder: Path, name: str, frames: Iterator[pl.DataFrame]) -> None:
    """A table as published: strings quoted, numbers bare, in a zip."""
    path = folder / f"{name}.tsv.zip"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open(f"{name}.tsv", "w", force_zip64=True) as stream,
    ):
        for index, frame in enumerate(frames):
            block = BytesIO()
            frame.write_csv(block, separator="\t", quote_style="non_numeric", include_header=index == 0)
            stream.write(block.getbuffer())


def make_tables(folder: Path, grants: int) -> dict[str, int]:
    """Tables of all published patents, of which `grants` fall in the window; returns rows by table."""
    folder.mkdir()
    random = np.random.default_rng(0)
    words = make_words(random)
    sizes = np.maximum(3, random.lognormal(3.9, 0.6, 20_000)).astype(int)
    texts = pl.Series([" ".join(random.choice(words, size)) for size in sizes])
    wanted = np.arange(7_000_000, 7_000_000 + grants)
    before = np.arange(1, 1 + int(grants * OTHERS))
    patents = pl.Series(np.concatenate([wanted, before]))
    day = np.concatenate([np.arange(grants) * len(TUESDAYS) // grants, np.full(len(before), -1)])
    dates = pl.Series([*map(str, TUESDAYS), "1999-01-05"])
    rows: dict[str, int] = {}

    def blocks(name: str, total: int, make: Callable[[slice], pl.DataFrame]) -> None:
        rows[name] = total
        write_table(folder, name, (make(slice(start, min(start + BLOCK, total))) for start in range(0, total, BLOCK)))

    blocks(
        "g_patent",
        len(patents),
        lambda part: pl.DataFrame(
            {
                "patent_id": patents[part].cast(pl.String),
                "patent_type": "utility",
                "patent_date": dates.gather(day[part] % len(dates)),
                "patent_title": "A thing of some length and its use",
                "wipo_kind": "B2",
                "num_claims": 17,
                "withdrawn": 0,
                "filename": "ipg060103.xml",
            }
        ),
    )
    order = random.permutation(np.repeat(np.arange(len(patents)), random.poisson(CODES, len(patents))))
    sequence = random.integers(0, 7, len(order))
    groups = pl.Series([f"{a}{n:02d}{b}{n}/{n:02d}" for a in "ABCFGH" for n in range(1, 60) for b in "BFKL"])
    blocks(
        "g_cpc_current",
        len(order),
        lambda part: pl.DataFrame(
            {
                "patent_id": patents.gather(order[part]).cast(pl.String),
                "cpc_sequence": sequence[part],
                "cpc_section": "G",
                "cpc_class": "G06",
                "cpc_subclass": "G06F",
                "cpc_group": groups.gather(order[part] * 7 % len(groups)),
                "cpc_type": "inventional",
            }
        ),
    )
    blocks(
        "g_application",
        len(patents),
        lambda part: pl.DataFrame(
            {
                "application_id": "11/" + patents[part].cast(pl.String),
                "patent_id": patents[part].cast(pl.String),
                "patent_application_type": "11",
                "filing_date": "2003-05-06",
                "series_code": "11",
                "rule_47_flag": 0,
            }
        ),
    )
    blocks(
        "g_assignee_disambiguated",
        len(patents),
        lambda part: pl.DataFrame(
            {
                "patent_id": patents[part].cast(pl.String),
                "assignee_sequence": 0,
                "assignee_id": "3f0c5b2e-" + patents[part].cast(pl.String),
                "disambig_assignee_individual_name_first": None,
                "disambig_assignee_individual_name_last": None,
                "disambig_assignee_organization": "Things Incorporated",
                "assignee_type": 2,
                "location_id": "af0c5b2e-16c8-11ed-9b5f-1234bf3cd141",
            }
        ),
    )
    for year in range(2006, 2016):
        mine = wanted[[TUESDAYS[week].year == year for week in day[:grants]]]
        counts = np.maximum(1, random.poisson(CLAIMS, len(mine)))
        owner = np.repeat(mine, counts)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        picked = random.integers(0, len(texts), len(owner))
        blocks(
            f"g_claims_{year}",
            len(owner),
            lambda part, owner=owner, number=number, picked=picked: pl.DataFrame(
                {
                    "patent_id": pl.Series(owner[part]).cast(pl.String),
                    "claim_sequence": number[part],
                    "claim_text": pl.Series(number[part] + 1).cast(pl.String) + ". " + texts.gather(picked[part]) + ".",
                    "dependent": None,
                    "claim_number": pl.Series(number[part] + 1).cast(pl.String),
                    "exemplary": 0,
                }
            ),
        )
    return rows


# -- peaks, each in a fresh process -----------------------------------------------------------------------------------


def fetch_apart(engine: Callable[..., Any], arguments: tuple[Any, ...], out: Path) -> dict[str, Any]:
    """Fetch in a process of its own; its peak, that of its largest worker, and its time."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_fetch, engine, arguments, out).result()


def peak_kib() -> int:
    """The peak of this process alone; getrusage would count what the parent held when it started this one."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def _fetch(engine: Callable[..., Any], arguments: tuple[Any, ...], out: Path) -> dict[str, Any]:
    start = time.perf_counter()
    summary = fetch_grants(engine(*arguments), out, **WINDOW)
    return {
        "rows": summary["rows"],
        "seconds": round(time.perf_counter() - start, 1),
        "peak_mib": peak_kib() // 1024,
        "peak_mib_of_largest_worker": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
        "raw_mb": round(sum(path.stat().st_size for path in out.glob("*.parquet")) / 1e6, 1),
    }


def bench_xml(folder: Path, weeks: Path | None, rounds: int) -> dict[str, Any]:
    """Speed of one process, and peaks for one file and for ten."""
    files = sorted(weeks.rglob("*.zip")) if weeks else [*make_weeks(folder / "one", 1).iterdir()]
    result: dict[str, Any] = {"made_up": weeks is None, **time_xml(files, folder / "raw", rounds)}
    for count in (1, 10):
        made = make_weeks(folder / f"weeks-{count}", count)
        result[f"fetch of {count}"] = fetch_apart(UsptoEngine, (made,), folder / f"raw-{count}")
    return result


def bench_patentsview(folder: Path, grants: int) -> dict[str, Any]:
    """Peak and time of the join."""
    start = time.perf_counter()
    rows = make_tables(folder / "tables", grants)
    made = {
        "rows": rows,
        "claims": sum(n for name, n in rows.items() if name.startswith("g_claims_")),
        "zipped_mb": round(sum(path.stat().st_size for path in (folder / "tables").iterdir()) / 1e6),
        "unzipped_mb": round(sum(map(uncompressed, (folder / "tables").iterdir())) / 1e6),
        "seconds_to_make": round(time.perf_counter() - start),
    }
    return {
        "tables": made,
        "fetch": fetch_apart(PatentsviewEngine, (folder / "tables", "current"), folder / "raw-tables"),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weeks", type=Path, help="folder of real weekly files to time instead of a made-up one")
    parser.add_argument("--grants", type=int, default=20_000, help="grants of the PatentsView tables")
    parser.add_argument("--full", action="store_true", help=f"{FULL:,} grants")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to work; removed afterwards")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="sources-", dir=options.folder))
    try:
        result = {
            "xml": bench_xml(folder, options.weeks, options.rounds),
            "patentsview": bench_patentsview(folder, FULL if options.full else options.grants),
        }
    finally:
        shutil.rmtree(folder)
    keep("sources", result, "lxml", "duckdb", "pyarrow")


if __name__ == "__main__":
    main()
