#ifndef PENSTOCK_CAPITEST_H
#define PENSTOCK_CAPITEST_H

#include "penstock.h"

enum { CAPITEST_CALLBACKS = 6, CAPITEST_OUTPUTS = 4, CAPITEST_TEXT = 8192 };

// capitest_state is the self of the callbacks: the arguments that they received, and
// what they must do, in the order of the table's fields.
typedef struct capitest_state {
	uint64_t calls[CAPITEST_CALLBACKS];
	int32_t code[CAPITEST_CALLBACKS];
	char reason[CAPITEST_CALLBACKS][CAPITEST_TEXT];
	int64_t bytes[CAPITEST_CALLBACKS]; // persistent_bytes, ephemeral_bytes

	const penstock_environment *environment;
	int32_t slot, n; // of the last configure_batch
	unsigned char *input;
	float *outputs[CAPITEST_OUTPUTS];
	uint64_t graph; // that configure_batch hands over, 0: none
} capitest_state;

penstock_framework *capitest_table(void);

// capitest_run and the others call the library as a program does.
int capitest_run(const penstock_framework *table, void *self);
const char *capitest_last_error(void);
void *capitest_stream(int32_t slot);
int capitest_weights(const char *file, void **address, uint64_t *bytes);
int capitest_graph(int32_t slot, int32_t n, uint64_t graph);

uint64_t capitest_heap(void);

#endif
