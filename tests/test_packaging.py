"""Wheels from the folder, from the sdist and from a zip of the repository hold the same files."""

import subprocess
import sys
import zipfile
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
