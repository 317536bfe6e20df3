#!/bin/sh
# install.sh CHECKOUT FOLDER: makes FOLDER a virtual environment with the program of a checkout, as on a node: its wheel.
# What the program needs comes from the environment of the checkout.
set -eu
checkout=$(cd "$1" && pwd)
folder=$2
make -C "$checkout" .venv/.installed
rm -rf "$folder"
"$checkout/.venv/bin/python" -m venv --without-pip "$folder"
pip() {
	"$checkout/.venv/bin/pip" --quiet --disable-pip-version-check "$@"
}
pip wheel --no-deps --no-build-isolation --wheel-dir "$folder/dist" "$checkout"
pip --python "$folder/bin/python" install --no-deps --no-index "$folder"/dist/*.whl
cd "$folder"/lib/python3.*/site-packages
echo "$checkout"/.venv/lib/python3.*/site-packages > dependencies.pth
