#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# start.sh [options] [-- options of 240_hetero_vit]: what a helper on another host is worth, on this host.
#
#     sudo examples/240_hetero_vit/start.sh
#
# Two network namespaces stand for two hosts: the one that trains, on core 0, and one that helps, on core 1, joined by a
# cable. The same training runs as written, as written with the helper, and with the ten blurs folded into one. For each it
# prints images per second, the part of the time in which training waited for images, and the price of 1,000 images.
#
#   --train-price 1.408   $ per hour of the host that trains
#   --help-price 0.816    $ per hour of the host that helps
#   --gigabits 10         of the cable
#   --steps 40            of each training, 64 images each
#   --build DIR           a build folder; default: the newest of build/* that has the example
#
# The model is a small one, so that making images costs more than training on them; `-- --dim 64 --layers 2` is another.
set -eu

. "$(dirname "$0")/../two_hosts.sh"
root="$(cd "$(dirname "$0")/../.." && pwd)"
train_price=1.408 help_price=0.816 gigabits=10 steps=40 build=""
while [ $# -gt 0 ]; do
    case "$1" in
    -h | --help)
        sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//;p;}' "$0"
        exit 0
        ;;
    --)
        shift
        break
        ;;
    --train-price | --help-price | --gigabits | --steps | --build) [ $# -gt 1 ] || fail "$1 needs a value" ;;
    *) fail "unknown option $1; --help lists them" ;;
    esac
    case "$1" in
    --train-price) train_price="$2" ;;
    --help-price) help_price="$2" ;;
    --gigabits) gigabits="$2" ;;
    --steps) steps="$2" ;;
    --build) build="$(cd "$2" && pwd)" ;;
    esac
    shift 2
done

# ---- what is there -------------------------------------------------------------------------------
need_two_hosts
for tool in tc taskset sysctl; do
    command -v "$tool" >/dev/null || fail "$tool is not there (packages iproute2, util-linux, procps)"
done
[ "$(nproc)" -ge 2 ] || fail "it needs two cores, one for each host; this process may use $(nproc)"
if [ -z "$build" ]; then
    for each in $(ls -td "$root"/build/*/ 2>/dev/null); do
        [ -z "$build" ] && [ -x "$each/examples/240_hetero_vit" ] && [ -x "$each/bin/skein" ] && build="${each%/}"
    done
fi
program="$build/examples/240_hetero_vit" skein="$build/bin/skein"
[ -x "$program" ] && [ -x "$skein" ] ||
    fail "there is no examples/240_hetero_vit and bin/skein in ${build:-$root/build/*}; build them, or name a folder with --build"

# ---- two hosts -----------------------------------------------------------------------------------
make_two_hosts hetero 10.79.0
for name in "$one" "$two"; do
    ip netns exec "$name" sysctl -qw net.ipv4.tcp_congestion_control=reno # BBR takes a busy core for a slow cable
    tc -n "$name" qdisc add dev eth0 root tbf rate "${gigabits}gbit" burst 4mb latency 50ms ||
        echo "start.sh: tc cannot limit the cable here; it runs as fast as it can" >&2
done

SKEIN_TOKEN="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')"
SKEIN_LOG_LEVEL="${SKEIN_LOG_LEVEL:-warn}"
export SKEIN_TOKEN SKEIN_LOG_LEVEL
ip netns exec "$one" taskset -c 0 "$skein" head --listen 10.79.0.1:0 >"$folder/head" &
started="$!"
address=""
while [ -z "$address" ]; do
    kill -0 "$started" 2>/dev/null || fail "the cluster's head has ended"
    sleep 0.1
    address="$(sed -n 's/.*skein join //p' "$folder/head")"
done
ip netns exec "$two" taskset -c 1 "$skein" join "$address" --name helper --resources cpu=1 --labels role=cpu \
    >"$folder/node" &
started="$! $started"

# ---- three trainings -----------------------------------------------------------------------------
# In the background, so that a signal ends this script at once; it leaves no line of its own but the table's.
training() {
    what="$1" price="$2" cluster="$3"
    shift 3
    if [ -n "$cluster" ]; then export SKEIN_ADDRESS="$cluster"; else unset SKEIN_ADDRESS; fi
    ip netns exec "$one" taskset -c 0 "$program" --steps "$steps" --threads 1 --budget 256 --dim 16 --layers 0 --plain \
        --runs "$folder/runs" --run "$what" "$@" >"$folder/out" 2>"$folder/err" &
    running="$!"
    started="$running $started"
    if ! wait "$running"; then
        cat "$folder/out" "$folder/err" >&2
        fail "the training '$what' failed"
    fi
    started="${started#* }"
    rate="$(sed -n 's/^ *speed *\([0-9,.]*\) samples.*/\1/p' "$folder/out" | tr -d ,)"
    waited="$(sed -n 's/.*waited \([0-9.]*\) %.*/\1/p' "$folder/out")"
    [ -n "$rate" ] && [ -n "$waited" ] || fail "the training '$what' said no speed"
    awk -v what="$what" -v rate="$rate" -v waited="$waited" -v price="$price" 'BEGIN {
        printf "%-26s %8.0f %8.1f %% %12.5f\n", what, rate, waited, price / 3600 / rate * 1000 }'
}
both="$(awk -v a="$train_price" -v b="$help_price" 'BEGIN { print a + b }')"
printf '%-26s %8s %10s %12s\n' "" "images/s" "waited" "\$ per 1,000"
training "as written, alone" "$train_price" "" --as-written "$@"
training "as written, with a helper" "$both" "$address" --as-written --helpers 1 --on role=cpu "$@"
training "folded, alone" "$train_price" "" "$@"
