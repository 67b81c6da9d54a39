"""What a command says when it cannot go on: one sentence and an exit code.

Exit codes: 0 done, 1 failure, 2 usage, 3 the data does not hold what it must, 4 cost cap,
5 incomplete (run the same command again), 6 service or credentials, 130/143 signals.
"""


class EweError(Exception):
    """A failure that the user can mend; its message is one sentence that says how."""

    exit_code = 1


class UsageError(EweError):
    """The command line asks for something that cannot be."""

    exit_code = 2


class DataError(EweError):
    """A file or folder does not hold what it must, or belongs to another configuration."""

    exit_code = 3


class CostError(EweError):
    """The work would cost more than the cap allows."""

    exit_code = 4


class IncompleteError(EweError):
    """Unfinished work: the same command, run again, goes on."""

    exit_code = 5


class ServiceError(EweError):
    """A remote service refused, or credentials are missing."""

    exit_code = 6
