package check

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/penstock/penstock/cmd/penstock/apart"
	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/frameworks"
	"github.com/penstock/penstock/libml/python"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/orchestrator/sandbox"
)

// load loads a model, after it has checked that the sandbox's user may read it.
func (n *node) load(ctx context.Context, card *models.Card) error {
	if n.confined != nil {
		if err := sandbox.CheckReadable(n.confined.User, card.Files()); err != nil {
			return err
		}
	}
	for i := range card.Sums {
		if err := card.CheckSum(i); err != nil {
			return err
		}
	}
	return loads(ctx, card)
}

// loads opens a model as its framework does, in a separate process.
func loads(ctx context.Context, card *models.Card) error {
	if len(card.Command) > 0 {
		return findProgram(card)
	}
	if card.SeparateProgram() != "" {
		command, err := Program(card.SeparateProgram())
		if err != nil {
			return err
		}
		if _, err := exec.LookPath(command[0]); err != nil {
			return fmt.Errorf("find program of framework %s: %w", card.Framework, err)
		}
		if _, err := python.PyTorch(ctx); err != nil {
			return fmt.Errorf("framework %s: %w", card.Framework, err)
		}
		return nil
	}
	_, err := apart.Run(ctx, LoadVerb, card.File)
	return err
}

// findProgram reports whether the program of a card can be executed.
func findProgram(card *models.Card) error {
	path := card.Command[0]
	if strings.Contains(path, "/") && !filepath.IsAbs(path) {
		path = filepath.Join(card.Dir, path)
	}
	if _, err := exec.LookPath(path); err != nil {
		return fmt.Errorf("find program of model %s: %w", card.Name, err)
	}
	return nil
}

// LoadVerb is the verb of the process that a check loads a model in. Its main calls LoadModel.
const LoadVerb = "load-model"

// LoadModel loads the model of a card, given its file, as its framework does.
func LoadModel(file string) error {
	card, err := models.ReadCard(file)
	if err != nil {
		return err
	}
	loaded, err := frameworks.New(card)
	if err != nil {
		return err
	}
	if err := loaded.Init(framework.Environment{Card: card, Threads: 1, Log: slog.New(slog.DiscardHandler), Device: configs.DeviceCPU}); err != nil {
		return fmt.Errorf("start framework of model %s: %w", card.Name, err)
	}
	if err := loaded.LoadModel(); err != nil && !errors.Is(err, framework.ErrNoHostStage) {
		return fmt.Errorf("load model %s: %w", card.Name, err)
	}
	return nil
}

// Program returns the command of a framework that runs as a separate program.
func Program(framework string) ([]string, error) {
	if framework == models.PyTorch {
		return python.Command("penstock_model.pytorch")
	}
	return nil, fmt.Errorf("framework %s has no program that runs it", framework)
}
