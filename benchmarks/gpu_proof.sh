#!/usr/bin/env bash
# Everything that one CUDA GPU can prove, in steps of under ten minutes, those first that fail first.
#
#     benchmarks/gpu_proof.sh [OUT] [--only STEP ... | --bundle NAME]   # OUT: build/gpu-proof
#     benchmarks/gpu_proof.sh --list | --bundles
#     make gpu-call                                  # for a machine without network: three commands
#
# A step's output is in OUT/STEP.log, its verdict in OUT/summary.txt: PASS, FAIL because …, or NOT RUN
# because …. OUT/results.json has all verdicts and figures. Exit 1 if any failed. Each step has a time
# limit of its own. A bundle ends within BUNDLE_SECONDS (540), as does --only where they are set.
#
# PYTHON names the interpreter. With WHEELS, the folder that gpu_wheels.py filled, the step `setup`
# installs them for the others. RETURN names a folder that gets results.json, summary.txt and
# proof.tgz, renewed within seconds of every figure. REAL_MODEL names the pretrained model of
# `join-real`, a GGUF file or a directory. Without CUDA (or with CUDA_VISIBLE_DEVICES=)
# steps run on the CPU with the smallest models, and say so. Beside a GPU that torch does not see they fail.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

# Step -> its limit in seconds; those that are not named may take 580.
declare -A LIMITS=(
    [setup]=90 [facts]=90 [doctor]=100 [join-tiny]=90 [join-card-12]=120 [join-card-8]=120 [join-card-24]=120
    [join-card-16]=120 [ipc]=90 [gpu-tests]=240 [decoding]=150 [shared-prompts]=150 [attention]=110
    [two-nodes]=220 [join-nf4]=200 [nf4-tests]=120 [join-torch]=200
    [join-real]=200
)
STEPS=(setup facts join-tiny join-card-12 join-card-8 join-card-24 join-card-16 doctor ipc
    gpu-tests decoding shared-prompts attention two-nodes join-nf4 nf4-tests join-torch
    join-real plan-small plan-sizes updates long head trainer plan-parts plan-large plan-nf4
    vllm-tests vllm-sync vllm-engine join-vllm)
# Each call begins with `setup` and `facts`: a machine keeps nothing from one to the next.
declare -A BUNDLES=(
    [first]="setup facts join-tiny join-card-12 join-card-8 join-card-24 join-card-16 doctor"
    [second]="setup facts ipc gpu-tests decoding shared-prompts attention"
    [third]="setup facts two-nodes join-nf4 nf4-tests join-torch"
    [real]="setup facts join-real"
    [memory]="plan-small plan-sizes" [updates]="updates long" [speed]="head trainer"
    [parts]="plan-parts plan-large plan-nf4" [vllm]="vllm-tests vllm-sync" [engine]="vllm-engine join-vllm"
)
OUT=build/gpu-proof CHOSEN=("${STEPS[@]}") LEFT=
case "${1-}" in
--list) printf '%s\n' "${STEPS[@]}" && exit ;;
--bundles)
    for name in first second third real memory updates speed parts vllm engine; do echo "$name: ${BUNDLES[$name]}"; done
    exit
    ;;
'' | --only | --bundle) ;;
*) OUT=$1 && shift ;;
esac
STEP=
case "${1-}" in
--only) CHOSEN=("${@:2}") LEFT=${BUNDLE_SECONDS-} ;;
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
KEEP=${TMPDIR:-/tmp}/swarm-node-gpu-proof
SITE=$KEEP/site
[ -n "$STEP" ] || export PYTHONPATH=$PWD:$PWD/benchmarks${PYTHONPATH:+:$PYTHONPATH}${WHEELS:+:$SITE}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
mkdir -p "$OUT" "$KEEP"
python() { "$PYTHON" "$@"; }
pytest() {
    python -m pytest -q -p no:cacheprovider -p figures --junitxml "$OUT/$STEP.xml" "$@"
}
gpu_tests() {
    pytest -m gpu "$@" || return
    on_gpu || not_run "there is no CUDA device: all skipped"
}
has() { python -c "import importlib.util as i, sys; sys.exit(i.find_spec('$1') is None)"; }
# The first import of torch on a cold machine takes long, and without an answer all would run on the CPU.
export ON_GPU=${ON_GPU-$(timeout 150 "$PYTHON" -c 'import torch; print("1" * torch.cuda.is_available())')}
# Steps on the CPU prove nothing of a GPU that is there, as beside a driver too old for torch's CUDA.
UNSEEN="FAIL because torch does not see the GPU that nvidia-smi lists"
[ -z "$ON_GPU" ] && [ -n "${CUDA_VISIBLE_DEVICES-all}" ] &&
    timeout 30 nvidia-smi -L 2> /dev/null | grep -q '^GPU ' || UNSEEN=
# Arguments for a GPU, or those for a CPU.
on_gpu() { [ -n "$ON_GPU" ]; }
SMALL=tiny MIDDLE=tiny BOTH=(tiny) SHIPPED=(tiny) GIB=0 SIZES=(0) GPU_TRAINER=(tiny --rows 8 --tokens 128)
HEAD=(--tokens 64 --vocabulary 4096 --repetitions 1) LONG="256 512" NEW=32
JOINED=least PAIRED=least FOUR_BIT=least SHARED=(--updates 2 --groups 2) ROWS=(8 16) WHOLE=least
if on_gpu; then
    SMALL=qwen2.5-0.5b MIDDLE=qwen2.5-1.5b BOTH=(qwen2.5-{0.5b,1.5b})
    GIB=8 SIZES=(8 12 16 24) NEW=512 LONG="2048 8192"
    SHIPPED=(tiny qwen2.5-{0.5b,1.5b,3b,7b} qwen3-{0.6b,1.7b,4b,8b})
    HEAD=(--tokens 8192) GPU_TRAINER=("$KEEP/$SMALL" --rows 64 --tokens 1024)
    JOINED=$MIDDLE PAIRED=$SMALL FOUR_BIT=qwen3-4b SHARED=() ROWS=(64 128) WHOLE=$SMALL
fi
LORA=(--set training.lora_rank=32)
plan() { python benchmarks/gpu_plan.py --keep "$KEEP" "$@"; }

# One function a step. Exit 77 means not run, and the last line says why.
not_run() { echo "NOT RUN because $*" && return 77; }
# Entry points, without which there is no environment `drills`, are those of the tree.
run_setup() {
    nvidia-smi
    free -g && df -h /dev/shm "$KEEP" && ulimit -n
    [ -n "${WHEELS-}" ] || { echo "no WHEELS: what is installed is used" && return; }
    [ -d "$SITE" ] && { echo "installed before" && return; }
    rm -rf "$SITE.partial"
    python -m pip install --quiet --no-index --no-deps --no-compile --target "$SITE.partial" "$WHEELS"/*.whl &&
        python -c 'import setuptools; setuptools.setup()' -q egg_info --egg-base "$SITE.partial" &&
        mv "$SITE.partial" "$SITE" || { echo "FAIL because the wheels could not be installed" && return 1; }
}
run_facts() {
    python benchmarks/gpu_proof.py facts || return
    [ -z "$UNSEEN" ] || { python -c 'import torch; torch.cuda.init()'; echo "$UNSEEN" && return 1; }
}
run_doctor() { python benchmarks/gpu_proof.py doctor; }
run_attention() { python benchmarks/gpu_proof.py attention --models "${SHIPPED[@]}"; }
run_gpu-tests() {
    local files
    mapfile -t files < <(grep -rlE '\bmark\.gpu' tests/policy tests/node | grep -vE 'test_nf4|/weights/')
    gpu_tests "${files[@]}"
}
run_ipc() { gpu_tests tests/policy/weights; }
# What a consumer GPU would do: those take flash attention by themselves.
joined() {
    on_gpu && export TORCH_CUDNN_SDPA_DEPRIORITIZED=1
    python benchmarks/gpu_join.py "$@" --models "$KEEP/whole"
}
run_join-tiny() { joined tiny; }
run_join-card-8() { joined shape --model "$JOINED" --free 8; }
run_join-card-12() { joined shape --model "$JOINED" --free 12; }
run_join-card-16() { joined shape --model "$JOINED" --free 16; }
run_join-card-24() { joined shape --model "$JOINED" --free 24; }
run_join-real() {
    [ -n "${REAL_MODEL-}" ] || { not_run "REAL_MODEL names no pretrained model"; return; }
    joined real --model "$REAL_MODEL"
}
run_two-nodes() { joined pair --model "$PAIRED" --free 24; }
run_join-nf4() {
    has bitsandbytes || { not_run "bitsandbytes is not installed"; return; }
    joined shape --model "$FOUR_BIT" --free 12 $(on_gpu || echo --set training.base=nf4 training.lora_rank=32)
}
run_nf4-tests() {
    has bitsandbytes || { not_run "bitsandbytes is not installed"; return; }
    pytest tests/policy/models/test_nf4.py
}
run_shared-prompts() {
    plan --cases --models "$MIDDLE" && python benchmarks/gpu_attention.py --model "$KEEP/$MIDDLE" "${SHARED[@]}"
}
run_decoding() { python benchmarks/gpu_proof.py decoding --models "$MIDDLE" --rows "${ROWS[@]}" --keep "$KEEP"; }
run_plan-small() { plan --cases plan --models "$SMALL" --gib "$GIB" --new "$NEW" --updates 2; }
run_plan-sizes() { plan --cases plan --models "$MIDDLE" --gib "${SIZES[@]}" --new "$NEW" --updates 2; }
run_updates() { plan --cases plan --models "${BOTH[@]}" --new "$NEW" --updates 5 "${LORA[@]}"; }
run_long() {
    local new well=0
    for new in $LONG; do
        plan --cases plan --models "$MIDDLE" --new "$new" --updates 2 "${LORA[@]}" || well=1
    done
    return $well
}
run_head() { python benchmarks/head.py "${HEAD[@]}"; }
run_trainer() {
    plan --cases --models "$SMALL" && python benchmarks/gpu_trainer.py --model "${GPU_TRAINER[@]}"
}
run_plan-parts() { plan --cases parts --models "${BOTH[@]}"; }
run_plan-large() {
    on_gpu || { not_run "there is no CUDA device"; return; }
    plan --cases plan --models qwen3-4b --gib 16 --new "$NEW" --updates 2 &&
        plan --cases plan --models qwen3-8b --gib 24 --new "$NEW" --updates 2
}
run_plan-nf4() {
    has bitsandbytes || { not_run "bitsandbytes is not installed"; return; }
    on_gpu || { not_run "there is no CUDA device"; return; }
    plan --cases plan --models "${BOTH[@]}" --new "$NEW" "${LORA[@]}" training.base=nf4
}
vllm() {
    on_gpu || { not_run "there is no CUDA device"; return; }
    has vllm || { not_run "vLLM is not installed"; return; }
    python -c 'import sys, swarm_node.policy.sampling.vllm.engine as e
sys.exit(e.installed_vllm().on_cpu)' || { not_run "vLLM is a build for CPUs"; return; }
}
run_vllm-tests() { vllm && gpu_tests tests/integration/test_vllm_gpu.py; }
run_vllm-sync() { vllm && python benchmarks/vllm_sync.py; }
run_vllm-engine() {
    vllm && plan --cases --models "$SMALL" &&
        python benchmarks/gpu_engine.py --model "$KEEP/$SMALL" --repetitions 3
}
real_shapes() {
    local device=cuda
    on_gpu || device=cpu
    python benchmarks/real_shapes.py --model "$WHOLE" --device $device --engine "$1" --models "$KEEP/short" \
        $(on_gpu || echo --new 16 --updates 2)
}
run_join-torch() { real_shapes torch; }
run_join-vllm() { vllm && real_shapes vllm; }

if [ -n "$STEP" ]; then "run_$STEP"; exit; fi
failed=0
rm -f "$OUT/running"
: > "$OUT/summary.txt"
WATCHING= RUNNING=
# A step is in a process group of its own, that of `timeout`, which a key does not reach. A node of a
# step that is over ends at once: the next step needs the GPU's memory.
end_step() {
    local tries=0
    while kill -KILL -- "-$RUNNING" && [ $((tries += 1)) -lt 50 ]; do sleep 0.2; done 2> /dev/null
    RUNNING=
}
ended() {
    trap - EXIT INT TERM HUP
    [ -z "$RUNNING" ] || end_step
    [ -n "$WATCHING" ] || return
    { kill "$WATCHING" && wait "$WATCHING"; } 2> /dev/null
    python benchmarks/figures.py "$OUT" --into "$RETURN"
}
trap ended EXIT
trap 'ended; exit 130' INT TERM HUP
if [ -n "${RETURN-}" ]; then
    mkdir -p "$RETURN" || exit 2
    "$PYTHON" benchmarks/figures.py "$OUT" --into "$RETURN" --watch > "$OUT/watch.log" 2>&1 &
    WATCHING=$!
fi
for step in "${CHOSEN[@]}"; do
    started=$SECONDS left=${LEFT:+$((LEFT - SECONDS))} limit=${LIMITS[$step]:-580}
    [ -z "$left" ] || limit=$((left < limit ? left : limit))
    rm -f "$OUT/$step".{log,jsonl,xml} "$OUT/$step".*.log
    if [ -n "$UNSEEN" ] && [ "$step" != setup ] && [ "$step" != facts ]; then
        echo "$UNSEEN" > "$OUT/$step.log"
        code=1
    elif [ "$limit" -gt 10 ]; then
        echo "$step" > "$OUT/running"
        FIGURES=$OUT/$step.jsonl STEP_ENDS=$(($(date +%s) + limit)) timeout --kill-after 10 "$limit" \
            bash benchmarks/gpu_proof.sh "$OUT" --step "$step" > "$OUT/$step.log" 2>&1 &
        RUNNING=$!
        wait "$RUNNING"
        code=$?
        end_step
    else
        echo "NOT RUN because the bundle's time was over" > "$OUT/$step.log"
        code=77
    fi
    why=$(grep '^FAIL because ' "$OUT/$step.log" | tail -n 1)
    case $code in
    0) verdict="PASS$([ -n "$ON_GPU" ] || echo ' on the CPU')" ;;
    77) verdict=$(tail -n 1 "$OUT/$step.log") ;;
    124 | 137) verdict="FAIL: over $limit s, see $OUT/$step.log" failed=1 ;;
    *) verdict="${why:-FAIL: exit $code}, see $OUT/$step.log" failed=1 ;;
    esac
    printf '%-14s %4d s  %s\n' "$step" $((SECONDS - started)) "$verdict" | tee -a "$OUT/summary.txt"
    rm -f "$OUT/running"
    python benchmarks/figures.py "$OUT" ${RETURN:+--into "$RETURN"} || echo "no results.json: see above" >&2
done
exit $failed
