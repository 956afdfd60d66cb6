package render

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/goccy/go-yaml"
)

// YAML writes the JSON form of a plan, or of one with additions (plan.Extra), as
// YAML. Keys keep their order.
func YAML(w io.Writer, whole any) error {
	text, err := json.Marshal(whole)
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
