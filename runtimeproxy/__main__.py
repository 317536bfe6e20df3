"""`koord-runtime-proxy`, also as `python -m runtimeproxy`."""

import sys

from runtimeproxy import signals

signals.block()

from runtimeproxy.cli import main  # noqa: E402  # a signal that comes while this is imported has to wait

if __name__ == "__main__":
    sys.exit(main())
