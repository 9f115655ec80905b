#!/usr/bin/env bash
# What the tests reach: branches of Python, lines of C++ (make coverage). Arguments reach pytest.
#
#   1. The extension is built with counters, beside the shipped one, and so are the C++ tests.
#   2. The C++ tests run, then the Python tests; these and their children find this extension by PYTHONPATH, and by the
#      working directory, which `python -c` looks at before that. Processes that a test kills count for nothing.
#   3. One table, and pages that show each line: build/coverage/python and build/coverage/cpp.
#
# The result is that of the tests. Some, such as those that count system calls, may fail only here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
built=$root/build/coverage
python=$root/.venv/bin/python
counters="-O0 -g --coverage -fprofile-update=atomic -fprofile-abs-path"

mkdir -p "$built"
echo "coverage: the extension and the C++ tests with counters"
CXXFLAGS=$counters LDFLAGS=--coverage "$python" setup.py --quiet build_ext \
    --build-lib="$built/lib" --build-temp="$built/objects" >/dev/null
make -C tests/cpp --no-print-directory SANITIZE=none BUILD="$built/tests" CXXFLAGS="$counters" all >"$built/cpp.log" ||
    { tail -n 20 "$built/cpp.log" >&2 && exit 1; }

find "$built" -name '*.gcda' -delete
rm -rf "$built/data" "$built/python" "$built/cpp"
mkdir -p "$built/data" "$built/cpp"
result=0
make -C tests/cpp --no-print-directory SANITIZE=none BUILD="$built/tests" CXXFLAGS="$counters" run >"$built/cpp.log" ||
    { tail -n 20 "$built/cpp.log" >&2 && result=1; }

export PYTHONPATH="$built/lib:$root${PYTHONPATH:+:$PYTHONPATH}"
export COVERAGE_FILE=$built/data/coverage
cd "$built/lib"
"$python" -m coverage run --rcfile="$root/pyproject.toml" -m pytest --rootdir="$root" -c "$root/pyproject.toml" \
    -p no:cacheprovider -m "not build and not cpp" "$@" "$root/tests" || result=$?

cd "$root"
"$python" -m coverage combine --quiet
"$python" -m coverage json --quiet -o "$built/python.json"
"$python" -m coverage html --quiet --directory "$built/python"
"$python" -m gcovr --root "$root" --filter csrc/ --object-directory "$built" --exclude-throw-branches \
    --merge-mode-functions=merge-use-line-min --gcov-ignore-errors=no_working_dir_found \
    --json-summary "$built/cpp.json" \
    --html-details "$built/cpp/index.html" "$built" >"$built/cpp.log" 2>&1 || { cat "$built/cpp.log" >&2 && exit 1; }
"$python" tools/coverage_table.py "$built/python.json" "$built/cpp.json"
echo "coverage: every line in build/coverage/python/index.html and build/coverage/cpp/index.html"
exit "$result"
