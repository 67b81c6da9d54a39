"""Wheels from the folder, from the sdist and from a zip of the repository hold the same files."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def build(source: Path, out: Path, *kinds: str) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", str(out), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True)


def names(folder: Path) -> list[str]:
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return sorted(archive.namelist())


def imported(path: Path) -> set[str]:
    """The modules of others that a module names in its imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] not in {*sys.stdlib_module_names, "ewe"}}


def test_every_direct_import_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for each in project["optional-dependencies"].values() for line in each)]
    declared = {re.split(r"[\[>]", line)[0].lower().replace("_", "-") for line in lines}
    distributions = packages_distributions()
    missing = {}
    for path in (ROOT / "ewe").rglob("*.py"):
        for name in imported(path):
            top, *below = name.split(".")
            names = distributions.get(top, [top])
            if top == "google":  # many share it: google.api_core is google-api-core, google.cloud.x google-cloud-x
                names = ["-".join([top, *below[: 2 if below[0] == "cloud" else 1]]).replace("_v1", "")]
            if not declared & {each.lower().replace("_", "-") for each in names}:
                missing[name] = path.name
    assert missing == {}


@pytest.mark.slow
def test_the_wheels_hold_the_same_files(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    archive = tmp_path / "source.zip"
    subprocess.run(["git", "archive", "--format=zip", "-o", str(archive), "HEAD"], cwd=ROOT, check=True)
    with zipfile.ZipFile(archive) as zipped:
        zipped.extractall(tmp_path / "zip")  # where symbolic links become plain files, as on Windows
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tmp_path / "clone")], check=True)
    build(tmp_path / "clone", tmp_path / "from-folder", "--wheel")
    build(tmp_path / "zip", tmp_path / "from-zip", "--wheel")
    build(tmp_path / "clone", tmp_path / "from-sdist")  # builds the sdist, then the wheel from it

    files = names(tmp_path / "from-folder")
    assert files == names(tmp_path / "from-zip") == names(tmp_path / "from-sdist")
    assert {name.split("/")[0] for name in files if ".dist-info" not in name} == {"ewe"}
    tracked = subprocess.run(
        ["git", "ls-files", "ewe"], cwd=tmp_path / "clone", check=True, capture_output=True, text=True
    ).stdout.split()
    assert sorted(name for name in files if name.startswith("ewe/")) == sorted(tracked)
