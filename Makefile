.DEFAULT_GOAL := help
.PHONY: help baseline generate check test faults bench build release module

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

generate: ## make all generated files anew: queries, diagram, OpenAPI, clients (with npm)
	go tool -modfile=test/tools/go.mod sqlc generate
	.ci/statements >db/sqlc.sum
	go generate ./...
	cd client/typescript && npm ci --ignore-scripts --no-audit --no-fund && npm run generate

check: ## everything that must hold before a change lands
	bash .ci/run

test: ## all tests, on a real PostgreSQL that they start themselves
	go test ./...

faults: ## the fault campaigns, for ten minutes or PAWL_FAULT_SECONDS; limits are asserted
	PAWL_FAULT_STRICT=1 PAWL_FAULT_SECONDS=$${PAWL_FAULT_SECONDS:-600} go test ./test/campaign -count=1 -v -timeout 12h
	PAWL_FAULT_ROUNDS=$${PAWL_FAULT_ROUNDS:-4} go test ./test/faults -count=1 -timeout 12h -run '^Test(Matrix|Killed|Stop|Paused|OwnDatabase|ManagedFailover)'

bench: ## the service against a hand-written baseline on one PostgreSQL; minutes
	go -C test/bench run .

build: ## the program, into ./pawl
	go build -trimpath -o pawl .

release: ## everything of a release, into ./dist, from the commit that is checked out (with npm)
	go -C release test -tags helm -run Chart .
	go -C release run . -out ../dist

module: ## put the tree under an import path: make module MODULE=example.com/pawl
	@test -n "$(MODULE)" || { echo "make module MODULE=example.com/pawl" >&2; exit 2; }
	git ls-files -z '*.go' '*.md' sqlc.yaml | xargs -0 perl -pi -e 's!"pawl/(?=\w)!"$(MODULE)/!g; s!import: pawl/!import: $(MODULE)/!'
	git ls-files -z '*go.mod' | xargs -0 perl -pi -e 's!^(module |replace |require |\t)pawl(?=[/\s])!$$1$(MODULE)!'
	gofmt -s -w $$(git ls-files '*.go')

baseline: ## at a release: what the commit promises is kept in test/released, and later changes may not break it
	PAWL_BASELINE=$$(git rev-parse $(or $(COMMIT),HEAD)) go test ./test/faults -run '^TestMakeBaseline$$' -count=1
