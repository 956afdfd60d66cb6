// The parts of the library, from the bottom:
//
//	turns.c    the gate that calls pass in turn, and the connection to the lock server
//	memory.c   the guest's device memory, which can leave the device and come back
//	hooks.c    which function a program gets when it asks for one of the driver's
//
// Locks, in this order: growing (memory.c), memory (memory.c), gate (turns.c). A thread
// may wait at the gate with no lock but growing.

#ifndef PENSTOCK_SWAP_H
#define PENSTOCK_SWAP_H

#include "driver.h"

// swap_load opens libcuda.so.1 and fills driver, once. It returns 0 if there is no
// usable library.
int swap_load(void);

// swap_say prints one line to standard error.
void swap_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

// --- turns.c

// turns_begin connects to the lock server with the current context's device, once per
// process, and notes the context. It returns 0, or the code that the hook returns.
CUresult turns_begin(CUcontext context);
int turns_begun(void);
void turns_forget(CUcontext context);

// gate_enter waits for the guest's turn, gate_leave ends the call. A thread's calls nest.
void gate_enter(void);
void gate_leave(void);

// turns_ended says that the process ends while its memory is on the host. Its addresses have no
// memory, so no call may use them.
int turns_ended(void);

// capture_begun and capture_ended count open captures of streams: a turn does not end
// during one, because synchronizing would invalidate it.
void capture_begun(void);
void capture_ended(void);
int capture_open(void);

// turns_synchronize waits for all work that the process has queued.
void turns_synchronize(void);

// turns_need asks the server for device memory: bytes is what the guest then has in all.
// 0 means refused. turns_have reports less memory, or that memory was made; turns_short
// reports that the device is full.
int turns_need(size_t bytes);
void turns_have(size_t bytes, size_t made);
void turns_short(void);
int turns_nothing_to_evict(void);

// turns_unknown reports the name of a function that the library does not know.
void turns_unknown(const char *name);

// turns_device is the guest's device, turns_capacity the bytes that guests may have.
CUdevice turns_device(void);
size_t turns_capacity(void);

// turns_ending says that the process ends: then the library's thread stops what it does.
int turns_ending(void);

// --- memory.c

// memory_out copies the guest's memory to the host and releases it. It returns 0, or -1
// if it moved nothing. memory_in brings the memory back to the same addresses; while the
// device is full it waits; it returns -1 if the process ends meanwhile. Both run on the
// library's thread with a closed gate. copied_us is the time without the preparation of
// host memory.
int memory_out(CUcontext context, uint64_t *copied_us);
int memory_in(CUcontext context, uint64_t *copied_us);

// memory_prepare makes host memory for a copy of everything, ahead of memory_out.
void memory_prepare(CUcontext context);

// memory_forget forgets everything: in a forked child the parent's memory is not there.
void memory_forget(void);

uint64_t now_us(void);

#endif
