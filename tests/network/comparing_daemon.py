"""The daemon, which compares what the kernel has with what is wanted every 2 s, not every minute."""

import sys
from typing import Any

from runtimeproxy import signals

signals.block()

from runtimeproxy.cli import main  # noqa: E402  # as in `runtimeproxy/__main__.py`
from runtimeproxy.core import network  # noqa: E402
from runtimeproxy.ledger.fields import VERIFY_S  # noqa: E402
from runtimeproxy.pods.records import Level  # noqa: E402

EVERY_S = 2.0

if __name__ == "__main__":
    vars(network)["VERIFY_S"] = EVERY_S
    intervals: Any = VERIFY_S
    intervals[Level.NODE] = EVERY_S
    sys.exit(main())
