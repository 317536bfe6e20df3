"""When a mode in which no message tells of all that is created began on this node.

What was created since, and has no record, was created without policies: its values are the kubelet's own.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runtimeproxy.state.state_file import StateFile

if TYPE_CHECKING:
    from runtimeproxy.pods.store import PodStore

logger = logging.getLogger(__name__)


MODES: Final = ("nri", "standalone")


def begun_s(folder: Path, mode: str) -> float:
    """When a mode began, in seconds since the epoch; now, if that was never saved in the state folder."""
    file = StateFile(folder / f"{mode}.json", "what runs already gets no lower memory limits", version=1)
    found = file.load(lambda document: float(document["since_s"]))
    if found is not None:
        return found
    now_s = time.time()
    try:
        file.save({"since_s": now_s})
    except OSError as error:
        logger.warning("%s cannot be saved: %s", file.path, error.strerror)
    return now_s


def forget_others(folder: Path, mode: str) -> None:
    """Another mode changes messages: what it creates has values that the kubelet did not ask for."""
    for other in MODES:
        try:
            if other != mode:
                (folder / f"{other}.json").unlink(missing_ok=True)
        except OSError as error:
            logger.warning("%s cannot be removed: %s", folder / f"{other}.json", error.strerror)


def mark_known(store: PodStore, since_s: float) -> set[str]:
    """Makes of what lists have shown what events would have; returns the ids."""
    pods, containers, found = store.pods, store.containers, set[str]()
    for pod in pods:
        if pod.recovered and pod.detailed and pod.created_s >= since_s:
            pods.revise(replace(pod, recovered=False))
            found.add(pod.id)
    for container in containers:
        if container.recovered and container.detailed and container.created_s >= since_s:
            containers.revise(replace(container, recovered=False))
            found.add(container.id)
    return found
