#!/bin/sh
# Installs the Debian packages that build and boot the node: an emulator, a bootstrapper, a file system maker.
set -eu

packages="qemu-system-x86 mmdebstrap e2fsprogs"

missing=""
for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
    echo "tests/node/install.sh: needs root to install:$missing" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $missing
