"""Runs the daemon in an event loop, from the settings to the exit code."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import sys
from typing import TYPE_CHECKING, Final

from runtimeproxy import __version__
from runtimeproxy.errors import ConfigError, PolicyLoadError, RuntimeProxyError
from runtimeproxy.service.daemon import Daemon
from runtimeproxy.service.event_loop import loop_factory
from runtimeproxy.service.handover.inherited_fds import tell_predecessor
from runtimeproxy.service.malloc import limit_arenas

if TYPE_CHECKING:
    from runtimeproxy.config.settings import Settings
    from runtimeproxy.service.daemon import Reload

logger = logging.getLogger(__name__)

TURN_S: Final = 0.00005
"""How long a thread may keep the interpreter while the relay's loop waits for it; Python's default is 5 ms.
While a policy computes for long it is less: see `runtimeproxy.hooks.switch_interval`."""

_STANDARD_ERROR: Final = 2
"""The descriptor, for `sys.stderr` may be an object without one."""


def run(settings: Settings, reload: Reload) -> int:
    """Serves until SIGTERM; returns the exit code: 0, 1 when it cannot serve, 2 for bad configuration.

    Args:
        settings: what to serve.
        reload: reads the settings again; raises ConfigError.
    """
    # A crash of the interpreter leaves the stacks of all threads in the journal, also after an upgrade.
    faulthandler.enable(_STANDARD_ERROR)
    sys.setswitchinterval(TURN_S)
    logger.debug("version %s with Python %s", __version__, sys.version.partition(" ")[0])
    limit_arenas()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(settings, reload))
    except (ConfigError, PolicyLoadError) as error:
        logger.error("cannot start: %s", error)  # noqa: TRY400  # the message says it all
        tell_predecessor(str(error))
        return 2
    except RuntimeProxyError as error:
        logger.error("cannot serve: %s", error)  # noqa: TRY400  # the message says it all
        tell_predecessor(str(error))
        return 1
    except Exception as error:
        tell_predecessor(f"{type(error).__name__}: {error}")
        raise
    return 0


async def _serve(settings: Settings, reload: Reload) -> None:
    await Daemon(settings, reload).serve()
