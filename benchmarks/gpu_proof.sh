#!/usr/bin/env bash
# Everything that one CUDA card can prove, in steps of under ten minutes, those first that fail first.
#
#     benchmarks/gpu_proof.sh [OUT] [--only STEP ... | --bundle NAME]   # OUT: build/gpu-proof
#     benchmarks/gpu_proof.sh --list | --bundles
#     python benchmarks/gpu_wheels.py DIR                               # for a machine without network
#
# A step's output is in OUT/STEP.log, its verdict in OUT/summary.txt: PASS, FAIL, or NOT RUN because ….
# OUT/results.json has all verdicts and figures. Exit 1 if any failed. A bundle ends within nine minutes
# on a machine that keeps nothing. PYTHON names the interpreter, WHEELS the folder that gpu_wheels.py
# filled. Without CUDA (or with CUDA_VISIBLE_DEVICES=) steps run on the CPU with the tiny model, and
# say so.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

STEPS=(facts attention gpu-tests ipc plan-small plan-cards updates long head decoding trainer plan-parts
    plan-large nf4 vllm-tests vllm-sync vllm-engine join-torch join-vllm)
# The first says whether `swarm-node join` works on this card.
declare -A BUNDLES=(
    [first]="facts ipc plan-small join-torch attention" [tests]="gpu-tests" [memory]="plan-cards"
    [updates]="updates long" [speed]="head decoding trainer" [parts]="plan-parts plan-large" [nf4]="nf4"
    [vllm]="vllm-tests vllm-sync" [engine]="vllm-engine join-vllm"
)
OUT=build/gpu-proof CHOSEN=("${STEPS[@]}") LEFT=
case "${1-}" in
--list) printf '%s\n' "${STEPS[@]}" && exit ;;
--bundles)
    for name in first tests memory updates speed parts nf4 vllm engine; do echo "$name: ${BUNDLES[$name]}"; done
    exit
    ;;
'' | --only | --bundle) ;;
*) OUT=$1 && shift ;;
esac
STEP=
case "${1-}" in
--only) CHOSEN=("${@:2}") ;;
--bundle)
    [ -n "${2-}" ] && [ -n "${BUNDLES[$2]-}" ] || { echo "no bundle ${2-}: see --bundles" >&2 && exit 2; }
    read -ra CHOSEN <<< "${BUNDLES[$2]}"
    LEFT=${BUNDLE_SECONDS:-540}
    ;;
--step) STEP=$2 ;; # one of those below, in a process that can be timed
esac
for step in "${CHOSEN[@]}"; do
    [[ " ${STEPS[*]} " == *" $step "* ]] || { echo "no step $step: see --list" >&2 && exit 2; }
done

PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
export PYTHONPATH=$PWD:$PWD/benchmarks${PYTHONPATH:+:$PYTHONPATH}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} HF_HUB_OFFLINE=1
KEEP=${TMPDIR:-/tmp}/swarm-node-gpu-proof
mkdir -p "$OUT" "$KEEP"
if [ -n "${WHEELS-}" ]; then
    [ -d "$KEEP/site" ] || "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile \
        --target "$KEEP/site" "$WHEELS"/*.whl || exit 2
    export PYTHONPATH=$PYTHONPATH:$KEEP/site
fi
python() { "$PYTHON" "$@"; }
pytest() {
    python -m pytest -q -m gpu -p no:cacheprovider --junitxml "$OUT/$STEP.xml" "$@" || return
    on_card || not_run "there is no CUDA device: all skipped"
}
has() { python -c "import importlib.util as i, sys; sys.exit(i.find_spec('$1') is None)"; }
export ON_CARD=${ON_CARD-$(python -c 'import torch; print("1" * torch.cuda.is_available())')}
# Arguments for a card, or those for a CPU.
on_card() { [ -n "$ON_CARD" ]; }
SMALL=tiny MIDDLE=tiny BOTH=(tiny) SHIPPED=(tiny) CARD=0 CARDS=(0) GPU_TRAINER=(tiny --rows 8 --tokens 128)
HEAD=(--tokens 64 --vocabulary 4096 --repetitions 1) LONG="256 512" NEW=32
if on_card; then
    SMALL=qwen2.5-0.5b MIDDLE=qwen2.5-1.5b BOTH=(qwen2.5-{0.5b,1.5b})
    CARD=8 CARDS=(8 12 16 24) NEW=1024 LONG="2048 8192"
    SHIPPED=(tiny qwen2.5-{0.5b,1.5b,3b,7b} qwen3-{0.6b,1.7b,4b,8b})
    HEAD=(--tokens 8192) GPU_TRAINER=("$KEEP/$SMALL" --rows 64 --tokens 1024)
fi
LORA=(--set training.lora_rank=32)
plan() { python benchmarks/gpu_plan.py --keep "$KEEP" "$@"; }

# One function a step. Exit 77 means not run, and the last line says why.
not_run() { echo "NOT RUN because $*" && return 77; }
run_facts() { python benchmarks/gpu_proof.py facts; }
run_attention() { python benchmarks/gpu_proof.py attention --models "${SHIPPED[@]}"; }
run_gpu-tests() {
    local rooms=(tests/policy) files
    has cryptography && rooms+=(tests/node) # node's tests import the network's keys
    mapfile -t files < <(grep -rlE '\bmark\.gpu' "${rooms[@]}")
    pytest "${files[@]}"
}
run_ipc() { pytest tests/policy/weights; }
run_plan-small() { plan --cases plan --models "$SMALL" --cards "$CARD" --new "$NEW" --updates 2; }
run_plan-cards() { plan --cases plan --models "$MIDDLE" --cards "${CARDS[@]}" --new "$NEW" --updates 2; }
run_updates() { plan --cases plan --models "${BOTH[@]}" --new "$NEW" --updates 5 "${LORA[@]}"; }
run_long() {
    local new well=0
    for new in $LONG; do
        plan --cases plan --models "$MIDDLE" --new "$new" --updates 2 "${LORA[@]}" || well=1
    done
    return $well
}
run_head() { python benchmarks/head.py "${HEAD[@]}"; }
run_decoding() { python benchmarks/gpu_proof.py decoding --models "${BOTH[@]}" --keep "$KEEP"; }
run_trainer() {
    plan --cases --models "$SMALL" && python benchmarks/gpu_trainer.py --model "${GPU_TRAINER[@]}"
}
run_plan-parts() { plan --cases parts --models "${BOTH[@]}"; }
run_plan-large() {
    on_card || { not_run "there is no CUDA device"; return; }
    plan --cases plan --models qwen3-4b --cards 16 --new "$NEW" --updates 2 &&
        plan --cases plan --models qwen3-8b --cards 24 --new "$NEW" --updates 2
}
run_nf4() {
    has bitsandbytes || { not_run "bitsandbytes is not installed"; return; }
    on_card || { not_run "there is no CUDA device"; return; }
    pytest tests/policy/models/test_nf4.py &&
        plan --cases plan --models "${BOTH[@]}" --new "$NEW" "${LORA[@]}" training.base=nf4
}
vllm() {
    on_card || { not_run "there is no CUDA device"; return; }
    has vllm || { not_run "vLLM is not installed"; return; }
    python -c 'import sys, swarm_node.policy.sampling.vllm.engine as e
sys.exit(e.installed_vllm().on_cpu)' || { not_run "vLLM is a build for CPUs"; return; }
}
run_vllm-tests() { vllm && pytest tests/integration/test_vllm_gpu.py; }
run_vllm-sync() { vllm && python benchmarks/vllm_sync.py; }
run_vllm-engine() {
    vllm && plan --cases --models "$SMALL" &&
        python benchmarks/gpu_engine.py --model "$KEEP/$SMALL" --repetitions 3
}
join() {
    on_card || { not_run "there is no CUDA device"; return; }
    has hivemind || { not_run "hivemind is not installed"; return; }
    python benchmarks/real_shapes.py --device cuda --engine "$1" --models "$KEEP/whole"
}
run_join-torch() { join torch; }
run_join-vllm() { vllm && join vllm; }

if [ -n "$STEP" ]; then "run_$STEP"; exit; fi
failed=0
: > "$OUT/summary.txt"
for step in "${CHOSEN[@]}"; do
    started=$SECONDS limit=${LEFT:+$((LEFT - SECONDS))}
    limit=${limit:-580}
    rm -f "$OUT/$step".{jsonl,xml}
    if [ "$limit" -gt 10 ]; then
        FIGURES=$OUT/$step.jsonl timeout --kill-after 10 "$limit" \
            benchmarks/gpu_proof.sh "$OUT" --step "$step" > "$OUT/$step.log" 2>&1
        code=$?
    else
        echo "NOT RUN because the bundle's time was over" > "$OUT/$step.log"
        code=77
    fi
    case $code in
    0) verdict="PASS$([ -n "$ON_CARD" ] || echo ' on the CPU')" ;;
    77) verdict=$(tail -n 1 "$OUT/$step.log") ;;
    124 | 137) verdict="FAIL: over $limit s, see $OUT/$step.log" failed=1 ;;
    *) verdict="FAIL: exit $code, see $OUT/$step.log" failed=1 ;;
    esac
    printf '%-12s %4d s  %s\n' "$step" $((SECONDS - started)) "$verdict" | tee -a "$OUT/summary.txt"
    python benchmarks/figures.py "$OUT" || echo "no results.json: see above" >&2
done
exit $failed
