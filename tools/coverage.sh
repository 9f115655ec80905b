#!/usr/bin/env bash
# What the tests reach: branches of Python, lines of C++ (make coverage). Arguments reach pytest.
#
#   1. The extension is built with counters (DEEPNVME_COVERAGE), beside the shipped one, and so are the C++ tests and,
#      from the same objects, that of the fault-injection tests.
#   2. The C++ tests run, then the Python tests; these and their children find this extension by PYTHONPATH, and by the
#      working directory, which `python -c` looks at before that. Processes that a test kills count for nothing.
#   3. One table, and pages that show each line: build/coverage/python and build/coverage/cpp.
#
# The result is that of the tests, without two: counters are a second symbol that the extension offers, and a thread that
# looks again and again, with every line counted, does not let strace's delays end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
built=$root/build/coverage
python=$root/.venv/bin/python
counters="--coverage -O0 -fprofile-update=atomic -fprofile-abs-path"
export DEEPNVME_COVERAGE=1

mkdir -p "$built"
echo "coverage: the extension and the C++ tests with counters"
"$python" setup.py --quiet build_ext --build-lib="$built/lib" >/dev/null
cpp_tests() {
    make -C tests/cpp --no-print-directory SANITIZE=none BUILD="$built/tests" CXXFLAGS="$counters" "$1" \
        >"$built/cpp.log" || { tail -n 20 "$built/cpp.log" >&2 && return 1; }
}
cpp_tests all

find "$root/build" -name '*.gcda' -delete
rm -rf "$built/data" "$built/python" "$built/cpp"
mkdir -p "$built/data" "$built/cpp"
result=0
cpp_tests run || result=1

export PYTHONPATH="$built/lib:$root${PYTHONPATH:+:$PYTHONPATH}"
export COVERAGE_FILE=$built/data/coverage
left_out=(--deselect tests/test_import_without_libaio.py::test_nothing_but_its_entry_is_offered
    --deselect tests/test_keyboard_interrupt.py::test_every_blocking_call)
python_tests() {
    (cd "$built/lib" && "$python" -m coverage run --rcfile="$root/pyproject.toml" -m pytest --rootdir="$root" \
        -c "$root/pyproject.toml" -p no:cacheprovider "${left_out[@]}" "$@" "$root/tests") || [ $? -eq 5 ]
}
python_tests -n 3 --dist loadfile -m "not alone and not build and not cpp" "$@" || result=1
python_tests -m alone "$@" || result=1

"$python" -m coverage combine --quiet
"$python" -m coverage json --quiet -o "$built/python.json"
"$python" -m coverage html --quiet --directory "$built/python"
"$python" -m gcovr --root "$root" --filter csrc/ --exclude-throw-branches \
    --merge-mode-functions=merge-use-line-min --gcov-ignore-errors=no_working_dir_found \
    --gcov-ignore-parse-errors=suspicious_hits.warn_once_per_file \
    --json-summary "$built/cpp.json" \
    --html-details "$built/cpp/index.html" "$root"/build >"$built/cpp.log" 2>&1 || { cat "$built/cpp.log" >&2 && exit 1; }
"$python" tools/coverage_table.py "$built/python.json" "$built/cpp.json"
echo "coverage: every line in build/coverage/python/index.html and build/coverage/cpp/index.html"
exit "$result"
