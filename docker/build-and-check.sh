#!/usr/bin/env bash
# Builds the CPU image without a container registry or daemon, and checks what it starts.
#
#   docker/build-and-check.sh DIR
#
# Everything made lies in DIR, which may be deleted afterwards; a second run reuses its base.
# Needs root (debootstrap, chroot), debootstrap, buildah, and python3 with pip, whose configuration
# (index, wheels on disk, certificate) the build uses and the image does not keep.
#
# Needs 10 GB of free disk while it builds: 9.0 were measured for an image of 1.73.
#
# Variables: MIRROR, the Debian mirror; TORCH_INDEX, an index with CPU builds of torch, by default
# whatever pip is configured with; STORAGE_DRIVER, where buildah's own choice does not work.
#
# What it cannot check: Docker itself, and networks of their own: containers here share the host's
# network, and so the ports 31330 and 31331.
set -euo pipefail

say() { printf '== [%3ds] %s\n' "$SECONDS" "$*"; }
fail() {
    printf 'FAILED: %s\n' "$*" >&2
    exit 1
}

[ $# -eq 1 ] || fail "usage: docker/build-and-check.sh DIR"
[ "$(id -u)" -eq 0 ] || fail "debootstrap and chroot need root"
for tool in debootstrap buildah python3 pgrep; do
    command -v "$tool" > /dev/null ||
        fail "$tool is missing: apt-get install --no-install-recommends debootstrap buildah procps python3-pip"
done
cd "$(dirname "$0")/.."
mkdir -p "$1"
DIR=$(cd "$1" && pwd)
MIRROR=${MIRROR:-http://deb.debian.org/debian}
# buildah's own temporary files are gigabytes, and a build that fails leaves them.
export TMPDIR=$DIR/tmp
rm -rf "$TMPDIR"
mkdir "$TMPDIR"
free=$(df --output=avail --block-size=1G "$DIR" | tail -n 1)
[ "$free" -ge 10 ] || fail "the build needs 10 GB in $DIR, and $free are free: remove something, or name another DIR"
IMAGE=localhost/swarm-node:cpu
export BUILDAH_ISOLATION=chroot
buildah() {
    command buildah --root "$DIR/storage" --runroot "$DIR/run" \
        ${STORAGE_DRIVER:+--storage-driver "$STORAGE_DRIVER"} "$@"
}

make_base() {
    local container root
    container=$(buildah from scratch)
    root=$(buildah mount "$container")
    debootstrap --variant=minbase bookworm "$root" "$MIRROR" > "$DIR/debootstrap.log" 2>&1 ||
        { tail -n 20 "$DIR/debootstrap.log" >&2; fail "debootstrap from $MIRROR"; }
    rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/*
    buildah umount "$container" > /dev/null
    buildah commit --quiet --rm "$container" localhost/debian-base > /dev/null
}

say "base: Debian bookworm from $MIRROR"
if buildah inspect --type image localhost/debian-base > /dev/null 2>&1; then
    say "base: already in $DIR"
else
    make_base
fi

say "build"
rm -f "$DIR/pip.crt"
python3 .ci/tools/pip_configuration.py "$DIR" > "$DIR/mounts"
options=(--secret "id=pip.conf,src=$DIR/pip.conf")
[ ! -f "$DIR/pip.crt" ] || options+=(--secret "id=pip.crt,src=$DIR/pip.crt")
while read -r path; do options+=(--volume "$path:$path:ro"); done < "$DIR/mounts"
buildah bud --format docker --file docker/Dockerfile --tag "$IMAGE" \
    --build-arg BASE=localhost/debian-base --build-arg TORCH_INDEX="${TORCH_INDEX:-}" \
    --build-arg REVISION="$(git rev-parse HEAD 2> /dev/null || echo unknown)" \
    "${options[@]}" . > "$DIR/build.log" 2>&1 ||
    { tail -n 40 "$DIR/build.log" >&2; fail "the image does not build: $DIR/build.log"; }
size=$(buildah images --format '{{.Size}}' "$IMAGE")
say "built $IMAGE: $size"

# What a container engine would read from the image: one word a line.
image_words() {
    buildah inspect --type image "$IMAGE" | python3 -c '
import json, sys
config = json.load(sys.stdin)["Docker"]["config"]
health = config["Healthcheck"]["Test"]
assert health[0] == "CMD", health
words = {"command": config["Entrypoint"] + config["Cmd"], "entrypoint": config["Entrypoint"],
         "health": health[1:]}
print(*words[sys.argv[1]], sep="\n")' "$1"
}
mapfile -t COMMAND < <(image_words command)
mapfile -t ENTRYPOINT < <(image_words entrypoint)
mapfile -t HEALTH < <(image_words health)

declare -A PIDS=()
NODES=(first second)
clean_up() {
    for name in "${NODES[@]}"; do
        [ -z "${PIDS[$name]:-}" ] || kill_node "$name" KILL || true
        buildah rm "$name" > /dev/null 2>&1 || true
    done
}
port_of() { [ "$1" = first ] && echo 31330 || echo 31331; }
# in_container NAME COMMAND…: with the image's user and environment, and the node's volume.
in_container() {
    local name=$1 port
    port=$(port_of "$1")
    shift
    buildah run --volume "$DIR/volume-$name:/var/lib/swarm-node" \
        --env "SWARM_NODE_NETWORK__LISTEN=[\"/ip4/127.0.0.1/tcp/$port\"]" "$name" -- "$@"
}
start_node() {
    local name=$1
    shift
    in_container "$name" "$@" >> "$DIR/$name.log" 2>&1 &
    PIDS[$name]=$!
}
# The container's first process: buildah's own processes stand above it.
first_process() {
    local pid=${PIDS[$1]}
    while [ "$(cat "/proc/$pid/comm")" != tini ]; do
        pid=$(pgrep --parent "$pid" | head -n 1)
        [ -n "$pid" ] || return 1
    done
    echo "$pid"
}
kill_node() {
    local pid
    pid=$(first_process "$1") && kill "-$2" "$pid"
}
await_healthy() {
    local name=$1 from=$SECONDS
    until in_container "$name" "${HEALTH[@]}" > "$DIR/health.log" 2>&1; do
        kill -0 "${PIDS[$name]}" 2> /dev/null ||
            { tail -n 20 "$DIR/$name.log" >&2; fail "the $name container ended"; }
        [ $((SECONDS - from)) -lt 300 ] ||
            { cat "$DIR/health.log" "$DIR/$name.log" >&2; fail "the $name container is not healthy"; }
        sleep 1
    done
    say "$name: healthy after $((SECONDS - from)) s, by ${HEALTH[*]}"
}
# ask NAME EXPRESSION: Python over `status`, the node's own JSON.
ask() {
    in_container "$1" swarm-node status --json | python3 -c "
import json, sys
status = json.load(sys.stdin)
print($2)"
}
await() {
    local name=$1 expression=$2 from=$SECONDS
    until [ "$(ask "$name" "$expression")" = True ]; do
        [ $((SECONDS - from)) -lt 300 ] ||
            { tail -n 20 "$DIR/$name.log" >&2; fail "$name: not within 300 s: $expression"; }
        sleep 1
    done
    say "$name: $expression after $((SECONDS - from)) s"
}
stop_node() {
    local name=$1 from=$SECONDS code=0
    kill_node "$name" TERM
    wait "${PIDS[$name]}" || code=$?
    unset "PIDS[$name]"
    [ "$code" -eq 0 ] || { tail -n 20 "$DIR/$name.log" >&2; fail "$name: exit code $code on SIGTERM"; }
    say "$name: stopped by SIGTERM in $((SECONDS - from)) s"
}

trap clean_up EXIT
for name in "${NODES[@]}"; do
    rm -rf "$DIR/volume-$name" "$DIR/$name.log"
    install --directory --owner 10001 --group 10001 --mode 0700 "$DIR/volume-$name"
    buildah from --name "$name" "$IMAGE" > /dev/null
done

say "first: ${COMMAND[*]}, on an empty volume"
start_node first "${COMMAND[@]}"
await_healthy first
owner=$(ps -o uid= -p "$(first_process first)" | tr -d ' ')
[ "$owner" = 10001 ] || fail "the node runs as uid $owner"
in_container first swarm-node invite --name second --out /var/lib/swarm-node/second.ticket
install --mode 0600 --owner 10001 --group 10001 \
    "$DIR/volume-first/second.ticket" "$DIR/volume-second/ticket"

say "second: joins the first by a ticket"
start_node second "${ENTRYPOINT[@]}" join --model tiny --ticket-file /var/lib/swarm-node/ticket
await_healthy second
for name in "${NODES[@]}"; do
    await "$name" "len(status['peers']) == 1 and status['groups']['trained_external'] > 0"
done
await first "status['sandbox'] == 'confined'"
await first "len(status['evals']) > 0 and status['steps'] >= 3"
stop_node second
version=$(ask first "status['version']")
stop_node first

say "first: again, on the same volume"
start_node first "${COMMAND[@]}"
await_healthy first
await first "status['version'] >= $version and status['swarm'].startswith('swarm of')"
stop_node first
say "passed: built, healthy, learning together, stopped and resumed"
