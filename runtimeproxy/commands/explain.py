"""The command `explain`: why the values of a pod are what they are."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Final, NamedTuple

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.commands.client import reading
from runtimeproxy.commands.exit_codes import CommandError, ExitCode
from runtimeproxy.commands.output import (
    BAD,
    DOUBTFUL,
    FAINT,
    GOOD,
    STRONG,
    Cell,
    FieldRow,
    Page,
    Words,
    claim_text,
    print_message,
    show_fields,
)
from runtimeproxy.commands.values import enum_name, moment, shown_time, utc_now

_COLUMNS: Final = ("FIELD", "REQUESTED", "RESOLVED", "APPLIED", "NOW", "BY")
_ID_LENGTH: Final = 13
"""Of an id that is shown. Source: crictl."""
_EFFECT_STYLES: Final = {
    api_pb2.ExplainedClaim.EFFECT_USED: GOOD,
    api_pb2.ExplainedClaim.EFFECT_LOST: FAINT,
    api_pb2.ExplainedClaim.EFFECT_DRY_RUN: FAINT,
}


def explain(arguments: Namespace) -> int:
    found = _ask(arguments)
    if arguments.output == "text":
        show_explanation(found, Page(), is_everything=arguments.all)
    else:
        print_message(found, arguments.output)
    return ExitCode.OK


def _ask(arguments: Namespace) -> api_pb2.ExplainResponse:
    first, *others = targets_of(arguments.pod)
    try:
        return _explanation(arguments, first)
    except CommandError as error:
        if error.code != ExitCode.NOT_FOUND or not others:
            raise
        try:
            return _explanation(arguments, others[0])
        except CommandError as other:
            # The first reading is the usual one; the second one says more if it found the pod.
            is_pod_unknown = other.code == ExitCode.NOT_FOUND and str(other).startswith("no pod ")
            raise (error if is_pod_unknown else other) from None


def _explanation(arguments: Namespace, target: ShownTarget) -> api_pb2.ExplainResponse:
    with reading(arguments) as api:
        request = api_pb2.ExplainRequest(pod=target.pod, container=target.container)
        found: api_pb2.ExplainResponse = api.Explain(request, timeout=arguments.timeout)
        return found


class ShownTarget(NamedTuple):
    """A pod, or one of its containers."""

    pod: str
    """As the API takes it."""
    container: str = ""


def targets_of(text: str) -> list[ShownTarget]:
    """Parses `[NAMESPACE/]POD[/CONTAINER]`; of two meanings the likelier one is first."""
    parts = text.split("/")
    if not all(parts) or len(parts) > 3:
        raise CommandError(f"{text!r} is not [NAMESPACE/]POD[/CONTAINER]", ExitCode.USAGE)
    if len(parts) == 3:
        return [ShownTarget("/".join(parts[:2]), parts[2])]
    return [ShownTarget(text)] if len(parts) == 1 else [ShownTarget(text), ShownTarget(*parts)]


def show_explanation(found: api_pb2.ExplainResponse, page: Page, *, is_everything: bool = False) -> None:
    """Prints the fields that something changes and the policies that are in trouble, or everything."""
    pod = found.pod
    qos = ", ".join(part for part in (pod.qos_class or "no QoS class", pod.kube_qos_class) if part)
    page.line((Cell(f"{pod.namespace}/{pod.name}", STRONG), f"  {qos}"))
    page.line(Cell(f"uid {pod.uid}, sandbox {pod.sandbox_id[:_ID_LENGTH]}", FAINT))
    if pod.HasField("katalyst"):
        _show_level(pod.katalyst, page)
    if found.is_skipped:
        page.line(Cell("policies leave it alone: it has the skip label", DOUBTFUL))
    for problem in found.problems:
        page.entry(Cell("problem", BAD), problem)
    for note in found.notes:
        page.entry(Cell("note", FAINT), note)
    hidden = 0
    for target in found.targets:
        fields = [each for each in target.fields if is_everything or is_changed(each)]
        hidden += len(target.fields) - len(fields)
        page.gap()
        page.line((Cell(_title(target), STRONG), Cell(f"  {target.container_id[:_ID_LENGTH]}", FAINT)))
        if is_everything and target.cgroup:
            page.line(Cell(target.cgroup, FAINT), indent=2)
        if target.problem:
            page.entry(Cell("problem", BAD), target.problem, indent=2)
        if fields:
            show_fields(_COLUMNS, [FieldRow(_values(each), _remarks(each)) for each in fields], page)
        else:
            page.line("nothing is changed here", indent=2)
        told = (each for each in target.policies if is_everything or _is_trouble(each))
        page.entries(((each.policy, _answer_words(each)) for each in told), indent=2)
    if hidden:
        page.gap()
        page.line(Cell(f"{hidden} more that nothing changes: --all", FAINT))


def _show_level(level: api_pb2.KatalystLevel, page: Page) -> None:
    pool = f", pool {level.pool}" if level.pool else ""
    page.line((Cell(level.level, STRONG), f"{pool}: {level.reason}"))
    for problem in level.problems:
        page.entry(Cell("problem", BAD), problem)


_WRONG: Final = (api_pb2.PolicyAnswer.OUTCOME_FAILED, api_pb2.PolicyAnswer.OUTCOME_REFUSES)


def _is_trouble(answer: api_pb2.PolicyAnswer) -> bool:
    # Something is not as expected: what somebody has switched off is.
    is_off = answer.outcome == api_pb2.PolicyAnswer.OUTCOME_OFF and answer.mode != api_pb2.MODE_OFF
    return is_off or answer.outcome in _WRONG


def is_changed(field: api_pb2.ExplainedField) -> bool:
    # Something wants, wrote or changed the value, or should have.
    return bool(
        field.claims
        or field.problem
        or field.unapplied
        or field.is_different
        or field.HasField("applied")
        or field.HasField("yielded")
    )


def _title(target: api_pb2.ExplainedTarget) -> str:
    if target.level == api_pb2.LEVEL_CONTAINER:
        return f"container {target.container}"
    return {api_pb2.LEVEL_POD: "pod", api_pb2.LEVEL_QOS_CLASS: "QoS class"}.get(target.level, "node")


def _answer_words(answer: api_pb2.PolicyAnswer) -> Words:
    outcome = enum_name(api_pb2.PolicyAnswer.Outcome, answer.outcome)
    style = BAD if answer.outcome in _WRONG else FAINT
    return Cell(outcome, style), f": {answer.reason}" if answer.reason else ""


def _values(field: api_pb2.ExplainedField) -> tuple[Cell, ...]:
    requested, resolved, applied, now = (
        getattr(field, name) if field.HasField(name) else "-"
        for name in ("requested", "resolved", "applied", "observed_value")
    )
    if field.is_request_unknown and not field.HasField("requested"):
        requested = "?"
    style = BAD if field.is_different else ""
    # An older daemon does not say it.
    way = enum_name(api_pb2.ExplainedField.Way, field.way).replace("-", " ") if field.way else "-"
    return Cell(field.name), Cell(requested), Cell(resolved), Cell(applied), Cell(now, style), Cell(way)


def _remarks(field: api_pb2.ExplainedField) -> Iterator[tuple[Cell, Words]]:
    """The claims of a field, and what is not as it should be."""
    for claim in field.claims:
        yield Cell(claim.owner, _EFFECT_STYLES.get(claim.effect, DOUBTFUL)), _claim(claim)
    if field.HasField("booked") and field.HasField("applied") and field.booked != field.applied:
        yield Cell("runtime", FAINT), f"its specification has {field.booked}, until the kubelet's next update"
    if field.HasField("yielded"):
        text = f"left to another program, which writes {field.yielded.theirs}"
        yield Cell("yielded", DOUBTFUL), text
    if field.is_observed_only:
        yield Cell("observed", DOUBTFUL), "another program owns it: it is not kept"
    for each in field.unapplied:
        owners = f" of {', '.join(each.owners)}" if each.owners else ""
        text = f"{each.wanted}{owners} is not applied ({each.cause}): {each.reason}"
        yield Cell("not applied", BAD if each.is_problem else DOUBTFUL), text
    if field.problem and all(field.problem != each.reason for each in field.unapplied):
        yield Cell("note", DOUBTFUL), field.problem


def _claim(claim: api_pb2.ExplainedClaim) -> str:
    sources = (each.provenance.text or each.path for each in claim.strategies)
    effect = ""
    if claim.effect not in (api_pb2.ExplainedClaim.EFFECT_USED, api_pb2.ExplainedClaim.EFFECT_UNSPECIFIED):
        name = enum_name(api_pb2.ExplainedClaim.Effect, claim.effect)
        effect = ": ".join(part for part in (name, claim.effect_reason) if part)
    reason = claim.reason
    if claim.HasField("lease_end"):
        end = f"until {shown_time(moment(claim.lease_end), utc_now())} unless it is renewed"
        reason = f"{reason}, {end}" if reason else end
    role = enum_name(api_pb2.ExplainedClaim.Role, claim.role).replace("-", "_")
    return claim_text(role, claim.value if claim.HasField("value") else None, reason, sources, effect)
