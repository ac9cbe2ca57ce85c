# `make` alone lists what there is. Missing OS packages are installed by the same commands, see
# scripts/setup.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Debian keeps mkfs and losetup where a plain user's PATH does not look.
export PATH := $(PATH):/usr/local/sbin:/usr/sbin:/sbin

# A static binary needs no cgo. Tests do without it too, so no compiler is needed.
export CGO_ENABLED ?= 0

# From the nearest tag, else the commit; "dev" outside a clone. --git-dir, so that neither an
# enclosing repository nor a clone that belongs to somebody else gets in the way.
VERSION ?= $(or $(patsubst v%,%,$(shell git --git-dir=.git describe --tags --always --dirty 2>/dev/null)),dev)
LDFLAGS = -X github.com/volagent/volagent/agent/api.Version=$(VERSION)

# Longer than any package's tests take, shorter than a patience: a hang prints its goroutines.
TEST_TIMEOUT ?= 30m

.PHONY: help build package demo cluster-demo test test-folders test-packages race crash chaos cluster-chaos simulate explore history outage lint bench clean

help: ## list the targets (the default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

build: ## build bin/volagent, bin/volagent-etcd and bin/volctl, static, with the version stamped
	@mkdir -p bin
	go build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o bin/ ./cmd/volagent ./cmd/volagent-etcd ./cmd/volctl

package: ## build deb and rpm into dist/, for the architecture of GOARCH
	@scripts/package dist '$(VERSION)'

demo: build ## show the main job on this machine, each step with its proof
	@scripts/setup demo
	@scripts/demo

cluster-demo: ## show a cluster of three hosts on this machine, each step with its proof; as root
	@((EUID == 0)) || { echo "cluster-demo: only root can make hosts with mounts and networks of their own" >&2; exit 1; }
	@scripts/setup cluster-demo
	@go test -count=1 -timeout 10m -v -run '^TestDemo$$' ./cmd/volagent/test/cluster -cluster.show | sed -E '/^(=== |--- PASS|PASS|ok )/d'

test: build ## run all tests, also against the built binaries
	@scripts/setup test
	@go tool -modfile=scripts/package.mod -n nfpm >/dev/null # built here, where it can take its time
	@GOFLAGS= CGO_ENABLED=0 go tool -modfile=scripts/etcd.mod -n go.etcd.io/etcd/server/v3 >/dev/null
	@GOFLAGS= CGO_ENABLED=0 go tool -modfile=scripts/oldetcd.mod -n go.etcd.io/etcd/server/v3 >/dev/null
	@$(MAKE) --no-print-directory -j2 -k test-folders test-packages

# go test ./... tests the same packages. It takes longer, because folders that wait for each other
# then hold up the other packages.
test-folders:
	go test $(TEST_FLAGS) -p 2 -count=1 -timeout $(TEST_TIMEOUT) ./cmd/volagent/test/...

test-packages:
	go test $(TEST_FLAGS) -p $$((($$(nproc) + 1) / 2)) -count=1 -timeout $(TEST_TIMEOUT) $$(go list ./... | grep -v /cmd/volagent/test/)

race: build ## run the tests under the race detector, with less to explore
	@scripts/setup race
	@go tool -modfile=scripts/package.mod -n nfpm >/dev/null
	@GOFLAGS= CGO_ENABLED=0 go tool -modfile=scripts/etcd.mod -n go.etcd.io/etcd/server/v3 >/dev/null
	@GOFLAGS= CGO_ENABLED=0 go tool -modfile=scripts/oldetcd.mod -n go.etcd.io/etcd/server/v3 >/dev/null
	@$(MAKE) --no-print-directory -j2 -k test-folders test-packages CGO_ENABLED=1 TEST_FLAGS='-race -short'

# One variant at a time, because two of them together can need more than 20 GB of memory.
explore: ## visit millions of states of two hosts that share a volume (an hour or more, 16 GB of memory)
	go test -count=1 -timeout 8h -parallel 1 -v -run '^TestExplore$$' ./volmgr/shared/explore -explore.full | sed -E '/^ *(=== |--- PASS)/d'

crash: ## kill agent, plugins, etcd and power at every point of every operation (minutes)
	@scripts/setup test
	go test -count=1 -p 1 -timeout 60m -v -run '^TestCrash' ./cmd/volagent/test/crash ./cmd/volagent/test/cluster -crash.full | sed -E '/^ *(=== |--- PASS)/d'

# A plan depends on SEED alone. The run has mounts and processes of its own, which end with it.
SEED ?= 1
FOR ?= 20m
OFTEN ?= 0
chaos: ## 16 clients, kills and faults at random: make chaos SEED=7 FOR=20m
	@scripts/setup test
	go test -c -o bin/chaos.test ./cmd/volagent/test/chaos
	cd cmd/volagent/test/chaos && unshare --mount --pid --fork --kill-child --mount-proc \
		../../../../bin/chaos.test -test.run '^TestChaos$$' -test.v -test.timeout 0 -chaos.seed '$(SEED)' -chaos.for '$(FOR)'

cluster-chaos: ## eight hosts that share 40 volumes, and faults of all kinds: make cluster-chaos SEED=7 FOR=30m
	@scripts/setup test
	go test -count=1 -timeout 0 -v -run '^TestClusterChaos$$' ./cmd/volagent/test/cluster \
		-clusterchaos.seed '$(SEED)' -clusterchaos.for '$(FOR)' -clusterchaos.within 31s | sed -E '/^ *(=== |--- PASS)/d'

simulate: ## let a cluster live through random faults with a virtual clock: make simulate SEED=7 FOR=24h
	go test -count=1 -timeout 0 -v -run '^TestSimulation$$' ./agent/hold/simulation -simulation.seed '$(SEED)' -simulation.for '$(FOR)' -simulation.rest 30s -simulation.outdated -simulation.often '$(OFTEN)' | sed -E '/^ *(=== |--- PASS)/d'

HISTORY_SEED ?= 0
HISTORY_COUNT ?= 20000
history: ## check random operations of three hosts, and cut each pair of hosts: make history HISTORY_COUNT=20000
	@scripts/setup test
	go test -count=1 -timeout 60m -v -run '^(TestHistory|TestPartition)$$' ./cmd/volagent/test/cluster \
		-history.seed '$(HISTORY_SEED)' -history.count '$(HISTORY_COUNT)' -partition.full | sed -E '/^ *(=== |--- PASS)/d'

OUTAGE_FOR ?= 1m
outage: ## stop etcd while two hosts work, and let plugins, mounts and agents fail: make outage OUTAGE_FOR=1h
	@scripts/setup test
	go test -count=1 -timeout 0 -v -run '^TestOutageUnderLoad$$' ./cmd/volagent/test/cluster -outage.for '$(OUTAGE_FOR)' | sed -E '/^ *(=== |--- PASS)/d'

lint: ## check style, imports, scripts, the unit file, alerts and the dashboard
	@scripts/setup lint
	@scripts/lint

bench: build ## run the benchmarks, and say what of the must-reach list is met
	@scripts/setup test
	@scripts/bench

clean: ## remove what was built
	rm -rf bin dist
	go clean -testcache
