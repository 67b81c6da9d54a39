"""The BigQuery engine against a loopback service that bills, expires and fails as the real one does."""

import ast
import contextlib
import datetime as dt
import json
import random
import signal
import socket
import string
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import google.auth.transport.requests as transport
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import publication
from fake_bigquery import SOURCE, FakeBigQuery
from grpc import StatusCode
from hypothesis import given, settings
from hypothesis import strategies as st

import ewe
from ewe.errors import CostError, DataError, IncompleteError, ServiceError, UsageError
from ewe.pipeline import bigquery, price, schema
from ewe.pipeline.bigquery import MAX_BYTES, BigQueryEngine, fingerprint, query_config, query_text
from ewe.pipeline.fetch import fetch_grants, fetch_labels
from ewe.pipeline.fetch import plan as fetch_plan
from ewe.pipeline.local import ParquetEngine
from ewe.store import verify

WINDOW = {"start": dt.date(2010, 1, 1), "end": dt.date(2010, 2, 28)}
MONTH = {"start": dt.date(2010, 1, 1), "end": dt.date(2010, 1, 31)}
ABSTRACT = pa.field("abstract_localized", schema.PUBLICATIONS.field("title_localized").type)


def grants(rows: int, text: str = "1. A thing.") -> pa.Table:
    """Grants spread over January and February 2010, and a few that the query leaves out."""
    made = [
        publication(
            f"US-{7_000_000 + index * 7919 % 1_000_003}-B{1 + index % 2}",
            grant_date=20100100 + index % 2 * 100 + 1 + index % 28,
            claims_localized=[{"text": f"{text} No. {index}", "language": "en", "truncated": False}],
        )
        for index in range(rows)
    ]
    left_out = [publication("US-1-B2", grant_date=0), publication("DE-1-B2", country_code="DE")]
    return pa.Table.from_pylist(made + left_out, schema.PUBLICATIONS)


class Service(FakeBigQuery):
    """The fake, with the engine and the fetch that talk to it; all its queries must have carried a cap."""

    def __init__(self, publications: pa.Table, **settings: Any) -> None:
        super().__init__(publications, **settings)
        self.slept: list[float] = []

    def engine(self, **options: Any) -> BigQueryEngine:
        return BigQueryEngine("my-project", sleep=self.slept.append, **options)

    def fetch(self, out: Path, window: dict[str, dt.date] = WINDOW, **options: Any) -> dict[str, Any]:
        return fetch_grants(self.engine(**options), out, **window)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        assert all(0 < int(each["maximumBytesBilled"]) <= MAX_BYTES for each in self.queries)


@pytest.fixture
def service() -> Any:
    with Service(grants(300)) as running:
        yield running


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The shards that the embedded engine makes of the same rows."""
    return from_parquet(tmp_path_factory.mktemp("parquet"), grants(300))


def from_parquet(folder: Path, table: pa.Table, window: dict[str, dt.date] = WINDOW) -> dict[str, bytes]:
    pq.write_table(table, folder / "publications.parquet")
    fetch_grants(ParquetEngine(folder / "publications.parquet"), folder / "from-parquet", **window)
    return shards(folder / "from-parquet")


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.parquet"))}


def numbers(folder: Path) -> list[str]:
    return [each for path in sorted(folder.glob("*.parquet")) for each in pq.read_table(path)[0].to_pylist()]


# -- what comes out ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "service_like",
    [
        {},
        {"streams": 1, "batch_rows": 1000},
        {"streams": 9, "batch_rows": 1},
        {"schema_in": "response"},
        {"codec": "none"},
        {"codec": "lz4"},
        {"sparse": True},
        {"polls": 0},
    ],
)
def test_the_shards_equal_those_of_the_embedded_engine(
    tmp_path: Path, expected: dict[str, bytes], service: Service, service_like: dict[str, Any]
) -> None:
    for name, value in service_like.items():
        setattr(service, name, value)

    summary = service.fetch(tmp_path / "raw")

    assert shards(tmp_path / "raw") == expected
    assert summary["rows"] == 300
    assert len(service.billed) == 1
    assert verify(tmp_path / "raw")["files"] == 3  # two months and job.json
    assert not list((tmp_path / "raw").rglob("*.tmp"))


def test_real_patents_come_out_as_from_parquet(tmp_path: Path, real: Path) -> None:
    table = pq.read_table(real / "publications.parquet")
    window = {"start": dt.date(2006, 1, 1), "end": dt.date(2008, 12, 31)}
    with Service(table) as running:
        running.fetch(tmp_path / "raw", window)

    assert shards(tmp_path / "raw") == from_parquet(tmp_path, table, window) != {}


def test_the_manifest_names_the_snapshot_the_job_and_its_bill(tmp_path: Path, service: Service) -> None:
    service.fetch(tmp_path / "raw")

    manifest = json.loads((tmp_path / "raw" / "manifest.json").read_text())
    job_id, billed = service.billed[0]

    assert manifest["config"]["source"] == "bigquery"
    assert (manifest["job_id"], manifest["billed_bytes"]) == (job_id, billed)
    assert manifest["snapshot"] == service.modified.isoformat()
    assert manifest["years"] == {"2010": 300}
    assert manifest["sql_sha256"] == json.loads((tmp_path / "raw" / "job.json").read_text())["sql_sha256"]


def test_abstracts_come_where_asked_for_and_only_then_are_read(tmp_path: Path) -> None:
    abstract = pa.array([[{"text": "Short.", "language": "en", "truncated": False}]] * 42, ABSTRACT.type)
    with Service(grants(40).append_column(ABSTRACT, abstract)) as running:
        running.fetch(tmp_path / "plain")
        running.fetch(tmp_path / "more", with_abstract=True)
        plain, more = (each["query"] for each in running.inserted())

    table = pq.read_table(tmp_path / "more" / "grants-2010-01.parquet")

    assert "abstract" not in plain
    assert more.count("abstract_localized") == 2
    assert table["abstract"].unique().to_pylist() == ["Short."]
    assert table.schema.names == schema.RAW_WITH_ABSTRACT.names
    assert len(running.billed) == 2


def test_labels_alone_read_no_text_and_say_what_that_saves(
    tmp_path: Path, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = fetch_labels(service.engine(query="labels"), tmp_path / "labels", **WINDOW)
    table = pq.read_table(tmp_path / "labels" / "labels-2010-01.parquet")

    assert summary["rows"] == 300
    assert "claims" not in service.inserted()[0]["query"]
    assert table.schema.equals(schema.LABELS)
    assert table["split"].unique().to_pylist() == ["train"]
    assert table["first"].unique().to_pylist() == ["G06Q"]
    assert "Labels alone save" in capsys.readouterr().err
    assert service.engine(query="labels").plan(**WINDOW)["usd_saved"] == 0.0


# -- the price --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("500GB", 500 * 10**9),
        ("500GiB", 500 << 30),
        ("1.5 TB", 15 * 10**11),
        ("20mib", 20 << 20),
        ("10MB", 10**7),
        ("7", 7),
        ("7B", 7),
        ("1k", 1000),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert price.parse_bytes(text) == size


@given(
    st.text()
    | st.sampled_from(["0", "0GB", "-1GB", "1e9", "9" * 40, "GB", "", "1XB", "nan", "٣GB", "1_0", "9999999PB"])
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert 0 < price.parse_bytes(text) < 1 << 63


@given(st.integers(0, 1 << 50))
def test_the_cap_covers_what_is_billed_of_an_estimate(estimate: int) -> None:
    mib = 1 << 20
    billed = max(10 * mib, -(-estimate // mib) * mib)

    assert billed <= price.needed_cap(estimate) <= estimate * 1.01 + 11 * mib


def test_a_dry_run_prices_the_query_as_shipped_and_inserts_nothing(service: Service) -> None:
    service.layout = {"clustering": {"fields": ["country_code"]}, "timePartitioning": {"type": "DAY"}}
    table = service.tables[SOURCE]

    plan = fetch_plan(service.engine(), **WINDOW)

    assert (plan["source"], plan["start"]) == ("bigquery", "2010-01-01")
    assert plan["bytes"] == sum(table[name].nbytes for name in schema.PUBLICATIONS.names)
    assert (plan["partitioned"], plan["clustered_by"]) == (True, ["country_code"])
    assert plan["usd"] == plan["usd_with_free_tib"] == 0.0
    assert plan["needed_max_bytes"] == price.needed_cap(plan["bytes"])
    assert service.inserted() == []


def test_the_price_is_said_before_the_scan(
    tmp_path: Path, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    service.hooks["datasets.insert"] = lambda: said.append(capsys.readouterr().err)
    service.fetch(tmp_path / "raw")

    assert "at $6.25 a TiB, $0.00 if this month's free TiB is unused" in said[0]
    assert price.show_price(325 << 30) == "$1.98 at $6.25 a TiB"
    assert price.usd(325 << 30, free=1 << 40) == 0.0


def test_beyond_the_cap_nothing_is_sent_and_the_figure_named_is_enough(tmp_path: Path, service: Service) -> None:
    with pytest.raises(CostError, match=r"--max-bytes (\d+MB)") as refusal:
        service.fetch(tmp_path / "raw", max_bytes=1000)
    figure = str(refusal.value).rsplit(" ", 1)[1].rstrip(".")

    assert refusal.value.exit_code == 4
    assert service.inserted() == []
    assert not (tmp_path / "raw").exists()
    service.fetch(tmp_path / "raw", max_bytes=price.parse_bytes(figure))


def test_the_services_own_refusal_of_a_cap_is_a_cost_error_and_bills_nothing(tmp_path: Path, service: Service) -> None:
    small = service.tables[SOURCE]
    service.hooks["datasets.insert"] = lambda: service.tables.update({SOURCE: grants(30000, "1. Grown. " * 50)})

    with pytest.raises(CostError, match="needs a cap of"):
        service.fetch(tmp_path / "raw")
    service.tables[SOURCE] = small
    del service.hooks["datasets.insert"]
    service.fetch(tmp_path / "raw")

    assert [job_id[-2:] for job_id, _ in service.billed] == ["-1"]


def test_a_dry_run_refused_for_its_cap_names_the_services_figure(tmp_path: Path, service: Service) -> None:
    service.fail("jobs.insert", 500, "bytesBilledLimitExceeded")
    with pytest.raises(CostError, match="--dry-run"):
        service.fetch(tmp_path / "raw")
    word = "Query exceeded limit for bytes billed: 1000. 163,595,928 or higher required."

    assert bigquery.needed_bytes("", word) == 163_595_928
    assert service.slept == []


@given(st.integers(-5, (1 << 63) + 5), st.dictionaries(st.sampled_from(["a", "b"]), st.dates()), st.booleans())
def test_no_query_job_is_configured_without_a_cap(cap: int, parameters: dict[str, dt.date], dry: bool) -> None:
    record = None if dry else bigquery.Job("p", "US", "id", 0, "", "", SOURCE, destination="p.d.t")
    try:
        config = query_config(parameters, cap, labels={}, record=record).to_api_repr()
    except ValueError:
        assert not 0 < cap < 1 << 63
    else:
        assert int(config["query"]["maximumBytesBilled"]) == cap
        assert config["dryRun"] is dry


def test_one_place_makes_configurations_and_one_sends_queries() -> None:
    calls = [
        node.func.attr
        for path in Path(ewe.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]

    assert calls.count("QueryJobConfig") == 1
    assert [name for name in calls if name in ("query", "query_and_wait", "create_job", "load_table_from_uri")] == [
        "query"
    ]


# -- the one scan -----------------------------------------------------------------------------------------------------


def test_the_job_is_recorded_before_it_is_sent(tmp_path: Path, service: Service) -> None:
    seen: list[dict[str, Any]] = []

    def look() -> None:
        if (tmp_path / "raw" / "job.json").is_file():
            seen.append(json.loads((tmp_path / "raw" / "job.json").read_text()))

    service.hooks["jobs.insert"] = look
    service.fetch(tmp_path / "raw")

    assert [each["job_id"] for each in seen] == [service.billed[0][0]]
    assert {"location": "US", "snapshot": service.modified.isoformat()}.items() <= seen[0].items()
    assert seen[0]["destination"].startswith("my-project.ewe_us.ewe_grants_")


def test_the_result_expires_by_itself_and_is_read_from_a_dataset_of_the_projects(
    tmp_path: Path, service: Service
) -> None:
    service.fetch(tmp_path / "raw")
    query = service.inserted()[0]

    assert service.datasets["my-project.ewe_us"]["defaultTableExpirationMs"] == str(7 * 24 * 3600 * 1000)
    assert query["destinationTable"]["datasetId"] == "ewe_us"
    assert query["writeDisposition"] == "WRITE_EMPTY"
    assert query["labels"] == {"tool": "ewe-data", "query": "grants"}


@pytest.mark.parametrize("trouble", ["refused", "unknown", "failing", "never expires", "no room", "no room at once"])
def test_without_a_dataset_the_result_stays_in_the_services_own(
    tmp_path: Path, service: Service, expected: dict[str, bytes], trouble: str
) -> None:
    if trouble == "refused":
        service.fail("datasets.insert", 403, "accessDenied")
    elif trouble == "unknown":
        service.fail("datasets.insert", 404, "notFound")
    elif trouble == "failing":
        service.fail("datasets.insert", 500, "internalError", times=3)
    elif trouble == "never expires":
        reference = {"projectId": "my-project", "datasetId": "ewe_us"}
        service.datasets["my-project.ewe_us"] = {"datasetReference": reference}
    elif trouble == "no room":
        service.fail("job", "Your project exceeded quota for free storage for projects.", "quotaExceeded")
    else:
        service.fail("jobs.insert", 403, "quotaExceeded", after=1)
        service.words["jobs.insert"] = "Your project exceeded quota for free storage for projects."

    service.fetch(tmp_path / "raw")

    assert "destinationTable" not in service.inserted()[-1]
    assert "._anon." in json.loads((tmp_path / "raw" / "job.json").read_text())["destination"]
    assert shards(tmp_path / "raw") == expected
    assert len(service.billed) == 1


def test_a_finished_fetch_asks_nobody(tmp_path: Path, service: Service) -> None:
    first = service.fetch(tmp_path / "raw")
    calls = service.calls.total()

    assert service.fetch(tmp_path / "raw") == first
    assert service.calls.total() == calls


def test_a_resumed_fetch_reads_only_the_months_that_are_missing(
    tmp_path: Path, service: Service, expected: dict[str, bytes]
) -> None:
    service.fetch(tmp_path / "raw")
    manifest = json.loads((tmp_path / "raw" / "manifest.json").read_text())
    (tmp_path / "raw" / "grants-2010-02.parquet").unlink()
    service.calls.clear()
    service.queries.clear()

    service.fetch(tmp_path / "raw")

    assert service.queries == []
    assert service.calls["CreateReadSession"] == 2  # one look whether the result stands, one month
    assert shards(tmp_path / "raw") == expected
    assert json.loads((tmp_path / "raw" / "manifest.json").read_text()) == manifest


def test_another_configuration_is_refused(tmp_path: Path, service: Service) -> None:
    service.fetch(tmp_path / "raw")

    with pytest.raises(DataError, match="made differently"):
        service.fetch(tmp_path / "raw", table="my-project.patents.publications_202401")


def test_another_folder_reads_the_same_result_for_nothing(
    tmp_path: Path, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    service.fetch(tmp_path / "one")
    service.change(grants(5))
    capsys.readouterr()
    service.fetch(tmp_path / "two")
    said = capsys.readouterr().err

    assert len(service.billed) == 1
    assert shards(tmp_path / "one") == shards(tmp_path / "two")
    assert "nothing to pay" in said
    assert "has changed since its scan" in said
    assert service.fetch(tmp_path / "three", pay_again=True)["rows"] == 5
    assert len(service.billed) == 2


def test_an_adopted_result_that_expires_has_its_price_too(tmp_path: Path, service: Service) -> None:
    service.fetch(tmp_path / "one")
    service.hooks["ReadRows"] = service.expire
    with pytest.raises(IncompleteError, match=r"\$6\.25 a TiB"):
        service.fetch(tmp_path / "two")


def test_an_expired_result_stops_with_its_price_and_only_consent_pays_again(tmp_path: Path, service: Service) -> None:
    service.fetch(tmp_path / "raw")
    (tmp_path / "raw" / "grants-2010-02.parquet").unlink()
    service.expire()
    newer = grants(300, "1. A newer thing.")
    service.change(newer)

    for _ in range(3):
        with pytest.raises(IncompleteError, match=r"expired; a new scan \(.*\$6\.25 a TiB\) takes --pay-again") as stop:
            service.fetch(tmp_path / "raw")
    assert stop.value.exit_code == 5
    assert len(service.billed) == 1

    service.fetch(tmp_path / "raw", pay_again=True)
    assert len(service.billed) == 2
    assert shards(tmp_path / "raw") == from_parquet(tmp_path, newer)  # nothing of the older snapshot is left

    service.expire()
    service.fetch(tmp_path / "other")
    assert len(service.billed) == 3


def test_a_result_that_expires_while_it_is_read_stops_in_the_same_way(tmp_path: Path, service: Service) -> None:
    service.hooks["ReadRows"] = service.expire
    with pytest.raises(IncompleteError, match="--pay-again"):
        service.fetch(tmp_path / "raw")
    assert list(shards(tmp_path / "raw")) == ["grants-2010-01.parquet"]


def test_a_changed_table_or_query_is_a_warning(
    tmp_path: Path,
    service: Service,
    expected: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    service.fetch(tmp_path / "raw")
    (tmp_path / "raw" / "grants-2010-02.parquet").unlink()
    service.change(grants(10))
    read_sql = bigquery.read_sql
    monkeypatch.setattr(bigquery, "read_sql", lambda name: read_sql(name) + " AND TRUE")
    capsys.readouterr()

    service.fetch(tmp_path / "raw")

    said = capsys.readouterr().err
    assert "has changed since its scan" in said
    assert "query has changed since version" in said
    assert shards(tmp_path / "raw") == expected
    assert len(service.billed) == 1


def test_a_job_that_the_service_has_forgotten_is_not_paid_again(tmp_path: Path, service: Service) -> None:
    service.fetch(tmp_path / "raw")
    (tmp_path / "raw" / "grants-2010-02.parquet").unlink()
    service.jobs.clear()
    service.used_ids.clear()

    service.fetch(tmp_path / "raw")
    assert len(service.billed) == 1


def test_a_spoilt_record_is_named(tmp_path: Path, service: Service) -> None:
    service.fetch(tmp_path / "raw")
    (tmp_path / "raw" / "grants-2010-02.parquet").unlink()
    (tmp_path / "raw" / "job.json").write_text("{}")

    with pytest.raises(DataError, match=r"job\.json is not as fetch wrote it"):
        service.fetch(tmp_path / "raw")


@given(st.data())
def test_the_fingerprint_sees_neither_comments_nor_white_space(data: st.DataObject) -> None:
    sql = "SELECT 'a  --b', `x y` FROM t WHERE c = r'\\s' -- end"
    tokens = ["SELECT", "'a  --b'", ",", "`x y`", "FROM", "t", "WHERE", "c", "=", "r'\\s'"]
    gap = st.sampled_from([" ", "\n\t", " -- a 'comment\n", "/* and\n'another */", "# one more\n"])
    other = "".join(token + data.draw(gap) for token in tokens)

    assert fingerprint(other, {}) == fingerprint(sql, {})
    assert fingerprint(other.replace("'a  --b'", "'a --b'"), {}) != fingerprint(sql, {})
    assert fingerprint(sql, {"a": dt.date(2010, 1, 1)}) != fingerprint(sql, {"a": dt.date(2010, 1, 2)})


# -- kills ------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Ends a run where it stands."""


def kill_at(monkeypatch: pytest.MonkeyPatch, call: int, *, sent: bool) -> None:
    """End the run at its nth REST call, before it is sent or before its answer is seen."""
    request = transport.AuthorizedSession.request
    left = [call]

    def dying(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and not sent:
            raise Killed
        response = request(*arguments, **options)
        if left[0] == 0:
            raise Killed
        return response

    monkeypatch.setattr(transport.AuthorizedSession, "request", dying)


@pytest.mark.parametrize("seed", range(20))
def test_kills_between_insert_and_result_bill_one_job(
    tmp_path: Path, expected: dict[str, bytes], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    with Service(grants(300), polls=6) as running:
        for _ in range(4):
            with monkeypatch.context() as patch:
                kill_at(patch, chance.randint(1, 9), sent=chance.random() < 0.5)
                with contextlib.suppress(Killed):
                    running.fetch(tmp_path / "raw")
            if running.billed and chance.random() < 0.5:
                running.change(grants(5))
        running.fetch(tmp_path / "raw")

    assert len(running.billed) == 1
    assert shards(tmp_path / "raw") == expected


def start_fetch(out: Path) -> "subprocess.Popen[bytes]":
    """A fetch in a process of its own."""
    program = (
        "import datetime as dt, sys, pathlib\n"
        "from ewe.pipeline.bigquery import BigQueryEngine\n"
        "from ewe.pipeline.fetch import fetch_grants\n"
        "engine = BigQueryEngine('my-project', sleep=lambda _: None)\n"
        "fetch_grants(engine, pathlib.Path(sys.argv[1]), start=dt.date(2010, 1, 1), end=dt.date(2010, 2, 28))\n"
    )
    return subprocess.Popen([sys.executable, "-c", program, str(out)], stderr=subprocess.DEVNULL)


@pytest.mark.parametrize(
    "method", ["jobs.insert", *[pytest.param("jobs.get", marks=pytest.mark.slow)] * 18, pytest.param("ReadRows")]
)
def test_a_killed_process_bills_one_job(tmp_path: Path, expected: dict[str, bytes], method: str) -> None:
    with Service(grants(300)) as running:
        reached, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            if method != "jobs.insert" or (tmp_path / "raw" / "job.json").is_file():
                reached.set()
                go_on.wait()

        running.hooks[method] = hold
        process = start_fetch(tmp_path / "raw")
        assert reached.wait(60)
        process.send_signal(signal.SIGKILL)
        process.wait()
        del running.hooks[method]
        go_on.set()
        running.change()
        running.fetch(tmp_path / "raw")

    assert len(running.billed) == 1
    assert shards(tmp_path / "raw") == expected


# -- faults of the streams --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A service whose scan of January 2010 is paid, and the shards of it."""
    table = grants(600)
    with Service(table, batch_rows=7) as running:
        running.fetch(tmp_path_factory.mktemp("first") / "raw", MONTH)
        yield running, from_parquet(tmp_path_factory.mktemp("parquet"), table, MONTH)


@pytest.mark.parametrize("seed", range(50))
def test_a_cut_anywhere_loses_and_repeats_nothing(tmp_path: Path, scanned: Any, seed: int) -> None:
    running, whole = scanned
    chance = random.Random(seed)
    status = chance.choice(
        [StatusCode.UNAVAILABLE, StatusCode.INTERNAL, StatusCode.UNKNOWN, StatusCode.ABORTED, StatusCode.CANCELLED]
    )
    running.fail("ReadRows", status, after=chance.randint(0, 15), times=chance.randint(1, 4))
    running.streams = chance.randint(1, 5)

    running.fetch(tmp_path / "raw", MONTH)

    assert shards(tmp_path / "raw") == whole
    assert len(running.billed) == 1


def test_a_stream_cut_after_its_last_row_is_at_its_end(tmp_path: Path, scanned: Any) -> None:
    running, whole = scanned
    running.streams = 1
    running.fail("ReadRows", StatusCode.UNAVAILABLE, after=999)
    running.fail("ReadRows", StatusCode.OUT_OF_RANGE, after=999)

    running.fetch(tmp_path / "raw", MONTH)
    assert shards(tmp_path / "raw") == whole


def test_a_stream_that_fails_for_good_is_a_service_error(tmp_path: Path, scanned: Any) -> None:
    running, _ = scanned
    running.streams = 1
    running.fail("ReadRows", StatusCode.UNAVAILABLE, times=8)
    running.slept.clear()

    with pytest.raises(ServiceError, match="BigQuery failed"):
        running.fetch(tmp_path / "raw", MONTH)
    assert running.slept == list(bigquery.PAUSES)
    running.fetch(tmp_path / "raw", MONTH)


def test_an_expired_session_is_followed_by_a_new_one(tmp_path: Path, scanned: Any) -> None:
    running, whole = scanned
    running.streams = 3
    reads = iter(range(99))
    running.hooks["ReadRows"] = lambda: next(reads) == 1 and running.expire_sessions()
    running.fail("ReadRows", StatusCode.FAILED_PRECONDITION, after=5)

    running.fetch(tmp_path / "raw", MONTH)

    del running.hooks["ReadRows"]
    assert shards(tmp_path / "raw") == whole


def test_a_slow_stream_is_waited_for(tmp_path: Path, scanned: Any) -> None:
    running, whole = scanned
    running.streams = 3
    others, reads = threading.Semaphore(0), iter(range(99))

    def wait_for_the_others() -> None:
        if next(reads) == 0:
            others.acquire()
            others.acquire()
        else:
            others.release()

    running.hooks["ReadRows"] = wait_for_the_others
    running.fetch(tmp_path / "raw", MONTH)
    del running.hooks["ReadRows"]
    assert shards(tmp_path / "raw") == whole


def test_a_refused_stream_ends_the_others_at_once(tmp_path: Path, scanned: Any) -> None:
    running, _ = scanned
    running.streams = 3
    never, reads = threading.Event(), iter(range(99))
    running.hooks["ReadRows"] = lambda: next(reads) == 0 and never.wait()
    running.fail("ReadRows", StatusCode.PERMISSION_DENIED)

    try:
        with pytest.raises(ServiceError, match="denies access"):
            running.fetch(tmp_path / "raw", MONTH)
    finally:
        never.set()
        del running.hooks["ReadRows"]


def test_rows_left_out_without_a_word_are_noticed(tmp_path: Path, scanned: Any) -> None:
    running, _ = scanned
    running.swallowed = 1

    with pytest.raises(DataError, match="of the result's 300 rows"):
        running.fetch(tmp_path / "raw", MONTH)


def test_a_result_ten_times_larger_comes_out_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ewe.pipeline.runs.RUN_BYTES", 100_000)
    table = grants(6000)
    with Service(table, batch_rows=500) as running:
        running.fetch(tmp_path / "raw", MONTH)

    assert shards(tmp_path / "raw") == from_parquet(tmp_path, table, MONTH)
    assert len(numbers(tmp_path / "raw")) == 3000


# -- faults of the service --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("method", ["tables.get", "datasets.insert", "jobs.insert", "jobs.get"])
@pytest.mark.parametrize(
    ("status", "reason"),
    [(403, "rateLimitExceeded"), (429, "rateLimitExceeded"), (500, "internalError"), (503, "backendError")],
)
def test_failures_that_pass_are_waited_out_and_paid_once(
    tmp_path: Path, service: Service, expected: dict[str, bytes], method: str, status: int, reason: str, late: bool
) -> None:
    service.fail(method, status, reason, times=3, after=1 if method == "jobs.insert" else 0, late=late)

    service.fetch(tmp_path / "raw")

    assert shards(tmp_path / "raw") == expected
    assert len(service.billed) == 1
    assert sum(service.slept) < 15


@pytest.mark.parametrize(
    ("method", "status", "reason", "sentence"),
    [
        ("tables.get", 401, "authError", "Google refuses the credentials .*gcloud auth"),
        ("jobs.insert", 401, "authError", "Google refuses the credentials .*gcloud auth"),
        ("jobs.insert", 403, "accessDenied", "denies access .*BigQuery User"),
        ("jobs.insert", 403, "quotaExceeded", "quota of the project is used up"),
        ("tables.get", 404, "notFound", "does not find it .*--table"),
        ("jobs.get", 403, "accessDenied", "denies access"),
        ("jobs.insert", 400, "invalidQuery", "BigQuery failed .*run the same command again"),
    ],
)
def test_failures_that_stay_are_one_sentence(
    tmp_path: Path, service: Service, method: str, status: int, reason: str, sentence: str
) -> None:
    service.fail(method, status, reason, times=3)

    with pytest.raises(ServiceError, match=sentence) as failure:
        service.fetch(tmp_path / "raw")

    assert failure.value.exit_code == 6
    assert "\n" not in str(failure.value)
    assert service.slept == []


def test_a_failure_that_never_passes_is_given_up_within_a_minute(tmp_path: Path, service: Service) -> None:
    service.fail("jobs.get", 503, "backendError", times=99)

    with pytest.raises(ServiceError, match="BigQuery failed"):
        service.fetch(tmp_path / "raw")
    assert sum(service.slept) < 60


def test_jobs_that_end_in_a_passing_error_are_tried_again_under_a_new_id(tmp_path: Path, service: Service) -> None:
    service.fail("job", "the backend is down", "backendError", times=2)

    service.fetch(tmp_path / "raw")

    assert [job_id[-2:] for job_id, _ in service.billed] == ["-2"]


def test_a_job_that_ends_in_an_error_for_good_says_so_and_the_next_run_tries_again(
    tmp_path: Path, service: Service
) -> None:
    service.fail("job", "the query is wrong", "invalidQuery")

    with pytest.raises(ServiceError, match="the query is wrong"):
        service.fetch(tmp_path / "raw")
    service.fetch(tmp_path / "raw")

    assert [job_id[-2:] for job_id, _ in service.billed] == ["-1"]


def test_a_job_that_is_lost_after_its_insert_is_sent_again(
    tmp_path: Path, service: Service, expected: dict[str, bytes]
) -> None:
    service.lost_jobs = 1

    service.fetch(tmp_path / "raw")

    assert [job_id[-2:] for job_id, _ in service.billed] == ["-1"]
    assert shards(tmp_path / "raw") == expected


def test_a_service_that_loses_every_job_is_given_up(tmp_path: Path, service: Service) -> None:
    service.lost_jobs = 99

    with pytest.raises(ServiceError, match="lost or failed 5 jobs"):
        service.fetch(tmp_path / "raw")
    assert service.billed == []


def test_a_conflict_without_a_job_is_sent_again_under_its_own_id(tmp_path: Path, service: Service) -> None:
    service.fail("jobs.insert", 409, "duplicate", after=1)

    service.fetch(tmp_path / "raw")

    assert [job_id[-2:] for job_id, _ in service.billed] == ["-0"]


def test_a_job_that_shows_up_late_after_a_conflict_is_found(tmp_path: Path, service: Service) -> None:
    service.fail("jobs.insert", 503, "backendError", after=1, late=True)
    service.fail("jobs.get", 404, "notFound", times=2, after=1)

    service.fetch(tmp_path / "raw")
    assert len(service.billed) == 1


def test_a_job_of_the_same_id_with_another_query_is_refused(tmp_path: Path, service: Service) -> None:
    def take() -> None:
        if service.inserted() and not service.jobs:
            return
        job_id = json.loads((tmp_path / "raw" / "job.json").read_text())["job_id"] if service.calls["jobs.get"] else ""
        service.used_ids.add(job_id)
        service.jobs[job_id] = {
            "reference": {"projectId": "my-project", "jobId": job_id, "location": "US"},
            "configuration": {"query": {"query": "SELECT 1"}},
            "error": None,
            "bytes": 0,
            "looks": 9,
            "time": "0",
        }

    service.hooks["jobs.insert"] = lambda: (tmp_path / "raw" / "job.json").is_file() and take()
    with pytest.raises(ServiceError, match="is another query"):
        service.fetch(tmp_path / "raw")


# -- nobody there, nobody known ---------------------------------------------------------------------------------------


def closed_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_a_refused_connection_is_answered_within_fifteen_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", f"http://127.0.0.1:{closed_port()}")
    monkeypatch.setenv("BIGQUERY_STORAGE_EMULATOR_HOST", f"127.0.0.1:{closed_port()}")
    slept: list[float] = []

    with pytest.raises(ServiceError, match="cannot be reached"):
        fetch_grants(BigQueryEngine("my-project", sleep=slept.append), tmp_path / "raw", **WINDOW)
    assert 0 < sum(slept) < 10
    assert not (tmp_path / "raw").exists()


def test_a_refused_storage_connection_too(tmp_path: Path, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIGQUERY_STORAGE_EMULATOR_HOST", f"127.0.0.1:{closed_port()}")

    with pytest.raises(ServiceError, match="failed to connect"):
        service.fetch(tmp_path / "raw")
    assert sum(service.slept) < 10
    monkeypatch.setenv("BIGQUERY_STORAGE_EMULATOR_HOST", service.environment["BIGQUERY_STORAGE_EMULATOR_HOST"])
    service.fetch(tmp_path / "raw")
    assert len(service.billed) == 1


def test_one_emulator_without_the_other_is_a_usage_error(
    tmp_path: Path, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BIGQUERY_STORAGE_EMULATOR_HOST")

    with pytest.raises(UsageError, match="BIGQUERY_STORAGE_EMULATOR_HOST"):
        service.fetch(tmp_path / "raw")


def test_no_credentials_are_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "BIGQUERY_EMULATOR_HOST", "BIGQUERY_STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_GCE_CHECK", "true")  # no metadata server is asked
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "nothing"))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(
        ServiceError, match=r"no usable Google credentials .*gcloud auth application-default login"
    ) as error:
        fetch_grants(BigQueryEngine("my-project"), tmp_path / "raw", **WINDOW)
    assert error.value.exit_code == 6

    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    with pytest.raises(ServiceError, match=r"key\.json"):
        fetch_grants(BigQueryEngine("my-project"), tmp_path / "raw", **WINDOW)


# -- hostile strings --------------------------------------------------------------------------------------------------

NASTY = [
    "`",
    "'",
    '"',
    ";",
    "--",
    "/*",
    "*/",
    "\\",
    "@start_date",
    "\n",
    "\0",
    " ",
    "${x}",
    "{}",
    "%s",
    "DROP TABLE",
    ")",
    "é",
    "‮",
]


def hostile(count: int) -> list[str]:
    """Names and dates with something in them that must not reach a query."""
    chance = random.Random(3)
    plain = string.ascii_letters + string.digits + "-_."
    made = []
    for _ in range(count):
        parts = [*chance.choices(plain, k=chance.randint(0, 12)), *chance.choices(NASTY, k=chance.randint(1, 4))]
        chance.shuffle(parts)
        made.append("".join(parts))
    return made


def test_hostile_names_are_refused_before_anything_is_sent() -> None:
    for name in hostile(10_000):
        with pytest.raises(UsageError, match="--project"):
            BigQueryEngine(name)
        for table in (name, f"p.d.{name}", f"{name}.d.t", f"p.{name}.t", SOURCE + name):
            with pytest.raises(UsageError, match="--table"):
                BigQueryEngine("my-project", table=table)
        with pytest.raises(ValueError, match="isoformat"):
            dt.date.fromisoformat(name)


@given(st.text(max_size=40))
@settings(max_examples=500)
def test_what_the_allow_list_lets_through_cannot_leave_its_quotes(name: str) -> None:
    table = f"p.d.{name}"
    try:
        engine = BigQueryEngine("my-project", table=table)
    except UsageError:
        return
    assert engine.sql == query_text("grants", SOURCE, with_abstract=False).replace(SOURCE, table)
    assert set(name) <= set(string.ascii_letters + string.digits + "_-")


def test_dates_and_paths_reach_the_query_only_as_parameters(tmp_path: Path, service: Service) -> None:
    out = tmp_path / "`; DROP TABLE x; --'"
    service.fetch(out)

    for query in service.queries:
        assert query["query"] == query_text("grants", SOURCE, with_abstract=False)
        assert {each["parameterValue"]["value"] for each in query["queryParameters"]} == {"2010-01-01", "2010-02-28"}
        assert "DROP" not in json.dumps(query)
    assert list(tmp_path.iterdir()) == [out]
