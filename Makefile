# Each target works as the first command on a fresh clone: it installs what it needs into .venv first.
#   make install         .venv with the tested versions and nothing else (1.8 GB, a few minutes); HASHES=1 checks their hashes
#   make demo            SPA and plain PPO with the bundled model; ten minutes on two cores with bfloat16, else half an hour
#   make smollm2         fetch SmolLM2-135M-Instruct (100 MB), where model_path=smollm2 finds it
#   make smol            written search and its baseline with SmolLM2 on the 4x4 lake; one seed, 70 minutes, resumes
#   make test            all tests that need nothing beyond .venv
#   make test-fast       the rooms of tests that train nothing: maths, formats, prompts, settings; three minutes
#   make lint            ruff, pyright, and the words of README and docs
#   make golden BASE=REV whether the working tree computes what commit REV computed, to the last bit; five minutes
#   make docs            the documentation site, in site/
#   make claims          recompute every number of README and the result pages from benchmarks/results
#   make bench           time and memory against transformers, TRL, vLLM, Gymnasium; 20 minutes, environments of 6 GB
#   make test-extra NAME=NAME   tests with an environment or half an hour of their own:
#     wheel      the wheel in a bare environment, up to a training step (1.4 GB)
#     browser    report and viewer in a real browser (needs Debian's apt, or chromium and chromedriver)
#     vllm       the vLLM engine on a CPU (3.5 GB)
#     ray        the Ray launcher on CPU workers (1.8 GB)
#     bridges    integrations with other libraries, one environment for each (0.9 GB)
#     hosts      torchrun and Ray across two hosts, made of network namespaces (Linux, root, ip)
#     chaos      a run killed 20 times ends like an undisturbed one; ten minutes
#     siege      bad environments, templates, servers, files, clocks; 20 minutes
#     overnight  faults at random moments of 300 PPO steps; half an hour
# make demo PYTHON=python3.12 chooses the interpreter of .venv; make test JOBS=8 runs 8 test processes.
# make bench QUICK=1 takes three minutes without vLLM, and fails if a ratio falls below the committed one.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
JOBS ?= 2

# Tests and benchmarks are many small processes; more threads in each would only compete for the cores.
ONE_THREAD := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

# A test that hangs prints where every thread is and fails; the other tests run on.
NO_HANG := -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true

# Stages sync every record to the disk: in memory, where 4 GB are free there, tests need not wait for it.
IN_MEMORY := $(shell test "$$(df --output=avail /dev/shm 2>/dev/null | tail -1)" -gt 4000000 2>/dev/null && echo PYTEST_DEBUG_TEMPROOT=/dev/shm)

.PHONY: help install demo smollm2 smol test test-fast lint golden docs claims bench test-extra

help:
	@sed -n 's/^# \{0,3\}//p;/^$$/q' $(firstword $(MAKEFILE_LIST))

HASHES ?=
install: $(if $(HASHES),hashed,$(READY))

demo: $(READY)
	$(BIN)/spa compare demo

smollm2: $(READY)
	$(BIN)/spa model import-gguf smollm2

smol: smollm2
	$(BIN)/spa compare smol_frozen_lake

hashed:
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps --requirement requirements-hashed.txt
	$(BIN)/python -m pip install --quiet --no-deps torch==2.13.0
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(READY)

test: $(READY)
	$(ONE_THREAD) $(IN_MEMORY) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(NO_HANG)

# Rooms that train nothing.
FAST := algo config distributed evaluate formats prompts training worldmodel
test-fast: $(READY)
	$(ONE_THREAD) $(IN_MEMORY) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(NO_HANG) $(FAST:%=tests/%)

EXTRAS := wheel browser vllm ray bridges hosts chaos siege overnight
test-extra:
	@case " $(EXTRAS) " in \
	  *" $(or $(NAME),-) "*) ;; \
	  *) echo "make test-extra NAME=$(NAME): NAME is one of $(EXTRAS)" >&2; exit 2 ;; \
	esac
	@$(MAKE) --no-print-directory extra-$(NAME)

extra-wheel:
	PYTHON=$(PYTHON) $(ONE_THREAD) tests/wheel/check.sh .venv-wheel

extra-browser: $(READY)
	PIP_CONSTRAINT=constraints-cpu.txt tests/browser/install.sh $(BIN)/python
	$(ONE_THREAD) $(BIN)/python -m pytest tests/browser/browser_pages.py

extra-vllm:
	PYTHON=$(PYTHON) tests/vllm/install.sh .venv-vllm
	$(ONE_THREAD) VLLM_CPU_KVCACHE_SPACE=1 .venv-vllm/bin/python -m pytest tests/vllm/vllm_engine.py

extra-ray:
	PYTHON=$(PYTHON) tests/ray/install.sh .venv-ray
	$(ONE_THREAD) GLOO_SOCKET_IFNAME=lo .venv-ray/bin/python -m pytest tests/ray/ray_launcher.py

BRIDGES := reasoning_gym textarena textworld gem pettingzoo verifiers openenv
extra-bridges: $(BRIDGES:%=extra-bridge-%)

extra-bridge-%: $(READY)
	tests/bridges/install.sh $(VENV) $* .venv-bridges/$*
	$(ONE_THREAD) .venv-bridges/$*/bin/python -m pytest $(wildcard tests/bridges/test_$*.py tests/export/test_$*.py) tests/bridges/test_training.py

extra-hosts:
	PYTHON=$(PYTHON) tests/ray/install.sh .venv-ray
	$(ONE_THREAD) tests/hosts/two_hosts.sh .venv-ray/bin/python

extra-chaos: $(READY)
	PYTHON=$(PYTHON) tests/ray/install.sh .venv-ray
	$(ONE_THREAD) $(BIN)/python tests/chaos/chaos.py --ray .venv-ray/bin/python

extra-siege: $(READY)
	$(ONE_THREAD) $(BIN)/python tests/siege/siege.py

extra-overnight: $(READY)
	$(ONE_THREAD) $(BIN)/python tests/siege/overnight.py

BASE ?= main
golden: $(READY)
	$(BIN)/python tools/golden.py $(BASE)

claims: $(READY)
	$(BIN)/python tools/claims.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python tools/words.py

docs: $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[docs]' --constraint constraints-cpu.txt
	$(BIN)/mkdocs build --strict
	@echo "To read the site, run: $(BIN)/mkdocs serve"

BENCH := $(ONE_THREAD) $(BIN)/python benchmarks/bench.py

QUICK ?=
bench: $(if $(QUICK),bench-quick,bench-whole)

bench-whole: smollm2 .venv-bench-trl/.ready .venv-bench-vllm/.ready
	$(BENCH) --model smollm2 --trl .venv-bench-trl/bin/python --vllm .venv-bench-vllm/bin/python --output benchmarks/results/bench.json
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

# Made from scratch whenever the dependencies or the tested versions change.
$(READY): pyproject.toml constraints-cpu.txt
	@echo "installing into $(VENV): about 1.8 GB, a few minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]' --constraint constraints-cpu.txt
	touch $@
