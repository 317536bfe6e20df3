"""What pods have while they start, as messages."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Final

from cri_api.runtimeproxy.v1 import api_pb2
from runtimeproxy.service.api.values import timestamp

if TYPE_CHECKING:
    from runtimeproxy.ledger.boost_rules import Boost
    from runtimeproxy.ledger.starts import PodStarts
    from runtimeproxy.pods.store import PodStore

MOST_BOOSTS: Final = 100


def starts_message(starts: PodStarts, store: PodStore) -> api_pb2.StartsStatus:
    """Openings and boosts of now."""
    openings, boosts = starts.openings, starts.boosts
    to_wall_s = time.time() - openings.now_s()
    rules = openings.rules
    shown = [
        api_pb2.Opening(pod_uid=uid, until=timestamp(until_s + to_wall_s))
        for uid, until_s in rules.open_until_s().items()
    ]
    shown += [api_pb2.Opening(pod_uid=uid, waits=why) for uid, why in rules.waiting().items()]
    return api_pb2.StartsStatus(
        openings=shown,
        opened=rules.opened,
        not_opened=sum(rules.not_opened.values()),
        boosts=[_boost(each, store, to_wall_s) for each in islice(boosts.rules.active.values(), MOST_BOOSTS)],
        boosted=boosts.rules.given,
        not_boosted=sum(boosts.rules.denied.values()),
        boost_problem=boosts.problem,
        opening_problem=openings.problem,
    )


def _boost(boost: Boost, store: PodStore, to_wall_s: float) -> api_pb2.Boost:
    box = store.containers.get(boost.container)
    pod = store.pods.get(box.pod_id) if box is not None else None
    return api_pb2.Boost(
        target=f"{pod.namespace}/{pod.name}/{boost.name}" if pod is not None else boost.name,
        pod_uid=boost.uid,
        container_id=boost.container,
        given_millicores=round(boost.cpus * 1000),
        asked_millicores=round(boost.asked.cpus * 1000),
        until=timestamp(boost.end_s + to_wall_s),
        waits=boost.waits or "",
    )
