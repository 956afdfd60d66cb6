// Package apply carries out plans on a running node of this machine (planner/deploy).
package apply

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/cuda/mig"
	"github.com/penstock/penstock/models/zoo"
	"github.com/penstock/penstock/plan"
	"github.com/penstock/penstock/planner/change"
	"github.com/penstock/penstock/planner/deploy"
	"github.com/penstock/penstock/planner/pack"
)

// recordFile keeps the deploy.Record, in the node's runtime folder.
const recordFile = "plan.json"

// maxRecord is the max size of that file: a plan for hundreds of GPUs, and the steps to it.
const maxRecord = 16 << 20

// Node is a node that no other process may give a plan. Close ends that.
type Node struct {
	Machine deploy.Machine
	Record  deploy.Record
	Close   func()

	dir     string
	cards   zoo.Registry
	session mig.Session // nil without a driver, or without the rights for MIG
	noMIG   error       // why
}

// Open claims the node with the runtime folder dir, and reads its state. openMIG opens the driver.
func Open(ctx context.Context, dir string, openMIG func() (mig.Session, error)) (n *Node, err error) {
	n = &Node{dir: dir}
	if _, err := control.ReadStatus(ctx, dir); err != nil {
		return nil, err // before the claim, which makes a folder
	}
	if n.Close, err = control.ClaimPlan(dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			n.Close()
		}
	}()
	file := filepath.Join(dir, recordFile)
	text, err := control.ReadFile(file, maxRecord)
	if err == nil {
		err = json.Unmarshal(text, &n.Record)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the plan that the node runs: %w; remove %s to start anew", err, file)
	}
	if n.session, n.noMIG = openMIG(); n.noMIG == nil {
		if _, n.noMIG = n.session.GPUs(); n.noMIG != nil {
			n.session = nil
		}
	}
	return n, n.observe(ctx)
}

// observe reads the state of the node and of GPUs with MIG.
func (n *Node) observe(ctx context.Context) error {
	status, err := control.ReadStatus(ctx, n.dir)
	if err != nil {
		return err
	}
	c, err := configs.Read(status.Configuration.File)
	if err != nil {
		return err
	}
	c.RuntimeDir = n.dir
	n.cards = zoo.Registry{Dirs: c.ModelFolders(), Sums: c.ModelSums}
	if _, err := os.Stat(c.DraftFolder()); err == nil {
		n.cards.Dirs = append(n.cards.Dirs, c.DraftFolder())
	}
	var gpus []mig.GPU
	if n.session != nil {
		if gpus, err = n.session.GPUs(); err != nil {
			return err
		}
	}
	n.Machine = deploy.Observe(status, gpus, c.MIG == configs.MIGManage && len(c.Devices) > 0)
	return nil
}

// NoGPU says why there is nothing to plan on.
func (n *Node) NoGPU() error {
	if n.noMIG != nil {
		return fmt.Errorf("no device of the node has a placement table: %w", n.noMIG)
	}
	return errors.New("no device of the node has a placement table; name one with --gpu")
}

// Plan plans a problem as a change of the plan that the node runs; c is nil if it runs none, or
// none that can be changed.
func (n *Node) Plan(p *plan.Problem) (pl *plan.Plan, c *change.Change, err error) {
	if n.Record.Runs(n.Machine) {
		c, err := change.From(n.Record.Plan, p)
		switch {
		case err == nil:
			return c.Plan, c, nil
		case !errors.Is(err, change.ErrOldPlan):
			return nil, nil, err
		}
	}
	pl, err = pack.New().Plan(p)
	return pl, nil, err
}

// Begin computes the steps to a plan, n.Record.Next. Its error says what cannot be done.
func (n *Node) Begin(pl *plan.Plan, c *change.Change) error {
	for _, s := range pl.Services {
		if f, runs := n.Machine.Functions[s.Service]; runs && f.Model == s.Model {
			continue
		}
		if _, err := n.cards.Find(s.Model); err != nil {
			return fmt.Errorf("service %q: %w", s.Service, err)
		}
	}
	err := n.Record.Begin(n.Machine, pl, c)
	if errors.Is(err, deploy.ErrMissing) && n.noMIG != nil {
		return fmt.Errorf("%w (GPUs with MIG: %w)", err, n.noMIG)
	}
	return err
}

// Finish takes the remaining steps of n.Record.Next, or undoes those that are done. report gets a
// line for each step.
func (n *Node) Finish(ctx context.Context, report func(line string)) error {
	if n.Record.Next == nil {
		return nil
	}
	host := deploy.Host{
		Devices: n.Machine.Devices,
		Place:   n.place,
		Save: func(r *deploy.Record) error {
			text, err := json.Marshal(r)
			if err != nil {
				return err
			}
			return control.ReplaceFile(filepath.Join(n.dir, recordFile), text)
		},
		Report: func(i, all int, what string) { report(fmt.Sprintf("%d/%d %s", i, all, what)) },
	}
	if n.session != nil {
		host.MIG = patient{n.session, ctx}
	}
	if err := n.Record.Finish(ctx, host); err != nil {
		return err
	}
	return n.observe(ctx)
}

// place sends an order. The node may still carry out that of a process that was killed.
func (n *Node) place(ctx context.Context, order control.PlacementOrder) error {
	return repeat(ctx, func() (again bool, err error) {
		_, err = control.SendOrder(ctx, n.dir, control.PlacePath, order)
		return err != nil && strings.Contains(err.Error(), control.PlacementRuns), err
	})
}

// patient waits for the processes in an instance to end: the node ends those of a function that has
// left it.
type patient struct {
	mig.Session
	ctx context.Context
}

func (p patient) Take(s mig.Step) error {
	return repeat(p.ctx, func() (again bool, err error) {
		err = p.Session.Take(s)
		return errors.Is(err, mig.ErrInUse), err
	})
}

const (
	patience = 30 * time.Second
	pause    = 100 * time.Millisecond
)

// repeat calls do until it need not be called again, or patience ends.
func repeat(ctx context.Context, do func() (again bool, err error)) error {
	limit, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		again, err := do()
		if !again {
			return err
		}
		select {
		case <-time.After(pause):
		case <-limit.Done():
			return err
		}
	}
}
