#!/bin/sh
# check_deb.sh DEB: lintian finds nothing, and a Debian 13 of its own takes the package: installed, runs, removal refused,
# removed, purged. As root; needs lintian and mmdebstrap.
set -eu

deb=$(realpath "$1")
name=koord-runtime-proxy
lintian --allow-root --fail-on error,warning "$deb"
root=$(mktemp -d)
trap 'umount "$root/proc" 2>/dev/null || true; rm -rf --one-file-system "$root"' EXIT
mmdebstrap --quiet --variant=apt --include=python3 trixie "$root"
mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
[ -c "$root/dev/null" ] || mknod -m 666 "$root/dev/null" c 1 3
[ -c "$root/dev/urandom" ] || mknod -m 444 "$root/dev/urandom" c 1 9
inside() {
    chroot "$root" "$@"
}
cp "$deb" "$root/package.deb"
inside dpkg --install /package.deb
inside $name version
inside $name check-config
inside $name demo >"$root/demo"
grep -q batch-resource "$root/demo"
mkdir -p "$root/var/lib/kubelet"
echo "containerRuntimeEndpoint: unix:///run/koord-runtimeproxy/runtimeproxy.sock" >"$root/var/lib/kubelet/config.yaml"
if inside dpkg --remove $name; then
    echo "check_deb.sh: it was removed while a kubelet needs it" >&2
    exit 1
fi
rm "$root/var/lib/kubelet/config.yaml"
inside dpkg --purge $name
for each in etc/$name opt/$name var/lib/$name usr/sbin/$name; do
    [ ! -e "$root/$each" ] || { echo "check_deb.sh: /$each is left" >&2; exit 1; }
done
echo "$deb: lintian finds nothing; installed, run and purged on Debian 13"
