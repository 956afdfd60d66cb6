package main

import (
	"fmt"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/orchestrator"
	"github.com/penstock/penstock/orchestrator/sandbox"
)

// sandboxOf is the sandbox that a configuration asks for, nil if it is off.
func sandboxOf(c configs.Config) (*orchestrator.Sandbox, error) {
	if c.Sandbox.Off {
		return nil, nil
	}
	u, err := sandbox.FindUser(c.Sandbox.User)
	if err != nil {
		return nil, fmt.Errorf("find user of the sandbox: %w", err)
	}
	return &orchestrator.Sandbox{User: u, Readable: c.Sandbox.Readable}, nil
}

// processUser is the id of the user that inference functions run as, 0 for the node's own, and
// the line for the status.
func processUser(s *orchestrator.Sandbox) (uid int, status string) {
	switch {
	case s == nil:
		return 0, "off"
	case s.User == nil:
		return 0, "own user"
	}
	return s.User.UID, "user " + s.User.Name
}
