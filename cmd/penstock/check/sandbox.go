package check

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/orchestrator/sandbox"
)

// Sandbox is the sandbox that a configuration asks for, nil if it is off.
func Sandbox(c configs.Config) (*orchestrator.Sandbox, error) {
	if c.Sandbox.Off {
		return nil, nil
	}
	u, err := sandbox.FindUser(c.Sandbox.User)
	if err != nil {
		return nil, fmt.Errorf("find user of the sandbox: %w", err)
	}
	limits := orchestrator.Limits{MemoryBytes: int64(c.Sandbox.Memory), Tasks: int64(c.Sandbox.Processes)}
	if limits.MemoryBytes == 0 {
		if limits.MemoryBytes, err = halfOfMemory(); err != nil {
			return nil, err
		}
	}
	return &orchestrator.Sandbox{User: u, Readable: c.Sandbox.Readable, Limits: limits}, nil
}

// halfOfMemory returns half of the machine's main memory, in bytes.
func halfOfMemory() (int64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("read size of memory: %w", err)
	}
	return int64(info.Totalram) * int64(info.Unit) / 2, nil
}
