"""The BigQuery engine: one scan, priced before it is sent, read month by month, paid once however often killed.

    dry run -> price and cap -> RAW/job.json -> insert -> wait     one job, into a table that expires by itself
    month -> read session -> streams -> Arrow files -> tables      from that table alone (streams.py)

The job's id is a hash of the query and its parameters plus an attempt number. So the service itself refuses
a second insert of the same scan, and whoever lost its answer finds the job again. The attempt is raised only
after a job that ended in error or was never created or, with consent, after its result has expired.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from google.api_core import exceptions
from google.cloud import bigquery

from ewe import __version__
from ewe.errors import DataError, IncompleteError, ServiceError, UsageError
from ewe.pipeline import schema
from ewe.pipeline.cloud import (
    FAILURES,
    PASSING_REASONS,
    PAUSES,
    REFUSED,
    TIMEOUT,
    Cloud,
    needed_bytes,
    reason,
    sentence,
    sentences,
)
from ewe.pipeline.local import read_sql
from ewe.pipeline.price import TIB, beyond_cap, needed_cap, show_bytes, show_price, usd
from ewe.pipeline.split import PAPER
from ewe.pipeline.streams import download, open_session
from ewe.progress import bar, say, warn
from ewe.store import Store, read_json

Query = Literal["grants", "labels"]
Parameters = Mapping[str, dt.date]

TABLE = "patents-public-data.patents.publications"
MAX_BYTES = 500 * 10**9  # the default cap: above claims, titles and codes, far below the whole table
LIFETIME = dt.timedelta(days=7)  # of the result: a slow line and a weekend, at $0.02 a GB and month
ATTEMPTS = 5  # jobs that one run starts before it gives up
JOB_FILE = "job.json"


@dataclass(frozen=True)
class Job:
    """RAW/job.json: written before the insert, and all that a resumed fetch needs.

    Attributes:
        project: who pays.
        location: where the table is and the job runs.
        job_id: by which the service knows the scan.
        attempt: the number at its end.
        sql_sha256: `fingerprint` of the query and its parameters.
        version: of this package.
        table: what is scanned.
        snapshot: the state of it that is read: the time of its last change, else the job's own time; '' until known.
        destination: the result, project.dataset.table; None until the service has named one of its own.
        estimated_bytes: of the dry run; None where it said nothing.
        billed_bytes: of the ended job; None before, or where it said nothing.
        rows: of the result; None before, or where the service said nothing.
    """

    project: str
    location: str
    job_id: str
    attempt: int
    sql_sha256: str
    version: str
    table: str
    snapshot: str = ""
    destination: str | None = None
    estimated_bytes: int | None = None
    billed_bytes: int | None = None
    rows: int | None = None


class BigQueryEngine:
    """Grants, or their labels alone, from the publications table on BigQuery.

    Args:
        project: the project that pays.
        table: project.dataset.table in the publications table's schema; a dated snapshot keeps still.
        query: "grants" for sql/grants.sql, "labels" for sql/labels.sql.
        with_abstract: fetch abstracts too; they cost about as much again as claims.
        max_bytes: the most that the scan may bill.
        pay_again: scan again where the result of an earlier scan has expired.
        sleep: how to wait, in seconds.

    Raises:
        UsageError: the project or the table is not a name.
    """

    def __init__(
        self,
        project: str,
        *,
        table: str = TABLE,
        query: Query = "grants",
        with_abstract: bool = False,
        max_bytes: int = MAX_BYTES,
        pay_again: bool = False,
        sleep: Callable[[float], None] = time.sleep,  # between polls; tests give one that does not wait
    ) -> None:
        _check_names(project, table)
        if with_abstract and query == "labels":
            raise UsageError("--labels-only reads no text; leave --with-abstract out.")
        self.project, self.table, self.query, self.with_abstract = project, table, query, with_abstract
        self.max_bytes, self.pay_again = max_bytes, pay_again
        self.columns = schema.LABELS if query == "labels" else schema.RAW_WITH_ABSTRACT if with_abstract else schema.RAW
        self.sql = query_text(query, table, with_abstract=with_abstract)
        self._cloud = Cloud(project, sleep)
        self._own_dataset = True  # whether the result may stand in a dataset of the project's
        self._job: Job | None = None  # the ended one, once `scan` has it

    def config(self) -> dict[str, Any]:
        """What decides the result. Not the query's text: a scan that is paid is read to its end."""
        return {
            "source": "bigquery",
            "project": self.project,
            "table": self.table,
            "query": self.query,
            "with_abstract": self.with_abstract,
        }

    def facts(self) -> dict[str, Any]:
        """What the manifest says of the source."""
        job = self._ended_job
        facts = {
            "made_up": False,
            "sql_sha256": job.sql_sha256,
            "snapshot": job.snapshot,
            "job_id": job.job_id,
            "billed_bytes": job.billed_bytes,
        }
        return facts if job.rows is None else {**facts, "result_rows": job.rows}

    def plan(self, start: dt.date, end: dt.date) -> dict[str, Any]:
        """What a fetch would scan and cost, by a dry run, which is free. Writes nothing.

        Returns:
            table, snapshot, partitioned, clustered_by, bytes, usd, usd_with_free_tib, needed_max_bytes,
            max_bytes and, for labels, usd_saved; figures that the service does not give are None.
        """
        with sentences():
            source = self._source()
            scanned = self._dry_run(self.sql, self._parameters(start, end))
            plan = {
                "table": self.table,
                "snapshot": _snapshot(source),
                "partitioned": bool(source.time_partitioning or source.range_partitioning),
                "clustered_by": source.clustering_fields or [],
                "bytes": scanned,
                "usd": None if scanned is None else usd(scanned),
                "usd_with_free_tib": None if scanned is None else usd(scanned, free=TIB),
                "needed_max_bytes": None if scanned is None else needed_cap(scanned),
                "max_bytes": self.max_bytes,
            }
            if self.query == "labels":
                whole = self._whole(start, end)
                plan["usd_saved"] = None if whole is None or scanned is None else usd(whole - scanned)
            return plan

    def scan(self, store: Store, start: dt.date, end: dt.date) -> None:
        """Bring the one job to its end, or find it ended; RAW/job.json says which it is.

        Raises:
            CostError: it would bill more than the cap.
            IncompleteError: its result has expired.
            ServiceError: no credentials, access denied, or nobody there.
        """
        with sentences():
            self._job = self._settle(store, start, end)

    def read(self, store: Store, month: str) -> Iterator[pa.Table]:
        """The result's rows of one month ("2006-01"), in `columns`, in no order, a bounded table at a time."""
        job = self._ended_job
        days = "grant_date BETWEEN DATE '{}' AND DATE '{}'".format(*_days(month))
        with sentences(), tempfile.TemporaryDirectory(prefix=".read-", suffix=".tmp", dir=store.folder) as folder:
            try:
                parts = download(self._cloud, str(job.destination), self.columns.names, days, Path(folder))
            except exceptions.NotFound:
                raise _expired(job) from None
            for part in parts:
                with pa.OSFile(str(part)) as file, pa.ipc.open_stream(file) as reader:
                    for batch in reader:
                        yield self._conform(pa.Table.from_batches([batch]))

    @property
    def _ended_job(self) -> Job:
        if self._job is None:
            raise AssertionError("scan comes first")
        return self._job

    def _conform(self, table: pa.Table) -> pa.Table:
        """The result's rows in this version's columns."""
        where = f"The result of job {self._ended_job.job_id}"
        schema.check(table.schema, self.columns, where, "use another --out")
        for field in self.columns:
            if not field.nullable and table[field.name].null_count:
                raise DataError(f"{where} has a row without {field.name}; check --table.")
        return table.select(self.columns.names).cast(self.columns)

    # -- which job ----------------------------------------------------------------------------------------------------

    def _settle(self, store: Store, start: dt.date, end: dt.date) -> Job:
        """The ended job whose result can be read: the recorded one, another of the same query, or a new one."""
        recorded = _recorded(store)
        sha256 = fingerprint(self.sql, self._parameters(start, end))
        if recorded:
            self._warn_of_changes(recorded, sha256)
        location = recorded.location if recorded else self._source().location or "US"
        started = 0
        for attempt in itertools.count(recorded.attempt if recorded else 0):
            record = recorded if recorded and recorded.attempt == attempt else self._record(location, attempt, sha256)
            found = self._find(record)
            if found:
                if self.pay_again and not recorded:
                    continue  # its result may stand, but a new scan is wanted
                job = self._wait(found, record)
            elif record.destination and self._stands(record):
                return record  # the service has forgotten the job and keeps its result
            elif started == ATTEMPTS:
                raise ServiceError(f"BigQuery lost or failed {ATTEMPTS} jobs in a row; run this again later.")
            else:
                started += 1
                record = self._priced(self._record(location, attempt, sha256), start, end)
                _keep(store, record)
                try:
                    job = self._run(record, start, end)
                except exceptions.Forbidden as error:
                    if not self._out_of_room(reason(error), str(error)):
                        raise
                    continue
            if job is None:
                continue  # it was never created
            if job.error_result:
                self._ended_in_error(job.error_result, earlier=bool(found))
                continue
            record = self._ended(job, record)
            if self._stands(record):
                if found and not recorded:
                    say(f"The result of an earlier fetch's job {record.job_id} stands: nothing to pay.")
                    self._warn_of_changes(record, sha256)
                _keep(store, record)
                return record
            if not found or (recorded and not self.pay_again):
                raise _expired(record)
        raise AssertionError("attempts are counted without end")

    def _record(self, location: str, attempt: int, sha256: str) -> Job:
        return Job(
            project=self.project,
            location=location,
            job_id=f"ewe-{self.query}-{sha256[:32]}-{attempt}",
            attempt=attempt,
            sql_sha256=sha256,
            version=__version__,
            table=self.table,
        )

    def _warn_of_changes(self, job: Job, sha256: str) -> None:
        """Nothing that has changed since a scan was paid keeps its result from being read to the end."""
        if job.sql_sha256 != sha256:
            warn(f"The query has changed since version {job.version} sent it; going on with that job's result.")
        try:
            modified = self._source().modified
        except (exceptions.NotFound, exceptions.Forbidden):
            warn(f"{self.table} can no longer be seen; going on with the result of its scan.")
            return
        if modified and job.snapshot and modified > dt.datetime.fromisoformat(job.snapshot):
            warn(f"{self.table} has changed since its scan ({job.snapshot}); going on with that scan's result.")

    def _priced(self, record: Job, start: dt.date, end: dt.date) -> Job:
        """The record of a job about to be sent, once a dry run has found it within the cap."""
        source = self._source()
        scanned = self._dry_run(self.sql, self._parameters(start, end))
        if scanned is None:
            say(f"BigQuery does not say what a scan of {self.table} costs; {show_bytes(self.max_bytes)} is the cap.")
        else:
            may_be_less = source.time_partitioning or source.range_partitioning or source.clustering_fields
            layout = (
                "the table is partitioned or clustered, so it may be less" if may_be_less else "no WHERE makes it less"
            )
            free = f"${usd(scanned, free=TIB):.2f} if this month's free TiB is unused"
            say(f"One scan of {self.table}: {show_bytes(scanned)}, {show_price(scanned)}, {free}; {layout}.")
            if self.query == "labels" and (whole := self._whole(start, end)):
                say(f"Labels alone save {show_bytes(whole - scanned)}, {show_price(whole - scanned)}.")
            if needed_cap(scanned) > self.max_bytes:
                raise beyond_cap(needed_cap(scanned))
        return replace(
            record, snapshot=_snapshot(source), destination=self._destination(record), estimated_bytes=scanned
        )

    def _destination(self, record: Job) -> str | None:
        """A table in a dataset of the project's whose tables expire; None: one of the service's own, kept for a day."""
        if not self._own_dataset:
            return None
        dataset = bigquery.Dataset(f"{self.project}.ewe_{re.sub('[^a-z0-9]', '_', record.location.lower())}")
        dataset.location = record.location
        dataset.default_table_expiration_ms = int(LIFETIME.total_seconds() * 1000)
        dataset.description = "Results of ewe-data fetch; each table expires by itself."
        client, call = self._cloud.client, self._cloud.call
        try:
            try:
                call(lambda: client.create_dataset(dataset, retry=None, timeout=TIMEOUT), patience=2)
            except exceptions.Conflict:
                found = call(lambda: client.get_dataset(dataset.reference, retry=None, timeout=TIMEOUT), patience=2)
                if not found.default_table_expiration_ms:
                    warn(f"Tables in {self.project}.{dataset.dataset_id} never expire; the result stays elsewhere.")
                    return None
        except (*FAILURES, KeyError) as error:  # KeyError: the answer is no dataset
            say(f"No dataset for the result ({reason(error) or error}); it stays in one of BigQuery's own for a day.")
            return None
        return f"{self.project}.{dataset.dataset_id}.{record.job_id.replace('-', '_')}"

    # -- its life -----------------------------------------------------------------------------------------------------

    def _run(self, record: Job, start: dt.date, end: dt.date) -> Any:
        """Insert the job and wait for its end; None where the service keeps no such job."""
        for _ in range(2):  # a lost one once more under its own id, which is refused if it is there after all
            job = self._insert(record, self._parameters(start, end))
            if job and (job := self._wait(job, record)):
                return job
        return None

    def _insert(self, record: Job, parameters: Parameters) -> Any:
        """Send the job, or find it sent before; None where its id is taken and the service knows no job of it."""
        cap = self.max_bytes if record.estimated_bytes is None else needed_cap(record.estimated_bytes)
        try:
            job = self._send(self.sql, parameters, cap, record)
        except exceptions.Conflict:
            job = self._find(record, patience=REFUSED)
            if job is None:
                return None
            sent = getattr(job, "query", None)
            if sent and fingerprint(sent, {}) != fingerprint(self.sql, {}):
                raise ServiceError(f"Job {record.job_id} of {self.project} is another query; remove it.") from None
        say(f"BigQuery runs job {record.job_id}.")
        return job

    def _send(self, sql: str, parameters: Parameters, cap: int, record: Job | None = None) -> Any:
        """Send a query job, or without a record a dry run: the only place that sends one."""
        labels = {"tool": "ewe-data", "query": self.query}
        config = query_config(parameters, cap, labels=labels, record=record)
        return self._cloud.call(
            lambda: self._cloud.client.query(
                sql,
                job_config=config,
                job_id=record and record.job_id,
                location=record and record.location,
                retry=None,
                job_retry=None,  # it would send another job, under another id
                timeout=TIMEOUT,
            )
        )

    def _dry_run(self, sql: str, parameters: Parameters) -> int | None:
        """Bytes that a query would scan; None where the service does not say."""
        try:
            scanned = self._send(sql, parameters, self.max_bytes).total_bytes_processed
        except exceptions.GoogleAPICallError as error:
            scanned = needed_bytes(reason(error), str(error))
            if scanned is None:
                raise
            if not scanned:
                raise beyond_cap(0) from None
        return None if scanned is None else int(scanned)

    def _whole(self, start: dt.date, end: dt.date) -> int | None:
        """Bytes that grants.sql would scan, for comparison."""
        window = {"start_date": start, "end_date": end}
        return self._dry_run(query_text("grants", self.table, with_abstract=False), window)

    def _find(self, record: Job, patience: int = 0) -> Any:
        """The job of this record, or None where the service knows none, after so many more looks."""
        for pause in (*PAUSES[:patience], None):
            try:
                return self._cloud.call(
                    lambda: self._cloud.client.get_job(
                        record.job_id, location=record.location, retry=None, timeout=TIMEOUT
                    )
                )
            except exceptions.NotFound:
                if pause is not None:
                    self._cloud.sleep(pause)
        return None

    def _wait(self, job: Any, record: Job) -> Any:
        """The job once it has ended, well or not; None where the service has lost it."""
        pause: float = PAUSES[0]
        with bar("query", None, "looks") as advance:
            while job is not None and job.state != "DONE":
                self._cloud.sleep(pause)
                pause = min(pause * 1.5, 5)
                job = self._find(record, patience=REFUSED)
                advance()
        return job

    def _ended_in_error(self, error: Mapping[str, Any], *, earlier: bool) -> None:
        """Raise what a job ended with, unless another attempt may do better; an error bills nothing."""
        word, message = str(error.get("reason", "")), str(error.get("message", ""))
        if not (self._out_of_room(word, message) or earlier or word in PASSING_REASONS):
            raise sentence(word, message)
        say(f"A job ended in error ({word}), which bills nothing; trying again.")

    def _out_of_room(self, word: str, message: str) -> bool:
        """Whether a project without billing has no room for the result; the next one stays with the service."""
        full = self._own_dataset and word == "quotaExceeded" and "free storage" in message
        self._own_dataset &= not full
        return full

    def _ended(self, job: Any, record: Job) -> Job:
        """The record of a job that ended well: where its result is, how long it is and what it billed."""
        table = getattr(job, "destination", None)
        destination = f"{table.project}.{table.dataset_id}.{table.table_id}" if table else record.destination
        if not destination:
            raise ServiceError(f"BigQuery does not say where the result of job {record.job_id} is; run this again.")
        try:
            rows = self._cloud.call(
                lambda: self._cloud.client.get_table(destination, retry=None, timeout=TIMEOUT)
            ).num_rows
        except (exceptions.NotFound, exceptions.Forbidden):
            rows = None  # whether it stands is for the Storage Read API to say
        return replace(
            record,
            snapshot=record.snapshot or _snapshot(job),
            destination=destination,
            billed_bytes=getattr(job, "total_bytes_billed", None),
            rows=rows,
        )

    def _stands(self, job: Job) -> bool:
        """Whether a job's result can still be read."""
        try:
            open_session(self._cloud, str(job.destination), ["publication_number"])
        except exceptions.NotFound:
            return False
        return True

    def _source(self) -> Any:
        return self._cloud.call(lambda: self._cloud.client.get_table(self.table, retry=None, timeout=TIMEOUT))

    def _parameters(self, start: dt.date, end: dt.date) -> dict[str, dt.date]:
        window = {"start_date": start, "end_date": end}
        if self.query == "grants":
            return window
        sides = {
            f"{name}_{side}": day
            for name, days in PAPER.items()
            for side, day in zip(("start", "end"), days, strict=True)
        }
        return window | sides


# -- the query --------------------------------------------------------------------------------------------------------


def query_text(query: Query, table: str, *, with_abstract: bool) -> str:
    """The text of sql/QUERY.sql over this table, which must have passed the allow-list of names."""
    sql = read_sql(query)
    if with_abstract:  # which goes by the title's rule
        column = "      title_localized,\n"
        begin, end = sql.index("  (\n    SELECT NULLIF(title.text"), sql.index(") AS title,\n") + len(") AS title,\n")
        chosen = sql[begin:end]
        sql = sql.replace(chosen, chosen + chosen.replace("title", "abstract"))
        sql = sql.replace(column, column + column.replace("title", "abstract"))
    return sql.replace(f"`{TABLE}`", f"`{table}`")


def query_config(
    parameters: Parameters, cap: int, *, labels: Mapping[str, str], record: Job | None
) -> bigquery.QueryJobConfig:
    """The configuration of a query job; the only place that makes one, so that none goes out without a cap.

    Args:
        parameters: of the query, all dates.
        cap: maximum_bytes_billed.
        labels: under which the bill lists it.
        record: of the job; None makes a dry run.
    """
    if not 0 < cap < 1 << 63:
        raise ValueError(f"a query job needs a cap in bytes, not {cap}")
    config = bigquery.QueryJobConfig(
        dry_run=record is None,
        labels=dict(labels),
        maximum_bytes_billed=cap,
        query_parameters=[bigquery.ScalarQueryParameter(name, "DATE", day) for name, day in parameters.items()],
        use_legacy_sql=False,
    )
    if record is None:
        config.use_query_cache = False  # the price of a scan, not of asking again
    elif record.destination:
        config.destination = record.destination
        config.write_disposition = bigquery.WriteDisposition.WRITE_EMPTY
        config.clustering_fields = ["grant_date"]  # no partitions: a project without billing drops those of old dates
    return config


def fingerprint(sql: str, parameters: Parameters) -> str:
    """SHA-256 of a query and its parameters, comments and white space apart."""
    quoted = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`[^`]*`"""
    tokens = re.finditer(rf"({quoted})|--[^\n]*|\#[^\n]*|/\*.*?\*/|\s+|(.)", sql, re.DOTALL)
    text = "".join(token[1] or token[2] or "" for token in tokens)
    bound = [f"{name}={day.isoformat()}" for name, day in sorted(parameters.items())]
    return hashlib.sha256("\n".join([text, *bound]).encode()).hexdigest()


def _check_names(project: str, table: str) -> None:
    """Identifiers cannot be parameters: they reach the query through this allow-list alone."""
    name = r"(?!.*--)(?:[A-Za-z0-9.-]{1,100}:)?[A-Za-z0-9][A-Za-z0-9-]{0,62}"
    if not re.fullmatch(name, project):
        raise UsageError(f"--project {project!r} is not a project's id; write it like my-project-123.")
    if not re.fullmatch(name + r"\.[A-Za-z0-9_]{1,1024}\.[A-Za-z0-9_-]{1,1024}", table):
        raise UsageError(f"--table {table!r} is not a table's name; write it like {TABLE}.")


def _days(month: str) -> tuple[str, str]:
    """First and last day of a month ("2006-01")."""
    first = dt.date.fromisoformat(f"{month}-01")
    after = (first + dt.timedelta(days=31)).replace(day=1)
    return first.isoformat(), (after - dt.timedelta(days=1)).isoformat()


# -- RAW/job.json -----------------------------------------------------------------------------------------------------


def _recorded(store: Store) -> Job | None:
    """What job.json says, where it stands."""
    path = store.folder / JOB_FILE
    if not path.is_file():
        return None
    try:
        job = Job(**read_json(path))
    except TypeError:
        raise DataError(f"{path} is not as fetch wrote it; restore it, or use another --out.") from None
    store.record(JOB_FILE)  # a kill may have come between the file and its record
    return job


def _keep(store: Store, job: Job) -> None:
    """Write job.json; shards of another scan go first, so that two never mix."""
    before = _recorded(store)
    if before and before.job_id != job.job_id:
        for name in [name for name in store.manifest["files"] if name.endswith(".parquet")]:
            store.forget(name)
    store.write_json(JOB_FILE, asdict(job))


def _expired(job: Job) -> IncompleteError:
    scanned = job.estimated_bytes or job.billed_bytes
    cost = f" ({show_bytes(scanned)}, {show_price(scanned)})" if scanned else ""
    return IncompleteError(
        f"The result of job {job.job_id} has expired; a new scan{cost} takes --pay-again, or another --out."
    )


def _snapshot(of: Any) -> str:
    """When a table last changed, or when a job read it; now where the service does not say."""
    times = (getattr(of, name, None) for name in ("modified", "started", "created"))
    return next((time for time in times if time), dt.datetime.now(dt.UTC)).isoformat()
