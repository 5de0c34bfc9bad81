#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh SKEIN PROGRAM [arguments...]: an elastic training on two nodes that come and go, all on this host.
#
#     examples/420_handover/run.sh build/clang/bin/skein build/clang/examples/300_elastic_mnist
#
# On several hosts it is the same: `skein head` on one, `skein join HOST` on each. They share no folder.
set -eu
skein="$(realpath "$1")"
program="$(realpath "$2")"
shift 2
[ $# -gt 0 ] || set -- --steps 1000000 --logical-shards 8 --checkpoint-every 100 # until it is stopped
folder="$(mktemp -d)"
started=""
kitchen=""
end() {
    status=$?
    [ -z "$started$kitchen" ] || kill $started $kitchen || true # SIGTERM: each of them leaves in order
    wait
    rm -rf "$folder"
    exit "$status"
}
trap end EXIT
trap 'exit 130' INT TERM

mkdir "$folder/sent"
cp "$program" "$folder/sent/train"
SKEIN_TOKEN="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')"
export SKEIN_TOKEN
"$skein" head --listen 127.0.0.1:0 --storage "$folder/files" >"$folder/head" & # at a free port
started="$!"
SKEIN_ADDRESS=""
while [ -z "$SKEIN_ADDRESS" ]; do
    kill -0 "$started" # it ends this script if the head has ended
    sleep 0.1
    SKEIN_ADDRESS="$(sed -n 's/.*skein join //p' "$folder/head")"
done
export SKEIN_ADDRESS # of all that follows
join() {
    "$skein" join --name "$1" --resources cpu=3 --storage "$folder/$1" >"$folder/$1.out" 2>&1 &
}
join garden
started="$! $started"
join kitchen
kitchen="$!"

# until_workers N: so many train; the job's end is an error here
until_workers() {
    while ! "$skein" job status digits | grep -q "^  workers *$1 of 1:4"; do
        "$skein" job status digits | grep -q "^digits: \(PENDING\|STARTING\|RUNNING\|RETRYING\)" || return 1
        sleep 0.2
    done
    echo "$1 workers train"
}

# [job]
"$skein" job submit --id digits --elastic 1:4 --grace 60s --on node=garden --no-wait --working-dir "$folder/sent" -- ./train "$@" --plain
until_workers 4
"$skein" drain kitchen --within 30s # a machine that goes: its workers leave between two steps
"$skein" drain kitchen --undo       # and comes back
until_workers 4
kill -9 "$kitchen" # a machine that is lost: the others go on
kitchen=""
until_workers 3
"$skein" job stop digits          # at its next step, with a checkpoint
"$skein" job wait digits || true  # 1: it was stopped
"$skein" job status digits
"$skein" job fetch digits --to "$folder/got" # what it has left, from the head
ls "$folder/got/runs/elastic"
# [/job]
