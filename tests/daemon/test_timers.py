"""The timers of the relay's thread, in a process with as little power as its unit gives it."""

import os
import sys
from pathlib import Path

from tests.daemon.conftest import Daemons
from tests.lab.programs import missing

DROPS_SYS_NICE = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(24, 23, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""PR_CAPBSET_DROP of CAP_SYS_NICE. Source: linux/prctl.h, linux/capability.h."""


def test_they_are_exact(daemons: Daemons) -> None:
    daemon = daemons.start(wrapper=(sys.executable, "-c", DROPS_SYS_NICE))
    try:
        slack_ns = Path(f"/proc/{daemon.pid}/timerslack_ns").read_text()
    except PermissionError:
        missing(f"user {os.geteuid()} may not look at another process")
    assert slack_ns.strip() == "1"
