#!/bin/sh
# Builds a kernel with core scheduling for the node, from Debian's source and kernel.config: a quarter of an hour on two
# idle cores, 2 GB of disk meanwhile. Debian's own kernel lacks CONFIG_SCHED_CORE. The result is kept in .tools/node-kernel.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
kernel=$here/../../.tools/node-kernel
packages="linux-source flex bison bc gcc make xz-utils libelf-dev libssl-dev"

missing=""
for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
if [ -n "$missing" ]; then
    if [ "$(id -u)" != 0 ]; then
        echo "tests/node/build_kernel.sh: needs root to install:$missing" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # shellcheck disable=SC2086
    apt-get install -y -qq --no-install-recommends $missing
fi

# Another recipe or version makes another kernel.
recipe=$(dpkg-query -W -f '${Version}\n' linux-source | cat - "$here/kernel.config" | sha256sum | cut -c1-16)
result=$kernel/bzImage
if [ -f "$result" ] && [ "$(cat "$kernel/recipe")" = "$recipe" ]; then
    exit 0
fi
rm -rf "$kernel"
mkdir -p "$kernel/source"
tar -xJf "$(ls /usr/src/linux-source-*.tar.xz | tail -n 1)" -C "$kernel/source" --strip-components=1
cd "$kernel/source"
KCONFIG_ALLCONFIG="$here/kernel.config" make -s allnoconfig
grep -qx CONFIG_SCHED_CORE=y .config
nice -n 19 make -s -j"$(nproc)" bzImage
cp arch/x86/boot/bzImage "$result"
cd "$kernel"
rm -rf source
echo "$recipe" >recipe
