#!/bin/sh
# Prints the path of a Python of a version: install_python.sh 3.13
# That is one on PATH, one of pyenv, or else, as root on Debian 12, the one of Debian 13, which is unpacked once into
# .tools with its own C library (20 s). Fails where there is none.
set -eu

version=$1
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
tools=$(CDPATH='' cd -- "$here/../.." && pwd)/.tools
root=$tools/python-$version
program=$root/usr/bin/python$version

# Shims of pyenv are there for versions that are not chosen, too, and fail.
is_usable() {
    "$1" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null
}

for found in "$(command -v "python$version" || true)" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python"$version" "$program"; do
    if [ -x "$found" ] && is_usable "$found"; then
        echo "$found"
        exit
    fi
done

fail() {
    echo "tests/lab/install_python.sh: there is no Python $version on PATH or of pyenv; $*" >&2
    exit 1
}
[ "$version" = 3.13 ] || fail "install it"
command -v apt-get >/dev/null || fail "install it, or use Debian"
[ "$(id -u)" = 0 ] || fail "install it, or run this as root to unpack that of Debian 13"
{
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends mmdebstrap patchelf
    mkdir -p "$tools"
    rm -rf "$root" "$root.unfinished"
    mmdebstrap --quiet --variant=extract --include="python$version-venv" trixie "$root.unfinished"
    mv "$root.unfinished" "$root"
    libraries=$(dirname "$(ls "$root"/usr/lib/*/ld-linux-*.so.*)")
    patchelf --set-interpreter "$(ls "$libraries"/ld-linux-*.so.*)" --force-rpath --set-rpath "$libraries" "$program"
    # Where venv takes pip from.
    sed -i "s|'/usr/share/python-wheels/'|'$root/usr/share/python-wheels/'|" "$root/usr/lib/python$version"/_sysconfigdata_*.py
} >&2
is_usable "$program" || fail "that of Debian 13 does not run"
echo "$program"
