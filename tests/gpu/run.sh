#!/usr/bin/env bash
# The whole job on an NVIDIA GPU, with the full TensorRT: build, validate against PyTorch, time, promote, roll back.
#
#   MODELREG_GPU_TOOLCHAIN=/opt/trt86/bin/python tests/gpu/run.sh FOLDER
#   tests/gpu/run.sh --rehearse FOLDER       the same stages on the CPU with ONNX Runtime, to find faults of the script
#
# FOLDER gets results.json (as it comes), gpu-results.md, commands.log, pytest.log and the engine inspector's JSON.
# PYTHON (default: python3) has modelreg, PyTorch and pytest; MODELREG_GPU_TOOLCHAIN is the interpreter that has
# TensorRT and cuda-bindings; MODELREG_GPU_TARGET is found where it is not given; MODELREG_GPU_TACTICS (default: none)
# says where kernels may come from; the run ends after MODELREG_GPU_LIMIT_S seconds (default: 480). A stage that fails
# does not stop the others; the exit code is then 1. MODELREG_GPU_STAGES names the files of tests/gpu that are run
# (`faults`, planted ones in engines of this GPU, has no part in the default).
set -uo pipefail

rehearse=
if [[ ${1:-} == --rehearse ]]; then
    rehearse=yes
    shift
fi
if [[ $# -ne 1 || $1 == -* ]]; then
    sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
mkdir -p "$1" || exit 1
results=$(cd "$1" && pwd)
python=${PYTHON:-python3}

if [[ $rehearse ]]; then
    unset MODELREG_GPU_TOOLCHAIN
    export MODELREG_GPU_TARGET=cpu
else
    if [[ ! -x ${MODELREG_GPU_TOOLCHAIN:-} ]]; then
        echo "MODELREG_GPU_TOOLCHAIN names no interpreter: ${MODELREG_GPU_TOOLCHAIN:-it is not set}" >&2
        exit 2
    fi
    if [[ ! ${MODELREG_GPU_TARGET:-} ]]; then
        capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d '. ')
        if [[ ! $capability ]]; then
            echo "no GPU is found: nvidia-smi tells none" >&2
            exit 1
        fi
        export MODELREG_GPU_TARGET=sm_$capability
    fi
    MODELREG_GPU_TOOLCHAIN=$(realpath -s "$MODELREG_GPU_TOOLCHAIN")
    export MODELREG_GPU_TOOLCHAIN
fi

cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
limit=${MODELREG_GPU_LIMIT_S:-480}
export MODELREG_GPU_RESULTS=$results
MODELREG_GPU_UNTIL=$(($(date +%s) + limit))
export MODELREG_GPU_UNTIL CUBLAS_WORKSPACE_CONFIG=:4096:8 NO_COLOR=1 COLUMNS=120 PYTHONUNBUFFERED=1
unset MODELREG_HOME

rm -f "$results"/{results.json,gpu-results.md,commands.log,pytest.log,inspector-*.json.gz}
files=()
for stage in ${MODELREG_GPU_STAGES:-release latency refusals layers devices resnet50 elsewhere bench}; do
    files+=("tests/gpu/test_$stage.py")
done
timeout --signal=INT --kill-after=20 "$limit" \
    "$python" -m pytest -m gpu -p no:cacheprovider -p no:randomly -W default -v --durations=0 --durations-min=1 \
    "${files[@]}" 2>&1 | tee "$results/pytest.log"
code=${PIPESTATUS[0]}

PYTHONPATH=$PWD/tests/support${PYTHONPATH:+:$PYTHONPATH} \
    "$python" -m modelreg_testing.gpu_report "$results/results.json" >"$results/gpu-results.md" || code=1
cat "$results/gpu-results.md"
exit $((code != 0))
