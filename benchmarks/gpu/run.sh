#!/usr/bin/env bash
# Builds, checks and times elmo-fast on a machine with an NVIDIA GPU, offline, in under nine minutes.
# Every stage is a process of its own with its own time limit: one that fails or hangs loses no other's results.
set -u

usage() {
    cat <<'EOF'
usage: benchmarks/gpu/run.sh [--out DIR] [--stage NAME] [--allennlp PATH] [--dry-run]

  --out DIR        results go to DIR/<gpu>/run.json and run.png (default: benchmarks/results)
  --stage NAME     run one stage only, into DIR/<gpu>/NAME.json:
                   build checks ceilings encoder tiers text sanitizer eager cudnn compiled
  --allennlp PATH  a source checkout of AllenNLP 0.9, timed beside ours on running text
  --dry-run        tiny sizes on the CPU, nothing installed: exercises the script, measures nothing

The environment variable PYTHON names the interpreter (default: python3). The exit status is 0 when every
stage completed, 1 when one did not (the others' results are there), 2 for bad usage.
EOF
}

fail() { echo "error: $1" >&2; exit 2; }

STAGES=(build checks ceilings encoder tiers text sanitizer eager cudnn compiled)
declare -A LIMIT=([build]=85 [checks]=45 [ceilings]=45 [encoder]=60 [tiers]=95 [text]=70 [sanitizer]=50 [eager]=25 [cudnn]=20
                  [compiled]=20)
TOTAL=530        # seconds for everything, the report included
FOR_REPORT=15

out=benchmarks/results only="" dry="" allennlp=""
while [ $# -gt 0 ]; do
    case $1 in
        --out | --stage | --allennlp) [ $# -ge 2 ] || fail "$1: expected a value after it" ;;
    esac
    case $1 in
        --out) out=$(realpath -m -- "$2"); shift 2 ;;
        --stage) only=$2; shift 2 ;;
        --allennlp) allennlp=$(realpath -m -- "$2"); shift 2 ;;
        --dry-run) dry=1; shift ;;
        -h | --help) usage; exit 0 ;;
        *) fail "$1: unknown argument (see --help)" ;;
    esac
done
[ -z "$only" ] || [ -n "${LIMIT[$only]:-}" ] || fail "--stage: expected one of ${STAGES[*]}, got '$only'"
[ -z "$only" ] || STAGES=("$only")
[ -z "$allennlp" ] || [ -d "$allennlp" ] || fail "--allennlp: no folder at $allennlp"

cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 2
python=${PYTHON:-python3}
command -v "$python" >/dev/null || fail "no $python found; set PYTHON"

if [ -n "$dry" ]; then
    gpu="dry run"
    for stage in "${!LIMIT[@]}"; do LIMIT[$stage]=${DRY_RUN_LIMIT:-60}; done
else
    gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
    [ -n "$gpu" ] || fail "no NVIDIA GPU answers nvidia-smi; --dry-run exercises the script without one"
fi
name=$("$python" -c 'import sys; from benchmarks.common import slug; print(slug(sys.argv[1]))' "$gpu") ||
    fail "$python cannot import benchmarks.common (is numpy there?)"
folder=$out/$name
parts=$folder/parts
rm -rf -- "$parts"
mkdir -p -- "$parts" || fail "--out: cannot write to $out"

report() { "$python" -m benchmarks.gpu.report --parts "$parts" --out "$folder/${only:-run}.json" "$@"; }

failures=0
for stage in "${STAGES[@]}"; do
    left=$((TOTAL - FOR_REPORT - SECONDS))
    limit=$((LIMIT[$stage] < left ? LIMIT[$stage] : left))
    arguments=(--out "$parts/$stage.json" ${dry:+--dry-run})
    [ "$stage" = text ] && [ -n "$allennlp" ] && arguments+=(--allennlp "$allennlp")
    began=$SECONDS
    if [ "$limit" -lt 10 ]; then
        status=124
        echo "== $stage: no time left"
    else
        echo "== $stage (at most $limit s)"
        # the stage plans for less than its limit, so that it ends by itself and not in mid-case
        timeout -k 5 "$limit" "$python" -m "benchmarks.gpu.$stage" "${arguments[@]}" --seconds $((limit * 4 / 5)) \
            > >(tee "$parts/$stage.log") 2>&1
        status=$?
    fi
    [ $status -eq 0 ] || failures=$((failures + 1))
    echo "$status $((SECONDS - began)) $limit" >"$parts/$stage.exit"
    report --quiet || failures=$((failures + 1))
done

report --plot --final || failures=$((failures + 1))
echo "$SECONDS s in all; results in ${folder/#$PWD\//}"
[ $failures -eq 0 ]
