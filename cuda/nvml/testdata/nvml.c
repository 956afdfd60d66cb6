// A management library for machines without a GPU: two devices, the first with an
// MPS server and one client on it, the second with a MIG instance. It answers as nvml.h says, lacks what a driver
// of 2017 lacks when built with -DOLD, and refuses what the environment variable
// FAKE_NVML_REFUSE names, with the status in FAKE_NVML_STATUS.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int status; // nvmlReturn_t
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7 };

struct device { const char *uuid, *name; };
static struct device devices[3] = {
	{"GPU-11111111-0000-0000-0000-000000000000", "Fake One"},
	{"GPU-22222222-0000-0000-0000-000000000000", "Fake Two"},
	{"MIG-33333333-0000-0000-0000-000000000000", "Fake Two"}, // an instance
};
typedef struct device *handle;

struct memory { unsigned long long total, free, used; };
struct memory2 { unsigned version; unsigned long long total, reserved, free, used; };
struct utilization { unsigned gpu, memory; };
struct process { unsigned pid; unsigned long long bytes; unsigned gi, ci; };

static int refused(const char *name, status *s) {
	const char *which = getenv("FAKE_NVML_REFUSE"), *what = getenv("FAKE_NVML_STATUS");
	*s = what ? atoi(what) : 999;
	return which && !strcmp(which, name);
}
#define ANSWER do { status s; if (refused(__func__, &s)) return s; } while (0)

static status copy(char *to, unsigned n, const char *from) {
	if (strlen(from) >= n) return TOO_SMALL;
	strcpy(to, from);
	return OK;
}

const char *nvmlErrorString(status s) { return s == 999 ? "Unknown Error" : "Some Error"; }
status nvmlInit_v2(void) { ANSWER; return OK; }
status nvmlInit(void) { ANSWER; return OK; }
status nvmlSystemGetDriverVersion(char *v, unsigned n) { ANSWER; return copy(v, n, "580.95.05"); }
status nvmlDeviceGetCount_v2(unsigned *n) { ANSWER; *n = 2; return OK; }
status nvmlDeviceGetHandleByIndex_v2(unsigned i, handle *d) {
	ANSWER;
	if (i > 1) return INVALID;
	*d = &devices[i];
	return OK;
}
status nvmlDeviceGetHandleByUUID(const char *uuid, handle *d) {
	ANSWER;
	for (int i = 0; i < 3; i++)
		if (!strcmp(uuid, devices[i].uuid)) { *d = &devices[i]; return OK; }
	return strncmp(uuid, "GPU-", 4) ? INVALID : NOT_FOUND;
}
status nvmlDeviceGetUUID(handle d, char *v, unsigned n) { ANSWER; return copy(v, n, d->uuid); }
status nvmlDeviceGetName(handle d, char *v, unsigned n) { ANSWER; return copy(v, n, d->name); }
status nvmlDeviceGetComputeMode(handle d, int *mode) { ANSWER; *mode = d == devices ? 0 : 3; return OK; }
status nvmlDeviceGetMemoryInfo(handle d, struct memory *m) {
	ANSWER;
	m->total = 1000, m->used = 400, m->free = 600; // counts the driver's part as used
	return OK;
}
status nvmlDeviceGetUtilizationRates(handle d, struct utilization *u) {
	ANSWER;
	if (d != devices) return NOT_SUPPORTED;
	u->gpu = 70, u->memory = 30;
	return OK;
}
status nvmlDeviceGetClockInfo(handle d, int kind, unsigned *mhz) { ANSWER; *mhz = kind == 1 ? 1980 : 1; return OK; }

static status list(const struct process *from, unsigned have, unsigned *n, struct process *to) {
	if (*n < have) { *n = have; return TOO_SMALL; }
	*n = have;
	memcpy(to, from, have * sizeof *from);
	return OK;
}

#ifdef OLD
struct process1 { unsigned pid; unsigned long long bytes; };
status nvmlDeviceGetComputeRunningProcesses(handle d, unsigned *n, struct process1 *p) {
	ANSWER;
	if (*n < 1) { *n = 1; return TOO_SMALL; }
	*n = 1;
	p[0].pid = 500, p[0].bytes = 30;
	return OK;
}
#else
static const struct process all[] = {{700, ~0ull, ~0u, ~0u}, {500, 30, ~0u, ~0u}}, clients[] = {{700, 100, ~0u, ~0u}};
status nvmlSystemGetCudaDriverVersion(int *v) { ANSWER; *v = 13000; return OK; }
status nvmlSystemGetCudaDriverVersion_v2(int *v) { ANSWER; *v = 13000; return OK; }
struct attributes { unsigned sms, engines[5], slices, computes; unsigned long long mib; };
status nvmlDeviceGetMaxMigDeviceCount(handle d, unsigned *n) { ANSWER; *n = 7; return OK; }
status nvmlDeviceGetMigDeviceHandleByIndex(handle d, unsigned i, handle *out) {
	ANSWER;
	*out = &devices[2];
	return i == 2 ? OK : NOT_FOUND;
}
status nvmlDeviceGetAttributes_v2(handle d, struct attributes *a) {
	ANSWER;
	a->sms = 60, a->slices = 3, a->mib = 71000;
	return OK;
}
status nvmlDeviceGetMigMode(handle d, unsigned *now, unsigned *next) { ANSWER; *now = *next = d != devices; return OK; }
status nvmlDeviceGetMemoryInfo_v2(handle d, struct memory2 *m) {
	ANSWER;
	if (m->version != (sizeof *m | 2u << 24)) return 25;
	m->total = 1000, m->used = 300, m->reserved = 100, m->free = 600;
	return OK;
}
status nvmlDeviceGetComputeRunningProcesses_v3(handle d, unsigned *n, struct process *p) {
	ANSWER;
	if (d == &devices[2]) return NOT_SUPPORTED;
	return d == devices ? list(all, 2, n, p) : list(all, 0, n, p);
}
status nvmlDeviceGetMPSComputeRunningProcesses_v3(handle d, unsigned *n, struct process *p) {
	ANSWER;
	return d == devices ? list(clients, 1, n, p) : list(clients, 0, n, p);
}
status nvmlDeviceGetComputeRunningProcesses(handle d, unsigned *n, void *p) { return NOT_SUPPORTED; }
status nvmlDeviceGetMPSComputeRunningProcesses(handle d, unsigned *n, void *p) { return NOT_SUPPORTED; }
#endif
