"""TRL trains an arm: `trainer.type: trl`."""
