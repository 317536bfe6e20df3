"""Conversions between the daemon's values and those of the API's messages. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.hooks.claimants import texts_of
from runtimeproxy.hooks.modes import selector_of
from runtimeproxy.hooks.policy import FailurePolicy
from runtimeproxy.labels import LabelOperator, LabelRequirement, LabelSelector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runtimeproxy.hooks.algebra import Claim
    from runtimeproxy.hooks.selector import PodSelector
    from runtimeproxy.pods.records import ContainerRecord, PodRecord

_NANOS: Final = 1_000_000_000
KOORDINATOR: Final = "koordinator.sh"
"""The domain of Koordinator's labels and annotations, and of those with another part before it."""

FAILURE_POLICIES: Final = {
    FailurePolicy.IGNORE: api_pb2.FAILURE_POLICY_IGNORE,
    FailurePolicy.FAIL: api_pb2.FAILURE_POLICY_FAIL,
}


def timestamp(time_s: float | None) -> Timestamp | None:
    """Seconds since the epoch as a message; None for none."""
    if time_s is None:
        return None
    seconds, nanos = divmod(round(time_s * _NANOS), _NANOS)
    return Timestamp(seconds=seconds, nanos=nanos)


def duration(time_s: float) -> Duration:
    seconds, nanos = divmod(round(time_s * _NANOS), _NANOS)
    return Duration(seconds=seconds, nanos=nanos)


def shown(value: object) -> str | None:
    return str(value) if isinstance(value, int | float | str) else None


def owners_of(claims: Iterable[Claim]) -> str:
    return texts_of(claim.owner for claim in claims)


def pod_name(pod: PodRecord, container: ContainerRecord | None = None) -> str:
    """Namespace and name, and the container's name behind them."""
    name = f"{pod.namespace}/{pod.name}"
    return name if container is None else f"{name}/{container.name}"


def selector_message(selector: PodSelector) -> api_pb2.PodSelector:
    labels = selector.labels
    return api_pb2.PodSelector(
        namespaces=sorted(selector.namespaces or ()),
        match_labels=labels.match_labels,
        match_expressions=[
            api_pb2.LabelRequirement(key=each.key, operator=each.operator, values=each.values)
            for each in labels.match_expressions
        ],
    )


def selector_from(message: api_pb2.PodSelector) -> PodSelector:
    """The pods that a message names. Raises ValueError if an operator is not known."""
    expressions = []
    for each in message.match_expressions:
        if each.operator not in {operator.value for operator in LabelOperator}:
            names = ", ".join(operator.value for operator in LabelOperator)
            raise ValueError(f"{each.operator!r} is not one of {names}")
        operator = LabelOperator(each.operator)
        expressions.append(LabelRequirement(key=each.key, operator=operator, values=tuple(each.values)))
    labels = LabelSelector(match_labels=dict(message.match_labels), match_expressions=tuple(expressions))
    return selector_of(message.namespaces, labels)
