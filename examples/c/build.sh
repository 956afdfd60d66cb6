#!/bin/sh
# Builds the examples in C, with gcc or what CC names:
#
#   build.sh LIBRARIES OUT   LIBRARIES has libpenstock.so
#
# The programs look for it beside themselves, then there.
set -eu
libraries=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
cd "$(dirname "$0")"
for name in colour fashion; do
	"${CC:-gcc}" -std=gnu11 -O3 -Wall -Wextra -I. -I../../libml/capi -o "$out/$name" $name.c \
		-L"$libraries" -lpenstock -lm -ldl -Wl,-rpath,'$ORIGIN':"$libraries"
done
