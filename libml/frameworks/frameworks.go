// Package frameworks makes the frameworks that cards name.
package frameworks

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/penstock/penstock/libml/framework"
	"github.com/penstock/penstock/libml/onnx"
	"github.com/penstock/penstock/models"
)

// BuiltIn makes the frameworks of this program, by their names in cards. The program itself
// may add others when it starts.
var BuiltIn = map[string]func() framework.Framework{
	"onnx": func() framework.Framework { return onnx.New() },
}

// New makes the framework that a card names. It returns an error for a framework that is
// a separate program.
func New(card *models.Card) (framework.Framework, error) {
	if build := BuiltIn[card.Framework]; build != nil {
		return build(), nil
	}
	if apart := card.SeparateProgram(); apart != "" {
		return nil, fmt.Errorf("framework %q is a separate program, which this one cannot run", apart)
	}
	return nil, fmt.Errorf("framework %q is not built in; known are: %s", card.Framework, strings.Join(slices.Sorted(maps.Keys(BuiltIn)), ", "))
}
