#!/usr/bin/env bash
# clang-tidy on every file of csrc, with the checks in .clang-tidy (make tidy). Minutes, so CI does not run it. Its wheel,
# which nothing else needs, is installed here.
#   tools/tidy.sh [FILE ...]    only these files
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=23.1.4
python=.venv/bin/python

"$python" -m pip install --quiet --disable-pip-version-check --no-input "clang-tidy==$version"
read -ra includes <<<"$("$python" -m pybind11 --includes)"
eval "defines=($("$python" setup.py --quiet engine_flags | sed -n 's/^ENGINE_DEFINES := //p'))"
if [[ $# -eq 0 ]]; then
    mapfile -t files < <(find csrc -name '*.cpp' | sort)
    set -- "${files[@]}"
fi
printf '%s\0' "$@" | xargs -0 -P 2 -I '{}' .venv/bin/clang-tidy --quiet '{}' -- \
    -std=c++20 -Icsrc "${defines[@]}" "${includes[@]}" 2> >(grep -v 'warnings\? .*generated' >&2 || true)
echo "tidy: clean"
