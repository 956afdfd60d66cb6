#!/usr/bin/env bash
# Fuzzes each target of the tree for FUZZTIME. Targets are found by grep, and the test of a
# package is built once for all its targets.
#
# Go before 1.27 reports "context deadline exceeded" if the time ends while a worker runs an
# input (go.dev/issue/75804). No failing input is written then, and the target runs again.
set -uo pipefail
cd "$(dirname "$0")/.."
GO=${GO:-go} FUZZTIME=${FUZZTIME:-10s}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cache=$("$GO" env GOCACHE)/fuzz/penstock

# fuzz FOLDER TARGET runs one target. Few tries are made at shrinking each interesting input: a
# minute per input, the default, would be all that a short run does.
fuzz() {
	(cd "$1" && "$work/test" -test.run '^$' -test.fuzz "^$2\$" -test.fuzztime "$FUZZTIME" -test.fuzzminimizetime 20x \
		-test.fuzzcachedir "$cache/$1") 2>&1 | tee "$work/log"
}

endedLate() {
	grep -q '^ *context deadline exceeded$' "$work/log" && ! grep -q 'Failing input' "$work/log"
}

for folder in $(grep -rlE --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do
	"$GO" test -vet=off -c -fuzz . -o "$work/test" "$folder" || exit 1
	for target in $("$work/test" -test.list '^Fuzz'); do
		echo "$folder $target"
		for try in 1 2 3; do
			fuzz "$folder" "$target" && continue 2
			if ! endedLate || [ "$try" = 3 ]; then
				exit 1
			fi
			echo "$target: the time ended while an input ran; again"
		done
	done
done
