#!/bin/bash
# Slurm: a job array whose tasks share the cells of one sweep.
#
#   SWEEP=std_norm BENCH_HOME=/shared/runs sbatch --array=0-7 examples/cluster/slurm.sh
#
# A task ends once living tasks run all that is left. `bench run`, on any machine that sees the folder, then writes the
# report. Fit the #SBATCH lines to your cluster: partition, account, GPUs.
#
# What was run: this script, two tasks side by side on one machine, with a shell loop in the place of sbatch and
# scontrol; each task took itself for a host of its own. One was killed and the other was sent SIGTERM and requeued.
# What was only written: the #SBATCH lines. No Slurm was at hand.
#
#SBATCH --job-name=bench
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@120
set -u

# Two minutes before the time limit, and before a preemption, Slurm sends SIGTERM to this shell, which hands it on. The
# worker saves what runs and exits with 143.
bench worker "$SWEEP" --workers "$SLURM_CPUS_PER_TASK" &
worker=$!
trap 'kill -TERM $worker' TERM
code=1
while kill -0 $worker 2>/dev/null; do # a signal ends `wait`, not the worker
  wait $worker
  code=$?
done
if [ $code -eq 143 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
