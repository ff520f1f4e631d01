"""TRL's trainers as a program: python -m harness.shelves.trl.program CONFIG_FILE, perhaps under `accelerate launch`.

The config file is that of the contract, and its `args` are those of `TrlTrainer.arguments`. `__main__` builds TRL's
trainer, `trainers` adapts TRL's trainers to what a cell prescribes, `rewards` scores completions as bench does, and
`steps` writes rows and checkpoints.
"""
