// Package must ends a test at a step that it needs and that fails.
package must

// Test is the part of testing.TB that this package needs. Programs for tests can have their own.
type Test interface {
	Helper()
	Fatal(a ...any)
}

// OK ends the test if err is not nil.
func OK(t Test, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Get returns the value of a call that must not fail: must.Get(os.Open(name))(t).
func Get[V any](v V, err error) func(Test) V {
	return func(t Test) V {
		t.Helper()
		OK(t, err)
		return v
	}
}
