"""Executors: where jobs run. An executor is one file in this folder or a plug-in; see `harness.executors.base`."""
