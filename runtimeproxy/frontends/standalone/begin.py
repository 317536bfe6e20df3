"""When stand-alone mode began on this node: no message has been changed since then."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Final

from runtimeproxy.state.state_file import StateFile

logger = logging.getLogger(__name__)

FILE: Final = "standalone.json"
"""In the state folder."""


def begun_s(folder: Path) -> float:
    """When it began, in seconds since the epoch; now, if that was never saved."""
    file = StateFile(folder / FILE, "what runs already gets no lower memory limits", version=1)
    found = file.load(lambda document: float(document["since_s"]))
    if found is not None:
        return found
    now_s = time.time()
    try:
        file.save({"since_s": now_s})
    except OSError as error:
        logger.warning("%s cannot be saved: %s", file.path, error.strerror)
    return now_s


def forget_begin(folder: Path) -> None:
    """Another mode changes messages: what it creates has values that the kubelet did not ask for."""
    try:
        (folder / FILE).unlink(missing_ok=True)
    except OSError as error:
        logger.warning("%s cannot be removed: %s", folder / FILE, error.strerror)
