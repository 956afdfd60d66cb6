package control

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/penstock/penstock/internal/lockfile"
)

// The files in the runtime folder that hold the claims.
const (
	nodeClaim         = "up.lock"
	orchestratorClaim = "orchestrator.lock"
	planClaim         = "plan.lock"
)

// ClaimNode makes this process the only `penstock up` of the runtime folder dir. If there is one
// already, it returns ErrInUse with that process's id. The claim ends with release, or when the
// process ends for any reason.
func ClaimNode(dir string) (release func(), err error) {
	return claim(dir, nodeClaim, "a node already runs: process %[2]s, with runtime folder %[1]s; stop it, or choose another folder with --runtime-dir")
}

// ClaimOrchestrator is ClaimNode for the orchestrator.
func ClaimOrchestrator(dir string) (release func(), err error) {
	return claim(dir, orchestratorClaim, "claim runtime folder %s: orchestrator %s uses it; choose another folder with --runtime-dir")
}

// ClaimPlan makes this process the only one that carries out a plan on the node.
func ClaimPlan(dir string) (release func(), err error) {
	return claim(dir, planClaim, "process %[2]s carries out a plan on the node in %[1]s; try again when it has ended")
}

// takenError is an ErrInUse that says all by itself.
type takenError struct{ text string }

func (e *takenError) Error() string { return e.text }
func (e *takenError) Unwrap() error { return ErrInUse }

// claim locks a file in the folder dir, which it makes if needed; see MakeRuntimeDir. taken is a format
// for the folder and the process that holds the lock.
func claim(dir, name, taken string) (release func(), err error) {
	folder, err := MakeRuntimeDir(dir)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	f, err := folder.Open(name, os.O_CREATE|os.O_RDWR)
	if err != nil {
		return nil, fmt.Errorf("claim runtime folder: %w", err)
	}
	err = lockfile.Try(f)
	if errors.Is(err, lockfile.ErrLocked) {
		holder, _ := os.ReadFile(filepath.Join(dir, name))
		f.Close()
		return nil, &takenError{fmt.Sprintf(taken, dir, strings.TrimSpace(string(holder)))}
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = fmt.Fprintln(f, os.Getpid()) // for operators
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("claim runtime folder %s: %w", dir, err)
	}
	return func() { f.Close() }, nil
}
