"""Google's two clients, patient with failures that pass and plain about those that stay.

Both honour their emulator variables: BIGQUERY_EMULATOR_HOST (http://host:port) for REST, with anonymous
credentials, and BIGQUERY_STORAGE_EMULATOR_HOST (host:port) for the Storage Read API, without TLS.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import urlsplit

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # its news of closed connections is nobody's

import google.auth
import grpc
import pyarrow as pa
import requests
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
from google.cloud import bigquery
from google.cloud.bigquery_storage_v1.services.big_query_read import BigQueryReadClient
from google.cloud.bigquery_storage_v1.services.big_query_read.transports import BigQueryReadGrpcTransport

from ewe.errors import EweError, ServiceError, UsageError
from ewe.pipeline.price import beyond_cap

T = TypeVar("T")

TIMEOUT = 60  # seconds that one request may take
PAUSES = (0.5, 1, 2, 4, 8, 16, 16)  # seconds between tries of a request that failed in passing
REFUSED = 4  # tries after nobody answered: 8 seconds, then it is said
PASSING = (
    *(exceptions.TooManyRequests, exceptions.InternalServerError, exceptions.BadGateway),
    *(exceptions.ServiceUnavailable, exceptions.GatewayTimeout),
    *(exceptions.Unknown, exceptions.Aborted, exceptions.Cancelled),  # a stream that was cut
)
PASSING_REASONS = frozenset(
    {"backendError", "internalError", "rateLimitExceeded", "tableUnavailable"}
    | {"jobBackendError", "jobInternalError", "jobRateLimitExceeded"}
)
FAILURES = (exceptions.GoogleAPICallError, requests.RequestException, TransportError)  # of one request
CHANNEL = (("grpc.keepalive_time_ms", 60_000), ("grpc.keepalive_timeout_ms", 60_000))  # notices a dead line
LOGIN = "run: gcloud auth application-default login"


class Cloud:
    """The REST client and the Storage Read client of one project.

    Args:
        project: who pays.
        sleep: how to wait, in seconds.
    """

    def __init__(self, project: str, sleep: Callable[[float], None]) -> None:
        self.project = project
        self.sleep = sleep

    @cached_property
    def client(self) -> Any:
        """google.cloud.bigquery.Client."""
        return bigquery.Client(project=self.project, credentials=self._credentials)

    @cached_property
    def reader(self) -> Any:
        """The BigQueryReadClient below the library's own, whose streams reconnect without end or count."""
        host = os.environ.get("BIGQUERY_STORAGE_EMULATOR_HOST")
        if os.environ.get("BIGQUERY_EMULATOR_HOST") and not host:
            raise UsageError("BIGQUERY_EMULATOR_HOST is set; set BIGQUERY_STORAGE_EMULATOR_HOST=host:port beside it.")

        def channel(*target: Any, options: Any = (), **settings: Any) -> Any:
            if host:
                return grpc.insecure_channel(host.removeprefix("http://"), options=(*options, *CHANNEL))
            return BigQueryReadGrpcTransport.create_channel(*target, options=(*options, *CHANNEL), **settings)

        return BigQueryReadClient(transport=BigQueryReadGrpcTransport(credentials=self._credentials, channel=channel))

    def hang_up(self) -> None:
        """End every stream at once; the next call connects anew."""
        self.reader.transport.close()
        del self.reader

    @cached_property
    def _credentials(self) -> Any:
        if os.environ.get("BIGQUERY_EMULATOR_HOST"):
            return AnonymousCredentials()
        try:
            return google.auth.default(scopes=bigquery.Client.SCOPE)[0]
        except DefaultCredentialsError as error:
            what = str(error).split(". ")[0].rstrip(".")
            raise ServiceError(f"There are no usable Google credentials ({what}); {LOGIN}.") from None

    def call(self, request: Callable[[], T], patience: int = len(PAUSES)) -> T:
        """The answer to a request, which is tried again, so many times, while its failures are of the passing kind."""
        for tries in itertools.count():
            try:
                return request()
            except FAILURES as error:
                if tries == patience:
                    raise
                self.pause(error, tries)
        raise AssertionError("tries are counted without end")

    def pause(self, error: Exception, tries: int) -> None:
        """Wait before the next try, or raise the error where another would not help."""
        if not _passes(error) or tries >= (REFUSED if _nobody_answered(error) else len(PAUSES)):
            raise error
        self.sleep(PAUSES[tries])


def reason(error: Exception) -> str:
    """The service's word for an error ("accessDenied"), '' where it has none."""
    return str(_details(error).get("reason", ""))


def needed_bytes(word: str, message: str) -> int | None:
    """Of a query beyond its cap, the bytes it would need (0: the service does not say); None if it is not that."""
    if word != "bytesBilledLimitExceeded" and "limit for bytes billed" not in message:
        return None
    found = re.search(r"([\d,]+) or higher", message)
    return int(found[1].replace(",", "")) if found else 0


def sentence(word: str, message: str, code: int | None = None) -> EweError:
    """What a person reads of a failure that stays.

    Args:
        word: the service's reason.
        message: its message, of any length.
        code: the HTTP status, where there is one.
    """
    needed = needed_bytes(word, message)
    if needed is not None:
        return beyond_cap(needed)
    what = (message.strip().splitlines() or [word])[0].rstrip(".")[:300]
    if code == 401 or word == "authError":
        return ServiceError(f"Google refuses the credentials ({what}); {LOGIN}.")
    if word == "quotaExceeded":
        return ServiceError(f"A quota of the project is used up ({what}); raise it or wait, then run this again.")
    if word == "accessDenied" or code == 403:
        return ServiceError(f"BigQuery denies access ({what}); ask the project's owner for the role BigQuery User.")
    if word == "notFound" or code == 404:
        return ServiceError(f"BigQuery does not find it ({what}); check --project and --table.")
    return ServiceError(f"BigQuery failed ({what}); run the same command again, nothing is paid twice.")


@contextmanager
def sentences() -> Iterator[None]:
    """Whatever the clients raise inside becomes one of our errors."""
    try:
        yield
    except exceptions.GoogleAPICallError as error:
        raise sentence(reason(error), str(_details(error).get("message") or error.message), error.code) from error
    except (requests.RequestException, TransportError) as error:
        sent = getattr(error, "request", None)
        where = f"at {urlsplit(sent.url).netloc} " if sent is not None else ""
        raise ServiceError(
            f"BigQuery cannot be reached {where}({type(error).__name__}); check the network, then run this again."
        ) from error
    except GoogleAuthError as error:
        raise sentence("authError", str(error)) from error
    except pa.ArrowInvalid as error:
        raise ServiceError(f"BigQuery sent rows that cannot be read ({error}); run the same command again.") from error


def _details(error: Exception) -> Mapping[str, Any]:
    first = next(iter(getattr(error, "errors", None) or ()), None)
    return first if isinstance(first, Mapping) else {}


def _passes(error: Exception) -> bool:
    """Whether the same request may succeed in a moment."""
    if not isinstance(error, exceptions.GoogleAPICallError):
        return isinstance(error, (requests.RequestException, TransportError))
    if needed_bytes(reason(error), str(error)) is not None:
        return False  # a cap surfaces as a 500
    return isinstance(error, PASSING) or reason(error) in PASSING_REASONS


def _nobody_answered(error: Exception) -> bool:
    words = str(error).lower()
    return not isinstance(error, exceptions.GoogleAPICallError) or "failed to connect" in words or "refused" in words
