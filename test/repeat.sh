#!/usr/bin/env bash
# Runs tests many times, to find those that fail once in a while.
#
#   repeat.sh flaky [PACKAGE...]
#     Each package 3 times, 20 times if it has threads, timers or child processes
#     (test/threaded.sh), while other programs keep every CPU busy. It can be stopped
#     and started again: it continues with the runs that are missing. A package whose
#     test binary and folder did not change keeps its runs across commits.
#
#   repeat.sh soak DURATION [PACKAGE...]
#     The packages with property tests and those with threads, in random order and with
#     new random seeds, until DURATION (seconds, or as in 30m or 8h) has passed.
#
# Every failure is kept as OUT/failures/PACKAGE-TIME.log. The exit status is 1 if the
# last run of any kind failed.
#
#   OUT   results, out/repeat
#   LOAD  flaky: how many processes keep CPUs busy, one per CPU; 0 for none
#   RUNS  flaky: how often a package with threads is run, 20
set -euo pipefail
cd "$(dirname "$0")/.."
OUT=${OUT:-out/repeat} LOAD=${LOAD:-$(nproc)} RUNS=${RUNS:-20} GO=${GO:-go}
export PENSTOCK_ONNXRUNTIME=${PENSTOCK_ONNXRUNTIME:-$PWD/bin/lib/libonnxruntime.so}
export RAPID_SEED=0 RAPID_NOFAILFILE=1

die() {
	echo "repeat: $*" >&2
	exit 1
}

# seconds converts 90, 90s, 30m or 8h.
seconds() {
	case $1 in
	*h) echo $((${1%h} * 3600)) ;;
	*m) echo $((${1%m} * 60)) ;;
	*) echo $((${1%s})) ;;
	esac
}

# packages prints the tested ones of the arguments, or all, without those that need a GPU or
# have another make target.
packages() {
	$GO list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' $([ $# -gt 0 ] && echo "$@" || echo ./...) | grep -vE '/test/(dpdk|gpu|models|release|suites)$'
}

# build PACKAGE makes its test binary and prints the path.
build() {
	local binary
	binary=$OUT/bin/$(echo "$1" | tr / _).test
	$GO test -c -vet=off -o "$binary" "$1" || die "build the test of $1"
	echo "$binary"
}

# key BINARY FOLDER identifies what a run depends on.
key() {
	local list=("$1")
	case $2 in */test/e2e) list+=(bin/penstock bin/examples/*) ;; esac
	{
		cat "${list[@]}" 2>/dev/null
		(cd "$2" && git ls-files -z . | xargs -0 -r sha256sum)
	} | sha256sum | cut -c1-16
}

# once PACKAGE BINARY FOLDER ARGUMENTS... runs the tests in their folder.
once() {
	local package=$1 binary=$2 folder=$3 log began=$SECONDS
	shift 3
	log=$OUT/running.log
	if (cd "$folder" && exec "$binary" -test.timeout 20m "$@") >"$log" 2>&1; then
		printf '%-60s ok    %4d s\n' "$package" $((SECONDS - began))
		return 0
	fi
	local kept
	kept=$OUT/failures/$(echo "${package##*penstock/}" | tr / _)-$(date +%m%d-%H%M%S).log
	cp "$log" "$kept"
	printf '%-60s FAIL  %4d s  %s\n' "$package" $((SECONDS - began)) "$kept"
	grep -E '^ *--- FAIL|^panic:|^fatal error:' "$log" | head -5
	return 1
}

# burden keeps CPUs busy until this script ends.
burden() {
	[ "$LOAD" -gt 0 ] || return 0
	if command -v stress-ng >/dev/null; then
		stress-ng --quiet --cpu "$LOAD" --vm 1 --vm-bytes 64M &
	elif command -v stress >/dev/null; then
		stress --quiet --cpu "$LOAD" &
	else
		for ((i = 0; i < LOAD; i++)); do (while :; do :; done) & done
	fi
	# shellcheck disable=SC2064 # the processes of now
	trap "kill $(jobs -p | tr '\n' ' ') 2>/dev/null || true" EXIT
}

flaky() {
	local failed=0 package folder binary is want done threaded commit
	threaded=$(GO=$GO test/threaded.sh)
	commit=$(git describe --always --dirty)
	burden
	for package in $(packages "$@"); do
		folder=$($GO list -f '{{.Dir}}' "$package")
		want=3
		if grep -qxF "$package" <<<"$threaded"; then want=$RUNS; fi
		binary=$(build "$package")
		is=$(key "$binary" "$folder")
		done=$(grep -cE "^$is " "$OUT/passed" || true)
		for ((; done < want; done++)); do
			if once "$package" "$binary" "$folder"; then
				echo "$is $package $commit" >>"$OUT/passed"
			else
				failed=1
			fi
		done
		rm -f "$binary"
	done
	return $failed
}

soak() {
	local failed=0 until package folder binary
	until=$((SECONDS + $(seconds "$1")))
	shift
	local threaded properties
	threaded=$(GO=$GO test/threaded.sh)
	properties=$(grep -rlE --include='*_test.go' 'rapid\.(Check|MakeCheck)' . | xargs -n1 dirname | sort -u)
	while :; do
		for package in $(packages "$@" | shuf); do
			[ "$SECONDS" -lt "$until" ] || return $failed
			folder=$($GO list -f '{{.Dir}}' "$package")
			if ! grep -qxF "$package" <<<"$threaded" && ! grep -qxF ".${folder#"$PWD"}" <<<"$properties"; then
				continue
			fi
			binary=$(build "$package")
			once "$package" "$binary" "$folder" || failed=1
			rm -f "$binary"
		done
	done
}

mkdir -p "$OUT/bin" "$OUT/failures"
OUT=$(cd "$OUT" && pwd)
touch "$OUT/passed"
verb=${1:-}
shift || true
case $verb in
flaky) flaky "$@" ;;
soak)
	[ $# -ge 1 ] || die "soak needs a duration, such as 30m"
	soak "$@"
	;;
*) die "usage: test/repeat.sh flaky [PACKAGE...] | soak DURATION [PACKAGE...]" ;;
esac
