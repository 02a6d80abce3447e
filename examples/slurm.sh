#!/bin/bash
# Trains on two machines of four GPUs, as a batch job of SLURM: `sbatch examples/slurm.sh`. Untried.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --signal=TERM@120
export SPARSENMT_JOIN_SECONDS=600 SPARSENMT_WAIT_SECONDS=7200
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-endpoint="$first:29500" \
    --rdzv-id="$SLURM_JOB_ID" -m sparsenmt train recipe.yaml
