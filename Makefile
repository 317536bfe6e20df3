# `make run` and `make test` do all their own set-up; `make help` lists the rest.
# The system's own Python, if it is new enough and can make environments: a node has that one, and distributions
# build it with a profile and across modules, which makes it 1.4 times as fast as a plain build.
SYSTEM_PYTHON := /usr/bin/python3
CAN_BE_USED := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell $(SYSTEM_PYTHON) -c '$(CAN_BE_USED)' 2>/dev/null && echo $(SYSTEM_PYTHON) || echo python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# What the program itself needs, a quarter of them.
DEPENDENCIES := $(VENV)/.dependencies
# Two more than there are cores: many tests wait for a process or a timer.
TEST_PROCESSES ?= $(shell $(PYTHON) -c 'import os; print(os.cpu_count() + 2)')
# Of `make test-python`.
VERSION ?= 3.13
# Of the tests: where their files lie. In memory if a GiB is free there: what must survive a crash waits for the disk,
# thousands of times.
IN_MEMORY := import os, tempfile; path = "/dev/shm"; found = os.access(path, os.W_OK) and os.statvfs(path); \
	print(path if found and not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize > 1 << 30 else tempfile.gettempdir())
TEST_FOLDER ?= $(shell $(PYTHON) -c '$(IN_MEMORY)')
# Hundreds of tests start the program, which would compile itself each time.
unexport PYTHONDONTWRITEBYTECODE
# Of `make fuzz`: hostile clients; SEED repeats a run, FUZZERS names some of the fuzzers.
SESSIONS ?= 20000
PACKAGES := systemd/packages
# The newest one.
WHEEL = $$(ls -t dist/koord_runtime_proxy-*.whl | head -n 1)
BASE ?= debian:bookworm-slim
LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-emit-find-links --no-header

.DEFAULT_GOAL := help
.PHONY: help run test test-slow test-python wheel sdist deb deb-check image sbom lint format bench readability scenarios modes restarts upgrades fuzz tools e2e e2e-api e2e-node e2e-versions \
	proto lock clean command-files session screenshot effect

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed"; exit 1; }
	@echo "making a Python environment in $(VENV)" >&2
	@$(PYTHON) -m venv --clear $(VENV) 2>/dev/null || sh tests/lab/install_venv.sh $(PYTHON) $(VENV)

$(INSTALLED): requirements.lock pyproject.toml | $(BIN)/pip
	@echo "installing $$(grep -c '^[a-z].*==' requirements.lock) packages of requirements.lock into $(VENV):" \
		"once, half a minute to two" >&2
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@echo "installing this project into $(VENV)" >&2
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(DEPENDENCIES): $(PACKAGES)/requirements.lock | $(BIN)/pip
	@echo "installing $$(grep -c '^[a-z].*==' $<) packages into $(VENV): once, a few seconds to half a minute" >&2
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

run: $(or $(wildcard $(INSTALLED)),$(DEPENDENCIES))  ## drive a pod of each QoS class through the proxy and show what changed; MODE=nri, MODE=standalone
	@$(if $(MODE),KOORD_RUNTIMEPROXY_DAEMON_MODE=$(MODE)) $(BIN)/python -m runtimeproxy demo

test: $(INSTALLED)  ## the tests of every change, in all cores; 4 minutes on two
	TMPDIR=$(TEST_FOLDER) $(BIN)/pytest -n $(TEST_PROCESSES) --dist loadscope --no-loadscope-reorder -m "not slow" \
		-o tmp_path_retention_policy=failed

test-slow: $(INSTALLED) tools  ## the others: a real containerd, the second event loop, long runs; 11 minutes
	TMPDIR=$(TEST_FOLDER) $(BIN)/pytest -n $(TEST_PROCESSES) --dist loadgroup -m slow \
		-o tmp_path_retention_policy=failed

test-python:  ## `make test` on Python 3.13, which is installed if need be (VERSION=3.12: another one)
	python=$$(sh tests/lab/install_python.sh $(VERSION)) && \
		$(MAKE) test PYTHON=$$python VENV=$(VENV)-$(VERSION)

wheel: $(INSTALLED)  ## build the wheel into dist/
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

sdist: $(INSTALLED)  ## build the source distribution into dist/
	$(BIN)/python -m hatchling build -t sdist -d dist

deb: wheel  ## build the Debian package into dist/ (ARCH=arm64: for the other machine)
	sh $(PACKAGES)/build_deb.sh $(BIN)/python $(WHEEL) dist

deb-check:  ## lintian of the newest package in dist/, and the package in a Debian 13 of its own (as root; needs lintian, mmdebstrap); 5 minutes
	sh tests/lab/check_deb.sh $$(ls -t dist/*.deb | head -n 1)

image: wheel  ## build the container image (needs buildah; BASE is its Debian 12)
	rm -rf dist/image
	PYTHONS=3.11 sh $(PACKAGES)/build_deb.sh $(BIN)/python $(WHEEL) dist/image
	buildah build --file $(PACKAGES)/Containerfile --build-arg BASE=$(BASE) --tag koord-runtime-proxy \
		--build-arg PACKAGE=$$(basename dist/image/*.deb) dist/image

sbom: $(INSTALLED)  ## list all dependencies with their hashes in dist/, as CycloneDX
	@mkdir -p dist .tools
	@$(PYTHON) -m venv --clear .tools/sbom 2>/dev/null || sh tests/lab/install_venv.sh $(PYTHON) .tools/sbom
	.tools/sbom/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $(PACKAGES)/sbom.lock
	.tools/sbom/bin/cyclonedx-py requirements --output-reproducible --pyproject pyproject.toml \
		--output-file dist/koord-runtime-proxy.cyclonedx.json $(PACKAGES)/requirements.lock

lint: $(INSTALLED)  ## ruff, mypy --strict, import contracts, drift of generated code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m cri_api.generate --check

format: $(INSTALLED)  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

tools:  ## install containerd 1.6 (as root) and build containerd 2, grpcurl, h2spec, the kubelet's client and Katalyst's types (needs Go)
	sh tests/lab/prepare.sh

e2e: $(INSTALLED) tools  ## the tests on a real containerd
	$(BIN)/pytest tests/e2e tests/lab

e2e-versions: $(INSTALLED) tools  ## both ends of the supported versions: containerd 1.6 to 2.4, CRI-O, whole kubelets 1.34 and 1.37 in qemu (as root); 30 minutes
	sh tests/lab/install.sh versions
	sh tests/lab/build_tools.sh versions
	E2E_VERSIONS=all $(BIN)/pytest -n 2 --dist loadgroup tests/e2e tests/lab tests/pods/test_containerd.py
	bash tests/node/install.sh
	$(BIN)/python -m tests.node --boot kubelets

e2e-api: $(INSTALLED)  ## the API server as a source, on a real kube-apiserver with etcd (built once: 5 minutes); 1 minute
	sh tests/lab/build_tools.sh api-server
	KOORD_RUNTIMEPROXY_E2E_API=1 $(BIN)/pytest tests/e2e_api

e2e-node: $(INSTALLED) tools  ## a Debian node in qemu (as root): systemd, the installed wheel, cgroup v2 and v1, all modes; 35 minutes
	bash tests/node/install.sh
	$(BIN)/python -m tests.node

bench: $(INSTALLED)  ## one table: direct, blind splice, grpc.aio proxy, this proxy
	$(BIN)/python -m tests.bench

readability: $(INSTALLED)  ## how much code a reader has to hold in the head
	$(BIN)/python -m tests.readability

scenarios: $(INSTALLED)  ## draw what the QoS manager does to a simulated node, as PNG into dist/scenarios (RECORDING=FILE ADVISOR=MODULE:CLASS: what an advisor says on a recorded day)
	$(BIN)/python -m tests.scenarios$(if $(RECORDING), dist/scenarios $(RECORDING) $(ADVISOR))

modes: $(INSTALLED)  ## 60 pods in each mode on containerd 1.7 to 2.4 and CRI-O: values at first and in the end (as root); 5 minutes
	$(BIN)/python -m tests.modes

restarts: $(INSTALLED)  ## restart proxy and QoS manager 50 times in each way and the runtime 20 times, under load; 10 minutes (MODE=nri: all beside a whole kubelet; 40 minutes)
	$(BIN)/python -m tests.restarts$(if $(filter nri,$(MODE)),.nri)

upgrades: $(INSTALLED)  ## OLD=FOLDER: upgrade the version of another checkout to this one and back, under load; 4 minutes
	sh tests/restarts/install.sh $(OLD) .tools/versions/other
	sh tests/restarts/install.sh . .tools/versions/this
	$(BIN)/python -m tests.restarts --other $(CURDIR)/.tools/versions/other --this $(CURDIR)/.tools/versions/this --restarts 10

fuzz: $(INSTALLED)  ## hostile clients, runtimes and hook servers; minutes, or a night with SESSIONS=1000000
	$(BIN)/python -m tests.fuzz --sessions $(SESSIONS) $(if $(SEED),--seed $(SEED)) $(FUZZERS)

proto: $(INSTALLED)  ## regenerate the stubs from the .proto files
	$(BIN)/python -m cri_api.generate

command-files: $(INSTALLED)  ## make man page and completions of the command line anew
	$(BIN)/python -m tests.systemd.command_files

session: $(INSTALLED)  ## record the terminal session of the README anew
	$(BIN)/python -m tests.demo.session

effect: $(INSTALLED)  ## measure servers beside greedy pods in five ways (as root, installs nginx and ffmpeg); 2 hours, OPTIONS=--short: 40 minutes
	sh tests/lab/install.sh effect
	$(BIN)/python -m tests.effect $(OPTIONS)

screenshot: $(INSTALLED)  ## make the README's picture of the node page anew (needs Chromium)
	$(BIN)/python -m tests.service.page.screenshot

lock: | $(BIN)/pip  ## pin the newest versions that pyproject.toml allows
	$(BIN)/pip install --quiet uv
	$(LOCK) --extra dev pyproject.toml -o requirements.lock
	$(LOCK) --extra kubernetes --constraint requirements.lock --no-annotate pyproject.toml -o $(PACKAGES)/requirements.lock
	echo cyclonedx-bom | $(LOCK) --no-annotate - -o $(PACKAGES)/sbom.lock

clean:  ## remove everything that make made
	rm -rf $(VENV) $(VENV)-3.* .tools dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
