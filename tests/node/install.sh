#!/bin/sh
# Installs the Debian packages that build and boot the node: an emulator, a bootstrapper, a file system maker.
# With the argument arm64 also those of a node of that architecture, whose programs this kernel then runs, too.
set -eu

packages="qemu-system-x86 mmdebstrap e2fsprogs"
[ "${1:-}" != arm64 ] || packages="$packages qemu-system-arm qemu-user-static arch-test"

missing=""
for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
if [ -n "$missing" ]; then
    if [ "$(id -u)" != 0 ]; then
        echo "tests/node/install.sh: needs root to install:$missing" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # shellcheck disable=SC2086
    apt-get install -y -qq --no-install-recommends $missing
fi

# systemd-binfmt does it where systemd runs.
formats=/proc/sys/fs/binfmt_misc
if [ "${1:-}" = arm64 ] && [ ! -e $formats/qemu-aarch64 ]; then
    [ -e $formats/register ] || mount -t binfmt_misc binfmt_misc $formats
    cat /usr/lib/binfmt.d/qemu-aarch64.conf >$formats/register
fi
