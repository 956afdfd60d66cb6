// Package must ends a test at a step that it needs and that fails.
package must

// T is the part of testing.TB that OK needs, so that programs for tests can have their own.
type T interface {
	Helper()
	Fatal(a ...any)
}

// OK ends the test if err is not nil.
func OK(t T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
