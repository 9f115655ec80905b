#!/usr/bin/env bash
# Installs what is missing from the system through apt, where that needs no password; never asks for one.
#   tools/system_packages.sh build PYTHON   what the build needs; fails if it cannot go on without something
#   tools/system_packages.sh tests          tools that some tests and benchmarks use; they skip without
#   tools/system_packages.sh peers          what peers of the benchmarks build with; one is left out without
#   tools/system_packages.sh fuzz           clang with libFuzzer and the sanitizers; no fuzzing without
# APT=no in the environment keeps it from installing anything.
set -euo pipefail
export PATH="$PATH:/usr/sbin:/sbin"

packages=()  # to install
declare -A checks=()  # package -> the command that succeeds once it is there

# want PACKAGE COMMAND: asks for the package if the command fails.
want() {
    if ! eval "$2" >/dev/null 2>&1 </dev/null; then
        packages+=("$1")
        checks[$1]=$2
    fi
}

has_header() {
    echo "#include <$1>" | ${CXX:-c++} -x c++ -E - >/dev/null 2>&1
}

links_a_fuzzer() {
    echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, long) { return 0; }' |
        clang++ -fsanitize=fuzzer,address -x c++ - -o /dev/null
}

left_out_by_the_user() {
    [[ ",${DEEPNVME_WITHOUT:-}," == *",$1,"* ]]
}

mode=${1:-}
case $mode in
build)
    export python=${2:-python3}
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        echo "system: $python is missing or older than 3.10: name another, make setup PYTHON=..." >&2
        exit 1
    fi
    version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    want g++ "command -v ${CXX:-c++}"
    want "$version-dev" '[[ -e $("$python" -c "import sysconfig; print(sysconfig.get_path(\"include\"))")/Python.h ]]'
    want "$version-venv" '"$python" -c "import venv, ensurepip" || "$python" -c "import virtualenv"'
    left_out_by_the_user liburing || want liburing-dev "has_header liburing.h"
    left_out_by_the_user libaio || want libaio-dev "has_header libaio.h"
    ;;
tests)
    want fio "command -v fio"
    want strace "command -v strace"
    want xfsprogs "command -v mkfs.xfs"
    want e2fsprogs "command -v mkfs.ext4"
    ;;
peers)
    want fio "command -v fio"
    want cmake "command -v cmake"
    want liburing-dev "has_header liburing.h"
    want libaio-dev "has_header libaio.h"
    ;;
fuzz)
    want clang "command -v clang++"
    want libclang-rt-dev "links_a_fuzzer"
    ;;
*)
    sed -n 's/^#   /usage: /p' "$0" >&2
    exit 2
    ;;
esac
[[ ${#packages[@]} -gt 0 ]] || exit 0

as_root=()
why_not=""
if [[ ${APT:-} == no ]]; then
    why_not="APT=no"
elif ! command -v apt-get >/dev/null; then
    why_not="there is no apt-get"
elif [[ $(id -u) -ne 0 ]]; then
    as_root=(sudo -n)
    sudo -n true >/dev/null 2>&1 || why_not="not root, and no sudo without a password"
fi

apt_get() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a \
        apt-get -qq -y -o DPkg::Lock::Timeout=120 "$@" </dev/null 2>&1
}

if [[ -z $why_not ]]; then
    echo "system: apt-get install ${packages[*]}"
    # The package lists of a fresh machine are empty or old; an update that fails may still leave enough.
    said=$(apt_get update) || true
    if ! said=$(apt_get install --no-install-recommends "${packages[@]}"); then
        # One package that this release does not have must not keep the others away.
        for package in "${packages[@]}"; do
            said=$(apt_get install --no-install-recommends "$package") ||
                echo "system: $package: $(tail -n 1 <<<"$said")"
        done
    fi
    why_not="apt-get could not install it"
fi

failed=0
for package in "${packages[@]}"; do
    if eval "${checks[$package]}" >/dev/null 2>&1 </dev/null; then
        continue
    fi
    case $package in
    liburing-dev) echo "system: no liburing.h ($why_not): the io_uring engine is left out" ;;
    libaio-dev) echo "system: no libaio.h ($why_not): the libaio engine is left out" ;;
    g++ | python*)
        echo "system: $package is needed and missing ($why_not): apt install $package" >&2
        failed=1
        ;;
    *) echo "system: no $package ($why_not): what needs it is skipped" ;;
    esac
done
exit "$failed"
