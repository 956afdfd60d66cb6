// NVIDIA's management library without a GPU: the functions that package cuda/nvml calls, over
// the GPUs of driver.c. No process is listed, and no memory is in use. For a MIG instance it
// refuses to list processes, as a driver may.

#define _GNU_SOURCE
#include "gpus.h"

#include <stdio.h>
#include <string.h>

typedef int nvmlReturn_t;
typedef struct handle *nvmlDevice_t;
struct handle { int gpu; };

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };

static struct handle handles[MAX_GPUS + INSTANCES] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}};

#define LOST_OR(d) \
	do { \
		if (fake_condition((d)->gpu)->gone) \
			return GPU_IS_LOST; \
	} while (0)

static nvmlReturn_t copy(char *to, unsigned room, const char *from) {
	if (strlen(from) >= room)
		return INSUFFICIENT_SIZE;
	strcpy(to, from);
	return SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t r) { return r == GPU_IS_LOST ? "GPU is lost" : "refused"; }

nvmlReturn_t nvmlInit_v2(void) { return SUCCESS; }

nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned room) { return copy(out, room, "CUDA 13000"); }

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *out) {
	*out = 13000;
	return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *out) {
	*out = fake_gpus();
	return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned i, nvmlDevice_t *out) {
	if (i >= (unsigned)fake_gpus())
		return INVALID_ARGUMENT;
	*out = &handles[i];
	LOST_OR(*out);
	return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out) {
	for (int gpu = 0; gpu < MAX_GPUS + INSTANCES; gpu++) {
		char text[UUID_BYTES];
		if (gpu < MAX_GPUS ? gpu >= fake_gpus() : fake_cut() < 0)
			continue;
		fake_gpu_uuid(gpu, text);
		if (strcmp(text, uuid) == 0) {
			*out = &handles[gpu];
			LOST_OR(*out);
			return SUCCESS;
		}
	}
	return NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *out, unsigned room) {
	char text[UUID_BYTES];
	LOST_OR(d);
	fake_gpu_uuid(d->gpu, text);
	return copy(out, room, text);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *out, unsigned room) {
	LOST_OR(d);
	fake_gpu_name(d->gpu, out, room);
	return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t d, int *out) {
	LOST_OR(d);
	*out = 0;
	return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned *now, unsigned *next) {
	LOST_OR(d);
	*now = *next = d->gpu == fake_cut();
	return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned *out) {
	LOST_OR(d);
	*out = 7;
	return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned i, nvmlDevice_t *out) {
	LOST_OR(d);
	if (d->gpu != fake_cut() || i >= INSTANCES)
		return NOT_FOUND;
	*out = &handles[MAX_GPUS + i];
	return SUCCESS;
}

struct attributes { unsigned sms, engines[5], slices, compute_slices; unsigned long long mib; };

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t d, struct attributes *out) {
	LOST_OR(d);
	memset(out, 0, sizeof *out);
	out->sms = fake_gpu_sms(d->gpu);
	out->slices = out->compute_slices = 3;
	out->mib = fake_gpu_memory(d->gpu) >> 20;
	return SUCCESS;
}

struct memory { unsigned version; unsigned long long total, reserved, unused, used; };

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, struct memory *out) {
	LOST_OR(d);
	out->total = out->unused = fake_gpu_memory(d->gpu);
	out->reserved = out->used = 0;
	return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, void *out) {
	(void)out;
	LOST_OR(d);
	return NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *count, void *out) {
	(void)out;
	LOST_OR(d);
	*count = 0;
	return d->gpu < MAX_GPUS ? SUCCESS : NOT_SUPPORTED;
}

// go-nvml wants the first version, too, and calls the newest.
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t d, unsigned *count, void *out) {
	return nvmlDeviceGetComputeRunningProcesses_v3(d, count, out);
}
