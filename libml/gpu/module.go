package gpu

import (
	"sync"

	"github.com/penstock/penstock/cuda"
)

// module is kernels in a device's primary context: a gather kernel and the fetch kernel, or another one. The devices of a
// process share it: to load it takes 7 ms, and 80 ms if the driver has to compile it.
type module struct {
	*cuda.Module
	key   moduleKey
	users int
}

type moduleKey struct{ device, kernel string }

// modules are the loaded modules of this process.
var modules = struct {
	mu  sync.Mutex
	all map[moduleKey]*module
}{all: map[moduleKey]*module{}}

// loadModule loads the module with these kernels, unless it is loaded. The first one names it. The calling thread must
// be bound to the context.
func loadModule(context *cuda.Context, names ...string) (*module, error) {
	modules.mu.Lock()
	defer modules.mu.Unlock()
	key := moduleKey{context.Device().UUID(), names[0]}
	m := modules.all[key]
	if m == nil {
		text, err := kernels(names...)
		if err != nil {
			return nil, err
		}
		loaded, err := context.Load(text)
		if err != nil {
			return nil, err
		}
		m = &module{Module: loaded, key: key}
		modules.all[key] = m
	}
	m.users++
	return m, nil
}

// release ends one use of the module. The last one unloads it.
func (m *module) release() error {
	modules.mu.Lock()
	defer modules.mu.Unlock()
	if m.users--; m.users > 0 {
		return nil
	}
	delete(modules.all, m.key)
	return m.Unload()
}
