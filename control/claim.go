package control

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/penstock/penstock/internal/lockfile"
)

// claimName is the file in the runtime folder that the folder's orchestrator locks.
const claimName = "orchestrator.lock"

// ClaimOrchestrator makes this process the only orchestrator of the runtime folder dir, and makes the
// folder if needed; see MakeRuntimeDir. If there is an orchestrator already, it returns ErrInUse with that
// process's id. The claim ends with release, or when the process ends for any reason.
func ClaimOrchestrator(dir string) (release func(), err error) {
	folder, err := MakeRuntimeDir(dir)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	path := filepath.Join(dir, claimName)
	f, err := folder.Open(claimName, os.O_CREATE|os.O_RDWR)
	if err != nil {
		return nil, fmt.Errorf("claim runtime folder: %w", err)
	}
	err = lockfile.Try(f)
	if errors.Is(err, lockfile.ErrLocked) {
		holder, _ := os.ReadFile(path)
		f.Close()
		return nil, fmt.Errorf("claim runtime folder %s: orchestrator %s uses it; choose another folder with --runtime-dir: %w", dir, strings.TrimSpace(string(holder)), ErrInUse)
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
