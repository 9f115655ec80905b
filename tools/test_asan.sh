#!/usr/bin/env bash
# The Python tests on the extension built under AddressSanitizer and UBSan (make test-asan). Arguments reach pytest.
#
#   1. This extension, and that of the fault-injection tests, are built beside the shipped ones.
#   2. The sanitizers' libraries must be the first of every process: LD_PRELOAD. So is libstdc++, whose functions they
#      look up when they start and which Python brings only later.
#   3. Tests and their children find this extension before the shipped one by PYTHONPATH, and by the working directory,
#      which `python -c` looks at before that.
#   4. Every report is a file, also that of a child whose test ignores how it ends: a file is a failure. Beside
#      AddressSanitizer, UBSan writes to stderr and aborts, and the abort is what is reported. Both need the path: UBSan
#      starts last, and sets it for both.
#
# Leaks are not looked for: the interpreter and torch end with memory that they never give back.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
python=$root/.venv/bin/python
built=$root/build/asan
reports=$built/reports
export DEEPNVME_SANITIZE=address,undefined

echo "test-asan: the extension under $DEEPNVME_SANITIZE"
"$python" setup.py --quiet build_ext --build-lib="$built"
"$python" tests/support/faulty_build.py >/dev/null

# The very libraries that it was linked with; clang leaves its own to the executable, and none is found.
needed=$(ldd "$built"/_deepnvme*.so)
preload=""
for library in libasan libubsan libstdc++; do
    path=$(awk -v name="$library.so" 'index($1, name) == 1 { print $3 }' <<<"$needed")
    if [[ ! -e $path ]]; then
        echo "test-asan: _deepnvme is not linked with $library as a shared library: build with g++ (CXX=g++)" >&2
        exit 1
    fi
    preload+="$path "
done

rm -rf "$reports"
mkdir -p "$reports"
export PYTHONPATH="$built${PYTHONPATH:+:$PYTHONPATH}"
export ASAN_OPTIONS="detect_leaks=0:exitcode=99:handle_abort=1:log_path=$reports/report"
export UBSAN_OPTIONS="print_stacktrace=1:abort_on_error=1:log_path=$reports/report"
# Commands, examples, documents and DeepSpeed call nothing in the extension that the other tests do not call.
left_out=()
for files in ds_io tune benchmark deepspeed examples training_beyond_memory docs api_reference layers catalogue; do
    left_out+=("--ignore-glob=*/test_${files}*.py")
done
result=0
cd "$built"
LD_PRELOAD=$preload "$python" -m pytest --rootdir="$root" -c "$root/pyproject.toml" -p no:cacheprovider \
    -n 3 --dist loadfile -m "not alone and not build and not cpp" "${left_out[@]}" "$@" "$root/tests" || result=$?

shopt -s nullglob
found=("$reports"/*)
if [[ ${#found[@]} -gt 0 ]]; then
    head -n 60 "${found[@]}"
    echo "test-asan: ${#found[@]} reports of the sanitizers, in build/asan/reports" >&2
    exit 1
fi
[[ $result -eq 0 ]] || exit "$result"
echo "test-asan: no reports. Each test ran with one set of arguments for each engine and a fifth of the examples; not at" \
    "all, those marked alone, build or cpp (tests/cpp has sanitizers of its own), those of commands, examples, documents" \
    "and DeepSpeed, and those skipped as \"not under sanitizers\""
