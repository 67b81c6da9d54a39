import os
import shutil
import subprocess
import sys
from pathlib import Path
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


@pytest.mark.parametrize("renamed", ["_cache", "_cache_file", "_source_stamp"])
def test_kernels_compile_where_numba_names_its_cache_otherwise(monkeypatch: pytest.MonkeyPatch, renamed: str) -> None:
    """As a later numba may: the names are its own."""

    class Later:
        def __getattr__(self, name: str) -> Any:
            if name == renamed:
                raise AttributeError(name)
            return self

    monkeypatch.setattr(kernel, "njit", lambda *_, **__: later)
    later = Later()

    assert kernel.kernel(len) is later


def test_kept_machine_code_goes_when_window_changes(tmp_path: Path) -> None:
    """numba itself looks at a kernel's own file alone, and would go on with what an older window.py gave."""
    package = tmp_path / "ewe"
    package.mkdir()
    for name in ("kernel", "window"):
        shutil.copy(Path(kernel.__file__).with_name(f"{name}.py"), package)
    (package / "__init__.py").touch()
    (package / "user.py").write_text(
        "from ewe.kernel import kernel\nfrom ewe.window import equal, ones\n\n\n"
        "@kernel\ndef count(data):\n    return ones(equal(data, 0, 7))\n"
    )
    script = (
        "import numpy as np; from ewe.user import count; "
        "print(count(np.full(64, 7, np.uint8)), sum(count.stats.cache_hits.values()))"
    )

    def run() -> str:
        command = [sys.executable, "-c", script]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "kept")}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout

    assert [run(), run()] == ["64 0\n", "64 1\n"]
    window = package / "window.py"
    window.write_text(window.read_text().replace('_mask("==")', '_mask("!=")'))
    assert [run(), run()] == ["0 0\n", "0 1\n"]
