#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Each test many times while other processes keep the machine busy: what fails once depends on the machine's mood. A line a test: how
# often it ran and failed, the longest run, and processor time a run; then those that failed, whose output is in build/PRESET/repeat.
# usage: scripts/repeat.sh [-n TIMES] [-b BUSY] [-p PRESET] [PATTERN]
#     -n TIMES    runs of each (20); a quarter of them for tests that take more than 30 s; one for those that are skipped
#     -b BUSY     busy loops beside it (2)
#     -p PRESET   the build whose tests they are (dev)
#     PATTERN     as for ctest -R (all)
set -uo pipefail
cd "$(dirname "$0")/.." || exit

times=20 busy=2 preset=dev
while getopts n:b:p: option; do
    case $option in
    n) times=$OPTARG ;;
    b) busy=$OPTARG ;;
    p) preset=$OPTARG ;;
    *) sed -n '3,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
done
shift $((OPTIND - 1))

folder=build/$preset
logs=$folder/repeat
mkdir -p "$logs" || exit
mapfile -t names < <(ctest --test-dir "$folder" -N -R "${1:-.}" | sed -n 's/^ *Test *#[0-9]*: //p')
[ ${#names[@]} -gt 0 ] || { echo "no test in $folder is called so"; exit 2; }

loops=()
trap '[ ${#loops[@]} -eq 0 ] || kill "${loops[@]}"' EXIT
for ((i = 0; i < busy; i++)); do
    (while :; do :; done) &
    loops+=($!)
done

# once NAME RUN: sets seconds, cost, outcome.
once() {
    local log="$logs/$1.$2.log" TIMEFORMAT='%R %U %S' spent
    spent=$({ time ctest --test-dir "$folder" -R "^${1//./\\.}\$" --output-on-failure --timeout 900 </dev/null >"$log" 2>&1; } 2>&1)
    seconds=$(awk '{ print $1 }' <<<"$spent") cost=$(awk '{ print $2 + $3 }' <<<"$spent")
    outcome=failed
    if grep -q '^100% tests passed' "$log"; then
        outcome=passed
        grep -qE 'Test +#[0-9]+: .*\*\*\*Skipped' "$log" && outcome=skipped
        rm -f "$log"
    fi
}

failures=()
printf '%-36s %5s %7s %10s %10s\n' test runs failed "longest s" "cpu s/run"
for name in "${names[@]}"; do
    runs=0 failed=0 skipped="" longest=0 total=0 wanted=$times
    while [ "$runs" -lt "$wanted" ]; do
        runs=$((runs + 1))
        once "$name" "$runs"
        longest=$(awk -v a="$longest" -v b="$seconds" 'BEGIN { print (a > b ? a : b) }')
        total=$(awk -v a="$total" -v b="$cost" 'BEGIN { print a + b }')
        [ "$outcome" != failed ] || failed=$((failed + 1))
        [ "$outcome" != skipped ] || { skipped=skipped; break; }
        [ "${seconds%.*}" -lt 30 ] || wanted=$(((times + 3) / 4))
    done
    printf '%-36s %5d %7d %10.2f %10.2f %s\n' "$name" "$runs" "$failed" "$longest" \
        "$(awk -v t="$total" -v n="$runs" 'BEGIN { print t / n }')" "$skipped"
    [ "$failed" -eq 0 ] || failures+=("$name: $failed of $runs runs")
done
echo
echo "${#names[@]} tests, ${#failures[@]} of which failed at least once"
[ ${#failures[@]} -eq 0 ] || printf 'FAILED %s\n' "${failures[@]}"
[ ${#failures[@]} -eq 0 ]
