"""The table of metrics in `systemd/monitoring/README.md`: run as a module, it prints it."""

from __future__ import annotations

from collections.abc import Iterator

from runtimeproxy.service.metrics.table import METRICS, PREFIX

HEAD = "| metric | kind | labels | |\n| --- | --- | --- | --- |"


def rows() -> Iterator[str]:
    """A row for each metric."""
    for name, each in METRICS.items():
        labels = ", ".join(f"`{label}`" for label in each.labels)
        yield f"| `{PREFIX}{name}` | {each.kind} | {labels} | {each.text} |"


def table() -> str:
    """The whole table, in Markdown."""
    return "\n".join((HEAD, *rows()))


if __name__ == "__main__":
    print(table())
