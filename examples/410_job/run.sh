#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh SKEIN [PROGRAM [arguments...]]: sends a job to a head and two nodes, all on this host.
#
#     examples/410_job/run.sh build/clang/bin/skein                    # sends the folder job/ beside this file
#     examples/410_job/run.sh build/clang/bin/skein build/clang/examples/110_gpt_ddp --workers 2 --steps 50
#
# On several hosts it is the same: `skein head --listen HOST` on one, `skein join HOST` on each.
set -eu
skein="$(realpath "$1")"
shift
here="$(dirname "$(realpath "$0")")"
folder="$(mktemp -d)"
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

cp -R "$here/job" "$folder/job"
if [ $# -gt 0 ]; then # a program of yours goes along in the same folder
    cp "$1" "$folder/job/"
    program="./$(basename "$1")"
    shift
    set -- "$program" "$@"
else
    set -- ./sum.sh
fi

# Where it is not set, `skein head` keeps the secret of its clusters in ~/.config/skein/token.
SKEIN_TOKEN="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')"
export SKEIN_TOKEN
# [cluster]
"$skein" head --listen 127.0.0.1:0 --storage "$folder/files" >"$folder/head" & # at a free port
started="$!"
SKEIN_ADDRESS=""
while [ -z "$SKEIN_ADDRESS" ]; do
    kill -0 "$started" # it ends this script if the head has ended
    sleep 0.1
    SKEIN_ADDRESS="$(sed -n 's/.*skein join //p' "$folder/head")"
done
export SKEIN_ADDRESS # of all that follows
for node in garden kitchen; do
    "$skein" join --name "$node" --resources cpu=2 --storage "$folder/$node" >"$folder/$node.out" &
    started="$! $started"
done
# [/cluster]

# [job]
failed=0
"$skein" job submit --id sum --working-dir "$folder/job" -- "$@" || failed=1
"$skein" job list
"$skein" job status sum
"$skein" job logs sum
# [/job]
exit "$failed"
