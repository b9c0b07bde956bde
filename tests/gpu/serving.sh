#!/usr/bin/env bash
# Serving alone, on one NVIDIA GPU or on several: answers, swaps under load, batching, CUDA graphs, kills, leaks.
#
#   MODELREG_GPU_TOOLCHAIN=/opt/trt86/bin/python tests/gpu/serving.sh FOLDER
#   tests/gpu/serving.sh --rehearse FOLDER       the same stages on the CPU with ONNX Runtime
#
# What is skipped for want of time can be run by itself, for example a hundred swaps (each starts a process):
#
#   PYTEST_ADDOPTS="-k 'releases_are_made or hundred'" tests/gpu/serving.sh FOLDER
#
# FOLDER gets what tests/gpu/run.sh writes, and takes the same variables; it ends after 350 seconds by default.
set -euo pipefail
export MODELREG_GPU_STAGES="serving serve_http" MODELREG_GPU_LIMIT_S=${MODELREG_GPU_LIMIT_S:-350}
exec "$(dirname "${BASH_SOURCE[0]}")/run.sh" "$@"
