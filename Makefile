# compactproxy: build, test, measure. "make help" explains the targets.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
COMMIT  ?= $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
FUZZTIME ?= 30s

.DEFAULT_GOAL := help

.PHONY: help
help: ## say what each target does
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

.PHONY: build
build: ## bin/compactproxy, static, for this machine
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/compactproxy ./cmd/compactproxy

.PHONY: demo
demo: ## play the recorded session through the proxy
	go run ./cmd/compactproxy demo

.PHONY: test
test: ## all tests, with the race detector; real servers and clients where they are installed
	@scripts/llama-server which >/dev/null 2>&1 || echo '*** NO llama-server: the tests against a real one are skipped; "make llama-server" installs it ***'
	@command -v npm >/dev/null || echo '*** NO npm: the tests with real clients are skipped; install Node.js 20 or later ***'
	go test -race -shuffle=on -timeout 20m ./...

.PHONY: llama-server
llama-server: ## install a real llama-server for the tests (Debian packages, in a folder of its own)
	scripts/llama-server install

.PHONY: lint
lint: ## formatting, vet, staticcheck
	@test -z "$$(gofmt -l cmd internal)" || { echo "not gofmt-ed:"; gofmt -l cmd internal; exit 1; }
	go vet ./...
	go run $(STATICCHECK) ./...

.PHONY: lint-all
lint-all: ## everything in .golangci.yml (compiling the linter takes minutes the first time)
	go run $(GOLANGCI) run

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (30s) each
	@for pkg in $$(go list ./...); do \
	  for target in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
	    echo "== $$pkg $$target"; go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$pkg || exit 1; \
	  done; done

.PHONY: bench
bench: ## index, hash, edit, and the whole proxy against a bare reverse proxy, as ratios
	go test -run '^$$' -bench . -benchmem ./internal/transcript
	go test -run '^TestBenchRatios$$' -count=1 -v ./internal/proxy -bench-ratios

.PHONY: prefill
prefill: ## tokens prefilled over whole sessions against the floor, as a table (some minutes)
	go test -run '^TestPrefill$$' -count=1 ./internal/proxy -prefill -v

.PHONY: crash
crash: ## kill -9 a real proxy 200 times in the middle of sessions (some minutes)
	go test -run '^TestCrash$$' -count=1 -timeout 60m ./cmd/compactproxy -crashes 200 -v

.PHONY: recordings
recordings: ## make the recorded sessions anew by really running their tools
	go run ./internal/recording/record
