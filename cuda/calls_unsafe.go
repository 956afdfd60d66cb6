//go:build cgo

package cuda

// This file has all calls into C: one function per driver call, which returns the
// driver's code last. calls_nocgo.go has the same functions for a build without cgo.

/*
#cgo LDFLAGS: -ldl
#cgo noescape pcu_launch
#cgo nocallback pcu_launch
#cgo nocallback pcu_stream_copy
#cgo nocallback pcu_stream_set
#cgo nocallback pcu_stream_write
#cgo nocallback pcu_stream_query
#cgo nocallback pcu_stream_wait
#cgo nocallback pcu_event_record
#cgo nocallback pcu_event_query
#cgo nocallback pcu_graph_launch
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import "unsafe"

// Results of load.
const (
	loadedLibrary = C.PCU_LOADED
	noLibrary     = C.PCU_NO_LIBRARY
	noSymbol      = C.PCU_NO_SYMBOL
)

func load(path string) (found int, text string) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var message [1024]byte
	found = int(C.pcu_load(name, (*C.char)(unsafe.Pointer(&message[0])), C.size_t(len(message))))
	return found, untilZero(message[:])
}

func untilZero(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

func first(w C.pcu_word) (uint64, int32) { return uint64(w.value), int32(w.code) }

func initialise() int32 { return int32(C.pcu_init()) }

func driverVersion() (uint64, int32) { return first(C.pcu_driver_version()) }

// describe returns the name and the meaning of a code; empty: the driver has none, or is not loaded.
func describe(code int32) (name, meaning string) {
	names := C.pcu_error(C.int32_t(code))
	return C.GoString(names.name), C.GoString(names.meaning)
}

func deviceCount() (uint64, int32) { return first(C.pcu_device_count()) }

func deviceHandle(ordinal int) (int32, int32) {
	w := C.pcu_device(C.int(ordinal))
	return int32(w.value), int32(w.code)
}

func deviceUUID(device int32) (uuid [16]byte, code int32) {
	code = int32(C.pcu_device_uuid(C.int(device), (*C.uchar)(unsafe.Pointer(&uuid[0]))))
	return uuid, code
}

func deviceName(device int32) (string, int32) {
	var name [256]byte
	code := C.pcu_device_name(C.int(device), (*C.char)(unsafe.Pointer(&name[0])), C.int(len(name)))
	return untilZero(name[:]), int32(code)
}

func deviceMemory(device int32) (uint64, int32) { return first(C.pcu_device_memory(C.int(device))) }

func deviceAttribute(device, attribute int32) (int64, int32) {
	w := C.pcu_device_attribute(C.int(device), C.int(attribute))
	return int64(w.value), int32(w.code)
}

func primaryFlags(device int32, flags uint32) int32 {
	return int32(C.pcu_primary_flags(C.int(device), C.uint(flags)))
}

func primaryRetain(device int32) (uint64, int32) { return first(C.pcu_primary_retain(C.int(device))) }

func primaryRelease(device int32) int32 { return int32(C.pcu_primary_release(C.int(device))) }

func contextBind(context uint64) int32 { return int32(C.pcu_context_bind(C.uint64_t(context))) }

func contextBound() (uint64, int32) { return first(C.pcu_context_bound()) }

func contextAffinity() (uint64, int32) { return first(C.pcu_context_affinity()) }

func memoryInfo() (free, total uint64, code int32) {
	p := C.pcu_memory_info()
	return uint64(p.first), uint64(p.second), int32(p.code)
}

func memoryAllocate(bytes uint64) (uint64, int32) { return first(C.pcu_allocate(C.uint64_t(bytes))) }

func memoryFree(address uint64) int32 { return int32(C.pcu_free(C.uint64_t(address))) }

func memoryAllocateHost(bytes uint64, flags uint32) (uint64, int32) {
	return first(C.pcu_allocate_host(C.uint64_t(bytes), C.uint(flags)))
}

func memoryFreeHost(address uint64) int32 { return int32(C.pcu_free_host(C.uint64_t(address))) }

func memoryRegister(address, bytes uint64, flags uint32) int32 {
	return int32(C.pcu_register(C.uint64_t(address), C.uint64_t(bytes), C.uint(flags)))
}

func memoryHostPointer(address uint64) (uint64, int32) {
	return first(C.pcu_host_pointer(C.uint64_t(address)))
}

func memoryUnregister(address uint64) int32 { return int32(C.pcu_unregister(C.uint64_t(address))) }

func ipcExport(address uint64, h *Handle) int32 {
	return int32(C.pcu_ipc_export(C.uint64_t(address), (*C.uchar)(unsafe.Pointer(&h[0]))))
}

func ipcImport(h *Handle) (uint64, int32) {
	return first(C.pcu_ipc_import((*C.uchar)(unsafe.Pointer(&h[0]))))
}

func ipcClose(address uint64) int32 { return int32(C.pcu_ipc_close(C.uint64_t(address))) }

func memoryGranularity(device int32) (uint64, int32) { return first(C.pcu_granularity(C.int(device))) }

func memoryReserve(bytes uint64) (uint64, int32) { return first(C.pcu_reserve(C.uint64_t(bytes))) }

func memoryUnreserve(address, bytes uint64) int32 {
	return int32(C.pcu_unreserve(C.uint64_t(address), C.uint64_t(bytes)))
}

func memoryCreate(device int32, bytes uint64) (uint64, int32) {
	return first(C.pcu_create(C.int(device), C.uint64_t(bytes)))
}

func memoryRelease(memory uint64) int32 { return int32(C.pcu_release(C.uint64_t(memory))) }

func memoryMap(address, bytes, memory uint64) int32 {
	return int32(C.pcu_map(C.uint64_t(address), C.uint64_t(bytes), C.uint64_t(memory)))
}

func memoryUnmap(address, bytes uint64) int32 {
	return int32(C.pcu_unmap(C.uint64_t(address), C.uint64_t(bytes)))
}

func memorySetAccess(address, bytes uint64, device int32, write bool) int32 {
	may := C.int(0)
	if write {
		may = 1
	}
	return int32(C.pcu_set_access(C.uint64_t(address), C.uint64_t(bytes), C.int(device), may))
}

func memoryExportFD(memory uint64) (uint64, int32) { return first(C.pcu_export_fd(C.uint64_t(memory))) }

func memoryImportFD(fd int) (uint64, int32) { return first(C.pcu_import_fd(C.int(fd))) }

func streamCreate() (uint64, int32) { return first(C.pcu_stream_create()) }

func streamCreatePriority(priority int) (uint64, int32) {
	return first(C.pcu_stream_create_priority(C.int(priority)))
}

func streamPriorities() (lowest, highest int, code int32) {
	var low, high C.int
	code = int32(C.pcu_stream_priorities(&low, &high))
	return int(low), int(high), code
}

func streamDestroy(stream uint64) int32 { return int32(C.pcu_stream_destroy(C.uint64_t(stream))) }

func streamSynchronize(stream uint64) int32 {
	return int32(C.pcu_stream_synchronize(C.uint64_t(stream)))
}

func streamQuery(stream uint64) int32 { return int32(C.pcu_stream_query(C.uint64_t(stream))) }

func streamWait(stream, event uint64) int32 {
	return int32(C.pcu_stream_wait(C.uint64_t(stream), C.uint64_t(event)))
}

func streamCopy(stream, dst, src, bytes uint64) int32 {
	return int32(C.pcu_stream_copy(C.uint64_t(stream), C.uint64_t(dst), C.uint64_t(src), C.uint64_t(bytes)))
}

func streamSet(stream, dst uint64, value byte, bytes uint64) int32 {
	return int32(C.pcu_stream_set(C.uint64_t(stream), C.uint64_t(dst), C.uchar(value), C.uint64_t(bytes)))
}

func streamWrite(stream, dst uint64, value uint32) int32 {
	return int32(C.pcu_stream_write(C.uint64_t(stream), C.uint64_t(dst), C.uint32_t(value)))
}

func streamContext(stream uint64) (uint64, int32) {
	return first(C.pcu_stream_context(C.uint64_t(stream)))
}

func eventCreate(flags uint32) (uint64, int32) { return first(C.pcu_event_create(C.uint(flags))) }

func eventDestroy(event uint64) int32 { return int32(C.pcu_event_destroy(C.uint64_t(event))) }

func eventRecord(event, stream uint64) int32 {
	return int32(C.pcu_event_record(C.uint64_t(event), C.uint64_t(stream)))
}

func eventQuery(event uint64) int32 { return int32(C.pcu_event_query(C.uint64_t(event))) }

func eventSynchronize(event uint64) int32 { return int32(C.pcu_event_synchronize(C.uint64_t(event))) }

func eventElapsed(from, to uint64) (milliseconds float32, code int32) {
	t := C.pcu_event_elapsed(C.uint64_t(from), C.uint64_t(to))
	return float32(t.milliseconds), int32(t.code)
}

// moduleLoad takes an image that ends with a zero byte.
func moduleLoad(image []byte) (module uint64, log string, code int32) {
	var buffer [logBytes]byte
	w := C.pcu_module_load((*C.char)(unsafe.Pointer(&image[0])),
		(*C.char)(unsafe.Pointer(&buffer[0])), C.size_t(len(buffer)))
	return uint64(w.value), untilZero(buffer[:]), int32(w.code)
}

func moduleUnload(module uint64) int32 { return int32(C.pcu_module_unload(C.uint64_t(module))) }

func moduleFunction(module uint64, name string) (uint64, int32) {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	return first(C.pcu_module_function(C.uint64_t(module), text))
}

func functionParameter(function uint64, index int) (offset, bytes uint64, code int32) {
	p := C.pcu_function_parameter(C.uint64_t(function), C.size_t(index))
	return uint64(p.first), uint64(p.second), int32(p.code)
}

func launch(function uint64, grid, block [3]uint32, sharedBytes uint32, stream uint64, args *Args) int32 {
	var values unsafe.Pointer
	var offsets *C.uint32_t
	var count C.uint32_t
	if args != nil && len(args.offsets) > 0 {
		values = unsafe.Pointer(&args.values[0])
		offsets = (*C.uint32_t)(unsafe.Pointer(&args.offsets[0]))
		count = C.uint32_t(len(args.offsets))
	}
	return int32(C.pcu_launch(C.uint64_t(function),
		C.uint32_t(grid[0]), C.uint32_t(grid[1]), C.uint32_t(grid[2]),
		C.uint32_t(block[0]), C.uint32_t(block[1]), C.uint32_t(block[2]),
		C.uint32_t(sharedBytes), C.uint64_t(stream), values, offsets, count))
}

// Modes of a capture.
const (
	captureThreadLocal = C.PCU_CAPTURE_THREAD_LOCAL
	captureRelaxed     = C.PCU_CAPTURE_RELAXED
)

func captureBegin(stream uint64, mode int) int32 {
	return int32(C.pcu_capture_begin(C.uint64_t(stream), C.int(mode)))
}

func captureEnd(stream uint64) (uint64, int32) { return first(C.pcu_capture_end(C.uint64_t(stream))) }

func graphInstantiate(graph uint64) (uint64, int32) {
	return first(C.pcu_graph_instantiate(C.uint64_t(graph)))
}

func graphDestroy(graph uint64) int32 { return int32(C.pcu_graph_destroy(C.uint64_t(graph))) }

func graphLaunch(executable, stream uint64) int32 {
	return int32(C.pcu_graph_launch(C.uint64_t(executable), C.uint64_t(stream)))
}

func graphUpload(executable, stream uint64) int32 {
	return int32(C.pcu_graph_upload(C.uint64_t(executable), C.uint64_t(stream)))
}

func graphExecDestroy(executable uint64) int32 {
	return int32(C.pcu_graph_exec_destroy(C.uint64_t(executable)))
}

func graphClone(graph uint64) (uint64, int32) { return first(C.pcu_graph_clone(C.uint64_t(graph))) }

// graphNodes fills nodes and returns how many it filled. If nodes is empty it returns
// how many there are.
func graphNodes(graph uint64, nodes []uint64) (uint64, int32) {
	return first(C.pcu_graph_nodes(C.uint64_t(graph), (*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(nodes))), C.uint64_t(len(nodes))))
}

func graphNodeType(node uint64) (uint64, int32) {
	return first(C.pcu_graph_node_type(C.uint64_t(node)))
}

// cNode converts a kernelNode, which has the layout of the C struct.
func cNode(k *kernelNode) *C.pcu_kernel_node { return (*C.pcu_kernel_node)(unsafe.Pointer(k)) }

func kernelNodeGet(node uint64) (k kernelNode, code int32) {
	code = int32(C.pcu_kernel_node_get(C.uint64_t(node), cNode(&k)))
	return k, code
}

func kernelNodeSet(node uint64, k kernelNode) int32 {
	return int32(C.pcu_kernel_node_set(C.uint64_t(node), cNode(&k)))
}

func copyNodeGet(node uint64) (k copyNode, code int32) {
	var c C.pcu_copy_node
	code = int32(C.pcu_copy_node_get(C.uint64_t(node), &c))
	return copyNode{
		source: uint64(c.source), destination: uint64(c.destination), bytes: uint64(c.bytes),
		fromHost: c.source_kind == C.PCU_HOST, toHost: c.destination_kind == C.PCU_HOST,
		plain: c.whole != 0 && (c.source_kind == C.PCU_HOST || c.source_kind == C.PCU_DEVICE) &&
			(c.destination_kind == C.PCU_HOST || c.destination_kind == C.PCU_DEVICE),
	}, code
}

func copyNodeSource(node, source uint64) int32 {
	return int32(C.pcu_copy_node_source(C.uint64_t(node), C.uint64_t(source)))
}

func setNodeGet(node uint64) (address, bytes uint64, code int32) {
	s := C.pcu_set_node_get(C.uint64_t(node))
	return uint64(s.address), uint64(s.bytes), int32(s.code)
}

// symbol returns the address of the driver's function, 0 if there is none.
func symbol(name string) uint64 {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	return uint64(C.pcu_symbol(text))
}

// cResource converts a resource, which has the layout of the C struct.
func cResource(r *resource) *C.pcu_resource { return (*C.pcu_resource)(unsafe.Pointer(r)) }

func resourceSMs(r resource) (sms, smallest int) {
	s := C.pcu_resource_sms(cResource(&r))
	return int(s.sms), int(s.smallest)
}

func deviceResource(device int32) (r resource, code int32) {
	code = int32(C.pcu_device_resource(C.int(device), cResource(&r)))
	return r, code
}

func greenResource(green uint64) (r resource, code int32) {
	code = int32(C.pcu_green_resource(C.uint64_t(green), cResource(&r)))
	return r, code
}

// resourceSplit fills groups. If groups is empty it returns how many there would be.
func resourceSplit(whole resource, smallest int, groups []resource) (count int, rest resource, code int32) {
	w := C.pcu_resource_split(cResource(&whole), C.uint(smallest),
		(*C.pcu_resource)(unsafe.Pointer(unsafe.SliceData(groups))), C.uint32_t(len(groups)), cResource(&rest))
	return int(w.value), rest, int32(w.code)
}

// greenCreate takes at least one group. symbol is the driver's function that returned
// the code.
func greenCreate(device int32, groups []resource) (green uint64, symbol string, code int32) {
	var step C.int32_t
	w := C.pcu_green_create(C.int(device), cResource(&groups[0]), C.uint32_t(len(groups)), &step)
	symbol = "cuDevResourceGenerateDesc"
	if step == 1 {
		symbol = "cuGreenCtxCreate"
	}
	return uint64(w.value), symbol, int32(w.code)
}

func greenDestroy(green uint64) int32 { return int32(C.pcu_green_destroy(C.uint64_t(green))) }

func greenContext(green uint64) (uint64, int32) {
	return first(C.pcu_green_context(C.uint64_t(green)))
}

func greenStream(green uint64, priority int) (uint64, int32) {
	return first(C.pcu_green_stream(C.uint64_t(green), C.int(priority)))
}
