"""The command `koord-qos-manager resources`: the CustomNodeResource that the daemon got last."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from runtimeproxy.documents.reading import InputError, parse_json
from runtimeproxy.qosmanager.status import NO_DAEMON, OK, PROBLEM, PROGRAM, TIMEOUT_S
from runtimeproxy.units import quantity_bytes, quantity_millicores

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings

DESCRIPTION: Final = (
    "CPU is in cores, memory in GiB. Of pods of reclaimed_cores: reclaimable is what they could have at most,"
    " allocatable what they can have now, requested what they request, left the rest of it. A column has - if"
    " it is not known; the lines below the table say why."
)
COLUMNS: Final = (
    "total",
    "reserved",
    "dedicated",
    "used",
    "free",
    "reclaimable",
    "allocatable",
    "requested",
    "left",
)
_NOT_KNOWN: Final = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "json"),
        default="text",
        help="a table for people, or the object as JSON",
    )


def shown(settings: Settings, output: str) -> tuple[int, str]:
    """Asks the daemon; returns the exit code and the text to print. `output`: `text` or `json`."""
    from cri_api.runtimeproxy.v1 import api_pb2
    from runtimeproxy.http2.client import RpcError
    from runtimeproxy.stubs import BlockingClient

    path = settings.proxy.endpoint
    with BlockingClient(path) as client:
        daemon = client.stub(api_pb2.DESCRIPTOR.services_by_name["RuntimeProxy"])
        try:
            found = daemon.GetCustomNodeResource(api_pb2.GetCustomNodeResourceRequest(), timeout=TIMEOUT_S)
        except RpcError as error:
            return NO_DAEMON, f"{PROGRAM}: {path}: koord-runtime-proxy does not answer: {error.text}"
    if not found.report.json:
        return PROBLEM, f"{PROGRAM}: nothing is reported: {found.reason}"
    code = OK if found.is_current else PROBLEM
    if output == "json":
        return code, found.report.json
    try:
        lines = list(table(parse_json(found.report.json)))
    except (AttributeError, InputError, LookupError, TypeError, ValueError):
        # A manager of another version may report another shape.
        return PROBLEM, f"{PROGRAM}: the report has another shape than this table: -o json shows it"
    if found.reason:
        lines.append(f"not up to date: {found.reason}")
    return code, "\n".join([*lines, *found.report.problems])


def table(document: Mapping[str, Any]) -> Iterator[str]:
    """A line for CPU and memory of the node, and of each NUMA node.

    Raises:
        One of AttributeError, InputError, LookupError, TypeError, ValueError: It is no such object.
    """
    # The import takes long, and is not needed for JSON.
    from runtimeproxy.qosmanager.reporter.builtin import AMOUNTS_ANNOTATION, NUMA, RECLAIMED_ANNOTATION

    annotations = document["metadata"].get("annotations", {})
    amounts = parse_json(annotations.get(AMOUNTS_ANNOTATION, "{}"))
    reclaimed = parse_json(annotations.get(RECLAIMED_ANNOTATION, "{}"))
    rows: list[tuple[str, ...]] = [("", *COLUMNS)]
    for resource in ("cpu", "memory"):
        texts = {**amounts.get(resource, {})}
        texts |= {f"reclaimed_{name}": text for name, text in reclaimed.get(resource, {}).items()}
        rows.append(_row(f"node {resource}", resource, texts, document["status"]["resources"]))
    for zone in _zones(document["status"].get("topologyZone", ()), NUMA):
        attributes = {each["name"]: each["value"] for each in zone.get("attributes", ())}
        for resource in ("cpu", "memory"):
            own = f"{resource}_"
            texts = {
                name.removeprefix(own): text for name, text in attributes.items() if name.startswith(own)
            }
            texts |= {
                f"reclaimed_{name.removeprefix(f'reclaimed_{own}')}": text
                for name, text in attributes.items()
                if name.startswith(f"reclaimed_{own}")
            }
            rows.append(_row(f"NUMA {zone['name']} {resource}", resource, texts, zone["resources"]))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = (f"{text:>{width}}" for text, width in zip(others, widths[1:], strict=True))
        yield "  ".join([f"{first:<{widths[0]}}", *cells]).rstrip()


def _zones(zones: Any, kind: str) -> Iterator[Mapping[str, Any]]:  # noqa: ANN401 - JSON
    for zone in zones:
        if zone["type"] == kind:
            yield zone
        yield from _zones(zone.get("children", ()), kind)


def _row(
    name: str, resource: str, texts: Mapping[str, str], resources: Mapping[str, Mapping[str, str]]
) -> tuple[str, ...]:
    from runtimeproxy.katalyst.names import RECLAIMED_MEMORY, RECLAIMED_MILLICPU

    reclaimed = RECLAIMED_MILLICPU if resource == "cpu" else RECLAIMED_MEMORY
    own = [_shown(resource, texts.get(column)) for column in COLUMNS[:5]]
    # Reclaimed CPU is in millicores, as a number.
    both = [resources.get(part, {}).get(reclaimed) for part in ("capacity", "allocatable")]
    both += [texts.get("reclaimed_requested"), texts.get("reclaimed_free")]
    return (name, *own, *(_shown("millicpu" if resource == "cpu" else resource, text) for text in both))


def _shown(resource: str, text: str | None) -> str:
    if text is None:
        return _NOT_KNOWN
    if resource == "memory":
        return f"{quantity_bytes(text) / (1 << 30):.2f}Gi"
    millicores = quantity_bytes(text) if resource == "millicpu" else quantity_millicores(text)
    return f"{millicores / 1_000:.2f}"
