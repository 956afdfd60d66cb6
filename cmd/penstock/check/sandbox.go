package check

import (
	"fmt"

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
	return &orchestrator.Sandbox{User: u, Readable: c.Sandbox.Readable}, nil
}
