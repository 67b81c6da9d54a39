"""A loopback stand-in for BigQuery that the real google-cloud clients talk to: REST and Storage Read gRPC over DuckDB.

It bills as the service does (rounded up a table, at least 10 MiB, nothing for errors and dry runs), keeps
job ids unique, expires results when told, and fails when told:

    with FakeBigQuery(publications) as fake:
        fake.fail("jobs.insert", 503, "backendError", times=2)
        fake.fail("ReadRows", StatusCode.UNAVAILABLE, after=3)     # messages of each call
        ...
        assert len(fake.billed) == 1

Written from the public documentation of both protocols; nothing here sleeps.
"""

import datetime as dt
import itertools
import json
import math
import os
import re
import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import duckdb
import grpc
import pyarrow as pa
import sqlglot
from google.cloud.bigquery_storage_v1 import types
from sqlglot import exp

SOURCE = "patents-public-data.patents.publications"
MIB = 1 << 20


class RefusalError(Exception):
    """An HTTP error as the service words it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason

    def body(self) -> dict[str, Any]:
        error = {"message": str(self), "reason": self.reason, "domain": "global"}
        return {"error": {"code": self.status, "message": str(self), "errors": [error]}}


class FakeBigQuery:
    """The service; a context manager that points both emulator variables at itself.

    Attributes:
        tables: name -> Arrow table; results of jobs stand beside the source.
        jobs: id -> job resource.
        billed: (job id, bytes) of each job that ended well.
        calls: how often each method was called.
        queries: the configuration of every query job, dry runs too.
        polls: how many looks a job takes until it is done.
        streams, batch_rows: into how many streams a session is cut, and each into messages of how many rows.
        hooks: method -> called before each call of it, in the server's thread.
        words: method -> what its failures say.
        schema_in: "session", or "response" for services that send the schema with the first rows.
        codec: how rows are compressed; None leaves it to the client, "none" is not at all.
        layout: what the source's resource says of partitions and clusters.
        swallowed: messages that a stream leaves out without a word.
    """

    def __init__(self, publications: pa.Table, *, streams: int = 3, batch_rows: int = 50, polls: int = 2) -> None:
        self.tables = {SOURCE: publications}
        self.modified = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
        self.datasets: dict[str, dict[str, Any]] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.used_ids: set[str] = set()
        self.billed: list[tuple[str, int]] = []
        self.calls: Counter[str] = Counter()
        self.queries: list[dict[str, Any]] = []
        self.sessions: dict[str, tuple[bytes, list[list[pa.RecordBatch]], Any]] = {}
        self.polls, self.streams, self.batch_rows = polls, streams, batch_rows
        self.lost_jobs = 0  # how many of the next jobs vanish after their insert
        self.sparse = False  # whether resources come without statistics and other optional fields
        self.schema_in = "session"
        self.codec: str | None = None
        self.layout: dict[str, Any] = {}
        self.swallowed = 0
        self.hooks: dict[str, Callable[[], None]] = {}
        self.words: dict[str, str] = {}
        self._faults: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._lock = threading.RLock()
        self._made = itertools.count()
        self._duckdb = duckdb.connect()

    # -- what tests turn ----------------------------------------------------------------------------------------------

    def fail(
        self, method: str, status: Any, reason: str = "", *, times: int = 1, after: int = 0, late: bool = False
    ) -> None:
        """Let `times` calls of a method fail, the first `after` of them excepted.

        Args:
            method: "tables.get", "datasets.insert", "datasets.get", "jobs.insert", "jobs.get", "CreateReadSession",
                or "ReadRows", where `after` counts the messages that still come in each failing call.
            status: HTTP status, or gRPC status code.
            reason: the service's word for it.
            times: how many calls.
            after: how many calls (messages) go well before.
            late: the work is done, only the answer is lost.
        """
        self._faults[method].append({"status": status, "reason": reason, "times": times, "after": after, "late": late})

    def expire(self) -> None:
        """Drop every result."""
        for name in list(self.tables):
            if name != SOURCE:
                del self.tables[name]

    def change(self, publications: pa.Table | None = None) -> None:
        """The live table changes."""
        self.modified += dt.timedelta(days=1)
        if publications is not None:
            self.tables[SOURCE] = publications

    def expire_sessions(self) -> None:
        """Every open read session is over."""
        self.sessions.clear()

    def inserted(self) -> list[dict[str, Any]]:
        """Configurations of the jobs that were no dry runs."""
        return [each for each in self.queries if not each.get("dryRun")]

    # -- its life -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> "FakeBigQuery":
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        self._grpc = grpc.server(
            ThreadPoolExecutor(16), options=[("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)]
        )
        self._grpc.add_generic_rpc_handlers((_read_service(self),))
        port = self._grpc.add_insecure_port("127.0.0.1:0")
        self._grpc.start()
        self.environment = {
            "BIGQUERY_EMULATOR_HOST": f"http://127.0.0.1:{self._http.server_port}",
            "BIGQUERY_STORAGE_EMULATOR_HOST": f"127.0.0.1:{port}",
        }
        self._before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        return self

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        self._http.shutdown()
        self._http.server_close()
        self._grpc.stop(None).wait()
        self._duckdb.close()

    def due_fault(self, method: str) -> dict[str, Any] | None:
        """Count a call, and take the fault that is due to it."""
        with self._lock:
            self.calls[method] += 1
            for fault in self._faults[method]:
                if fault["times"]:
                    if method != "ReadRows" and fault["after"]:
                        fault["after"] -= 1
                        return None
                    fault["times"] -= 1
                    return fault
        return None

    # -- REST ---------------------------------------------------------------------------------------------------------

    def answer(self, verb: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """A REST call's answer; raises RefusalError."""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        kind, rest = parts[4], parts[5:]
        project = parts[3]
        method = {
            ("GET", "jobs"): "jobs.get",
            ("POST", "jobs"): "jobs.insert",
            ("POST", "datasets"): "datasets.insert",
            ("GET", "datasets"): "tables.get" if "tables" in rest else "datasets.get",
        }.get((verb, kind))
        if method is None:
            raise RefusalError(404, "notFound", f"no such method: {verb} {path}")
        if method in self.hooks:
            self.hooks[method]()
        fault = self.due_fault(method)
        if fault and not fault["late"]:
            raise RefusalError(fault["status"], fault["reason"], self.words.get(method, f"{method} fails as told"))
        with self._lock:
            answer: dict[str, Any] = {
                "jobs.get": lambda: self._get_job(rest[0]),
                "jobs.insert": lambda: self._insert_job(project, body),
                "datasets.insert": lambda: self._insert_dataset(project, body),
                "datasets.get": lambda: self._get_dataset(project, rest[0]),
                "tables.get": lambda: self._get_table(f"{project}.{rest[0]}.{rest[2]}"),
            }[method]()
        if fault:
            raise RefusalError(fault["status"], fault["reason"], f"{method} did it and then failed as told")
        return answer

    def _get_table(self, name: str) -> dict[str, Any]:
        if name not in self.tables:
            raise RefusalError(404, "notFound", f"Not found: Table {name}")
        project, dataset, table = name.split(".")
        resource: dict[str, Any] = {
            "tableReference": {"projectId": project, "datasetId": dataset, "tableId": table},
            "type": "TABLE",
        }
        if not self.sparse:
            resource |= {
                "location": "US",
                "numRows": str(self.tables[name].num_rows),
                "numBytes": str(self.tables[name].nbytes),
                "lastModifiedTime": str(int(self.modified.timestamp() * 1000)),
            }
        return resource | (self.layout if name == SOURCE else {})

    def _insert_dataset(self, project: str, body: dict[str, Any]) -> dict[str, Any]:
        name = f"{project}.{body['datasetReference']['datasetId']}"
        if name in self.datasets:
            raise RefusalError(409, "duplicate", f"Already Exists: Dataset {name}")
        self.datasets[name] = body
        return body

    def _get_dataset(self, project: str, name: str) -> dict[str, Any]:
        if f"{project}.{name}" not in self.datasets:
            raise RefusalError(404, "notFound", f"Not found: Dataset {project}.{name}")
        return self.datasets[f"{project}.{name}"]

    def _get_job(self, job_id: str) -> dict[str, Any]:
        if job_id not in self.jobs:
            raise RefusalError(404, "notFound", f"Not found: Job {job_id}")
        job = self.jobs[job_id]
        job["looks"] += 1
        state = "DONE" if job["looks"] > self.polls else "RUNNING" if job["looks"] > 1 else "PENDING"
        return self._resource(job, state)

    def _resource(self, job: dict[str, Any], state: str) -> dict[str, Any]:
        status: dict[str, Any] = {"state": state}
        if state == "DONE" and job["error"]:
            status |= {"errorResult": job["error"], "errors": [job["error"]]}
        resource = {"jobReference": job["reference"], "configuration": job["configuration"], "status": status}
        if state == "DONE" and not self.sparse:
            now = job["time"]
            billed = {"totalBytesBilled": str(job["bytes"]), "totalBytesProcessed": str(job["bytes"])}
            resource["statistics"] = {"creationTime": now, "startTime": now, "endTime": now, "query": billed}
        return resource

    def _insert_job(self, project: str, body: dict[str, Any]) -> dict[str, Any]:
        configuration = body["configuration"]
        query = configuration["query"]
        dry = configuration.get("dryRun", False)
        self.queries.append({**query, "dryRun": dry, "labels": configuration.get("labels")})
        scanned = self._scanned(query["query"])
        if dry:
            statistics = {} if self.sparse else {"query": {"totalBytesProcessed": str(scanned)}}
            reference = {"projectId": project, "location": "US"}
            state = {"status": {"state": "DONE"}, "statistics": statistics}
            return {"jobReference": reference, "configuration": configuration, **state}
        job_id = body["jobReference"]["jobId"]
        if job_id in self.used_ids:
            raise RefusalError(409, "duplicate", f"Already Exists: Job {project}:US.{job_id}")
        self.used_ids.add(job_id)
        if "destinationTable" in query:
            target = query["destinationTable"]
            if f"{target['projectId']}.{target['datasetId']}" not in self.datasets:
                raise RefusalError(404, "notFound", f"Not found: Dataset {target['projectId']}.{target['datasetId']}")
        else:
            target = {"projectId": project, "datasetId": "_anon", "tableId": f"anon{next(self._made)}"}
            query["destinationTable"] = target
        job: dict[str, Any] = {
            "reference": {"projectId": project, "jobId": job_id, "location": "US"},
            "configuration": configuration,
            "error": None,
            "bytes": max(10 * MIB, math.ceil(scanned / MIB) * MIB),
            "looks": 0,
            "time": str(int(self.modified.timestamp() * 1000)),
        }
        if self.lost_jobs:
            self.lost_jobs -= 1
            return self._resource(job, "PENDING")
        self.jobs[job_id] = job
        cap = int(query.get("maximumBytesBilled", 1 << 62))
        if job["bytes"] > cap:
            message = f"Query exceeded limit for bytes billed: {cap}. {job['bytes']} or higher required."
            job["error"] = {"reason": "bytesBilledLimitExceeded", "message": message}
        elif fault := self.due_fault("job"):
            job["error"] = {"reason": fault["reason"], "message": fault["status"]}
        else:
            result = self._run(query)
            self.tables[f"{target['projectId']}.{target['datasetId']}.{target['tableId']}"] = result
            self.billed.append((job_id, job["bytes"]))
        return self._resource(job, "PENDING")

    def _scanned(self, sql: str) -> int:
        """Bytes of the columns that a query names: a WHERE does not make it less."""
        source = self.tables[SOURCE]
        named = set(re.findall(r"\w+", re.sub(r"--[^\n]*", "", sql)))
        return sum(source[name].nbytes for name in source.column_names if name in named)

    def _run(self, query: dict[str, Any]) -> pa.Table:
        tree = sqlglot.parse_one(query["query"], read="bigquery")
        for table in list(tree.find_all(exp.Table)):
            if table.catalog:
                table.replace(exp.to_table("_table"))
        parameters = {
            each["name"]: dt.date.fromisoformat(each["parameterValue"]["value"])
            for each in query.get("queryParameters", [])
        }
        return self._query(tree.sql(dialect="duckdb", comments=False), self.tables[SOURCE], parameters)

    def _query(self, sql: str, table: pa.Table, parameters: dict[str, Any] | None = None) -> pa.Table:
        """DuckDB's answer over one table, named _table."""
        with self._lock:
            self._duckdb.register("_table", table)
            return self._duckdb.sql(sql, params=parameters).to_arrow_table().combine_chunks()

    # -- Storage Read -------------------------------------------------------------------------------------------------

    def create_session(self, request: Any, context: grpc.ServicerContext) -> Any:
        """CreateReadSession."""
        wanted = request.read_session
        _, project, _, dataset, _, name = wanted.table.split("/")
        fault = self.due_fault("CreateReadSession")
        if fault:
            context.abort(fault["status"], "CreateReadSession fails as told")
        table = self.tables.get(f"{project}.{dataset}.{name}")
        if table is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Not found: Table {project}:{dataset}.{name}")
        options = wanted.read_options
        if options.row_restriction:
            where = sqlglot.parse_one(options.row_restriction, read="bigquery").sql(dialect="duckdb")
            table = self._query(f"SELECT * FROM _table WHERE {where}", table)  # noqa: S608
        if options.selected_fields:
            table = table.select([each for each in table.column_names if each in options.selected_fields])
        asked = {1: "lz4", 2: "zstd"}.get(int(options.arrow_serialization_options.buffer_compression))
        codec = None if self.codec == "none" else self.codec or asked
        streams: list[list[pa.RecordBatch]] = [[] for _ in range(min(self.streams, request.max_stream_count or 99))]
        for index, batch in enumerate(table.combine_chunks().to_batches(max_chunksize=self.batch_rows)):
            streams[index % len(streams)].append(batch)
        name = f"projects/{project}/locations/us/sessions/{uuid.uuid4().hex}"
        schema = table.schema.serialize().to_pybytes()
        with self._lock:
            self.sessions[name] = schema, streams, codec
        session = types.ReadSession(
            name=name, streams=[types.ReadStream(name=f"{name}/streams/{index}") for index in range(len(streams))]
        )
        if self.schema_in == "session":
            session.arrow_schema = types.ArrowSchema(serialized_schema=schema)
        return session

    def read_rows(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        """ReadRows: from the offset on, until the end or a fault."""
        if "ReadRows" in self.hooks:
            self.hooks["ReadRows"]()
        fault = self.due_fault("ReadRows")
        name, _, index = request.read_stream.rpartition("/streams/")
        if name not in self.sessions:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"session expired: {name}")
        schema, streams, codec = self.sessions[name]
        position = sent = 0
        for batch in streams[int(index)]:
            position += batch.num_rows
            if position <= request.offset:
                continue
            if self.swallowed:
                self.swallowed -= 1
                continue
            if fault and sent == fault["after"]:
                context.abort(fault["status"], "ReadRows fails as told")
            batch = batch.slice(max(0, batch.num_rows - (position - request.offset)))
            message = types.ReadRowsResponse(
                arrow_record_batch=types.ArrowRecordBatch(serialized_record_batch=_serialized(batch, codec)),
                row_count=batch.num_rows,
            )
            if not sent:
                message.arrow_schema = types.ArrowSchema(serialized_schema=schema)
            sent += 1
            yield message
        if fault:
            context.abort(fault["status"], "ReadRows fails as told, after its last row")


def _serialized(batch: pa.RecordBatch, codec: str | None) -> bytes:
    """The IPC message of one batch, its buffers compressed, without a schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    _, message, *_ = pa.ipc.MessageReader.open_stream(sink.getvalue())
    return message.serialize().to_pybytes()


def _handler(fake: FakeBigQuery) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # one packet an answer, else each waits for the client's delayed acknowledgement

        def _reply(self, verb: str) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                status, answer = 200, fake.answer(verb, urlsplit(self.path).path, json.loads(body or b"{}"))
            except RefusalError as refusal:
                status, answer = refusal.status, refusal.body()
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            self._reply("GET")

        def do_POST(self) -> None:
            self._reply("POST")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler


def _read_service(fake: FakeBigQuery) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        "google.cloud.bigquery.storage.v1.BigQueryRead",
        {
            "CreateReadSession": grpc.unary_unary_rpc_method_handler(
                fake.create_session,
                request_deserializer=types.CreateReadSessionRequest.deserialize,
                response_serializer=types.ReadSession.serialize,
            ),
            "ReadRows": grpc.unary_stream_rpc_method_handler(
                fake.read_rows,
                request_deserializer=types.ReadRowsRequest.deserialize,
                response_serializer=types.ReadRowsResponse.serialize,
            ),
        },
    )
