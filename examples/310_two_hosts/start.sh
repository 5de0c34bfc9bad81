#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# start.sh SKEIN PROGRAM [arguments...]: an elastic training on two hosts, one of which is cut off for a while.
#
#     sudo examples/310_two_hosts/start.sh build/clang/bin/skein build/clang/examples/300_elastic_mnist --logical-shards 8
#
# Two network namespaces stand for two hosts, joined by a cable: the training begins on both, the cable of the second one is
# pulled and put back, and the training is stopped, which saves it. Prints who trains after each of these.
set -eu
fail() {
    echo "start.sh: $*" >&2
    exit 1
}
[ $# -ge 2 ] || fail "which skein and which program? start.sh build/clang/bin/skein build/clang/examples/300_elastic_mnist"
[ "$(id -u)" = 0 ] || fail "network namespaces need root; run it with sudo"
command -v ip >/dev/null || fail "ip is not there (package iproute2)"
skein="$1" program="$2"
shift 2

folder="$(mktemp -d)"
one="two$$a" two="two$$b" started=""
end() {
    status=$?
    trap '' INT TERM
    [ -z "$started" ] || kill $started 2>/dev/null || true # SIGTERM: each of them leaves in order
    wait
    ip netns del "$one" 2>/dev/null || true
    ip netns del "$two" 2>/dev/null || true
    [ "$status" = 0 ] || [ "$status" = 130 ] || cat "$folder/one" "$folder/two" >&2 2>/dev/null || true
    rm -rf "$folder"
    exit "$status"
}
trap end EXIT
trap 'exit 130' INT TERM

ip netns add "$one" && ip netns add "$two" || fail "this system gives no network namespaces"
ip -n "$one" link add eth0 type veth peer name eth0 netns "$two"
for host in "$one 10.84.0.1" "$two 10.84.0.2"; do
    ip -n "${host% *}" addr add "${host#* }/24" dev eth0
    ip -n "${host% *}" link set lo up
    ip -n "${host% *}" link set eth0 up
done

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
