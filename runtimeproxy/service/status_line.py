"""What the service manager is told of the daemon's state: one line for people."""

from __future__ import annotations


def status_line(summary: str, connection_count: int, trouble: str = "", *, passes: bool) -> str:
    """The line.

    Args:
        summary: policies, hook servers and records.
        connection_count: how many clients are connected.
        trouble: what is wrong just now; empty for nothing.
        passes: whether calls pass without policies.
    """
    clients = "1 connection" if connection_count == 1 else f"{connection_count} connections"
    parts = (trouble, "all calls pass unheld" if passes else "", summary, clients)
    return "; ".join(part for part in parts if part)
