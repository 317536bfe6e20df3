"""What the C library is asked for; how much it saves is for the bench to tell."""

import subprocess
import sys

PROGRAM = """
import resource
from runtimeproxy.service.malloc import give_back, limit_arenas

def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()

limit_arenas()
blocks = [bytes(1000) for _ in range(50_000)]
kept = blocks[-1:]
full = resident_bytes()
del blocks
give_back()
print(full - resident_bytes())
"""


def test_free_memory_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    # Of 50 MB; without it next to nothing.
    assert int(done.stdout) > 25_000_000
