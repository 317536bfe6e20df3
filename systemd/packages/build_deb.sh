#!/bin/sh
# Builds the Debian package into a folder: build_deb.sh PYTHON WHEEL FOLDER
#
# PYTHON has pip; WHEEL is this project's. Variables:
#   ARCH      amd64 or arm64 (default: this machine's)
#   PYTHONS   versions of python3 to build for (default: 3.11 of Debian 12, 3.12 of Ubuntu 24.04, 3.13 of Debian 13)
#   REVISION  of the package (default: 1)
#   DEBFULLNAME, DEBEMAIL   who builds it; the project itself has no address
set -eu

python=$1 wheel=$2 folder=$3
here=$(cd "$(dirname "$0")" && pwd)
name=koord-runtime-proxy
arch=${ARCH:-$(dpkg --print-architecture)}
version=$(basename "$wheel" | cut -d- -f2)
# Debian sorts 0.2.0~dev1 and 0.2.0~rc1 before 0.2.0.
package_version=$(echo "$version" | sed 's/rc/~rc/; s/\.dev/~dev/')-${REVISION:-1}
case $arch in
amd64) machine=x86_64 ;;
arm64) machine=aarch64 ;;
*) echo "build_deb.sh: ARCH is $arch: the dependencies are built for amd64 and arm64 only" >&2; exit 2 ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
root=$work/root
prefix=$root/opt/$name
share=$prefix/share

# An environment as venv makes it, for each Python in a folder of its own: python3 takes the one of its version.
mkdir -p "$prefix/bin"
ln -s /usr/bin/python3 "$prefix/bin/python3"
ln -s python3 "$prefix/bin/python"
printf 'home = /usr/bin\ninclude-system-site-packages = false\n' >"$prefix/pyvenv.cfg"
install_into() { # PYTHON_VERSION FOLDER ARGUMENT...
    for_python=$1 target=$2
    shift 2
    "$python" -m pip --quiet --disable-pip-version-check install --no-deps --no-compile --only-binary=:all: \
        --platform "manylinux_2_35_$machine" --platform "manylinux_2_28_$machine" \
        --platform "manylinux2014_$machine" --platform "manylinux_2_17_$machine" \
        --implementation cp --python-version "$for_python" --target "$target" --upgrade "$@"
}
depends="" next=""
for each in ${PYTHONS:-3.11 3.12 3.13}; do
    site=$prefix/lib/python$each/site-packages
    install_into "$each" "$site" --require-hashes --requirement "$here/requirements.lock"
    rm -rf "${site:?}/bin"
    install_into "$each" "$site" --no-index --find-links "$(dirname "$wheel")" "$name==$version"
    rm -rf "$share" "${site:?}/bin"
    mv "$site/share" "$share"
    # Of the first version on, but not of those between: (>= 3.11), (<< 3.12) | (>= 3.13), (<< 3.14).
    if [ -z "$next" ]; then
        depends="python3 (>= $each~)"
    elif [ "$each" != "$next" ]; then
        depends="$depends, python3 (<< $next~) | python3 (>= $each~)"
    fi
    next=3.$((${each#3.} + 1))
done
depends="$depends, python3 (<< $next~)"
program() { # NAME MODULE
    cat >"$prefix/bin/$1" <<END
#!/opt/$name/bin/python3
import sys

from $2 import main

sys.exit(main())
END
    chmod 755 "$prefix/bin/$1"
}
program "$name" runtimeproxy.__main__
program koord-qos-manager runtimeproxy.qosmanager.__main__

# Where the distribution looks for things; all from the wheel, so that they fit the program.
systemd=$share/$name/systemd
rm -rf "$share/man" "$share/bash-completion" "$share/zsh" "$share/fish"
install -D -m 644 -t "$root/usr/lib/systemd/system" "$systemd/$name.service" "$systemd/$name.socket" \
    "$systemd/koord-qos-manager.service"
install -D -m 644 -t "$root/etc/$name" "$systemd/config.toml"
for command in "$name" koord-qos-manager; do
    install -D -m 644 -t "$root/usr/share/man/man8" "$systemd/man/$command.8"
    gzip -9n "$root/usr/share/man/man8/$command.8"
    install -D -m 644 "$systemd/completions/$command.bash" "$root/usr/share/bash-completion/completions/$command"
    install -D -m 644 -t "$root/usr/share/zsh/vendor-completions" "$systemd/completions/_$command"
    install -D -m 644 -t "$root/usr/share/fish/vendor_completions.d" "$systemd/completions/$command.fish"
done
documents=$root/usr/share/doc/$name
install -D -m 644 -t "$documents" "$here/debian/copyright" "$here/debian/README.Debian"
install -m 644 "$here/../../CHANGELOG.md" "$documents/changelog"
# Where their links lead to each other.
ln -s "/opt/$name/share/$name" "$documents/documents"
install -D -m 644 "$here/debian/lintian-overrides" "$root/usr/share/lintian/overrides/$name"
# Files of the dependencies, some of which are executable without being a program.
find "$prefix/lib" -type f -perm /111 -exec chmod 644 {} +

# The same sources give the same package.
if [ -z "${SOURCE_DATE_EPOCH:-}" ] && changed=$(git -C "$here" log -1 --format=%ct 2>/dev/null); then
    export SOURCE_DATE_EPOCH="$changed"
fi
maintainer=${DEBFULLNAME:-The developers of $name}
cat >"$documents/changelog.Debian" <<END
$name ($package_version) unstable; urgency=medium

  * The changes of the program are in changelog.gz.

 -- $maintainer <${DEBEMAIL:-}>  $(LC_ALL=C date --utc --rfc-email --date "@${SOURCE_DATE_EPOCH:-$(date +%s)}")
END
gzip -9n "$documents/changelog" "$documents/changelog.Debian"
mkdir -p "$root/usr/sbin"
ln -s "/opt/$name/bin/$name" "/opt/$name/bin/koord-qos-manager" "$root/usr/sbin/"

size=$(du --summarize --block-size=1024 "$root" | cut -f1)
mkdir "$root/DEBIAN"
sed -e "s/@VERSION@/$package_version/" -e "s/@ARCH@/$arch/" -e "s/@SIZE@/$size/" -e "s/@PYTHONS@/$depends/" \
    -e "s/@MAINTAINER@/$maintainer${DEBEMAIL:+ <$DEBEMAIL>}/" \
    "$here/debian/control.in" >"$root/DEBIAN/control"
echo "/etc/$name/config.toml" >"$root/DEBIAN/conffiles"
install -m 755 -t "$root/DEBIAN" "$here/debian/postinst" "$here/debian/prerm" "$here/debian/postrm"
install -m 644 -t "$root/DEBIAN" "$here/debian/triggers"
(cd "$root" && find . -type f ! -path './DEBIAN/*' ! -path './etc/*' -printf '%P\0' | sort -z | xargs -0 md5sum) \
    >"$work/md5sums"
mv "$work/md5sums" "$root/DEBIAN/md5sums"

mkdir -p "$folder"
dpkg-deb --root-owner-group --build "$root" "$folder/${name}_${package_version}_$arch.deb"
