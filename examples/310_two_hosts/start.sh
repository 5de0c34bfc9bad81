#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# start.sh SKEIN PROGRAM [arguments...]: an elastic training on two hosts, one of which is cut off for a while.
#
#     sudo examples/310_two_hosts/start.sh build/clang/bin/skein build/clang/examples/300_elastic_mnist --logical-shards 8
#
# Two network namespaces stand for two hosts, joined by a cable: the training begins on both, the cable of the second one is
# pulled and put back, and the training is stopped, which saves it. Prints who trains after each of these.
set -eu
. "$(dirname "$0")/../two_hosts.sh"
[ $# -ge 2 ] || fail "which skein and which program? start.sh build/clang/bin/skein build/clang/examples/300_elastic_mnist"
need_two_hosts
skein="$1" program="$2"
shift 2

make_two_hosts two 10.84.0
logs="one two"

# In the background, so that a signal ends this script at once.
host() {
    at="$1" address="$2" out="$3"
    shift 3
    ip netns exec "$at" "$skein" run --nnodes 1:2 --nproc-per-node 1 --rdzv-endpoint 10.84.0.1:29400 --rdzv-id digits \
        --max-restarts 100 --local-addr "$address" "$program" --steps 1000000 --checkpoint-every 0 --plain \
        --runs-dir "$folder/runs" "$@" >"$folder/$out" 2>&1 &
    started="$! $started"
}
# Until the newest world has so many workers; then what it is.
until_world() {
    while ! sed -n 's/^skein run: world [0-9]* of \([0-9]*\) worker.*/\1/p' "$folder/one" | tail -n 1 | grep -qx "$1"; do
        for each in $started; do
            kill -0 "$each" 2>/dev/null || fail "a host has ended"
        done
        sleep 0.1
    done
}
rows() { cat "$folder"/runs/*/metrics.csv 2>/dev/null | wc -l; }
until_steps() {
    wanted="$(($(rows) + $1))"
    while [ "$(rows)" -lt "$wanted" ]; do sleep 0.1; done
}

# [hosts]
SKEIN_TOKEN="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')"
export SKEIN_TOKEN
host "$one" 10.84.0.1 one "$@"
until_world 1
host "$two" 10.84.0.2 two "$@"
until_world 2
until_steps 10
echo "both hosts train"
ip -n "$one" link set eth0 down
until_world 1
until_steps 10
echo "the second host is cut off, and the first one trains"
ip -n "$one" link set eth0 up
until_world 2
until_steps 10
echo "both hosts train"
# [/hosts]
first="${started#* }"
kill "${first%% *}" # the coordinator: the job saves and stops
for each in $started; do
    status=0
    wait "$each" || status=$?
    [ "$status" = 143 ] || fail "a host ended with $status"
done
started=""
ls "$folder"/runs/*/checkpoints | grep -q '^step-' || fail "no checkpoint"
echo "stopped, and saved behind the last step"
