"""The chain's checks of a change, without a chain: for the unit tests of policies."""

from __future__ import annotations

import time
from typing import Final

from runtimeproxy.hooks.audit import AuditKind, Subject
from runtimeproxy.hooks.changes import CgroupChange
from runtimeproxy.hooks.decision import Progress, run_policy
from runtimeproxy.hooks.fields import Merged
from runtimeproxy.hooks.loaded import LoadedPolicy
from runtimeproxy.hooks.policy import Hook, Policy
from runtimeproxy.hooks.views import ContainerView, PodView
from runtimeproxy.testing.behaviours import checked_name

_NO_PROBLEMS: Final = (AuditKind.CHANGED, AuditKind.WOULD_CHANGE, AuditKind.CONFLICT)


def check_change(
    hook: Hook | str, view: PodView | ContainerView, change: CgroupChange | None
) -> tuple[str, ...]:
    """Problems that the chain finds in a policy's change, each with its field; none if all of it is used.

    Args:
        hook: The hook that returned it, such as ``"pre_create_container"``.
        view: The policy's input.
        change: The return value of the hook.

    Raises:
        ValueError: There is no such hook, or it gets another kind of view.
    """
    hook = Hook(checked_name(hook, Hook, "hook"))
    is_pods = hook.endswith("_pod_sandbox") or "_pod_sandbox_" in hook
    if is_pods is not isinstance(view, PodView):
        raise ValueError(f"{hook} gets a {'PodView' if is_pods else 'ContainerView'}")
    policy = LoadedPolicy(
        name="checked",
        origin="check_change",
        policy=Policy(),
        priority=Policy.priority,
        timeout_s=Policy.timeout_s,
        methods={hook: lambda _: change},
    )
    subject = Subject(hook, view, time.time())
    progress, _ = run_policy(policy, subject, Progress(Merged(view)))
    return tuple(
        f"{entry.field}: {entry.reason}" if entry.field else entry.reason
        for entry in progress.entries
        if entry.kind not in _NO_PROBLEMS
    )
