#!/bin/sh
# Builds, checks and times elmo-fast on a machine with an NVIDIA GPU, offline, in under nine minutes.
usage='usage: run.sh [--dry-run] [--stage NAME] [--out FOLDER] [--allennlp PATH]
  --dry-run        tiny work on the CPU, to try the script itself
  --stage NAME     micro, install, doctor, tests, steps, ncu, ceilings, lstm, encoder, text, sanitizer,
                   fenced or fenced-steps alone
  --out FOLDER     for results, which go to FOLDER/<gpu> (default: $OUT, or benchmarks/results)
  --allennlp PATH  a source checkout of AllenNLP 0.9, whose own code runs beside ours
PYTHON names the interpreter.'

refuse() {
  printf 'error: %s\n' "$@" >&2
  exit 2
}

root=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
python=${PYTHON:-python3} out=${OUT:-$root/benchmarks/results} device=cuda failed=0 peer=
wanted=' micro install doctor tests steps ncu ceilings lstm encoder text sanitizer fenced fenced-steps '
while [ $# -gt 0 ]; do
  case $1 in
    --dry-run) device=cpu; shift; continue ;;
    --help) echo "$usage"; exit ;;
    --stage | --out | --allennlp) [ -n "$2" ] || refuse "$1: expected an argument" "$usage" ;;
    *) refuse "unknown argument $1" "$usage" ;;
  esac
  case $1 in
    --stage) case $wanted in *" $2 "*) wanted=" $2 " ;; *) refuse "--stage: no stage $2" "$usage" ;; esac ;;
    --out) out=$(realpath -m "$2") ;;
    --allennlp) peer=$(realpath -e "$2") || exit 2 ;;
  esac
  shift 2
done
gpu=dry-run
if [ $device = cuda ] && ! gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1) || [ -z "$gpu" ]; then
  refuse 'no NVIDIA GPU answers nvidia-smi; --dry-run tries the script without one'
fi
cd "$root" || exit 2
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PATH="$PATH:/usr/local/cuda/bin"
out=$out/$(echo "$gpu" | sed 's/^NVIDIA //' | tr -cs 'A-Za-z0-9\n' - | tr A-Z a-z)
mkdir -p "$out" && rm -f "$out/stages.txt" "$out/log.txt" || exit 2
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
end=$(($(date +%s) + 530))

# The limit of a stage: no more than what is left, with 5 s for its end.
within() {
  left=$((end - $(date +%s) - 5))
  limit=$(($1 < left ? $1 : left))
}

# A stage that fails or hangs loses no other's results: run NAME SECONDS COMMAND...
run() {
  name=$1
  case $wanted in *" $name "*) within "$2" ;; *) return ;; esac
  shift 2
  echo "== $name (at most $limit s)" | tee -a "$out/log.txt"
  if [ $limit -gt 5 ]; then
    timeout -k 5 $limit "$@" >>"$out/log.txt" 2>&1
  else
    echo 'not started: no time is left' >>"$out/log.txt"
    false
  fi
  status=$?
  [ $status = 0 ] || failed=1
  tail -n "$([ "$name" = doctor ] && echo 40 || echo 12)" "$out/log.txt"
  echo "$name: exit $status: $(tail -n 1 "$out/log.txt")" | tee -a "$out/stages.txt"
}

# Cases of single ops: ops NAME SECONDS FILE and what pytest is told; those that would begin late are skipped.
ops() {
  name=$1
  within "$2"
  shift 2
  run "$name" $limit "$python" -m pytest -q -p no:cacheprovider --device $device --rows "$out/$name.json" \
    --seconds $((limit * 8 / 10)) "$@"
}

if [ $device = cuda ]; then
  run micro 40 sh -c 'nvcc -std=c++17 -O3 -arch=native benchmarks/gpu/micro.cu -o "$0/micro" || exit
    "$0/micro" >"$1"; status=$?; cat "$1"; exit $status' "$work" "$out/micro.jsonl"
  run install 120 sh -c '"$0" -m pip install --no-index --no-build-isolation --no-deps --no-input -e . && "$0" -c "
import torch
from elmo_fast.ops.backend import native_module
module, reason = native_module()
assert module and module.has_cuda, reason or module.cuda_skipped"' "$python"
fi
run doctor 30 "$python" -m elmo_fast.cli doctor
if [ $device = cuda ]; then
  run tests 120 "$python" -m pytest -v -m gpu -p no:cacheprovider tests/ops/cuda/test_cuda_lstm.py \
    tests/model/test_cuda_graph.py
fi
ops steps 60 benchmarks/gpu -k test_steps
if [ $device = cuda ] && command -v ncu >/dev/null; then  # a launch of 64 slots, after those of the check
  run ncu 50 ncu --kernel-name regex:persistent_kernel --launch-skip 6 --launch-count 1 --section SpeedOfLight \
    --section ComputeWorkloadAnalysis --section MemoryWorkloadAnalysis --section WarpStateStats \
    "$python" -m pytest -q -p no:cacheprovider --device cuda benchmarks/gpu -k 'test_steps and persistent-64'
fi
ops ceilings 35 benchmarks/gpu -k ceiling
ops lstm 70 benchmarks/gpu -k test_lstm
size='original' text='--model original'
[ $device = cuda ] || size='small and b1-' text='--model bundled --batch-size 4 --batches 2 --peer-batches 1 --rounds 1'
ops encoder 40 benchmarks/bench_ops/test_char_cnn.py -k "encoder and $size"
run text 75 "$python" -m benchmarks.bench_embed --device $device $text ${peer:+--allennlp "$peer"} \
  --out "$out/embed-original.json"
for tool in memcheck racecheck; do
  [ $device = cpu ] || run sanitizer 75 compute-sanitizer --tool $tool --error-exitcode 9 --target-processes all \
    "$python" -m pytest -q -p no:cacheprovider --device $device benchmarks/gpu -k small_layer
done
if [ $device = cuda ]; then  # the steps once more, with the fence of `release` in csrc/cuda/persistent.cuh
  run fenced 90 env CMAKE_ARGS=-DCMAKE_CUDA_FLAGS=-DELMO_FAST_FENCED_READS "$python" -m pip install --no-index \
    --no-build-isolation --no-deps --no-input -e .
  ops fenced-steps 40 benchmarks/gpu -k test_steps
fi
echo "results in $out"
exit $failed
