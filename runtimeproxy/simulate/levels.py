"""What Katalyst makes of a manifest: the level of its pod, and whether the pod would be refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from runtimeproxy.hooks.views import PodView
from runtimeproxy.katalyst.levels import pod_problems, requested_amount
from runtimeproxy.katalyst.names import RECLAIMED_MILLICPU, QosLevel

_CPUS = ("cpu", RECLAIMED_MILLICPU)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelVerdict:
    """What the daemon would make of a pod's annotations."""

    level: QosLevel
    pool: str
    """That the annotations name, without a NUMA node; of `system_cores` maybe empty."""
    reason: str
    """Why it has this level."""
    problems: tuple[str, ...] = ()
    is_refused: bool = False
    """Whether Katalyst refuses the pod, whatever `[katalyst]` has for `on_error`."""


def level_verdict(pod: PodView, requests: Mapping[str, Mapping[str, int]]) -> LevelVerdict | None:
    """Return the verdict on a pod; None: it has no level.

    Args:
        pod: With its level.
        requests: Amounts by container and resource.
    """
    qos = pod.katalyst
    if qos is None:
        return None
    of_requests = tuple(_request_problems(requests))
    return LevelVerdict(
        level=qos.level,
        pool=qos.pool,
        reason=qos.reason,
        problems=(*pod_problems(pod.labels, qos), *of_requests),
        is_refused=bool(qos.refusal or of_requests),
    )


def _request_problems(requests: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    for container, amounts in requests.items():
        asked = {name: amounts[name] for name in _CPUS if name in amounts}
        if len(asked) > 1:
            try:
                requested_amount(asked)
            except ValueError as error:
                yield f"{container}: {error}"
