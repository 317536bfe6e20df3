#!/bin/sh
# Installs the Debian packages of the laboratory: a runtime, its image, HTTP/2 programs, Prometheus, a TCP bridge,
# systemd-analyze, man, shells, shellcheck, a browser, tc and nft. With the argument `versions`: also what CRI-O needs;
# with `effect`: what `make effect` needs, and no more.
set -eu

packages="containerd runc busybox-static nghttp2-client nghttp2-server prometheus socat systemd man-db zsh fish
shellcheck chromium chromium-driver fonts-dejavu-core iproute2 nftables"
[ "${1:-}" != versions ] || packages="$packages conmon skopeo"
[ "${1:-}" != effect ] || packages="containerd runc busybox-static nginx-light ffmpeg"

missing=""
for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
    echo "tests/lab/install.sh: needs root to install:$missing" >&2
    exit 1
fi
# A policy-rc.d that refuses keeps apt from starting a containerd of its own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends $missing
