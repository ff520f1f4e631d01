"""Who trains a cell: bench itself, or a program of the user's own by the contract.

A trainer is a module here, or a plug-in, with a `Trainer` (`harness.config.trainer`) at its top level. `contract` says
what a program is given and what it writes, `process` runs it, `written` reads what it wrote. Nothing here imports
torch.
"""
