package render

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/goccy/go-yaml"

	"github.com/penstock/penstock/plan"
)

// YAML writes the JSON form of a plan, its names in the same order, as YAML.
func YAML(w io.Writer, p *plan.Plan) error {
	text, err := json.Marshal(p)
	if err == nil {
		text, err = yaml.JSONToYAML(text)
	}
	if err == nil {
		_, err = w.Write(text)
	}
	if err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	return nil
}
