# Everything here runs in every module of the repository.
MODULES     := $(sort $(dir $(shell find . -name go.mod -not -path './.git/*')))
STATICCHECK := go run honnef.co/go/tools/cmd/staticcheck@v0.8.2
TESTFLAGS   ?= -race -shuffle=on -vet=all -timeout 20m
BENCHTIME   ?= 200ms
BENCHPASSES ?= 9

# Each module is built by its own go.mod, as its users build it.
export GOWORK := off

# $(call each,COMMAND) runs COMMAND in each module and stops where it fails.
each = @set -e; for module in $(MODULES); do echo "== $$module: $(1)"; (cd $$module && $(1)); done

.DEFAULT_GOAL := help
.PHONY: help test lint fmt tidy verify bench fleet cover examples fuzz mutants licences apidiff

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Examples use what is tested with the race detector elsewhere. Prometheus takes
# minutes for that, and for go vet, which looks at all that a package imports:
# its one test has neither, but staticcheck.
test: ## Run go vet and all tests (real-server tests need redis-server on the PATH)
	@set -e; for module in $(MODULES); do \
		flags="$(TESTFLAGS)"; case $$module in \
			*/internal/rules/) flags="-shuffle=on -vet=off";; \
			./examples/*) flags="$${flags#-race }";; \
		esac; \
		echo "== $$module: go test $$flags ./..."; (cd $$module && go test $$flags ./...); done
	go test -run 'TestFleet|DecidesAsTheModelDoes' -timeout 20m . # which are too large for the race detector

lint: ## Check formatting and staticcheck (go vet runs with the tests)
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "not formatted; run make fmt:"; echo "$$unformatted"; exit 1; }
	$(call each,$(STATICCHECK) ./...)

fmt: ## Format all Go files
	gofmt -w .

tidy: ## Check that each go.mod and go.sum is tidy
	$(call each,go mod tidy -diff)

verify: ## Check that the modules in the cache are those of each go.sum
	$(call each,go mod verify)

# Each group of benchmarks has a process of its own, in each pass: what one peer
# leaves running is not measured with the next.
bench: ## Measure this machine, peers included, and write docs/benchmarks.md
	@cd bench && bin=$$(mktemp -d) && trap 'rm -r '$$bin EXIT && go test -c -o $$bin/bench . && \
	for pass in $$(seq $(BENCHPASSES)); do for group in $$($$bin/bench -test.list Benchmark); do \
		$$bin/bench -test.run '^$$' -test.bench "^$$group$$" -test.benchtime $(BENCHTIME); \
	done; done | tee /dev/stderr | go run ./report -page ../docs/benchmarks.md -plot ../docs/img/benchmarks.svg

fleet: ## Measure a fleet on a real server and write docs/fleet.md (five minutes)
	cd bench && go run ./cmd/fleet -docs ../docs

cover: ## Show the test coverage of each package
	$(call each,go test -cover ./...)

examples: ## Build every package, the examples included
	$(call each,go build -o /dev/null ./...)

fuzz: ## Run every fuzz target for FUZZTIME each, by default 10s
	.ci/fuzz

mutants: ## Break each rule of the circuits on purpose, and see that a test finds it
	cd integration && go run ./mutate $(MUTANTS)

licences: ## Write docs/licences.md anew
	cd integration/licences && go run .

apidiff: ## Compare the exported API with the last tag's
	.ci/apidiff
