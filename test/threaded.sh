#!/usr/bin/env bash
# Prints tested packages whose code or tests use threads:
#
#   threaded.sh         with goroutines, timers or child processes (test/repeat.sh).
#   threaded.sh shared  whose threads share memory, for the race detector.
#
# Code that shares memory starts goroutines, runs in those of a server or of parallel tests,
# or has locks or atomics because its callers do.
set -euo pipefail
cd "$(dirname "$0")/.."

shares='^[[:space:]]*go [a-zA-Z(]|\.Go\(|time\.AfterFunc\(|sync\.|atomic\.|http\.(Handle|Serve)|httptest\.NewS|\.Parallel\('
waits='time\.(Sleep|After|NewTimer|NewTicker|Tick|Since)\(|exec\.Command|context\.WithTimeout'
uses="$shares"
if [ "${1:-}" != shared ]; then uses="$shares|$waits"; fi

${GO:-go} list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{range .GoFiles}} {{$.Dir}}/{{.}}{{end}}{{range .CgoFiles}} {{$.Dir}}/{{.}}{{end}}{{range .TestGoFiles}} {{$.Dir}}/{{.}}{{end}}{{range .XTestGoFiles}} {{$.Dir}}/{{.}}{{end}}{{end}}' ./... |
while read -r package files; do
	# shellcheck disable=SC2086 # a list of files without spaces
	if [ -n "$files" ] && grep -qE "$uses" $files; then
		echo "$package"
	fi
done
