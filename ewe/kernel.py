"""Kernels: functions over numpy arrays that numba compiles, free of the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def kernel(function: Callable[..., Any]) -> Any:
    """Compile without the lock, keeping the machine code where a folder for it can be written."""
    try:
        return njit(function, nogil=True, cache=True)
    except RuntimeError:  # neither the package's folder nor the user's own is writable
        return njit(function, nogil=True)
