package configs

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/testing/keydoc"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/document"
)

// TestGeneratedFiles holds schema, reference.yaml and key table to the tagged structs.
func TestGeneratedFiles(t *testing.T) {
	config, comments := reflect.TypeFor[Config](), keydoc.ReadComments(t, ".")
	keydoc.Golden(t, "penstock.schema.json", keydoc.Schema(config, comments, "Penstock configuration",
		"Configuration of a Penstock node. `penstock check` finds more: keys that do not go together, files that are missing.", nil, nil))
	keydoc.Golden(t, "reference.yaml", keydoc.Reference(config, comments,
		"Every key of a Penstock configuration, at its default. Only functions must be given. "+
			"penstock.schema.json tells editors the same; `UPDATE=1 go test ./configs` writes both."))
	const page = "../docs/configuration.md"
	keydoc.Golden(t, page, keydoc.Section(t, page, "keys", keydoc.Table(config, comments)))
}

func TestConstantsMatchTags(t *testing.T) {
	for key, row := range map[string]struct {
		of   document.Key
		tag  string
		want any
	}{
		"functions": {document.KeyOf[Config]("functions"), "maxItems", MaxFunctions},
		"instances": {document.KeyOf[Function]("instances"), "max", MaxInstances},
		"receivers": {document.KeyOf[Config]("receivers"), "max", MaxReceivers},
		"name":      {document.KeyOf[Function]("name"), "pattern", models.NamePattern},
		"slots":     {document.KeyOf[Aggregate]("slots"), "oneof", MaxSlots},
	} {
		if got := row.of.Tag.Get(row.tag); !strings.HasSuffix(got, fmt.Sprint(row.want)) {
			t.Errorf("%s: %s is %s, want %v", key, row.tag, got, row.want)
		}
	}
}
