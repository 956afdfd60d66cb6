//go:build cgo

package onnx

import (
	"fmt"
	"math"
	"sync"

	"github.com/penstock/penstock/cuda"
	"github.com/penstock/penstock/models"
	"github.com/penstock/penstock/models/onnxfile"
)

// function is a function of ONNX Runtime's C API: its index in struct OrtApi. Its parameters are integers and
// pointers, one word each.
type function int

// apiVersion is the version of onnxruntime_c_api.h with these indices. Later libraries keep them.
const apiVersion = 24

const (
	getErrorMessage                  function = 2
	createEnv                        function = 3
	createSessionFromArray           function = 8
	run                              function = 9
	createSessionOptions             function = 10
	setOptimizedModelFilePath        function = 11
	setSessionExecutionMode          function = 13
	disableMemPattern                function = 17
	setSessionGraphOptimizationLevel function = 23
	setIntraOpNumThreads             function = 24
	setInterOpNumThreads             function = 25
	createRunOptions                 function = 39
	createTensorWithDataAsOrtValue   function = 49
	getTensorMutableData             function = 51
	getDimensionsCount               function = 61
	getDimensions                    function = 62
	getTensorTypeAndShape            function = 65
	createMemoryInfo                 function = 68
	createCpuMemoryInfo              function = 69
	releaseStatus                    function = 93
	releaseSession                   function = 95
	releaseValue                     function = 96
	releaseTensorTypeAndShapeInfo    function = 99
	releaseSessionOptions            function = 100
	addSessionConfigEntry            function = 130
	createAllocator                  function = 131
	releaseAllocator                 function = 132
	runWithBinding                   function = 133
	createIoBinding                  function = 134
	releaseIoBinding                 function = 135
	bindInput                        function = 136
	bindOutput                       function = 137
	createAndRegisterAllocator       function = 144
	addInitializer                   function = 150
	createArenaCfg                   function = 156
	releaseArenaCfg                  function = 157
	addRunConfigEntry                function = 165
	registerAllocator                function = 176

	sessionOptionsAppendExecutionProvider_CUDA_V2 function = 204

	createCUDAProviderOptions          function = 205
	updateCUDAProviderOptions          function = 206
	releaseCUDAProviderOptions         function = 208
	updateCUDAProviderOptionsWithValue function = 263 // the last
)

// Constants of onnxruntime_c_api.h.
const (
	loggingFatal    = 4              // ORT_LOGGING_LEVEL_FATAL
	sequential      = 0              // ORT_SEQUENTIAL
	noOptimisation  = 0              // ORT_DISABLE_ALL
	deviceAllocator = 0              // OrtDeviceAllocator
	arenaAllocator  = 1              // OrtArenaAllocator
	memoryDefault   = 0              // OrtMemTypeDefault
	memoryHost      = math.MaxUint64 // OrtMemTypeCPUOutput, -1
)

// in calls a function that returns a status, and returns its result, if it has one. Meanwhile ONNX Runtime allocates
// memory in the pool at that address.
func (f function) in(pool cuda.Pointer, arguments ...uint64) (uint64, error) {
	status, out := call(api[f], pool, arguments)
	if status == 0 {
		return out, nil
	}
	message, _ := call(api[getErrorMessage], 0, []uint64{status})
	err := &ortError{text: textAt(message)}
	releaseStatus.free(status)
	return 0, err
}

// free calls a function that releases a handle, if there is one.
func (f function) free(handle uint64) {
	if handle != 0 {
		call(api[f], 0, []uint64{handle})
	}
}

// calls are calls of functions until one fails.
type calls struct {
	arguments // that are no words
	err       error
}

// in calls a function as function.in does, if no call has failed.
func (c *calls) in(pool cuda.Pointer, f function, arguments ...uint64) (result uint64) {
	if c.err == nil {
		result, c.err = f.in(pool, arguments...)
	}
	return result
}

// do calls a function that allocates no memory of the GPU.
func (c *calls) do(f function, arguments ...uint64) uint64 { return c.in(0, f, arguments...) }

// setProvider sets all options of the CUDA provider. Options that are not named get their defaults.
func (c *calls) setProvider(provider uint64, options [][2]string) {
	var keys, values []uint64
	for _, o := range options {
		keys, values = append(keys, c.text(o[0])), append(values, c.text(o[1]))
	}
	c.do(updateCUDAProviderOptions, provider, array(&c.arguments, keys), array(&c.arguments, values), uint64(len(options)))
}

// tensor makes a tensor at an address, in this kind of memory.
func (c *calls) tensor(memory uint64, at cuda.Pointer, bytes int64, shape []int64, element int) uint64 {
	return c.do(createTensorWithDataAsOrtValue, memory, uint64(at), uint64(bytes), array(&c.arguments, shape), uint64(len(shape)), uint64(element))
}

// place is tensor for a place.
func (c *calls) place(memory uint64, p place) uint64 {
	return c.tensor(memory, p.at, int64(p.bytes), p.shape, onnxfile.TypeNumber(string(p.dtype)))
}

// elements returns the shape and the elements of a tensor on the host. They are valid until the tensor is released.
func (c *calls) elements(tensor uint64, dtype models.DType) (shape []int64, data []byte) {
	information := c.do(getTensorTypeAndShape, tensor)
	defer releaseTensorTypeAndShapeInfo.free(information)
	shape = make([]int64, c.do(getDimensionsCount, information))
	c.do(getDimensions, information, array(&c.arguments, shape), uint64(len(shape)))
	bytes := dtype.Bytes()
	for _, length := range shape {
		bytes *= int(length)
	}
	at := c.do(getTensorMutableData, tensor)
	if c.err != nil || bytes == 0 {
		return shape, nil
	}
	return shape, bytesAt(&at, bytes)
}

// library is ONNX Runtime. A process opens it once, and keeps it until it ends: the library cannot be unloaded while its threads
// end.
var library struct {
	mu          sync.Mutex
	path        string // once it is open
	version     string
	noMemory    uint64 // a function
	environment uint64
	onCPU       uint64 // kinds of memory
	onGPU       uint64
	pinned      uint64
	queued      uint64 // options of a run that does not wait
	provider    bool   // the CUDA provider is loaded
}

// open opens ONNX Runtime, unless it is open.
func open() error {
	library.mu.Lock()
	defer library.mu.Unlock()
	if library.path != "" {
		return nil
	}
	path, err := Library()
	if err != nil {
		return err
	}
	if err := openAPI(path); err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}

	var c calls
	defer c.release()
	// Every problem is also returned as an error. Do not log it twice.
	library.environment = c.do(createEnv, loggingFatal, c.text("penstock"))
	library.onCPU = c.do(createCpuMemoryInfo, arenaAllocator, memoryDefault)
	// Sessions on the CPU take the memory of their batches from one arena. The members of a worker take turns, so it
	// holds the largest batches that run at once, not those of all members.
	const usual = math.MaxUint64 // -1
	arena := c.do(createArenaCfg, 0, usual, usual, usual)
	defer releaseArenaCfg.free(arena)
	c.do(createAndRegisterAllocator, library.environment, library.onCPU, arena)
	if c.err != nil {
		return fmt.Errorf("open %s: %w", path, c.err)
	}
	library.path = path
	return nil
}

// loadProvider loads the CUDA provider of the open ONNX Runtime, and the libraries that it
// needs, unless they are loaded. It calls nothing of CUDA. The members of a worker call it at the same time.
func loadProvider() error {
	library.mu.Lock()
	defer library.mu.Unlock()
	if library.provider {
		return nil
	}
	if err := preloadAll(library.path, preload); err != nil {
		return err
	}
	var c calls
	defer c.release()
	provider := c.do(createCUDAProviderOptions)
	defer releaseCUDAProviderOptions.free(provider)
	c.setProvider(provider, [][2]string{{"prefer_nhwc", "1"}}) // reading an option loads the library
	if c.err != nil {
		return fmt.Errorf("%w: load the CUDA provider of %s: %w", errNoProvider, library.path, c.err)
	}
	library.provider = true
	return nil
}

// startPools makes ONNX Runtime's sessions on a GPU take their memory from pools.
func startPools() error {
	library.mu.Lock()
	defer library.mu.Unlock()
	if api == nil || library.queued != 0 {
		return nil
	}

	var c calls
	defer c.release()
	library.onGPU = c.do(createMemoryInfo, c.text("Cuda"), deviceAllocator, 0, memoryDefault)
	library.pinned = c.do(createMemoryInfo, c.text("CudaPinned"), deviceAllocator, 0, memoryHost)
	c.do(registerAllocator, library.environment, allocator(library.onGPU, library.noMemory))
	options := c.do(createRunOptions)
	c.do(addRunConfigEntry, options, c.text("disable_synchronize_execution_providers"), c.text("1"))
	if c.err == nil {
		library.queued = options
	}
	return c.err
}
