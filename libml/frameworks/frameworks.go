// Package frameworks makes the frameworks that cards name.
package frameworks

import (
	"fmt"
	"strings"

	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/null"
	"github.com/penstock/penstock/libml/onnx"
	"github.com/penstock/penstock/models"
)

// New makes the framework that a card names. It returns an error for a framework that is
// a separate program.
func New(card *models.Card) (framework.Framework, error) {
	switch card.Framework {
	case "onnx":
		return onnx.New(), nil
	case "null":
		return null.New(), nil
	}
	if apart := card.SeparateProgram(); apart != "" {
		return nil, fmt.Errorf("framework %q is a separate program, which this one cannot run", apart)
	}
	return nil, fmt.Errorf("framework %q is not built in; known are: %s", card.Framework, strings.Join(models.Frameworks, ", "))
}
