#!/bin/bash
# Slurm: the tasks of a job array share the cells of one sweep.
#
#   SWEEP=std_norm BENCH_HOME=/shared/runs sbatch --array=0-7 examples/cluster/slurm.sh
#
# A task ends when other live tasks run all the remaining cells. Afterwards, run `bench run std_norm` on any machine
# that mounts the folder: it writes the report. Adapt the #SBATCH lines to your cluster: partition, account, GPUs.
#
# Tested: this script, as two tasks on one machine that act as two hosts, with a shell loop instead of sbatch and
# scontrol. One task was killed; the other received SIGTERM and was requeued. Not tested: the #SBATCH lines, since no
# Slurm cluster was available.
#
#SBATCH --job-name=bench
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@120
set -u

# Slurm sends SIGTERM to this shell two minutes before the time limit, and before a preemption. The shell passes it on;
# the worker checkpoints its running cells and exits with 143.
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
