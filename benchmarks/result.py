"""A benchmark's result: what was found, and the machine, load and versions that it was found with."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"


def keep(name: str, found: dict[str, Any], *packages: str) -> None:
    """Print one JSON document and write it to results/NAME.json.

    Args:
        name: the question, and what it was asked of where that is several things.
        found: what was measured.
        packages: distributions whose versions decide it.
    """
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "python": platform.python_version(),
    }
    about = {"question": name, "machine": machine, "versions": {each: version(each) for each in packages}}
    text = json.dumps(about | found, indent=2)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    print(text)
