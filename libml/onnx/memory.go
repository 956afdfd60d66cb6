//go:build cgo

package onnx

import (
	"bytes"
	"os"
	"strconv"
)

// usedBytes returns the memory that the process has allocated for its sessions. Memory that was freed
// and not yet returned to the system is not included, if the C library counts it.
func usedBytes() int64 {
	if bytes := allocatedBytes(); bytes > 0 {
		return bytes
	}
	return residentBytes()
}

// residentBytes returns the process's anonymous memory in use: RssAnon of /proc/self/status
// (proc_pid_status(5)). It returns 0 if it cannot read that. Shared buffers and the pages of
// files are not included.
func residentBytes() int64 {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, found := bytes.Cut(data, []byte("\nRssAnon:"))
	if !found {
		return 0
	}
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	kib, err := strconv.ParseInt(string(fields[0]), 10, 64)
	if err != nil {
		return 0
	}
	return kib << 10
}
