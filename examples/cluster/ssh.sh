#!/bin/bash
# ssh: machines that mount this folder under the same path share the cells of one sweep.
#
#   SWEEP=std_norm BENCH_HOME=$PWD/runs examples/cluster/ssh.sh one two three
#
# Each worker stays until all cells have ended (--wait), and takes over the cells of a lost machine. After Ctrl-C, start
# the script again: it continues.
#
# Tested: this script with two hosts simulated on one machine, and a shell instead of ssh. Not tested: ssh itself.
set -u
for host in "$@"; do
  ssh "$host" "cd '$PWD' && BENCH_HOME='$BENCH_HOME' bench worker '$SWEEP' --wait" 2>&1 | sed "s/^/$host: /" &
done
wait
bench run "$SWEEP" # every cell is done: this writes the report
