"""`python -m ewe ...` is the `ewe` command."""

from ewe.cli import ewe

ewe()
