"""The man pages and the completions of the commands, made of their parsers.

`python -m tests.systemd.command_files` writes them.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import shtab
from argparse_manpage.manpage import Manpage

from runtimeproxy import cli
from runtimeproxy.commands.arguments import PROGRAM
from runtimeproxy.qosmanager import __main__ as qosmanager

FOLDER: Final = Path(__file__).parents[2] / "systemd"


class Program(NamedTuple):
    """A command, and what the first line of its man page says of it."""

    name: str
    make_parser: Callable[[], argparse.ArgumentParser]
    about: str

    @property
    def completions(self) -> Mapping[str, str]:
        """The files by shell."""
        return {
            "bash": f"completions/{self.name}.bash",
            "zsh": f"completions/_{self.name}",
            "fish": f"completions/{self.name}.fish",
        }

    @property
    def man_page(self) -> str:
        return f"man/{self.name}.8"


PROGRAMS: Final = (
    Program(PROGRAM, cli.make_parser, "a CRI proxy that applies resource policies by QoS class"),
    Program(qosmanager.PROGRAM, qosmanager.make_parser, "computes what pods may use, by samples"),
)
COMPLETIONS: Final = PROGRAMS[0].completions
MAN_PAGE: Final = PROGRAMS[0].man_page
_COMPLETE: Final = {"FILE": shtab.FILE, "SOCKET": shtab.FILE, "DIR": shtab.DIRECTORY}
"""What stands in place of an argument, by its metavar."""


def _names(what: str, command: str) -> dict[str, Any]:
    """Names that a command prints, one a line."""
    run, function = f"{PROGRAM} {command} --output name 2>/dev/null", f"_koord_runtime_proxy_{what}"
    zsh = f'local -a names; names=(${{(f)"$({run})"}}); compadd -a names'
    return {
        "bash": function,
        "zsh": function,
        "fish": f"(type -q {PROGRAM}; and {run})",
        "preamble": {
            "bash": f'{function}() {{\n  compgen -W "$({run})" -- "$1"\n}}\n',
            "zsh": f"{function}() {{\n  {zsh}\n}}\n",
        },
    }


_NAMES: Final = {"POD": _names("pods", "pods"), "POLICY": _names("policies", "list-policies")}
"""By metavar."""


def main() -> None:
    """Writes all files."""
    for name, text in files().items():
        path = FOLDER / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def files() -> dict[str, str]:
    """The text of each file, by its path below `systemd/`."""
    texts: dict[str, str] = {}
    for program in PROGRAMS:
        texts |= {path: completion(program, shell) for shell, path in program.completions.items()}
        texts[program.man_page] = man_page(program)
    return texts


def completion(program: Program, shell: str) -> str:
    """The script that a shell reads."""
    parser = program.make_parser()
    for action in _actions(parser):
        if isinstance(action, argparse._SubParsersAction):
            for command in action._choices_actions:
                # Beside the name there is room for one line.
                action.choices[command.dest].description = command.help
        if action.metavar in _COMPLETE:
            action.complete = _COMPLETE[action.metavar]  # type: ignore[attr-defined]
        if action.metavar in _NAMES:
            action.complete = _NAMES[action.metavar]  # type: ignore[attr-defined]
    return shtab.complete(parser, shell).rstrip() + "\n"


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in dict.fromkeys(action.choices.values()):
                yield from _actions(command)


def man_page(program: Program) -> str:
    """The page in section 8: the parser's help, and its epilog in sections of their own."""
    parser: Any = program.make_parser()
    parser.man_short_description = program.about
    for action in _actions(parser):
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                # Each command has it; once is enough.
                (config,) = (each for each in command._actions if each.dest == "config")
                config.help = argparse.SUPPRESS
    epilog, parser.epilog = parser.epilog, None
    page = Manpage(parser, format="pretty")
    page.section, page.manual, page.source = 8, "System Administration", program.name
    # The page is the same whenever it is made.
    page.date = ""
    for heading, text in re.findall(r"^(\w[\w ]*):\n(.*?)(?=^\w|\Z)", epilog, re.MULTILINE | re.DOTALL):
        literal = textwrap.dedent(text).strip().replace("\\", "\\e").replace("-", "\\-")
        page.add_section(heading, ">", f".nf\n{literal}\n.fi")
    return str(page)


if __name__ == "__main__":
    main()
