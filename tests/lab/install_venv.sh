#!/bin/sh
# Makes a virtual environment where Debian's Python comes without ensurepip.
# Usage: install_venv.sh PYTHON VENV
set -eu
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
    exec "$1" -m venv --clear "$2"
fi
echo "python3-venv is missing: install it (apt-get install python3-venv), then run make again" >&2
exit 1
