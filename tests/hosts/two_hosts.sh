#!/bin/sh
# Two hosts on this machine, as two network namespaces that are joined by a bridge, and the tests that need them.
# Usage: tests/hosts/two_hosts.sh PYTHON [options of pytest]
#
# Each host has its own loopback, its own address (10.77.0.1 and 10.77.0.2) and its own name (first-host, second-host);
# they share processors, memory and disk. What is made here is taken away at the end, also after Ctrl-C or SIGTERM; what
# a SIGKILL leaves behind, the next start takes away.
set -eu
python=${1:?usage: $0 PYTHON [options of pytest]}
shift
here=$(dirname "$0")
bridge=spa-hosts
hosts="first second"

[ "$(uname)" = Linux ] || { echo "$0 needs Linux: the hosts are network namespaces" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "$0 needs root, to make network namespaces (ip netns)" >&2; exit 2; }
command -v ip >/dev/null || { echo "$0 needs ip (Debian: apt-get install iproute2)" >&2; exit 2; }

remove() {
    for host in $hosts; do
        if [ -e "/run/netns/spa-$host" ]; then
            ip netns pids "spa-$host" | xargs -r kill -9 2>/dev/null || true # some have just ended
            ip netns del "spa-$host"
        fi
        rm -rf "/etc/netns/spa-$host"
    done
    if [ -e "/sys/class/net/$bridge" ]; then ip link del "$bridge"; fi
}

make_host() { # NAME ADDRESS
    ip netns add "spa-$1"
    ip link add "spa-$1" type veth peer name eth0 netns "spa-$1"
    ip link set "spa-$1" master "$bridge" up
    ip -n "spa-$1" address add "$2/24" dev eth0
    ip -n "spa-$1" link set lo up
    ip -n "spa-$1" link set eth0 up
    mkdir -p "/etc/netns/spa-$1" # ip netns exec shows its files in place of /etc's
    printf '127.0.0.1 localhost\n10.77.0.1 first-host\n10.77.0.2 second-host\n' >"/etc/netns/spa-$1/hosts"
}

stop() { # STATUS
    [ -z "$tests" ] || kill -9 "$tests" 2>/dev/null || true
    exit "$1"
}

tests=""
remove
trap remove EXIT
trap 'stop 130' INT
trap 'stop 143' TERM
ip link add "$bridge" type bridge
ip link set "$bridge" up
make_host first 10.77.0.1
make_host second 10.77.0.2
"$python" -m pytest "$here/two_hosts.py" "$@" & # in the background, so that a signal is not left until its end
tests=$!
wait "$tests"
