#ifndef PENSTOCK_CAPI_SHIM_H
#define PENSTOCK_CAPI_SHIM_H

#include "penstock.h"

// A pcapi_handle is a table of callbacks that libml calls, with their arguments. It is all
// in C's memory, because C must not keep pointers to Go's.
typedef struct pcapi_handle {
	penstock_framework table;
	void *self;
	penstock_environment environment;
} pcapi_handle;

// The callbacks. Each call first removes the reason of this thread.
int pcapi_init(pcapi_handle *h);
int pcapi_load(pcapi_handle *h);
int pcapi_link(pcapi_handle *h, int64_t *bytes);
int pcapi_configure(pcapi_handle *h, int32_t slot, int32_t n, uint64_t input, const uint64_t *outputs, int64_t *bytes);
int pcapi_infer(pcapi_handle *h, int32_t slot, int32_t n);
int pcapi_deinit(pcapi_handle *h);

// pcapi_reason returns the text that penstock_error left on this thread since the callback
// began; "" if none.
const char *pcapi_reason(void);

#endif
