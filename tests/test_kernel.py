from typing import Any

import pytest

from ewe import kernel


def test_kernels_compile_where_nothing_can_be_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine whose package and home folders are read-only, numba refuses to cache."""

    def njit(function: Any, *, cache: bool = False, **options: bool) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return function

    monkeypatch.setattr(kernel, "njit", njit)

    assert kernel.kernel(len) is len
