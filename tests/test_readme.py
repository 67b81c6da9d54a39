"""README's commands are run, in its order, on a smaller sample and a shorter training; its tree names what stands."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHORTER = {
    "ewe-data sample": " --rows 600",
    "ewe train": " --epochs 1 --min-steps 1",
    "ewe compare": " --epochs 1 --min-steps 1",
}


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def shell(command: str, folder: Path) -> str:
    command += next((more for start, more in SHORTER.items() if command.startswith(start)), "")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="README's commands are written for bash")
def test_readmes_commands(tmp_path: Path) -> None:
    for block in blocks("bash"):
        for command in block.strip().splitlines():
            shell(command, tmp_path)
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, documented = part.partition("\n")
            found = shell(command, tmp_path)
            for line in documented.strip().splitlines():
                name = re.split(r"\s{2,}", line)[0]
                if name.replace(" ", "").isalpha():
                    assert re.search(rf"^{name}\b", found, re.MULTILINE), f"{command} no longer prints {name}"


def test_readmes_python(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for block in blocks("python"):
        subprocess.run([sys.executable, "-c", block], cwd=tmp_path, check=True, capture_output=True)


def test_readmes_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert set(re.findall(r"^make ([a-z-]+)", README, re.MULTILINE)) <= targets


def test_readmes_tree_names_every_module() -> None:
    tree = README.split("## What is in this repository")[1].split("```")[1]
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ewe").rglob("*.py")}

    assert modules - set(named(tree)) == set()
    assert {path for path in named(tree) if path.startswith("ewe/") and not (ROOT / path).exists()} == set()


def named(tree: str) -> Iterator[str]:
    """The paths that a tree of indented names stands for: each line's first word, under the folders it lies in."""
    folders: list[tuple[int, str]] = []
    for line in tree.splitlines():
        name = (line.split() or [""])[0]
        indent = len(line) - len(line.lstrip())
        folders = [(depth, folder) for depth, folder in folders if depth < indent]
        yield "".join(folder for _, folder in folders) + name
        if name.endswith("/"):
            folders.append((indent, name))


def test_a_name_within_another_is_not_in_the_tree() -> None:
    assert list(named("ewe/\n  ray_parts.py  parts.py\n  sub/\n    a.py\n  b.py\nc/")) == [
        *("ewe/", "ewe/ray_parts.py", "ewe/sub/", "ewe/sub/a.py", "ewe/b.py", "c/"),
    ]


def test_every_command_has_its_section() -> None:
    from ewe.cli import data, ewe

    for program, app in (("ewe-data", data), ("ewe", ewe)):
        for command in app.registered_commands:
            name = command.callback.__name__  # type: ignore[union-attr]
            assert f"### `{program} {name}`" in README, f"README says nothing of {program} {name}"
