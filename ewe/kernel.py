"""Kernels: functions over numpy arrays that numba compiles, free of the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from numba import njit

_WINDOW = sha256(Path(__file__).with_name("window.py").read_bytes()).hexdigest()


def kernel(function: Callable[..., Any]) -> Any:
    """Compile without the lock, keeping the machine code where a folder for it can be written.

    Kept code is good for a kernel's own file, by numba's rule, and for window.py, which kernels of several files use.
    """
    try:
        compiled = njit(function, nogil=True, cache=True)
    except RuntimeError:  # neither the package's folder nor the user's own is writable
        return njit(function, nogil=True)
    try:
        kept = compiled._cache._cache_file
        kept._source_stamp = (kept._source_stamp, _WINDOW)
    except AttributeError:  # these names are numba's own, and a later one may have others
        pass  # lost is only that kept code goes when window.py alone changes, which a test then tells
    return compiled
