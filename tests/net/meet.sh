#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# How ranks of two machines find one another, however they call rank 0: a table of cases, each of which starts, or ends with a text that names the address
# and the error.
#
# usage: meet.sh [-t] PROGRAM [CASE]      PROGRAM is pickle-start (bench/start); CASE a pattern of names
#   -t  prints for each case that starts how many ms after the last rank began the first operation was done
# Exits with 1 if a case is not as it should be; 77: network namespaces are not allowed here.
set -u
# shellcheck source=tests/net/machines.sh
. "$(dirname "$0")/machines.sh"
machines_enter "$0" "$@"

times=0
[ "${1:-}" = -t ] && times=1 && shift
program=$1 pattern=${2:-*}
work=$(mktemp -d)
mkdir "$work/torch" "$work/root" "$work/id" "$work/mpirun"
trap 'rm -rf "$work"' EXIT
machines_make "$work"
# Between them, a card with nothing but link-local addresses.
ip -n a link add data0 type veth peer name data0 netns b && for m in a b; do ip -n $m link set data0 addrgenmode none; done
ip -n a addr add fe80::1/64 dev data0 nodad && ip -n b addr add fe80::2/64 dev data0 nodad && ip -n a link set data0 up && ip -n b link set data0 up
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$work/secret"
chmod 600 "$work/secret"
for v in $(compgen -e | grep -E '^(PK_|PMIX|RANK$|WORLD_SIZE|LOCAL_|MASTER_|TORCHELASTIC)'); do unset "$v"; done

# ---- what /etc/hosts says ----
hosts() { printf '%b\n' "$2" >"$work/$1"; }
hosts plain '10.99.0.1 nodea nodea.cluster.local\n10.99.0.2 nodeb'
hosts debian '127.0.1.1 nodea nodea.cluster.local\n10.99.0.2 nodeb'
hosts v6 'fd77::1 nodea\nfd77::2 nodeb'
hosts both 'fd79::1 nodea\nfd79::2 nodea\n10.99.0.1 nodea' # IPv6 that leads nowhere, and IPv4
hosts four '10.98.0.1 nodea\n10.98.0.7 nodea\n172.17.0.1 nodea\nfd77::1 nodea' # the last one is right
hosts none ''

port=23800
bad=0 names=() pids=() starting=()
[ $times = 1 ] && most=1 || most=8

# ---- one case ----
# Settings for the next case: hosts0, hosts1 (files), all (variables of both ranks), start1 (seconds until rank 1 starts), run1 (on or on_slow),
# late (a file that becomes "plain" 2 s after rank 1 has started).
defaults() { hosts0=plain hosts1=plain all="PK_SECRET_FILE=$work/secret PK_TIMEOUT_MS=100000" start1=0 run1=on late=; }
defaults

# check NAME WANT: "start", or what rank 0 and rank 1 must say
run_case() { # NAME COMMAND0 COMMAND1 WANT...
    local name=$1 zero=$2 one=$3 pid0 rc0 rc1 want
    shift 3
    # shellcheck disable=SC2086
    on a "$work/$hosts0" timeout -k 5 110 env $all $zero >"$work/$name.0" 2>&1 &
    pid0=$!
    sleep "$start1"
    [ -z "$late" ] || (sleep 2 && cat "$work/plain" >"$work/$late") &
    # shellcheck disable=SC2086
    $run1 b "$work/$hosts1" timeout -k 5 110 env $all $one >"$work/$name.1" 2>&1
    rc1=$?
    wait $pid0
    rc0=$?
    for want in "$@"; do
        if [ "$want" = start ]; then
            [ $rc0 = 0 ] && [ $rc1 = 0 ] && continue
        elif grep -Eq -- "${want#*:}" "$work/$name.${want%%:*}" && [ $rc0 != 0 ] && [ $rc1 != 0 ]; then
            continue
        fi
        echo "FAIL $name: wanted $want"
        sed 's/^/    rank 0: /' "$work/$name.0"
        sed 's/^/    rank 1: /' "$work/$name.1"
        return 1
    done
    if [ $times = 1 ]; then
        case $* in start)
            cat "$work/$name.0" "$work/$name.1" | awk -v name="$name" '/^start/ { if ($5 > b) b = $5; if ($7 > d) d = $7 }
                END { printf "%-44s %9.1f ms\n", name, (d - b) / 1e6 }' ;;
        esac
    else
        echo "PASS $name"
    fi
}

spawn() {
    # Those that end with an error wait for their deadline, all at once; of the others a few at a time, or one where times are taken.
    # shellcheck disable=SC2254
    case $1 in $pattern)
        if [ "${*:4}" != start ]; then
            [ $times = 1 ] || { run_case "$@" >"$work/$1.log" 2>&1 & pids+=($!) names+=("$1"); }
        else
            run_case "$@" >"$work/$1.log" 2>&1 &
            pids+=($!) names+=("$1") starting+=($!)
            [ ${#starting[@]} -lt $most ] || { wait "${starting[0]}"; starting=("${starting[@]:1}"); }
        fi ;;
    esac
    port=$((port + 1))
    defaults
}

torch() { # NAME MASTER0 MASTER1 WANT...   extra0, extra1: more variables
    local name=$1 zero=$2 one=$3 t="WORLD_SIZE=2 MASTER_PORT=$((port - 1013)) ${local_size-LOCAL_WORLD_SIZE=1}"
    shift 3
    spawn "$name" "$t RANK=0 MASTER_ADDR=$zero ${extra0:-} $program" "$t RANK=1 MASTER_ADDR=$one ${extra1:-} $program" "$@"
    unset extra0 extra1 local_size
    port=$((port + 1013)) && port=$((port > 31000 ? port - 6000 : port)) # the second port of one is not another's first
}
root() { # NAME HOST0 HOST1 WANT...
    local name=$1 zero=$2 one=$3
    shift 3
    spawn "$name" "PK_SIZE=2 PK_RANK=0 PK_ROOT=$zero:$port $program" "PK_SIZE=2 PK_RANK=1 PK_ROOT=$one:$port $program" "$@"
}
id() { # NAME WANT...
    local name=$1
    shift
    spawn "$name" "${extra0:-} $program $work/$name.id 2 0" "${extra1:-} $program $work/$name.id 2 1" "$@"
    unset extra0 extra1
}

# beside HOST:PORT COMMAND...: runs it where somebody else, rank 0 of another job, listens there; with SILENT=1 that one never says anything
cat >"$work/beside" <<BESIDE
#!/bin/bash
env -u PK_SECRET_FILE PK_INSECURE=1 PK_SIZE=2 PK_RANK=0 PK_ROOT="\$1" $program >/dev/null 2>&1 &
holder=\$!
until [ -n "\$(ss -Hltn "src \$1")" ]; do sleep 0.05; done
[ -z "\${SILENT:-}" ] || kill -STOP \$holder
shift
"\$@"
code=\$?
kill -KILL \$holder
exit \$code
BESIDE
chmod +x "$work/beside"
taken() { # NAME HOST TAKEN WANT...: rank 0's port is taken at the address TAKEN
    local name=$1 host=$2 holder=$3
    shift 3
    spawn "$name" "PK_SIZE=2 PK_RANK=0 PK_ROOT=$host:$port $work/beside $holder:$port $program" "PK_SIZE=2 PK_RANK=1 PK_ROOT=$host:$port $program" "$@"
}

# ---- what cannot start, and says why ----
secret="PK_SECRET_FILE=$work/secret"
hosts several '10.99.0.2 nodea\nfd79::1 nodea\n10.98.0.1 nodea'
all="PK_TIMEOUT_MS=9000"; torch torch/no-secret localhost nodea \
    '0:MASTER_ADDR=localhost: the job has more ranks .* only ranks of this machine can join. For ranks of other machines set PK_SECRET_FILE' \
    '0:rank 1 of 2 did not come .*127.0.0.1:.* for ranks of this machine alone: there is no PK_SECRET_FILE' \
    '1:MASTER_ADDR=nodea can be reached from other hosts, and there is no secret: set PK_SECRET_FILE'
all="PK_TIMEOUT_MS=9000"; local_size= torch torch/no-secret-no-local-size localhost nodea \
    '0:rank 1 of 2 did not come .*127.0.0.1:.* for ranks of this machine alone: there is no PK_SECRET_FILE' \
    '1:MASTER_ADDR=nodea can be reached from other hosts, and there is no secret: set PK_SECRET_FILE'
hosts0=debian all="PK_TIMEOUT_MS=9000"; root root/127.0.1.1-without-secret nodea nodea \
    '0:PK_ROOT=nodea:[0-9]* is 127.0.1.1 on this machine.*only ranks of this machine can join' \
    '0:rank 1 of 2 did not come within .*rank 0 listens at 127.0.1.1:' '1:PK_ROOT=nodea:[0-9]* can be reached from other hosts'
all="$secret PK_TIMEOUT_MS=9000"; root root/loopback-on-rank-0 127.0.0.1 nodea \
    '0:rank 1 of 2 did not come within .*rank 0 listens at 127.0.0.1:' '1:10.99.0.1:[0-9]*: Connection refused'
all="$secret PK_TIMEOUT_MS=9000"; root root/name-never-comes nodea nobody '0:rank 1 of 2 did not come within' \
    '1:rank 0 did not come within .*PK_ROOT=nobody:[0-9]*: Name or service not known'
all="$secret PK_TIMEOUT_MS=9000"; torch torch/name-never-comes nodea nobody \
    '0:still waiting for rank 1 of 2 after [5-9][0-9]* ms; rank 0 listens at 0.0.0.0:[0-9]*, \[::\]:' '0:rank 1 of 2 did not come within' \
    '1:has not found rank 0 after [5-9][0-9]* ms; trying again: MASTER_ADDR=nobody: Name or service not known' \
    '1:rank 0 did not come within .*MASTER_ADDR=nobody: Name or service not known'
hosts1=none run1=on_slow all="$secret PK_TIMEOUT_MS=1000"; root root/resolver-hangs nodea nobody \
    '1:error 8 after 1?[0-9]{4} ms: .*rank 0 did not come within .*PK_ROOT=nobody:[0-9]*: the resolver has not answered'
hosts1=several all="$secret PK_TIMEOUT_MS=9000"; root root/each-address-has-its-own-error nodea nodea \
    '0:still waiting for rank 1 of 2 after [5-9][0-9]* ms; rank 0 listens at 0.0.0.0:[0-9]*, \[::\]:' \
    '1:has not found rank 0 after [5-9][0-9]* ms.*10.99.0.2:[0-9]*: Connection refused' \
    '1:rank 0 did not come .*10.99.0.2:[0-9]*: Connection refused' '1:rank 0 did not come .*\[fd79::1\]:[0-9]*: Network is unreachable' \
    '1:rank 0 did not come .*10.98.0.1:[0-9]*: (Connection timed out|no answer)'
extra0=PK_IFNAME=docker0 all="PK_TIMEOUT_MS=9000" id id/docker0-alone '0:rank 1 of 2 did not come .*rank 0 listens at 172.17.0.1:' \
    '1:nobody listens at 172.17.0.1:[0-9]* \(connection refused\): rank 0 has ended or given up, or these addresses lead elsewhere'
extra0="PK_IFNAME=eth0 PK_SM_POLICY=nonsense" id id/rank-0-ends \
    '1:nobody listens at 10.99.0.1:[0-9]*, \[fd77::1\]:[0-9]* \(connection refused\): rank 0 has ended or given up'

all="$secret PK_TIMEOUT_MS=9000"; taken root/port-is-taken 10.99.0.1 10.99.0.1 '0:cannot listen at 10.99.0.1:[0-9]*: Address already in use'

# ---- torchrun's variables ----
torch torch/name nodea nodea start
torch torch/long-and-short-name nodea nodea.cluster.local start
torch torch/address 10.99.0.1 10.99.0.1 start
torch torch/address-and-name 10.99.0.1 nodea start
torch torch/localhost-on-rank-0 localhost nodea start
local_size= torch torch/localhost-on-rank-0-no-local-size localhost nodea start
torch torch/loopback-on-rank-0 127.0.0.1 nodea start
torch torch/any-on-rank-0 0.0.0.0 nodea start
torch torch/any6-on-rank-0 :: fd77::1 start
torch torch/ipv6 fd77::1 fd77::1 start
hosts0=v6 hosts1=v6; torch torch/ipv6-name nodea nodea start
hosts0=debian; torch torch/127.0.1.1-on-rank-0 nodea nodea start
hosts0=none; torch torch/no-hosts-on-rank-0 nodea nodea start
hosts1=both; torch torch/ipv6-that-leads-nowhere nodea nodea start
hosts1=four; torch torch/the-last-of-four-addresses nodea nodea start
extra0=TORCHELASTIC_RESTART_COUNT=0 extra1=TORCHELASTIC_RESTART_COUNT=1 torch torch/restart-counts-differ nodea nodea start
extra0=TORCHELASTIC_RESTART_COUNT=2 torch torch/restart-count-on-one nodea nodea start
start1=1; torch torch/rank-1-late nodea nodea start
all="PK_INSECURE=1 PK_TIMEOUT_MS=100000"; torch torch/insecure localhost nodea start

# ---- PK_RANK, PK_SIZE, PK_ROOT ----
root root/name nodea nodea start
root root/long-and-short-name nodea nodea.cluster.local start
root root/address 10.99.0.1 10.99.0.1 start
root root/localhost-on-rank-0 localhost nodea start
root root/any-on-rank-0 0.0.0.0 nodea start
taken root/port-taken-at-another-address 10.99.0.1 127.0.0.5 start
taken root/ipv6-and-port-taken-in-ipv4 '[fd77::1]' 127.0.0.5 start
root root/address-that-rank-0-has-not 192.0.2.9 nodea start
root root/ipv6 '[fd77::1]' '[fd77::1]' start
all="PK_SECRET_FILE=$work/secret PK_TIMEOUT_MS=100000 PK_IFNAME=data0"; root root/link-local-alone '[fe80::1%data0]' '[fe80::1%data0]' start
all="PK_SECRET_FILE=$work/secret PK_TIMEOUT_MS=100000 PK_IFNAME=data0"; root root/data-by-link-local-alone nodea nodea start
root root/any6-on-rank-0 '[::]' '[fd77::1]' start
hosts0=debian; root root/127.0.1.1-on-rank-0 nodea nodea start
hosts1=both; root root/ipv6-that-leads-nowhere nodea nodea start
hosts1=four; root root/the-last-of-four-addresses nodea nodea start
all="PK_INSECURE=1 PK_TIMEOUT_MS=100000"; root root/insecure nodea nodea start

# ---- names that are not known yet ----
cp "$work/none" "$work/soon"
cp "$work/none" "$work/later"
sed 's/10.99.0.1 /10.99.0.77 /' "$work/plain" >"$work/moves"
late=soon hosts1=soon; root root/name-comes-after-2-s nodea nodea start
late=later hosts1=later; torch torch/name-comes-after-2-s nodea nodea start
late=moves hosts1=moves; root root/address-changes-after-2-s nodea nodea start
sed 's/10.99.0.1 /127.0.0.9 /' "$work/plain" >"$work/silent"
late=silent hosts1=silent; spawn root/address-changes-and-the-first-is-silent "PK_SIZE=2 PK_RANK=0 PK_ROOT=nodea:$port $program" \
    "SILENT=1 PK_SIZE=2 PK_RANK=1 PK_ROOT=nodea:$port $work/beside 127.0.0.9:$port $program" start

# ---- ids: mgmt0 and docker0 come before eth0 ----
id id/first-card-leads-nowhere start
extra0=PK_IFNAME=mgmt0,eth0 extra1=PK_IFNAME=eth0 id id/first-named-card-leads-nowhere start
extra0=PK_PORTS=24900-24910 extra1=PK_PORTS=24900-24910; id id/ports start

# ---- mpirun ----
if command -v mpirun >/dev/null; then
    cat >"$work/agent" <<'AGENT'
#!/bin/sh
# What mpirun takes for ssh.
case $1 in 10.99.0.1) where=a ;; *) where=b ;; esac
shift
exec ip netns exec $where sh -c "$*"
AGENT
    chmod +x "$work/agent"
    mpi() { # NAME VARIABLES
        spawn "$1" "$2 mpirun --allow-run-as-root --mca plm_rsh_agent $work/agent --mca rtc ^hwloc --mca oob_tcp_if_include eth0 --mca btl ^openib \
            --oversubscribe --host 10.99.0.1:1,10.99.0.2:1 -n 2 $program" true start
    }
    mpi mpirun/plain ""
fi

for i in "${!pids[@]}"; do
    wait "${pids[$i]}" || bad=$((bad + 1)) # also of one that has been waited for
    cat "$work/${names[$i]}.log"
done
[ $times = 1 ] || echo "${#pids[@]} cases, $bad of them failed"
[ $bad = 0 ]
