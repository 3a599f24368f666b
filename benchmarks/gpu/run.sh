#!/bin/sh
# Builds, checks and times elmo-fast on a machine with an NVIDIA GPU, offline, in under nine minutes: --help says more.
# PYTHON names the interpreter.
root=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec "${PYTHON:-python3}" -m benchmarks.gpu.run "$@"
