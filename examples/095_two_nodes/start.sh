#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# start.sh SKEIN PROGRAM [arguments...]: runs a program on a head and two nodes of one cpu each, all on this host.
#
#     examples/095_two_nodes/start.sh build/clang/bin/skein build/clang/examples/095_two_nodes 2
#
# On several hosts it is the same: `skein head --listen HOST` on one, `skein join HOST` on each.
set -eu
skein="$1" program="$2"
shift 2
folder="$(mktemp -d)"
address=""
started=""
end() {
    status=$?
    [ -z "$started" ] || kill $started || true # SIGTERM: each of them leaves in order
    wait
    rm -rf "$folder"
    exit "$status"
}
trap end EXIT
trap 'exit 130' INT TERM

# Where it is not set, `skein head` keeps the secret of its clusters in ~/.config/skein/token.
SKEIN_TOKEN="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')"
# [cluster]
export SKEIN_TOKEN
"$skein" head --listen 127.0.0.1:0 >"$folder/head" & # at a free port
started="$!"
while [ -z "$address" ]; do
    kill -0 "$started" # it ends this script if the head has ended
    sleep 0.1
    address="$(sed -n 's/.*skein join //p' "$folder/head")"
done
trap - INT TERM # the copy of this shell that becomes a node would forget a signal that comes before
NODE=garden "$skein" join "$address" --name garden --resources cpu=1 >"$folder/garden" &
started="$! $started"
NODE=kitchen "$skein" join "$address" --name kitchen --resources cpu=1 >"$folder/kitchen" &
started="$! $started"
trap 'exit 130' INT TERM
"$program" --address "$address" "$@"
"$skein" status "$address"
# [/cluster]
