#!/bin/sh
# Makes gather.ptx from gather.cu, in the folder where this script lies, or NAME.ptx
# from another FOLDER/NAME.cu beside that, with the nvcc or clang that is named, or
# else with the first of them that is found:
#
#   ptx.sh [COMPILER [FOLDER/NAME.cu]]
#
# The target is compute_75, Turing, which the driver compiles for whatever GPU
# there is: one for sm_90 is no faster. The version is 8.3 at most, so that drivers
# from CUDA 12.3 on take it (green contexts came with 12.4). What the compiler says
# in comments is left out; the first line says which source this is of.
set -eu
source=${2:-$(dirname "$0")/gather.cu}
name=$(basename "$source" .cu)
cd "$(dirname "$source")"
compiler=${1:-$(command -v nvcc || command -v clang++ || command -v clang || true)}
made=$(mktemp)
trap 'rm -f "$made"' EXIT
case $(basename "${compiler:-none}") in
none) echo "ptx.sh: no nvcc and no clang on the path" >&2; exit 1 ;;
*nvcc*) "$compiler" -ptx -arch=compute_75 -O3 -std=c++17 -o "$made" "$name.cu" ;;
*) "$compiler" -x cuda --cuda-device-only -S -nocudainc -nocudalib -O3 -std=c++17 \
	--cuda-gpu-arch=sm_75 -Xclang -target-feature -Xclang +ptx83 -o "$made" "$name.cu" ;;
esac
{
	echo "// made by ptx.sh from $name.cu, sha256 $(sha256sum "$name.cu" | cut -d' ' -f1)"
	awk '/^[ \t]*\/\// { next } /^[ \t]*$/ { next }
	     $1 == ".version" && $2 > 8.3 { print ".version 8.3"; next } { sub(/[ \t]*\/\/.*/, ""); print }' "$made"
} >"$name.ptx"
