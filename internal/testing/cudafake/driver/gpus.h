// The GPUs of the fake machine, which driver.c and nvml.c show.

#ifndef PENSTOCK_GPUS_H
#define PENSTOCK_GPUS_H

#include "fake.h"

#define MAX_GPUS 8
#define INSTANCES 2 // of the GPU that is divided; their numbers follow those of the GPUs
#define UUID_BYTES 41 // "GPU-", 32 digits in five groups, and a zero byte

// The condition of a GPU. A test changes it in the file of the setting gpus, for all
// processes. The Go package writes it.
struct condition {
	int32_t fault;   // work on it, and opening it, fail with this code; a process stays lost
	int32_t gone;    // it fell off the bus: no process finds it any more, and NVML calls it lost
	int64_t open_ns; // opening it takes that long
};

int fake_gpus(void);
int fake_cut(void); // the GPU that is divided, or -1
int fake_gpu_sms(int gpu);
int64_t fake_gpu_memory(int gpu);
const struct condition *fake_condition(int gpu);
void fake_gpu_uuid(int gpu, char text[UUID_BYTES]);
void fake_gpu_name(int gpu, char *name, size_t bytes);

#endif
