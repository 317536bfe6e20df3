"""`python -m runtimeproxy` is the command `koord-runtime-proxy`."""

import sys

from runtimeproxy.cli import main

if __name__ == "__main__":
    sys.exit(main())
