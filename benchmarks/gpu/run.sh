#!/bin/sh
# Builds, checks and times elmo-fast on a machine with an NVIDIA GPU, offline, in under nine minutes.
usage="usage: run.sh [--dry-run] [--stage NAME] [--out FOLDER] [--allennlp PATH]
  --dry-run        tiny work on the CPU, to try the script itself
  --stage NAME     install, doctor, tests, ceilings, lstm, encoder, text or sanitizer alone
  --out FOLDER     for results, which go to FOLDER/<gpu> (default: benchmarks/results)
  --allennlp PATH  a source checkout of AllenNLP 0.9, whose own code runs beside ours
PYTHON names the interpreter."

refuse() {
  printf 'error: %s\n' "$@" >&2
  exit 2
}

root=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
python=${PYTHON:-python3} out=$root/benchmarks/results device=cuda failed=0 peer=
wanted=' install doctor tests ceilings lstm encoder text sanitizer '
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
mkdir -p "$out" && rm -f "$out/stages.txt" || exit 2
log=$(mktemp) && trap 'rm -f "$log"' EXIT

# A stage that fails or hangs loses no other's results: run NAME SECONDS COMMAND...
run() {
  name=$1 limit=$2
  shift 2
  case $wanted in *" $name "*) ;; *) return ;; esac
  echo "== $name (at most $limit s)"
  timeout -k 5 "$limit" "$@" >"$log" 2>&1
  status=$?
  [ $status = 0 ] || failed=1
  [ "$name" = doctor ] && cat "$log" || tail -n 12 "$log"
  echo "$name: exit $status: $(tail -n 1 "$log")" | tee -a "$out/stages.txt"
}

# Cases of single ops: ops NAME SECONDS FILE and what pytest is told; those that would begin late are skipped.
ops() {
  name=$1 limit=$2
  shift 2
  run "$name" "$limit" "$python" -m pytest -q -p no:cacheprovider --benchmark-only --device $device \
    --rows "$out/$name.json" --seconds $((limit * 8 / 10)) "$@"
}

if [ $device = cuda ]; then
  run install 110 "$python" -m pip install --no-index --no-build-isolation --no-deps --no-input -e .
fi
run doctor 15 "$python" -m elmo_fast.cli doctor
if [ $device = cuda ]; then
  run tests 80 "$python" -m pytest -q -m gpu -p no:cacheprovider tests
fi
ops ceilings 35 benchmarks/gpu -k ceiling
ops lstm 105 benchmarks/gpu -k test_lstm
size='original' text='--model original'
[ $device = cuda ] || size='small and b1-' text='--model bundled --batch-size 4 --batches 2 --peer-batches 1 --rounds 1'
ops encoder 35 benchmarks/bench_ops/test_char_cnn.py -k "encoder and $size"
run text 75 "$python" -m benchmarks.bench_embed --device $device $text ${peer:+--allennlp "$peer"} \
  --out "$out/embed-original.json"
for tool in memcheck racecheck; do
  [ $device = cpu ] || run sanitizer 30 compute-sanitizer --tool $tool --error-exitcode 9 --target-processes all \
    "$python" -m pytest -q -p no:cacheprovider --device $device benchmarks/gpu -k small_layer
done
echo "results in $out"
exit $failed
