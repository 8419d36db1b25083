"""docs/reference/cli.md: every command with its help, arguments, options and examples, read from the command line."""

import inspect
import re
from typing import Annotated, Any, get_args, get_origin

import typer

from securesgd.cli import app

HEAD = """# Command line

Made from the commands themselves by `make docs`; `--help` after a command says the same. An error is one line on
standard error with exit code 2; a claim that does not hold is exit code 1; Ctrl-C is 130.
"""


def page() -> str:
    """Return the text of docs/reference/cli.md."""
    root: Any = typer.main.get_command(app)
    commands = root.commands.items()
    rows = [f"| [`securesgd {name}`](#securesgd-{name}) | {_first(command)} |" for name, command in commands]
    table = ["", "| command | what it does |", "|---|---|", *rows]
    return "\n".join([HEAD.rstrip(), *table, *(_command(*each) for each in commands)])


def _command(name: str, command: Any) -> str:
    lines = [f"\n## securesgd {name}\n", _text(command.help)]
    for inner, child in getattr(command, "commands", {}).items():
        lines += [f"\n### securesgd {name} {inner}\n", _text(child.help), *_parameters(child), *_examples(child)]
    return "\n".join([*lines, *_parameters(command), *_examples(command), ""])


def _parameters(command: Any) -> list[str]:
    """Return the table of what a command takes; nothing for a group, whose commands have their own."""
    shown = [p for p in command.params if not getattr(p, "hidden", False) and p.name != "help"]
    if not shown or hasattr(command, "commands"):
        return []
    types = inspect.signature(command.callback).parameters
    rows = ["", "| argument or option | type | default | meaning |", "|---|---|---|---|"]
    for parameter in sorted(shown, key=lambda p: p.opts[0].startswith("-")):
        names = [*parameter.opts, *parameter.secondary_opts]
        shown_names = "`, `".join(names) if names[0].startswith("-") else parameter.name.upper()
        default = "required" if parameter.required else _default(parameter.default)
        kind = _type(types[parameter.name].annotation)
        rows.append(f"| `{shown_names}` | {kind} | {default} | {_cell(parameter.help)} |")
    return rows


def _type(annotation: Any) -> str:
    """Return a type as a reader of a command line would say it."""
    if get_origin(annotation) is Annotated:
        return _type(get_args(annotation)[0])
    inner = [_type(part) for part in get_args(annotation) if part is not type(None)]
    if get_origin(annotation) in (list, tuple):
        return f"{inner[0]}, several times"
    if inner:
        return " or ".join(inner)
    names = {"str": "text", "int": "whole number", "float": "number", "bool": "switch", "Path": "path"}
    return names[annotation.__name__]


def _default(value: Any) -> str:
    if callable(value) or value in (None, "", [], ()):
        return "–"
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else f"`{value}`"


def _examples(command: Any) -> list[str]:
    """Return the examples of a command; they are run where pages use them, and parsed here."""
    commands = re.findall(r"^(?:Examples?: *)?(securesgd .*|torchrun .*)$", _text(command.epilog), re.M)
    return ["", "```", *commands, "```"] if commands else []


def _text(words: str | None) -> str:
    """Return help as Markdown: paragraphs whose lines are laid out become blocks, and marked words code."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(words or "")):
        if re.search(r"\S {2,}\S|^ ", paragraph, re.M):
            lines = inspect.cleandoc(re.sub(r"\[/?\w*\]", "", paragraph)).splitlines()
            paragraphs.append("\n".join(["```text", *lines, "```"]))
        else:
            paragraphs.append(re.sub(r"\[\w+\](.*?)\[/\w*\]", _code, paragraph, flags=re.S))
    return "\n\n".join(paragraphs).replace("\\[", "[")


def _code(match: re.Match[str]) -> str:
    return f"`{' '.join(match[1].split())}`"


def _first(command: Any) -> str:
    return _text(command.help).split("\n\n")[0].replace("\n", " ")


def _cell(words: str | None) -> str:
    return " ".join(_text(words).split()).replace("|", "\\|")
