#!/usr/bin/env bash
# build.sh FILE: compiles the swap library. It needs a C compiler (CC, otherwise cc) and no CUDA.
# CFLAGS are added at the end. Its own functions call each other even if another preloaded library has the same names.
set -euo pipefail
out=$(realpath -m "$1")
cd "$(dirname "$0")"
if [ "$(uname -m)" != x86_64 ]; then
	echo "build.sh: the swap library has x86-64 assembly; this machine is $(uname -m)" >&2
	exit 1
fi
mkdir -p "$(dirname "$out")"
# shellcheck disable=SC2086
exec "${CC:-cc}" -std=gnu11 -O2 -g -Wall -Wextra -Werror -fPIC -fvisibility=hidden -shared -Wl,-soname,libpenstock-swap.so -Wl,-z,defs -Wl,-Bsymbolic-functions \
	-o "$out" hooks.c memory.c turns.c thunks.S ${CFLAGS:-} -ldl -lpthread
