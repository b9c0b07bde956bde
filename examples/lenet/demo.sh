#!/usr/bin/env bash
# The main job on a real model: register, build, validate, promote, and a rollback. `make demo` runs it.
#
#   examples/lenet/demo.sh             the registry is .demo/registry of the checkout; a later run takes a new name
#   examples/lenet/demo.sh FOLDER      the registry is made in FOLDER, which must not exist
set -euo pipefail

start=$PWD
demo=${1:-}
if [[ $demo && $demo != /* ]]; then
    demo=$PWD/$demo
fi
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
files=examples/lenet

if ! command -v modelreg >/dev/null; then
    echo "modelreg is not on the PATH: run \`make demo\`, which installs it into .venv" >&2
    exit 1
fi
if [[ -e $demo ]]; then
    echo "$demo exists: name a folder that does not" >&2
    exit 1
fi

# Print a registry's path in $1 that is free: `registry`, then `registry-2` and so on.
find_free() {
    local name=registry number=1
    while [[ -e $1/$name ]]; do
        name=registry-$((++number))
    done
    echo "$1/$name"
}

say() { printf '\n# %s\n' "$*"; }
demo=${demo:-$PWD/.demo}
mkdir -p "$demo"
MODELREG_HOME=$(find_free "$demo")
export MODELREG_HOME MODELREG_ACTOR=${MODELREG_ACTOR:-demo}
if [[ ${MODELREG_HOME##*/} != registry ]]; then
    say "The registry of an earlier run is kept in $demo/; this one is made in $MODELREG_HOME."
fi

run() {
    printf '$'
    printf ' %s' "${@@Q}" | sed -E "s/'([][A-Za-z0-9_.:,@/=-]+)'/\1/g"
    printf '\n'
    "$@"
}

say "A registry: a database for intent and history, a store for the bytes."
run modelreg init

say "Version 1: a LeNet trained in PyTorch on real digits, with what PyTorch answers to 597 digits it never saw."
run modelreg register lenet $files/lenet-v1.onnx --golden $files/golden-v1.npz --message "first LeNet"

say "Engines for this machine's CPU, each built and tried out in a process of its own."
run modelreg build lenet:1 --precision fp32,fp16,int8 --calibration $files/calibration.npz

say "Gates compare every engine with PyTorch; only what passes can be promoted."
run modelreg validate lenet:1
run modelreg promote lenet:1 --to production --message "first release"

say "Version 2 was trained for longer. It goes the same way."
run modelreg register lenet $files/lenet-v2.onnx --golden $files/golden-v2.npz --message "trained twice as long"
run modelreg build lenet:2 --precision fp32,fp16,int8 --calibration $files/calibration.npz
run modelreg validate lenet:2
run modelreg promote lenet:2 --to production --message "more accurate"

say "What would this machine load now?"
run modelreg which lenet@production

say "Second thoughts: one command, and version 1 serves again. History is added to, never rewritten."
run modelreg rollback lenet --channel production --message "second thoughts"
run modelreg history lenet --channel production
run modelreg show lenet

# Paths below the checkout are told by $PWD to who stands there.
told() { if [[ $start == "$PWD" ]]; then echo "${1/#"$PWD/"/\$PWD/}"; else echo "$1"; fi; }

cat <<END

# Go on with this registry:
export MODELREG_HOME=$(told "$MODELREG_HOME") PATH=$(told "$(dirname "$(command -v modelreg)")"):\$PATH
modelreg show lenet:1 -v                                  every gate, measured against its limit
modelreg diff lenet:1 lenet:2                             what differs between the two
modelreg promote lenet:2 --to production -m "once more"   forward again
modelreg rollback lenet --channel production --drill      all but the swap, timed
modelreg verify && modelreg doctor                        re-hash every byte; check that all parts agree
END
