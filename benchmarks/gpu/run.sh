#!/bin/sh
# Builds, checks and times elmo-fast on a machine with an NVIDIA GPU, offline, in under ten minutes, what matters most
# first.
usage='usage: run.sh [--dry-run] [--stage NAME] [--out FOLDER] [--allennlp PATH]
  --dry-run        tiny work on the CPU, to try the script itself
  --stage NAME     micro, build, trial, text, peers, accuracy, steps, host, training, tests, ncu, encoder, race or
                   fenced alone; its results are added to those of the archive that is there
  --out FOLDER     for results, which go to FOLDER/<gpu> (default: $OUT, or benchmarks/results)
  --allennlp PATH  a source checkout of AllenNLP 0.9, whose own code runs beside ours
PYTHON names the interpreter.'

refuse() {
  printf 'error: %s\n' "$@" >&2
  exit 2
}

root=$(cd "$(dirname "$0")/../.." && pwd) || exit 2
python=${PYTHON:-python3} out=${OUT:-$root/benchmarks/results} device=cuda failed=0 peer= alone=
wanted=' micro build trial text peers accuracy steps host training tests ncu encoder race fenced '
while [ $# -gt 0 ]; do
  case $1 in
    --dry-run) device=cpu; shift; continue ;;
    --help) echo "$usage"; exit ;;
    --stage | --out | --allennlp) [ -n "$2" ] || refuse "$1: expected an argument" "$usage" ;;
    *) refuse "unknown argument $1" "$usage" ;;
  esac
  case $1 in
    --stage) case $wanted in *" $2 "*) wanted=" $2 " alone=1 ;; *) refuse "--stage: no stage $2" "$usage" ;; esac ;;
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
gpu=$(echo "$gpu" | sed 's/^NVIDIA //' | tr -cs 'A-Za-z0-9\n' - | tr A-Z a-z)
out=$out/$gpu
archive=$out/results.tar.gz
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
kept=$work/$gpu
mkdir -p "$out" "$kept" && rm -f "$out/stages.txt" "$out/table.md" || exit 2
if [ -n "$alone" ] && [ -f "$archive" ]; then tar -xzf "$archive" -C "$work" || exit 2; fi
end=$(($(date +%s) + 570))

# The limit of a stage: no more than what is left, with 5 s for its end and 10 s for the table.
within() {
  left=$((end - $(date +%s) - 15))
  limit=$(($1 < left ? $1 : left))
}

# A stage is a process that writes NAME.json and NAME.txt in the folder. When it has ended, in whatever way, they go to
# the archive, so that few files are there and a stage that fails or hangs loses no result: run NAME SECONDS COMMAND...
run() {
  name=$1
  case $wanted in *" ${name%%-*} "*) within "$2" ;; *) return ;; esac
  shift 2
  echo "== $name (at most $limit s)"
  if [ $limit -gt 5 ]; then
    timeout -k 5 $limit "$@" >"$out/$name.txt" 2>&1
  else
    echo 'not started: no time is left' >"$out/$name.txt"
    false
  fi
  status=$?
  [ $status = 0 ] || failed=1
  tail -n 12 "$out/$name.txt"
  echo "$name: exit $status: $(tail -n 1 "$out/$name.txt")" | tee -a "$kept/stages.txt"
  mv "$out/$name".* "$kept"
  save
}

save() {
  tar -czf "$archive.part" -C "$work" "$gpu" && mv "$archive.part" "$archive"
}

# Plugins that take seconds to import are left out.
pytest="-m pytest -q -p no:cacheprovider -p no:hypothesispytest -p no:anyio --device $device"

# Cases of pytest with a file of rows: cases NAME SECONDS ARGUMENTS...; those that would begin late are skipped.
cases() {
  name=$1
  within "$2"
  shift 2
  run "$name" $limit "$python" $pytest --rows "$out/$name.json" --seconds $((limit * 8 / 10)) "$@"
}

# Checks of memory by a tool of CUDA, where it is there, on the smallest layer: sanitized NAME SECONDS TOOL
sanitized() {
  if [ $device = cuda ] && command -v compute-sanitizer >/dev/null; then
    run "$1" "$2" compute-sanitizer --tool "$3" --error-exitcode 9 --target-processes all "$python" $pytest \
      benchmarks/gpu -k small_layer
  fi
}

# Builds with CUDA kernels: build NAME FLAGS-OF-CMAKE
build() {
  run "$1" 120 env CMAKE_ARGS="$2" sh -c '"$0" -m pip install --no-index --no-build-isolation --no-deps --no-input -e . &&
    "$0" -c "
from elmo_fast.ops.backend import native_module
module, reason = native_module()
assert module and module.has_cuda, reason or module.cuda_skipped"' "$python"
}

tiny= size='original' of_trial='--gpu'
[ $device = cuda ] || tiny=1 size='small and b1-' of_trial=
[ -n "$tiny" ] || nvidia-smi --format=csv --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit \
  >"$kept/nvidia-smi.csv"
cases micro 60 benchmarks/gpu -k 'micro or ceiling'
[ -n "$tiny" ] || build build ''
run trial 100 "$python" -m elmo_fast.cli doctor $of_trial
sanitized trial-memcheck 75 memcheck
within 130
run text 130 "$python" -m benchmarks.gpu.text --device $device --seconds $((limit / 2)) ${peer:+--allennlp "$peer"} \
  ${tiny:+--model tiny --rounds 2} --out "$out/text.json"
export ELMO_FAST_GPU_TRIAL=off  # from here on kernels run whatever their trial found: these stages compare them first
cases peers 50 benchmarks/gpu -k "peers${tiny:+ and 16}"
cases accuracy 25 benchmarks/gpu -k "fixtures${tiny:+ and allennlp}"
cases steps 60 benchmarks/gpu -k "test_steps${tiny:+ and 16}"
run host 25 "$python" -m benchmarks.gpu.host ${tiny:+--sentences 30 --rounds 2} --out "$out/host.json"
run training 60 "$python" -m benchmarks.bench_train --device $device --steps 75 --out "$out/training.json" \
  ${tiny:+--model tiny --steps 4 --turn 2 --heldout-rows 4 --train README.md --heldout SECURITY.md}
if [ $device = cuda ]; then  # a group is a process: after an illegal access all later cases of a process fail
  number=0
  for group in 'launches and sizes0' 'launches and sizes2' 'launches and sizes1' 'graphs' 'not launches and not graphs'
  do
    run tests-$((number += 1)) 30 "$python" -m pytest -v -m gpu -p no:cacheprovider tests/ops/cuda/test_cuda_lstm.py \
      tests/model/test_gpu_model.py tests/model/test_cuda_graph.py -k "$group"
  done
  if command -v ncu >/dev/null; then  # a launch of 64 slots, after those of the check; clocks stay as they are
    run ncu 50 ncu --clock-control none --kernel-name regex:persistent_kernel --launch-skip 6 --launch-count 1 \
      --section SpeedOfLight --section ComputeWorkloadAnalysis --section MemoryWorkloadAnalysis \
      --section WarpStateStats "$python" $pytest benchmarks/gpu -k 'test_steps and persistent-medium-64'
  fi
fi
cases encoder 40 benchmarks/bench_ops/test_char_cnn.py -k "encoder and $size"
sanitized race 75 racecheck
if [ $device = cuda ]; then  # the steps once more, with the fence of `release` in csrc/cuda/persistent.cuh
  build fenced-build -DCMAKE_CUDA_FLAGS=-DELMO_FAST_FENCED_READS
  cases fenced-steps 40 benchmarks/gpu -k 'test_steps and persistent'
fi
"$python" -m benchmarks.gpu.table "$kept" | tee "$kept/table.md"
cp "$kept/table.md" "$kept/stages.txt" "$out" && save
echo "results in $out"
exit $failed
