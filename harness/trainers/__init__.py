"""Who trains a cell: bench itself, or a program of the user under a contract.

A trainer is a module in this folder, or a plug-in, with a `Trainer` (`harness.config.trainer`) at its top level.
`contract` defines what a program receives and writes, `process` runs it, `written` reads its output. Nothing here
imports torch.
"""
