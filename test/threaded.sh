#!/usr/bin/env bash
# Prints the tested packages whose code or tests use goroutines, timers or child processes:
# those whose results can depend on the machine's load. The race detector and
# test/repeat.sh use the list.
set -euo pipefail
cd "$(dirname "$0")/.."

uses='^[[:space:]]*go [a-zA-Z(]|time\.(Sleep|After|AfterFunc|NewTimer|NewTicker|Tick|Since)\(|exec\.Command|context\.WithTimeout|\.Go\('

${GO:-go} list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{range .GoFiles}} {{$.Dir}}/{{.}}{{end}}{{range .CgoFiles}} {{$.Dir}}/{{.}}{{end}}{{range .TestGoFiles}} {{$.Dir}}/{{.}}{{end}}{{range .XTestGoFiles}} {{$.Dir}}/{{.}}{{end}}{{end}}' ./... ./research/... |
while read -r package files; do
	# shellcheck disable=SC2086 # a list of files without spaces
	# The tests of research/plots wait for Python programs, which have none of these.
	[ "${package%/research/plots}" = "$package" ] || continue
	if [ -n "$files" ] && grep -qE "$uses" $files; then
		echo "$package"
	fi
done
