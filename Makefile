# Entry points for people and CI. `make` alone lists them.

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
TARGET_DIR = $(or $(CARGO_TARGET_DIR),target)

.PHONY: help run test bench fmt clean install setup-run setup-test

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## a node with the example pods on a private containerd, until Ctrl-C (root)
	@scripts/run.sh $(ARGS)

test: setup-test ## everything CI checks: format, lints, layers, dependencies, all tests (root)
	@$(CARGO) xtask ci

bench: setup-test ## measure mainstay and upstream's kubelet on the same runtime (root)
	@$(CARGO) xtask bench $(ARGS)

fmt: ## format the code
	@$(CARGO) fmt --all

install: ## build a release and install it below PREFIX (/usr/local)
	$(CARGO) build --release --locked --package mainstay
	install -D -m 0755 $(TARGET_DIR)/release/mainstay $(DESTDIR)$(PREFIX)/bin/mainstay
	install -D -m 0644 packaging/mainstay.service $(DESTDIR)$(PREFIX)/lib/systemd/system/mainstay.service
	install -D -m 0644 README.md $(DESTDIR)$(PREFIX)/share/doc/mainstay/README.md

setup-run: ## install what `make run` needs and is missing (Debian, root)
	@scripts/setup.sh run

setup-test: ## install and build what `make test` needs and is missing (Debian, root, Go)
	@scripts/setup.sh test

# A mount below .build means that a node is still there, and deleting through it could delete the files of others.
clean: ## remove everything that was built
	@if grep -qF " $(CURDIR)/.build/" /proc/self/mountinfo; then \
		echo "a node of \`make run\` still has mounts below .build; stop it, or start and stop it again" >&2; exit 1; fi
	rm -rf --one-file-system .build
	$(CARGO) clean
