"""Evicts pods by the Eviction API, which honours disruption budgets.

Source: Kubernetes policy/v1 Eviction, "API-initiated eviction"; pkg/registry/core/pod/storage/eviction.go.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from runtimeproxy.kubernetes.client import ApiClient, ApiError

_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_TOO_MANY: Final = 429
_FORBIDDEN: Final = 403


class ApiEvictionOutcome(StrEnum):
    """The outcome of an eviction."""

    EVICTED = "evicted"
    """The API server has deleted the pod; the kubelet ends it within its grace period."""
    BLOCKED = "blocked"
    """A disruption budget does not allow it now: the pod goes on."""
    GONE = "gone"
    """There is no such pod any more."""
    REFUSED = "refused"
    """It cannot be evicted at all, or this client may not."""
    FAILED = "failed"
    """There is no answer, or it is not known what became of it; worth another try."""


class ApiEvictionResult(NamedTuple):
    """The outcome and a reason for people; empty if it was evicted."""

    outcome: ApiEvictionOutcome
    reason: str = ""
    retry_s: float | None = None
    """In how many seconds the server wants to be asked again; None if it has not said."""


class ApiEvictor:
    """Evicts pods; each call blocks its thread for as long as the API server takes."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self.outcomes: Counter[ApiEvictionOutcome] = Counter()
        """Without those of dry runs."""

    def evict(self, namespace: str, name: str, uid: str, *, dry_run: bool = False) -> ApiEvictionResult:
        """Evicts the pod with this uid, or has the API server say what it would do; never raises."""
        options: dict[str, Any] = {"preconditions": {"uid": uid}}
        if dry_run:
            options["dryRun"] = ["All"]
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": options,
        }
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}/eviction"
        try:
            self._client.send("POST", path, body)
            result = ApiEvictionResult(ApiEvictionOutcome.EVICTED)
        except ApiError as error:
            result = _result_of(error)
        if not dry_run:
            self.outcomes[result.outcome] += 1
        return result


def _result_of(error: ApiError) -> ApiEvictionResult:
    text = str(error)
    # A conflict is with the precondition: the pod of this name has another uid.
    if error.status in (_NOT_FOUND, _CONFLICT):
        return ApiEvictionResult(ApiEvictionOutcome.GONE, text)
    if error.status == _TOO_MANY:
        # The server also answers so when it has too many requests, then without this cause.
        is_budget = "DisruptionBudget" in error.causes or "disruption budget" in text
        outcome = ApiEvictionOutcome.BLOCKED if is_budget else ApiEvictionOutcome.FAILED
        return ApiEvictionResult(outcome, text, error.retry_after_s)
    if error.status == _FORBIDDEN:
        return ApiEvictionResult(ApiEvictionOutcome.REFUSED, f"{text}; see systemd/kubernetes/rbac.yaml")
    return ApiEvictionResult(ApiEvictionOutcome.FAILED, text)
