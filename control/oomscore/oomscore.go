// Package oomscore says which of a node's processes the kernel kills first when the machine lacks memory
// (oom_score_adj in proc_pid_oom_score_adj(5)).
package oomscore

import (
	"fmt"
	"os"
	"strconv"
)

// The scores, from the last to the first process that the kernel kills. Without root a process keeps its score if
// that is higher: then only the others' higher scores protect it.
const (
	Core     = -500 // `penstock up` and the manager: without them nothing serves
	Helper   = 100  // orchestrator and gateway, which restart without loss
	Function = 500
	Guest    = 1000
)

// Set changes the score of a process.
func Set(pid, score int) error {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(strconv.Itoa(score)), 0); err != nil {
		return fmt.Errorf("set OOM score: %w", err)
	}
	return nil
}
