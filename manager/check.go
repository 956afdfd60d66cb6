package manager

import (
	"cmp"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/models"
)

// Problem is why a node could not have a function.
type Problem struct {
	Function int    // index in the configuration
	Key      string // of the function, where it is mended
	Err      error
}

// Check finds what keeps a manager from having the functions of a configuration, before any port is
// opened: models that are not found, or that do not go with the function's keys. A manager that
// adds a function checks the same.
func Check(c configs.Config, find func(string) (*models.Card, error)) (problems []Problem) {
	for i, f := range c.Functions {
		if _, problem := checkFunction(&c, f, find); problem != nil {
			problem.Function = i
			problems = append(problems, *problem)
		}
	}
	return problems
}

func checkFunction(cfg *configs.Config, c configs.Function, find func(string) (*models.Card, error)) (*models.Card, *Problem) {
	if err := c.Check(); err != nil {
		return nil, &Problem{Key: "name", Err: err}
	}
	if err := c.Under(cfg, cfg.Device); err != nil {
		return nil, &Problem{Key: "name", Err: err}
	}
	card, err := find(cmp.Or(c.Model, c.Name))
	if err != nil {
		key := "model"
		if c.Model == "" {
			key = "name"
		}
		return nil, &Problem{Key: key, Err: err}
	}
	with := setupUnder(cfg, c, card)
	if err := cfg.Lab.FitsBatches(card.Batches, with.slo, with.hangTimeout); err != nil {
		return nil, &Problem{Key: "name", Err: err}
	}
	return card, nil
}
