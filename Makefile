# Entry points for people and CI. `make` alone lists them.

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
TARGET_DIR = $(or $(CARGO_TARGET_DIR),target)
BINARY ?= $(TARGET_DIR)/release/mainstay
PLACE = $(DESTDIR)$(PREFIX)

.PHONY: help run cluster test bench fmt clean install FORCE setup-run setup-test setup-bench

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## a node with the example pods on a private containerd, until Ctrl-C (root)
	@scripts/run.sh $(ARGS)

cluster: setup-run ## a cluster with mainstay as its node, until Ctrl-C (root, Go; minutes on the first time)
	@$(CARGO) xtask tools etcd kube-apiserver kubernetes
	@$(CARGO) build --release --locked --package mainstay --package xtask
	@$(TARGET_DIR)/release/xtask cluster

test: setup-test ## everything CI checks: format, lints, layers, dependencies, all tests (root)
	@$(CARGO) xtask ci

bench: setup-bench ## measure mainstay and upstream's kubelet on the same runtime (root)
	@$(CARGO) xtask bench $(ARGS)

fmt: ## format the code
	@$(CARGO) fmt --all

# A BINARY that was built elsewhere is installed as it is; cargo alone knows whether its own is up to date, so it is always asked.
install: $(BINARY) ## build a release and install it below PREFIX (/usr/local); BINARY=… installs that one
	install -D -m 0755 "$(BINARY)" "$(PLACE)/bin/mainstay"
	install -D -m 0644 packaging/mainstay.service "$(PLACE)/lib/systemd/system/mainstay.service"
	sed -i 's|/usr/local|$(PREFIX)|g' "$(PLACE)/lib/systemd/system/mainstay.service"
	install -d "$(PLACE)/share/bash-completion/completions" "$(PLACE)/share/zsh/site-functions" "$(PLACE)/share/fish/vendor_completions.d"
	"$(BINARY)" completion bash > "$(PLACE)/share/bash-completion/completions/mainstay"
	"$(BINARY)" completion zsh > "$(PLACE)/share/zsh/site-functions/_mainstay"
	"$(BINARY)" completion fish > "$(PLACE)/share/fish/vendor_completions.d/mainstay.fish"
	install -d "$(PLACE)/share/doc/mainstay"
	cp -R README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md LICENSE contrib docs examples proto "$(PLACE)/share/doc/mainstay/"
	# What leads into the sources is no link where there are none.
	find "$(PLACE)/share/doc/mainstay" -name '*.md' -exec sed -E -i 's/\[([^]]*)\]\((\.\.\/)*crates\/[^)]*\)/\1/g' {} +
	chmod -R u=rwX,go=rX "$(PLACE)/share/doc/mainstay" "$(PLACE)/share/bash-completion/completions/mainstay" \
		"$(PLACE)/share/zsh/site-functions/_mainstay" "$(PLACE)/share/fish/vendor_completions.d/mainstay.fish"

$(TARGET_DIR)/release/mainstay: FORCE
	$(CARGO) build --release --locked --package mainstay

FORCE:

setup-run: ## install what `make run` needs and is missing (Debian, root)
	@scripts/setup.sh run

setup-test: ## install and build what `make test` needs and is missing (Debian, root, Go)
	@scripts/setup.sh test

setup-bench: ## the same, and what `make bench` measures against
	@scripts/setup.sh bench

# A mount below .build means that a node is still there, and deleting through it could delete the files of others.
clean: ## remove everything that was built
	@if grep -qF " $(CURDIR)/.build/" /proc/self/mountinfo; then \
		echo "a node of \`make run\` still has mounts below .build; stop it, or start and stop it again" >&2; exit 1; fi
	rm -rf --one-file-system .build
	$(CARGO) clean
