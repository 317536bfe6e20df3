#!/bin/sh
# check_deb.sh DEB: lintian finds nothing, and a Debian 13 of its own takes the package: installed, run before the fake
# runtime, upgraded with an edited configuration, removal refused, removed, purged. As root; needs lintian, mmdebstrap.
set -eu

deb=$(realpath "$1") root=${2:-}
name=koord-runtime-proxy
if [ -z "$root" ]; then
    lintian --allow-root --fail-on error,warning "$deb"
    root=$(mktemp -d)
    trap 'rm -rf --one-file-system "$root"' EXIT
    chmod 755 "$root"
    mmdebstrap --quiet --variant=apt --include=python3 trixie "$root"
    # Whatever is started and mounted there ends with the namespaces.
    unshare --mount --pid --fork --kill-child --mount-proc sh "$0" "$deb" "$root"
    echo "$deb: lintian finds nothing; installed, run, upgraded and purged on Debian 13"
    exit
fi

fail() {
    echo "check_deb.sh: $*" >&2
    exit 1
}
inside() {
    chroot "$root" "$@"
}
mount -t proc proc "$root/proc"
[ -c "$root/dev/null" ] || mknod -m 666 "$root/dev/null" c 1 3
[ -c "$root/dev/urandom" ] || mknod -m 444 "$root/dev/urandom" c 1 9
site=/opt/$name/lib/python3.13/site-packages
compiled=$site/runtimeproxy/__pycache__/__main__.cpython-313.pyc
config=/etc/$name/config.toml

cp "$deb" "$root/package.deb"
inside dpkg --install /package.deb
[ -z "$(inside dpkg --verify $name)" ] || fail "files are not those of the package"
for each in "$compiled" /usr/share/doc/$name/README.Debian /usr/share/doc/$name/documents/systemd/README.md; do
    inside test -f "$each" || fail "$each is missing"
done
for each in $name koord-qos-manager; do
    gzip --test "$root/usr/share/man/man8/$each.8.gz"
    inside bash -n /usr/share/bash-completion/completions/"$each"
    inside "$each" --version
done
inside $name check-config
inside $name demo >"$root/demo"
grep -q batch-resource "$root/demo"

# dpkg calls postinst when the distribution's Python is another one.
rm "$root$compiled"
inside dpkg-trigger --by-package=python3-minimal /usr/bin/python3
inside dpkg --triggers-only --pending
[ -f "$root$compiled" ] || fail "it is not compiled for another Python"

mkdir "$root/run/containerd"
mkfifo "$root/serving"
chroot "$root" /opt/$name/bin/python3 -m runtimeproxy.testing --socket /run/containerd/containerd.sock --pods 2 \
    >"$root/serving" &
read -r _ <"$root/serving"
chroot "$root" $name 2>"$root/log" &
tries=60
until inside $name status >"$root/status" 2>&1; do
    tries=$((tries - 1))
    [ $tries -gt 0 ] || { cat "$root/status" "$root/log" >&2; fail "it does not serve"; }
done
grep "^records *2 pods" "$root/status" || fail "it does not know the pods"
inside $name doctor

# The next version has another sample.
dpkg-deb --raw-extract "$deb" "$root/next"
sed -i "s/^Version: .*/&+next/" "$root/next/DEBIAN/control"
echo "# Of the next version." >>"$root/next$config"
dpkg-deb -Znone --root-owner-group --build "$root/next" "$root/next.deb"
rm -r "$root/next"
echo "# Edited by the administrator." >>"$root$config"
inside dpkg --force-confold --install /next.deb
tail -n 1 "$root$config" | grep -q administrator || fail "the edited configuration is lost"
inside $name upgrade
inside $name status | grep "^records *2 pods" || fail "the upgrade has lost the pods"

mkdir -p "$root/var/lib/kubelet"
echo "containerRuntimeEndpoint: unix:///run/koord-runtimeproxy/runtimeproxy.sock" >"$root/var/lib/kubelet/config.yaml"
if inside dpkg --remove $name; then
    fail "it was removed while a kubelet needs it"
fi
inside $name status >/dev/null
rm "$root/var/lib/kubelet/config.yaml"
pid=$(inside $name status | sed -n 's/^daemon .* process \([0-9]*\),.*/\1/p')
kill "$pid"
timeout 60 tail --pid="$pid" --follow /dev/null || fail "it does not end"
inside dpkg --remove $name
[ ! -e "$root/opt/$name" ] || fail "/opt/$name is left"
tail -n 1 "$root$config" | grep -q administrator || fail "a removal takes the configuration along"
[ -e "$root/var/lib/$name/records.db" ] || fail "a removal takes the state along"
inside dpkg --purge $name
left=$(find "$root" -xdev \( -path "$root/var/lib/dpkg" -o -path "$root/var/log" \) -prune -o -name '*koord*' -print)
[ -z "$left" ] || fail "a purge leaves $left"
