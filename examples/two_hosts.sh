# SPDX-License-Identifier: Apache-2.0
# Two network namespaces that stand for two hosts, for the start.sh of an example. Sourced, by sh; needs root.
#
#     . "$(dirname "$0")/../two_hosts.sh"
#     need_two_hosts
#     make_two_hosts hetero 10.79.0     # $one is 10.79.0.1, $two is 10.79.0.2, joined by a cable; $folder is for files
#     ... & started="$! $started"       # these get SIGTERM when the script ends, for whatever reason
fail() {
    echo "start.sh: $*" >&2
    exit 1
}
started="" logs="" # logs: files below $folder that are shown when the script fails
end_two_hosts() {
    status=$?
    trap '' INT TERM
    [ -z "$started" ] || kill $started 2>/dev/null || true # each of them leaves in order
    wait
    ip netns del "$one" 2>/dev/null || true
    ip netns del "$two" 2>/dev/null || true
    [ "$status" = 0 ] || [ "$status" = 130 ] || for each in $logs; do cat "$folder/$each" >&2 2>/dev/null || true; done
    rm -rf "$folder"
    exit "$status"
}
need_two_hosts() {
    [ "$(id -u)" = 0 ] || fail "network namespaces need root; run it with sudo"
    command -v ip >/dev/null || fail "ip is not there (package iproute2)"
}
make_two_hosts() {
    folder="$(mktemp -d)"
    one="$1$$a" two="$1$$b"
    trap end_two_hosts EXIT
    trap 'exit 130' INT TERM
    ip netns add "$one" && ip netns add "$two" || fail "this system gives no network namespaces"
    ip -n "$one" link add eth0 type veth peer name eth0 netns "$two"
    for host in "$one $2.1" "$two $2.2"; do
        ip -n "${host% *}" addr add "${host#* }/24" dev eth0
        ip -n "${host% *}" link set lo up
        ip -n "${host% *}" link set eth0 up
    done
}
