"""The console commands as installed: what they print, how they fail, and what they import."""

import json
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from conftest import publication, write_publications

from ewe import __version__

BIN = Path(sys.executable).parent
DATA_COMMANDS = ["sample", "fetch", "relabel", "encode", "dedup", "release", "diff", "verify"]
EWE_COMMANDS = ["train", "evaluate", "predict", "tune", "focus", "info"]


def run(*arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / str(arguments[0])), *map(str, arguments[1:])]
    return subprocess.run(command, capture_output=True, text=True, check=check, encoding="utf-8")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_publications(tmp_path / "table.parquet", [publication()])


def test_the_console_commands_are_installed() -> None:
    found = {
        entry.name: entry.value for entry in entry_points(group="console_scripts") if entry.value.startswith("ewe.")
    }

    assert found == {"ewe": "ewe.cli:ewe", "ewe-data": "ewe.cli:data"}


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_names_every_command(flag: str) -> None:
    for program, commands in (("ewe-data", DATA_COMMANDS), ("ewe", EWE_COMMANDS)):
        text = run(program, flag).stdout
        listed = re.findall(r"^  (\S+) ", text.split("Commands:")[1], re.MULTILINE)
        assert set(commands) <= set(listed)


@pytest.mark.parametrize(
    ("program", "command"),
    [*(("ewe-data", command) for command in DATA_COMMANDS), *(("ewe", command) for command in EWE_COMMANDS)],
)
def test_every_command_has_help_json_and_quiet(program: str, command: str) -> None:
    text = run(program, command, "--help").stdout

    assert "--json" in text
    assert "--quiet" in text
    for line in re.findall(r"^  (--?\S.*)$", text, re.MULTILINE):
        assert re.search(r"\s{2,}\S", line) or len(line) > 24, f"{command}: {line} says nothing of itself"


def test_help_imports_nothing_heavy() -> None:
    heavy = ["polars", "pyarrow", "duckdb", "numba", "numpy", "torch", "datasketch", "rich"]
    program = (
        "import sys\nfrom ewe.cli import {app}\n"
        "try: {app}([*sys.argv[1:]])\nexcept SystemExit: pass\n"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    for app, arguments in (("data", ["--help"]), ("data", ["fetch", "--help"]), ("ewe", ["train", "--help"])):
        done = subprocess.run(
            [sys.executable, "-c", program.format(app=app), *arguments], capture_output=True, text=True, check=True
        )
        assert done.stderr.strip() == "[]", (app, arguments)


def test_version() -> None:
    assert run("ewe", "--version").stdout.strip() == run("ewe-data", "--version").stdout.strip() == __version__


def test_json_is_one_document_and_messages_go_to_stderr(tmp_path: Path, table: Path) -> None:
    arguments = ["ewe-data", "fetch", "--source", "parquet", "--input", table, "--out", tmp_path / "raw", "--json"]
    first, again = run(*arguments), run(*arguments)

    assert json.loads(first.stdout)["rows"] == 1
    assert first.stdout == again.stdout
    assert "finished already" in again.stderr
    assert run(*arguments, "--quiet").stderr == ""


def test_a_dry_run_writes_nothing(tmp_path: Path, table: Path) -> None:
    done = run(
        "ewe-data", "fetch", "--source", "parquet", "--input", table, "--out", tmp_path / "raw", "--dry-run", "--json"
    )

    assert json.loads(done.stdout)["input_rows"] == 1
    assert not (tmp_path / "raw").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["ewe-data", "fetch", "--out", "raw"], 2, "Say where the grants come from"),
        (
            ["ewe-data", "fetch", "--out", "raw", "--source", "parquet", "--input", "nowhere"],
            2,
            "nowhere does not exist",
        ),
        (
            ["ewe-data", "fetch", "--out", "raw", "--source", "uspto", "--input", ".", "--project", "p"],
            2,
            "--project belongs",
        ),
        (
            ["ewe-data", "fetch", "--out", "raw", "--source", "parquet", "--input", ".", "--labels", "at-issue"],
            2,
            "--labels belongs to --source patentsview",
        ),
        (
            ["ewe-data", "fetch", "--out", "raw", "--source", "parquet", "--input", ".", "--max-bytes", "1TB"],
            2,
            "--max-bytes belongs to --source bigquery",
        ),
        (["ewe-data", "fetch", "--out", "raw", "--source", "bigquery"], 2, "--source bigquery needs --project"),
        (
            ["ewe-data", "fetch", "--out", "raw", "--source", "bigquery", "--project", "my-p-1", "--max-bytes", "x"],
            2,
            "size",
        ),
        (["ewe-data", "dedup", "nowhere"], 3, "nowhere is not a dataset folder"),
        (["ewe-data", "release", "nowhere"], 3, "nowhere is not a dataset folder"),
        (["ewe-data", "diff", "nowhere", "nowhere"], 3, "nowhere is not a raw folder"),
        (["ewe-data", "fetch", "--out", "raw", "--start", "yesterday"], 2, "Invalid value for '--start'"),
        (["ewe-data", "relabel", "nowhere", "--out", "dataset"], 3, "nowhere is not a raw folder"),
        (["ewe-data", "relabel", "nowhere", "--out", "dataset", "--split", "a"], 2, "is not NAME=FROM:TO"),
        (["ewe-data", "encode", "nowhere", "--out", "tensors"], 3, "nowhere does not exist"),
        (["ewe-data", "verify", "."], 3, "has no manifest.json"),
        (["ewe-data", "nonsense"], 2, "No such command"),
        (["ewe", "train", "nowhere", "--out", "run"], 3, "nowhere is not a tensors folder"),
        (["ewe", "evaluate", "nowhere", "nowhere"], 3, "nowhere"),
        (["ewe", "tune", "nowhere", "nowhere"], 3, "nowhere is not a run folder"),
        (["ewe", "predict", "nowhere", "-", "--out", "a.jsonl"], 3, "nowhere"),
    ],
)
def test_a_users_error_is_one_sentence_and_a_code(
    tmp_path: Path, arguments: list[str], code: int, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*arguments, check=False)

    assert done.returncode == code
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_a_folder_is_one_sentence(tmp_path: Path, table: Path) -> None:
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "raw"
    done = run("ewe-data", "fetch", "--source", "parquet", "--input", table, "--out", out, check=False)

    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {out} is no folder, nor can it be made one")


def test_a_summary_that_finds_no_room_is_one_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [BIN / "ewe", "info", "--all"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )

    assert done.returncode == 1
    assert re.fullmatch("error: .*No space left on device.*\n", done.stderr)


def test_a_reader_that_has_enough_is_no_error() -> None:
    with subprocess.Popen([BIN / "ewe", "info", "--all"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        command.stdout.close()
        assert command.stderr.read() == b""

    assert command.returncode == 0


def test_info_of_a_run_takes_no_models_options(tmp_path: Path) -> None:
    for options in (["--all"], ["--model", "bert-orig"], ["--labels", "10"]):
        done = run("ewe", "info", tmp_path, *options, check=False)
        assert (done.returncode, done.stderr) == (
            2,
            "error: --all, --model and --labels are for models without a RUN; leave them or RUN out.\n",
        )


def test_a_missing_extra_names_the_pip_command(tmp_path: Path) -> None:
    program = "import sys; sys.modules['torch'] = None\nfrom ewe.cli import ewe\newe(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", program, "train", str(tmp_path), "--out", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert done.stderr.strip() == "error: This needs torch; run: pip install 'ewe-patents[train]'."


@pytest.mark.parametrize("name", ["pipeline", "sql", "cli"])
def test_the_links_at_the_root_are_for_readers(name: str) -> None:
    root = Path(__file__).parents[1]
    if not (root / name).exists() and not (root / f"{name}.py").exists():
        pytest.skip("a checkout without symbolic links")
    done = subprocess.run(
        [sys.executable, "-c", f"import {name}"], capture_output=True, text=True, check=False, cwd=root
    )

    assert done.stderr.splitlines()[-1] == f"ImportError: {name} at the root is a link; import ewe.{name}."


def test_exported_names_exist() -> None:
    import ewe

    assert sorted(set(ewe.__all__) & set(dir(ewe))) == sorted(ewe.__all__)
    for name in ewe.__all__:
        assert getattr(ewe, name) is not None
