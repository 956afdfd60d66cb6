#!/usr/bin/env bash
# Prints packages that a build tag changes:
#
#   tagged.sh TAG        those that have other files with it
#   tagged.sh TAG tests  those that have tests which only it compiles
set -euo pipefail
cd "$(dirname "$0")/.."

files='{{$p := .ImportPath}}{{range .TestGoFiles}}{{$p}} {{.}}{{"\n"}}{{end}}{{range .XTestGoFiles}}{{$p}} {{.}}{{"\n"}}{{end}}'
if [ "${2:-}" != tests ]; then
	files+='{{range .GoFiles}}{{$p}} {{.}}{{"\n"}}{{end}}{{range .CgoFiles}}{{$p}} {{.}}{{"\n"}}{{end}}'
fi
list() { ${GO:-go} list -f "$files" "$@" ./... | sort; }
comm -13 <(list) <(list -tags "$1") | cut -d' ' -f1 | sort -u
