#!/usr/bin/env bash
# Fuzzes each target of the packages named for FUZZTIME: fuzz.sh ./... ./research/...
#
# Go before 1.27 reports "context deadline exceeded" if the time ends while a worker runs an
# input (go.dev/issue/75804). No failing input is written then, and the target runs again.
set -uo pipefail
GO=${GO:-go} FUZZTIME=${FUZZTIME:-10s}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# fuzz runs one target. Few tries are made at shrinking each interesting input: a minute per
# input, the default, would be all that a short run does.
fuzz() {
	"$GO" test -run '^$' -fuzz "^$2\$" -fuzztime "$FUZZTIME" -fuzzminimizetime 20x "$1" 2>&1 | tee "$log"
}

endedLate() {
	grep -q '^ *context deadline exceeded$' "$log" && ! grep -q 'Failing input' "$log"
}

for package in $("$GO" list "$@"); do
	for target in $("$GO" test -list '^Fuzz' "$package" | grep '^Fuzz'); do
		echo "$package $target"
		for try in 1 2 3; do
			fuzz "$package" "$target" && continue 2
			if ! endedLate || [ "$try" = 3 ]; then
				exit 1
			fi
			echo "$target: the time ended while an input ran; again"
		done
	done
done
