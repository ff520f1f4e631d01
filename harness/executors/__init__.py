"""Executors: where jobs run. An executor is one file here, or in a plug-in; see `harness.executors.base`."""
