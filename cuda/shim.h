// The functions that Go calls: one C function per driver call. They use a table of
// function pointers that pcu_load fills from libcuda.so.1. Handles and addresses are
// 64-bit words. Results are returned by value, so that a call costs Go no allocation.
// Prototypes, struct layouts and constants are those of CUDA 13.0's cuda.h.

#ifndef PENSTOCK_CUDA_SHIM_H
#define PENSTOCK_CUDA_SHIM_H

#include <stddef.h>
#include <stdint.h>

// PCU_MISSING is a code of this shim and not of the driver: the library has no
// such symbol.
enum { PCU_MISSING = -1 };

typedef struct { int32_t code; uint64_t value; } pcu_word;
typedef struct { int32_t code; uint64_t first, second; } pcu_pair;

// Results of pcu_load.
enum { PCU_LOADED, PCU_NO_LIBRARY, PCU_NO_SYMBOL };

// pcu_load opens the library and fills the table, once per process. If it succeeds,
// text is the library's path. If the library cannot be loaded, text is the loader's
// message. If a symbol that is always needed is missing, text is the first such symbol.
int pcu_load(const char *path, char *text, size_t text_bytes);

// pcu_symbol returns the address of a function of the loaded library, 0 if the library
// has no such function.
uint64_t pcu_symbol(const char *name);

int32_t pcu_init(void);
pcu_word pcu_driver_version(void);

// pcu_error describes a code of the driver. The strings are the driver's; NULL: it knows none.
typedef struct { const char *name, *meaning; } pcu_names;
pcu_names pcu_error(int32_t code);

// Devices.
pcu_word pcu_device_count(void);
pcu_word pcu_device(int ordinal);
int32_t pcu_device_name(int device, char *name, int name_bytes);
int32_t pcu_device_uuid(int device, unsigned char *uuid /* 16 bytes */);
pcu_word pcu_device_memory(int device);
pcu_word pcu_device_attribute(int device, int attribute);

// The primary context.
int32_t pcu_primary_flags(int device, unsigned flags);
pcu_word pcu_primary_retain(int device);
int32_t pcu_primary_release(int device);
int32_t pcu_context_bind(uint64_t context);
pcu_word pcu_context_bound(void);
pcu_word pcu_context_affinity(void);
pcu_pair pcu_memory_info(void);

// Memory.
pcu_word pcu_allocate(uint64_t bytes);
int32_t pcu_free(uint64_t address);
pcu_word pcu_allocate_host(uint64_t bytes, unsigned flags);
int32_t pcu_free_host(uint64_t address);
int32_t pcu_register(uint64_t address, uint64_t bytes, unsigned flags);
pcu_word pcu_host_pointer(uint64_t address);
int32_t pcu_unregister(uint64_t address);
int32_t pcu_ipc_export(uint64_t address, unsigned char *handle /* 64 bytes */);
pcu_word pcu_ipc_import(const unsigned char *handle /* 64 bytes */);
int32_t pcu_ipc_close(uint64_t address);

// Virtual addresses and physical memory, separately. Memory belongs to one device, and
// can be exported as a file descriptor.
pcu_word pcu_granularity(int device);
pcu_word pcu_reserve(uint64_t bytes);
int32_t pcu_unreserve(uint64_t address, uint64_t bytes);
pcu_word pcu_create(int device, uint64_t bytes);
int32_t pcu_release(uint64_t memory);
int32_t pcu_map(uint64_t address, uint64_t bytes, uint64_t memory);
int32_t pcu_unmap(uint64_t address, uint64_t bytes);
int32_t pcu_set_access(uint64_t address, uint64_t bytes, int device, int write);
pcu_word pcu_export_fd(uint64_t memory);
pcu_word pcu_import_fd(int fd);

// Streams and events.
pcu_word pcu_stream_create(void);
pcu_word pcu_stream_create_priority(int priority);
int32_t pcu_stream_priorities(int *lowest, int *highest);
int32_t pcu_stream_destroy(uint64_t stream);
int32_t pcu_stream_synchronize(uint64_t stream);
int32_t pcu_stream_query(uint64_t stream);
int32_t pcu_stream_wait(uint64_t stream, uint64_t event);
int32_t pcu_stream_copy(uint64_t stream, uint64_t dst, uint64_t src, uint64_t bytes);
int32_t pcu_stream_set(uint64_t stream, uint64_t dst, unsigned char value, uint64_t bytes);
int32_t pcu_stream_write(uint64_t stream, uint64_t dst, uint32_t value);
pcu_word pcu_stream_context(uint64_t stream);
pcu_word pcu_event_create(unsigned flags);
int32_t pcu_event_destroy(uint64_t event);
int32_t pcu_event_record(uint64_t event, uint64_t stream);
int32_t pcu_event_query(uint64_t event);
int32_t pcu_event_synchronize(uint64_t event);
typedef struct { int32_t code; float milliseconds; } pcu_time;
pcu_time pcu_event_elapsed(uint64_t from, uint64_t to);

// Modules and kernels. image ends with a zero byte. log receives the compiler's log,
// which also ends with a zero byte.
pcu_word pcu_module_load(const char *image, char *log, size_t log_bytes);
int32_t pcu_module_unload(uint64_t module);
pcu_word pcu_module_function(uint64_t module, const char *name);
pcu_pair pcu_function_parameter(uint64_t function, size_t index);  // offset, bytes

// pcu_launch reads parameter i at values + offsets[i]; count <= PCU_MAX_PARAMETERS.
enum { PCU_MAX_PARAMETERS = 64 };
int32_t pcu_launch(uint64_t function,
	uint32_t grid_x, uint32_t grid_y, uint32_t grid_z,
	uint32_t block_x, uint32_t block_y, uint32_t block_z,
	uint32_t shared_bytes, uint64_t stream,
	void *values, const uint32_t *offsets, uint32_t count);

// Graphs. mode is a CUstreamCaptureMode.
enum { PCU_CAPTURE_THREAD_LOCAL = 1, PCU_CAPTURE_RELAXED = 2 };
int32_t pcu_capture_begin(uint64_t stream, int mode);
pcu_word pcu_capture_end(uint64_t stream);
pcu_word pcu_graph_instantiate(uint64_t graph);
int32_t pcu_graph_destroy(uint64_t graph);
int32_t pcu_graph_launch(uint64_t executable, uint64_t stream);
int32_t pcu_graph_upload(uint64_t executable, uint64_t stream);
int32_t pcu_graph_exec_destroy(uint64_t executable);
pcu_word pcu_graph_clone(uint64_t graph);
pcu_word pcu_graph_nodes(uint64_t graph, uint64_t *nodes, uint64_t room);  // returns how many there are
pcu_word pcu_graph_node_type(uint64_t node);

// pcu_kernel_node is CUDA_KERNEL_NODE_PARAMS_v2. parameters and extra belong to the
// node that they were read from.
typedef struct {
	uint64_t function;
	uint32_t grid[3], block[3], shared_bytes;
	uint64_t parameters, extra, kernel, context;
} pcu_kernel_node;
int32_t pcu_kernel_node_get(uint64_t node, pcu_kernel_node *out);
int32_t pcu_kernel_node_set(uint64_t node, const pcu_kernel_node *in);

// pcu_copy_node is the relevant part of a CUDA_MEMCPY3D whose two sides are addresses.
// The kinds are PCU_HOST and PCU_DEVICE; Penstock does not handle others. whole says that
// the copy is one contiguous run of bytes.
enum { PCU_HOST = 1, PCU_DEVICE = 2 };
typedef struct {
	uint64_t source, destination, bytes;
	int32_t source_kind, destination_kind, whole;
} pcu_copy_node;
int32_t pcu_copy_node_get(uint64_t node, pcu_copy_node *out);
// pcu_copy_node_source changes the source of a node's copy from host memory.
int32_t pcu_copy_node_source(uint64_t node, uint64_t source);
typedef struct { int32_t code; uint64_t address, bytes; } pcu_set_node;
pcu_set_node pcu_set_node_get(uint64_t node);

// Multiprocessors. A pcu_resource is a CUdevResource, opaque and copied unchanged.
typedef struct { uint64_t words[18]; } pcu_resource;
typedef struct { int32_t code; uint32_t sms, smallest, alignment; } pcu_sms;
pcu_sms pcu_resource_sms(const pcu_resource *resource);
int32_t pcu_device_resource(int device, pcu_resource *out);
int32_t pcu_green_resource(uint64_t green, pcu_resource *out);
// If groups is null, the result is how many there would be.
pcu_word pcu_resource_split(const pcu_resource *whole, unsigned smallest,
	pcu_resource *groups, uint32_t room, pcu_resource *rest);
pcu_word pcu_green_create(int device, const pcu_resource *groups, uint32_t count, int32_t *step);
int32_t pcu_green_destroy(uint64_t green);
pcu_word pcu_green_context(uint64_t green);
pcu_word pcu_green_stream(uint64_t green, int priority);

#endif
