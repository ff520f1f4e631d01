#!/bin/bash
# Any machines that you reach by ssh and that mount this folder under the same path: they share the cells of one sweep.
#
#   SWEEP=std_norm BENCH_HOME=$PWD/runs examples/cluster/ssh.sh one two three
#
# Each worker stays until all cells have ended (--wait), and takes over those of a machine that is lost. Start the
# script again after Ctrl-C: it goes on.
#
# What was run: this script, with a shell in the place of ssh, for two hosts on one machine. What was not: ssh itself.
set -u
for host in "$@"; do
  ssh "$host" "cd '$PWD' && BENCH_HOME='$BENCH_HOME' bench worker '$SWEEP' --wait" 2>&1 | sed "s/^/$host: /" &
done
wait
bench run "$SWEEP" # all is done: it writes the report
