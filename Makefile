# Each target works as the first command on a fresh clone: what it needs is installed into .venv first.
#   make demo            the three stages beside plain PPO, under ten minutes on two cores
#   make smollm2         fetches SmolLM2-135M-Instruct, 100 MB, to where model_path=smollm2 finds it
#   make smol            that model on the 4x4 lake: SPA beside its baseline, then its fine-tuned model asked what every action leads to; one seed; two hours, resumes when run again
#   make hashed          .venv anew, from files whose hashes are those of the tested ones (torch has builds of its own per index)
#   make test            all tests that need nothing beyond .venv
#   make test-wheel      the wheel in a bare environment, up to a training step, in an environment of its own (1.2 GB)
#   make test-browser    report and viewer in a real browser (needs Debian's apt, or chromium and chromedriver)
#   make test-vllm       the vLLM engine for real, on a CPU, in an environment of its own (3.5 GB)
#   make test-ray        the Ray launcher for real, on CPU workers, in an environment of its own (1.8 GB)
#   make test-bridges    bridges in and out against the real libraries, an environment for each (0.9 GB)
#   make test-hosts      torchrun and Ray across two hosts, made of network namespaces: needs Linux, root and ip
#   make chaos           a run killed 20 times and harmed in every way ends like an undisturbed one, about ten minutes
#                        (with .venv-ray of make test-ray)
#   make siege           misbehaving environments, chat templates, servers and configurations, damage to every file of every
#                        stage, suspension, two processes, clocks that jump: a run ends like an undisturbed one, loses what
#                        it says, or ends in one message; 20 minutes
#   make overnight       300 PPO steps with faults of every class at drawn moments end like a run that is told what it loses;
#                        half an hour on two cores
#   make golden BASE=... whether the working tree computes what the commit BASE computed, to the last bit; five minutes
#   make lint            ruff and pyright
#   make docs            the documentation site, in site/
#   make bench           our work beside that of others (transformers, TRL, vLLM, Gymnasium), about 20 minutes; peers get
#                        environments of their own (6 GB); MODEL=FOLDER takes real weights, else random ones are used
#   make bench-quick     the same small, without vLLM, about three minutes; fails if a ratio falls below the committed one
# make demo PYTHON=python3.12 chooses the interpreter that .venv is made with; make test JOBS=8 tests in 8 processes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JOBS ?= 2

# Tests and benchmarks are many small processes: more threads in each would only fight over the cores.
ONE_THREAD := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

# A test that hangs shows where every thread stands and fails; the others go on.
NO_HANG := -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true

.PHONY: demo smollm2 test test-wheel test-browser test-vllm test-ray test-bridges test-hosts chaos siege lint docs bench smol
.PHONY: bench-quick hashed overnight golden

demo: $(READY)
	$(BIN)/spa compare demo

smollm2: $(READY)
	$(BIN)/spa import-gguf smollm2

smol: smollm2
	$(BIN)/spa compare smol_frozen_lake
	$(BIN)/spa eval runs/smol_frozen_lake/spa/sft --plan search-6 --groups 64 --samples 1

hashed:
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps --requirement requirements-hashed.txt
	$(BIN)/python -m pip install --quiet --no-deps torch==2.13.0
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(READY)

test: $(READY)
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(NO_HANG)

test-wheel:
	PYTHON=$(PYTHON) $(ONE_THREAD) tests/wheel/check.sh .venv-wheel

test-browser: $(READY)
	PIP_CONSTRAINT=constraints-cpu.txt tests/browser/install.sh $(BIN)/python
	$(ONE_THREAD) $(BIN)/python -m pytest tests/browser/browser_pages.py

test-vllm:
	PYTHON=$(PYTHON) tests/vllm/install.sh .venv-vllm
	$(ONE_THREAD) VLLM_CPU_KVCACHE_SPACE=1 .venv-vllm/bin/python -m pytest tests/vllm/vllm_engine.py

test-ray:
	PYTHON=$(PYTHON) tests/ray/install.sh .venv-ray
	$(ONE_THREAD) GLOO_SOCKET_IFNAME=lo .venv-ray/bin/python -m pytest tests/ray/ray_launcher.py

BRIDGES := reasoning_gym textarena textworld gem pettingzoo verifiers openenv
test-bridges: $(BRIDGES:%=test-bridge-%)

test-bridge-%: $(READY)
	tests/bridges/install.sh $(VENV) $* .venv-bridges/$*
	$(ONE_THREAD) .venv-bridges/$*/bin/python -m pytest $(wildcard tests/bridges/test_$*.py tests/export/test_$*.py) tests/bridges/test_training.py

test-hosts:
	PYTHON=$(PYTHON) tests/ray/install.sh .venv-ray
	$(ONE_THREAD) tests/hosts/two_hosts.sh .venv-ray/bin/python

chaos: $(READY)
	PYTHON=$(PYTHON) tests/ray/install.sh .venv-ray
	$(ONE_THREAD) $(BIN)/python tests/chaos/chaos.py --ray .venv-ray/bin/python

siege: $(READY)
	$(ONE_THREAD) $(BIN)/python tests/siege/siege.py

overnight: $(READY)
	$(ONE_THREAD) $(BIN)/python tests/siege/overnight.py

BASE ?= main
golden: $(READY)
	$(BIN)/python tools/golden.py $(BASE)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

docs: $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[docs]' --constraint constraints-cpu.txt
	$(BIN)/mkdocs build --strict

MODEL ?= random
BENCH := $(ONE_THREAD) $(BIN)/python benchmarks/bench.py --model $(MODEL)

bench: $(READY) .venv-bench-trl/.ready .venv-bench-vllm/.ready
	$(BENCH) --trl .venv-bench-trl/bin/python --vllm .venv-bench-vllm/bin/python --output benchmarks/results/bench.json
	$(ONE_THREAD) $(BIN)/python benchmarks/environments.py
	$(ONE_THREAD) $(BIN)/python benchmarks/viewer.py --episodes 10000

bench-quick: $(READY) .venv-bench-trl/.ready
	$(BENCH) --quick --trl .venv-bench-trl/bin/python --check benchmarks/results/quick.json

.venv-bench-%/.ready: benchmarks/requirements-%.txt
	$(PYTHON) -m venv .venv-bench-$*
	.venv-bench-$*/bin/python -m pip install --quiet --requirement $<
	# They come with vLLM, built for another torch: importing them fails, and vLLM imports them if they are there.
	.venv-bench-$*/bin/python -m pip uninstall -qq --yes torchvision torchaudio torchcodec
	touch $@

# Made anew whenever the dependencies or the tested versions change.
$(READY): pyproject.toml constraints-cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]' --constraint constraints-cpu.txt
	touch $@
