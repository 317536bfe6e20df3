"""Writes the README's picture of the node page: a fake node with 250 pods, just after a strategy has changed.

`python -m tests.service.page.screenshot`, or `make screenshot`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from tests.lab.browser import Browser, Size
from tests.lab.busy_node import PODS, STRATEGIES, BusyNode

IMAGE: Final = Path(__file__).with_name("page.png")
SIZE: Final = Size(1280, 960)
_BURST: Final = {"clusterStrategy": {"policy": "auto", "cpuBurstPercent": 80}}


def main() -> None:
    """Writes the picture."""
    with (
        tempfile.TemporaryDirectory(prefix="page-", dir="/tmp") as folder,
        Browser(Path(folder)) as browser,
        BusyNode(Path(folder), cores=16) as node,
    ):
        node.fill()
        browser.open(node.url, SIZE)
        node.objects.strategies({**STRATEGIES, "cpu-burst-config": _BURST})
        browser.wait_for("document.querySelectorAll('.pod').length == arguments[0]", PODS)
        item = "document.querySelectorAll('#decisions > li')[5]"
        browser.wait_for(f"{item}.innerText.includes('cpu.cfs_burst_us')")
        # What is new is marked for some seconds.
        browser.wait_for("document.getAnimations().length == 0")
        browser.screenshot(IMAGE)


if __name__ == "__main__":
    main()
