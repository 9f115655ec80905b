#!/usr/bin/env bash
# Makes .venv-peers: everything of .venv, and those peers of the benchmarks that install here. The tests never see it.
# A peer that does not install is named with the last line of its error, and the benchmark goes on without it.
set -uo pipefail
base=$(cd "${1:-.venv}" && pwd) || exit 1
venv=.venv-peers

if [[ ! -x $venv/bin/python ]]; then
    "$base/bin/python" -m venv "$venv" 2>/dev/null || "$base/bin/python" -m virtualenv --quiet "$venv" || exit 1
fi
folder() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
folder "$base" >"$(folder "$venv")/zz-base.pth" # after its own: torch is not installed twice

log=$venv/install.log
# peer NAME MODULE ARGUMENTS...: what pip installs for it, unless the module is there.
peer() {
    local name=$1 module=$2
    shift 2
    "$venv/bin/python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$module') is None)" && return
    echo "peers: $name"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "$@" >"$log" 2>&1 ||
        echo "peers: $name does not install here: $(grep -v '^ *$' "$log" | tail -1)"
}

peer safetensors safetensors safetensors==0.8.0
# Of its dependencies only what it loads: CuPy and CUDA's toolkit are gigabytes, which host memory needs nothing of.
peer KvikIO kvikio --no-deps kvikio-cu12==26.10.0 libkvikio-cu12==26.10.0 rapids-logger==0.3.0 \
    cuda-pathfinder==1.9.1 nvidia-cufile-cu12==1.14.1.1
peer DeepSpeed deepspeed --no-build-isolation deepspeed==0.19.8
# Its build appends to ~/.bashrc, and looks for static libraries where Debian does not have them.
static=$(dirname "$(cc -print-file-name=liburing.a)")
HOME=$PWD/$venv/home LIBRARY_PATH=$static peer TensorNVMe tensornvme --no-build-isolation tensornvme==0.1.0
exit 0
