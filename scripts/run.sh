#!/usr/bin/env bash
# `make run`: sets up, builds a release, and runs a node with the example pods until Ctrl-C.
# Arguments go to `cargo xtask run`.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh run

echo "building a release of mainstay (minutes on the first time)"
# One call for both, so that what they share is built once.
cargo build --release --locked --package mainstay --package xtask

exec "${CARGO_TARGET_DIR:-target}/release/xtask" run "$@"
