package fleet

import (
	"cmp"
	"fmt"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/models"
)

// Problem is the reason why a node cannot run a function.
type Problem struct {
	Function int    // index in the configuration
	Key      string // the function's configuration key to correct
	Err      error
}

// Check finds the problems that keep a manager from running the functions of a configuration. It
// opens no port. It reports models that are not found and models that contradict the function's
// keys. The manager applies the same check when it adds a function.
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
	if err := c.Under(cfg); err != nil {
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
	if _, err := readKeys(c.Key); err != nil {
		return nil, &Problem{Key: "key", Err: err}
	}
	if problem := fits(cfg, &c, card); problem != nil {
		return nil, problem
	}
	return card, nil
}

// fits finds what keeps a function from running a model.
func fits(cfg *configs.Config, c *configs.Function, card *models.Card) *Problem {
	if err := checkMember(cfg, c.Worker, card); err != nil {
		return &Problem{Key: "worker", Err: err}
	}
	if err := checkCamera(c, &card.Input); err != nil {
		return &Problem{Key: "format", Err: err}
	}
	switch {
	case len(card.State) > 0 && c.Instances > 1:
		return &Problem{Key: "instances", Err: fmt.Errorf("is %d, and model %s has state, which only one process can keep; want 1", c.Instances, card.Name)}
	case len(card.State) > 0 && c.Format != "":
		return &Problem{Key: "format", Err: fmt.Errorf("is %s, and model %s has state: a camera cannot prove its address, so others could change its state", c.Format, card.Name)}
	}
	if err := checkPictures(c.Pictures, card); err != nil {
		return &Problem{Key: "pictures", Err: err}
	}
	if err := checkMaxPicture(c, card); err != nil {
		return &Problem{Key: "max_picture", Err: err}
	}
	return nil
}
