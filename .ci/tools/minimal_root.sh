#!/usr/bin/env bash
# `make demo` in a Debian bookworm that has Python 3.11 and make, and no compiler: as a user who is not root.
#
#   .ci/tools/minimal_root.sh DIR
#
# Everything made lies in DIR, which may be deleted afterwards; a second run reuses its base. Needs root, a mount
# namespace of its own, debootstrap, and python3 with pip, whose configuration the root gets.
#
# Variables: MIRROR, the Debian mirror; DEMO, the demo's options.
set -euo pipefail

say() { printf '== [%3ds] %s\n' "$SECONDS" "$*"; }
fail() {
    printf 'FAILED: %s\n' "$*" >&2
    exit 1
}

[ $# -eq 1 ] || fail "usage: .ci/tools/minimal_root.sh DIR"
[ "$(id -u)" -eq 0 ] || fail "debootstrap and chroot need root"
for tool in debootstrap python3 unshare; do
    command -v "$tool" > /dev/null || fail "$tool is missing: apt-get install --no-install-recommends debootstrap python3-pip"
done
# Mounts and processes of the root end with this script.
if [ -z "${IN_NAMESPACE:-}" ]; then
    IN_NAMESPACE=1 exec unshare --mount --pid --fork --kill-child "$0" "$1"
fi
cd "$(dirname "$0")/../.."
mkdir -p "$1"
DIR=$(cd "$1" && pwd)
MIRROR=${MIRROR:-http://deb.debian.org/debian}
ROOT=$DIR/root

if [ -d "$DIR/base" ]; then
    say "base: already in $DIR"
else
    say "base: Debian bookworm from $MIRROR"
    rm -rf "$DIR/base.unfinished"
    debootstrap --variant=minbase --include=python3,python3-venv,make,ca-certificates \
        bookworm "$DIR/base.unfinished" "$MIRROR" > "$DIR/debootstrap.log" 2>&1 ||
        { tail -n 20 "$DIR/debootstrap.log" >&2; fail "debootstrap from $MIRROR"; }
    mv "$DIR/base.unfinished" "$DIR/base"
fi

say "the files of this checkout"
rm -rf "$ROOT" "$DIR/pip.crt"
cp -a "$DIR/base" "$ROOT"
chroot "$ROOT" useradd --create-home somebody
HOUSE=/home/somebody/swarm-node
mkdir "$ROOT$HOUSE"
git ls-files -z --cached --others --exclude-standard |
    tar --create --null --files-from - | tar --extract --no-same-owner --directory "$ROOT$HOUSE"
chroot "$ROOT" chown -R somebody: "$HOUSE"

python3 .ci/tools/pip_configuration.py "$DIR" > "$DIR/mounts"
cp "$DIR/pip.conf" "$ROOT/etc/pip.conf"
[ ! -f "$DIR/pip.crt" ] || cp "$DIR/pip.crt" "$ROOT/run/pip.crt"
cp --dereference /etc/resolv.conf /etc/hosts "$ROOT/etc/"
mount -t proc proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
mount --bind "$ROOT/sys" "$ROOT/sys"
while read -r path; do
    mkdir -p "$ROOT$path"
    mount --rbind -o ro "$path" "$ROOT$path"
done < "$DIR/mounts"

inside() {
    chroot --userspec=somebody "$ROOT" env --ignore-environment HOME=/home/somebody USER=somebody LANG=C.UTF-8 \
        PATH=/usr/local/bin:/usr/bin:/bin sh -c "cd $HOUSE && $1"
}
no_compiler() {
    local found
    found=$(inside 'for tool in cc c++ gcc g++ clang tcc; do command -v $tool; done; ls /usr/include/python3*/Python.h' \
        2> /dev/null || true)
    [ -z "$found" ] || fail "the root has what it should lack: $found"
}

no_compiler
say "make setup"
inside "make setup" > "$DIR/setup.log" 2>&1 || { tail -n 40 "$DIR/setup.log" >&2; fail "make setup"; }
say "make demo"
inside "make demo DEMO='${DEMO:---minutes 1}'" > "$DIR/demo.log" 2>&1 ||
    { tail -n 40 "$DIR/demo.log" >&2; fail "make demo"; }
no_compiler
inside ".venv/bin/python -c '
import json
nodes = json.load(open(\"demo-report/report.json\"))[\"nodes\"]
for node in nodes:
    print(node[\"name\"], node[\"steps\"], \"steps, eval reward\", node[\"reward_start\"], \"to\", node[\"reward_end\"])
assert nodes and all(node[\"steps\"] > 0 for node in nodes), \"a node of the demo made no step\"
'" || fail "the demo's report"
say "passed: make demo without a compiler"
