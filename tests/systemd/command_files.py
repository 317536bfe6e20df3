"""The man page and the completions of the command, made of its parser.

`python -m tests.systemd.command_files` writes them.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import shtab
from argparse_manpage.manpage import Manpage

from runtimeproxy import __version__
from runtimeproxy.cli import make_parser
from runtimeproxy.commands.arguments import PROGRAM

FOLDER: Final = Path(__file__).parents[2] / "systemd"
COMPLETIONS: Final[Mapping[str, str]] = {
    "bash": f"completions/{PROGRAM}.bash",
    "zsh": f"completions/_{PROGRAM}",
    "fish": f"completions/{PROGRAM}.fish",
}
MAN_PAGE: Final = f"man/{PROGRAM}.8"
_COMPLETE: Final = {"FILE": shtab.FILE, "SOCKET": shtab.FILE, "DIR": shtab.DIRECTORY}
"""What stands in place of an argument, by its metavar."""


def main() -> None:
    """Writes all files."""
    for name, text in files().items():
        path = FOLDER / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def files() -> dict[str, str]:
    """The text of each file, by its path below `systemd/`."""
    texts = {path: completion(shell) for shell, path in COMPLETIONS.items()}
    return {**texts, MAN_PAGE: man_page()}


def completion(shell: str) -> str:
    """The script that a shell reads."""
    parser = make_parser()
    for action in _actions(parser):
        if isinstance(action, argparse._SubParsersAction):
            for command in action._choices_actions:
                # Beside the name there is room for one line.
                action.choices[command.dest].description = command.help
        if action.metavar in _COMPLETE:
            action.complete = _COMPLETE[action.metavar]  # type: ignore[attr-defined]
    return shtab.complete(parser, shell).rstrip() + "\n"


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in dict.fromkeys(action.choices.values()):
                yield from _actions(command)


def man_page() -> str:
    """The page in section 8: the parser's help, and its epilog in sections of their own."""
    parser: Any = make_parser()
    parser.man_short_description = "a CRI proxy that applies resource policies by QoS class"
    for action in _actions(parser):
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                # Each command has it; once is enough.
                (config,) = (each for each in command._actions if each.dest == "config")
                config.help = argparse.SUPPRESS
    epilog, parser.epilog = parser.epilog, None
    page = Manpage(parser, format="pretty")
    page.section, page.manual, page.source = 8, "System Administration", f"{PROGRAM} {__version__}"
    # The page is the same whenever it is made.
    page.date = ""
    for heading, text in re.findall(r"^(\w[\w ]*):\n(.*?)(?=^\w|\Z)", epilog, re.MULTILINE | re.DOTALL):
        literal = textwrap.dedent(text).strip().replace("\\", "\\e").replace("-", "\\-")
        page.add_section(heading, ">", f".nf\n{literal}\n.fi")
    return str(page)


if __name__ == "__main__":
    main()
