package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/control"
	"github.com/penstock/penstock/models"
)

// maxLoad is the max time to wait for a function that is loaded or unloaded.
const maxLoad = 50 * time.Second // Triton's clients wait for a minute

func (s *server) load(w http.ResponseWriter, r *http.Request) error {
	return s.loadModel(r.Context(), r.PathValue("name"), func() (map[string]any, error) {
		var body struct {
			Parameters map[string]any `json:"parameters"`
		}
		err := s.readJSON(w, r, &body)
		return body.Parameters, err
	})
}

// loadModel adds a function, or replaces its model by a newer one. The parameter model names the card.
func (s *server) loadModel(ctx context.Context, name string, read func() (map[string]any, error)) error {
	if err := s.permitLoad(ctx, name); err != nil {
		return err
	}
	parameters, err := read()
	if err != nil {
		return err
	}
	order := control.LoadOrder{Name: name}
	for key, value := range parameters {
		text, ok := value.(string)
		if key != "model" || !ok || !models.NamePattern.MatchString(text) {
			return badRequest(fmt.Errorf("failed to load '%s': parameter %.40s is unknown or no name; want only `model`, a card's name; the card says how a model runs", name, key))
		}
		order.Model = text
	}
	return s.order(ctx, "load", name, control.LoadPath, order)
}

// unload removes a function.
func (s *server) unload(ctx context.Context, name, _ string) (any, error) {
	if err := s.permitLoad(ctx, name); err != nil {
		return nil, err
	}
	if _, err := s.named(ctx, configs.OperationChange, name, ""); err != nil { // the node would name all functions
		return nil, fmt.Errorf("failed to unload '%s': %w", name, err)
	}
	return nil, s.order(ctx, "unload", name, control.RemovePath, control.NameOrder{Name: name})
}

// permitLoad returns an error if a request must not load and unload a function.
func (s *server) permitLoad(ctx context.Context, name string) error {
	if !s.mayLoad {
		return &httpError{http.StatusForbidden, errors.New("gateway does not load or unload functions; `gateway: {load: true}` in the configuration permits it")}
	}
	return permit(ctx, configs.OperationChange, name)
}

// order sends an order to the node. Triton's clients look for the first words of its errors.
func (s *server) order(ctx context.Context, verb, name, path string, order any) error {
	wait, cancel := context.WithTimeout(ctx, maxLoad)
	defer cancel()
	defer context.AfterFunc(s.rpc.ending, cancel)()
	err := s.functions.Order(wait, path, order)
	switch {
	case err == nil:
		return nil
	case wait.Err() != nil:
		return &httpError{http.StatusGatewayTimeout, fmt.Errorf("failed to %s '%s': no result within %v; the node continues, and /v2/repository/index shows when it is done", verb, name, maxLoad)}
	}
	return badRequest(fmt.Errorf("failed to %s '%s': %w", verb, name, err))
}
