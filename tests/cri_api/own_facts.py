"""The facts of the daemon's own API: `python -m tests.cri_api.own_facts` adds what is new, and nothing else.

A fact that is there stays: version 1 grows by additions only.
"""

from __future__ import annotations

import json
from typing import Any

from cri_api.runtimeproxy.v1 import api_pb2, plugin_pb2
from tests.cri_api.test_facts import FOLDER, call_fact, enums_of, field_fact, messages_of

FACTS = FOLDER / "runtimeproxy_v1.json"


def present() -> dict[str, Any]:
    """The facts of the descriptors."""
    files = (api_pb2.DESCRIPTOR, plugin_pb2.DESCRIPTOR)
    messages = {name: message for file in files for name, message in messages_of(file).items()}
    enums = {name: values for file in files for name, values in enums_of(file).items()}
    services = {name: service for file in files for name, service in file.services_by_name.items()}
    return {
        "package": files[0].package,
        "messages": {
            name: sorted(field_fact(field) for field in message.fields)
            for name, message in sorted(messages.items())
        },
        "enums": dict(sorted(enums.items())),
        "services": {
            name: {method.name: call_fact(method) for method in service.methods}
            for name, service in sorted(services.items())
        },
    }


def lost(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The facts of before that do not hold any more."""
    found = [
        f"{name}: {fact}"
        for name, facts in before["messages"].items()
        for fact in facts
        if fact not in now["messages"].get(name, ())
    ]
    for kind in ("enums", "services"):
        found += (
            f"{name}: {key}"
            for name, facts in before[kind].items()
            for key, fact in facts.items()
            if now[kind].get(name, {}).get(key) != fact
        )
    return found


if __name__ == "__main__":
    now = present()
    if FACTS.exists() and (gone := lost(json.loads(FACTS.read_text()), now)):
        raise SystemExit("these facts do not hold any more: " + "; ".join(gone))
    FACTS.write_text(json.dumps(now, indent=1) + "\n")
