.DEFAULT_GOAL := help
.PHONY: help baseline generate check test faults bench build

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

generate: ## make all generated files anew: queries, diagram, OpenAPI, clients (with npm)
	go tool -modfile=test/tools/go.mod sqlc generate
	go generate ./...
	cd client/typescript && npm ci --ignore-scripts --no-audit --no-fund && npm run generate

check: ## everything that must hold before a change lands
	bash .ci/run

test: ## all tests, on a real PostgreSQL that they start themselves
	go test ./...

faults: ## the fault campaigns, for ten minutes or PAWL_FAULT_SECONDS; limits are asserted
	PAWL_FAULT_STRICT=1 PAWL_FAULT_SECONDS=$${PAWL_FAULT_SECONDS:-600} go test ./test/campaign -count=1 -v -timeout 12h
	PAWL_FAULT_ROUNDS=$${PAWL_FAULT_ROUNDS:-4} go test ./test/faults -count=1 -timeout 12h -run '^Test(Matrix|Killed|DatabaseHangs|Stop|Paused|SchemaChanged|OwnDatabase|Scarce|ManagedFailover)'

bench: ## the service against a hand-written baseline on one PostgreSQL; minutes
	go -C test/bench run .

build: ## the program, into ./pawl
	go build -trimpath -o pawl .

baseline: ## at a release: the API as it is becomes the one that later changes may not break
	cp httpapi/openapi.yaml httpapi/released.yaml
