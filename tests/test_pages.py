"""Every Python block and every command of the README and of the documents runs (`markdown.py` says how to mark one)."""

import contextlib
import io
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest
import typer

from securesgd.cli import app
from tests.command_line import run_here
from tests.markdown import Block, blocks, same_words

ROOT = Path(__file__).parents[1]
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
}
BLOCKS = {name: blocks(path) for name, path in PAGES.items()}

# Commands are run as printed; these options come after the printed ones and replace them, so that it takes seconds.
SMALL = {
    "train": "--set steps=2 --set copies=1 --set accountant=rdp",
    "tune": "--set steps=2 --set batch_size=32 --trials-mean 1",
    "plan": "--set accountant=rdp --batch-size 64 --steps 50",
    "certify": "--draws 40 --selection-draws 10 --examples 6 --again",
    "audit": "--canaries 400",
    "attack": "--examples 2 --eot 1 --steps 2 --restarts 1 --draws 20 --certify-draws 20 --no-probes",
}
SMALL_DATA = "--dataset digits --set batch_size=32"  # unless the page has made the data itself
MOST_SKIPPED = 6
MOST_WORDS = 775  # of the README
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
# The examples of `--help`: here their words are read, test_cli_examples.py runs them.
ONLY_PARSED = ("docs/reference/cli.md",)


def parsed(words: list[str]) -> None:
    """Let the command line read the words without running anything; only a missing argument is no mistake."""
    command = typer.main.get_command(app)
    while hasattr(command, "commands") and words:
        name, *words = words
        assert name in command.commands, f"there is no command {name!r}"
        command = command.commands[name]
    try:
        command.make_context(command.name, list(words))
    except Exception as error:
        if type(error).__name__ != "MissingParameter":
            raise


def run_command(words: list[str], tiny_run: Path) -> str:
    """Run a command of a page in the current folder and return what it prints.

    A run folder that it reads and that is not there is a tiny one.
    """
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.M), words
    elif words[0] in ("torchrun", "python") and "securesgd" not in words:
        assert [word for word in words if word.endswith(".py") and (ROOT / word).exists()], words
    elif words[0] == "pip":  # test_release.py installs the wheel and each extra in an empty environment
        extras = re.findall(r"securesgd\[(\w+)\]", shlex.join(words))
        assert set(extras) <= EXTRAS.keys(), words
        assert extras or any(word.endswith(".whl") for word in words), words
    elif words[0] != "source":
        if words[1:] == ["--version"]:
            return run_here("--version").stdout
        name, *options = words[words.index("securesgd") + 1 :]  # also what torchrun starts
        parsed([name, *options])
        for word in options:
            if name not in ("train", "tune") and re.fullmatch(r"runs/[\w-]+", word) and not Path(word).exists():
                shutil.copytree(tiny_run, word)
        small = [] if "--resume" in options else shlex.split(SMALL.get(name, ""))
        if name == "train" and small and not any(Path(word).exists() for word in options):
            small += shlex.split(SMALL_DATA)
        result = run_here(name, *options, *small)
        assert result.returncode == 0, f"{shlex.join(words)}: {result.stderr}"
        return result.stdout + result.stderr
    return ""


def run_python(block: Block, namespace: dict[str, object]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * (block.line - 1) + block.text, block.page, "exec"), namespace)
    return printed.getvalue()


@pytest.mark.parametrize(
    "page", [name for name in BLOCKS if any(b.kind in ("python", "commands") for b in BLOCKS[name])]
)
def test_the_code_of_a_page_runs(page, tiny_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page}
    printed = None
    for block in BLOCKS[page]:
        if block.kind == "output" and printed is not None:
            assert block.text == printed
        elif block.kind == "printed":
            assert same_words(block.text, printed or "") == []
        elif block.kind == "python" and block.reason() is None:
            printed = run_python(block, namespace)
        elif block.kind == "python":
            compile(block.text, page, "exec")
            printed = None
        elif block.kind == "commands":
            printed = ""
            for words in block.commands():
                if block.reason(shlex.join(words)) is None and page not in ONLY_PARSED:
                    printed += run_command(words, tiny_run)
                elif "securesgd" in words:
                    parsed(words[words.index("securesgd") + 1 :])


def test_little_is_skipped_and_each_time_for_a_reason():
    reasons = [reason for page in BLOCKS.values() for block in page for reason in block.skipped.values()]
    assert all(len(reason.split()) > 1 for reason in reasons), reasons
    assert len(reasons) <= MOST_SKIPPED, reasons


def test_the_readme_is_short():
    text = re.sub(r"<!--.*?-->", "", PAGES["README.md"].read_text(), flags=re.S)
    assert len(text.split()) <= MOST_WORDS


def test_a_block_without_a_language_is_run_or_says_why_not():
    """What is only shown says what it is: ```text, ```toml, ```py and so on."""
    shown = [f"{page}:{block.line}" for page, found in BLOCKS.items() for block in found
             if block.kind == "text" and block.language == "" and block.reason() is None]  # fmt: skip
    assert shown == []


def test_printed_lines_are_compared_but_for_numbers():
    printed = "right: 0.91 of 359; always\n┃ class ┃ all ┃\n│ 0     │ 178 │\n"
    assert same_words("right: 0.5 of 7; …\n│ 3 │ 9 │\n", printed) == []
    assert same_words("right: 0.5 for 7\n", printed) == ["right: 0.5 for 7"]


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_text_exist(page):
    text = re.sub(r"^```.*?^```$", "", PAGES[page].read_text(), flags=re.M | re.S)
    for command in re.findall(r"`securesgd ([^`]+)`", text):
        parsed([word for word in shlex.split(command.replace("\n", " ")) if word != "…"])


def test_a_page_that_does_not_run_is_noticed(tmp_path, tiny_run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text("<!-- test: setup\nx = 2\n-->\n<!-- test: 7 -> 3 -->\n```python\nprint(x + 7)\n```\n\n```\n5\n```\n"
                    "<!-- test: skip securesgd data fetch: it downloads -->\n```\nsecuresgd data fetch mnist  # once\n"
                    "securesgd certify runs/a --nrom linf\n```\n")  # fmt: skip
    setup, code, output, commands = blocks(page)
    assert [block.kind for block in (setup, code, output, commands)] == ["python", "python", "output", "commands"]
    namespace: dict[str, object] = {}
    run_python(setup, namespace)
    assert run_python(code, namespace) == output.text
    fetch, certify = commands.commands()
    assert fetch == ["securesgd", "data", "fetch", "mnist"]
    assert commands.reason(shlex.join(fetch)) == "it downloads"
    assert commands.reason(shlex.join(certify)) is None
    with pytest.raises(Exception, match="nrom"):
        run_command(certify, tiny_run)
    with pytest.raises(AssertionError, match="no command"):
        run_command(["securesgd", "certfy", "runs/a"], tiny_run)
    with pytest.raises(NameError):
        run_python(code, {})
