#!/bin/sh
# Installs and builds the programs of the laboratory, as far as this machine can: tests of what is missing are skipped
# and say so. With CI=true all of it must be there.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
for script in install.sh build_tools.sh; do
    sh "$here/$script" || [ "${CI:-}" != true ] || exit 1
done
