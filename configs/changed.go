package configs

import (
	"reflect"
	"slices"
	"strings"

	"github.com/penstock/penstock/models/document"
)

// ChangedKeys names the keys in which two values of a type of this package differ, in the
// order of the fields: "slo", "shares.interval". It ignores fields that are no keys.
func ChangedKeys[T Config | Function](a, b T) []string {
	return changedKeys("", reflect.ValueOf(a), reflect.ValueOf(b))
}

// Live reports whether a key of a function may change while the function runs.
func Live(key string) bool {
	return slices.ContainsFunc(document.Keys(reflect.TypeFor[Function]()), func(k document.Key) bool {
		return k.Name == key && k.Tag.Get("live") == "true"
	})
}

func changedKeys(prefix string, a, b reflect.Value) (keys []string) {
	for i := range a.NumField() {
		key, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("yaml"), ",")
		x, y := a.Field(i), b.Field(i)
		switch {
		case key == "" || reflect.DeepEqual(x.Interface(), y.Interface()):
		case hasKeys(x.Type()):
			keys = append(keys, changedKeys(prefix+key+".", x, y)...)
		case x.Kind() == reflect.Pointer && !x.IsNil() && !y.IsNil() && hasKeys(x.Type().Elem()):
			keys = append(keys, changedKeys(prefix+key+".", x.Elem(), y.Elem())...)
		default:
			keys = append(keys, prefix+key)
		}
	}
	return keys
}

// hasKeys reports whether values of a type are maps of keys in the file.
func hasKeys(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t.NumField() > 0 && t.Field(0).Tag.Get("yaml") != ""
}
