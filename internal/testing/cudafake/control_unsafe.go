//go:build cgo

package cudafake

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

// The record of a launch in driver.c.
struct fake_record {
	char name[64];
	uint32_t grid[3], block[3], shared_bytes, sms;
	uint64_t stream;
	int32_t priority;
	uint32_t count, argument_bytes;
	uint32_t sizes[64];
	unsigned char arguments[512];
};

static int (*set)(const char *);
static void (*reset)(void);
static void (*read_accounts)(int64_t *);
static uint64_t (*read_records)(struct fake_record *, uint64_t);

static int fake_open(const char *path) {
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (library == NULL)
		return 0;
	*(void **)&set = dlsym(library, "fake_set");
	*(void **)&reset = dlsym(library, "fake_reset");
	*(void **)&read_accounts = dlsym(library, "fake_accounts");
	*(void **)&read_records = dlsym(library, "fake_records");
	return set != NULL && reset != NULL && read_accounts != NULL && read_records != NULL;
}

static int call_set(const char *word) { return set(word); }
static void call_reset(void) { reset(); }
static void call_accounts(int64_t *out) { read_accounts(out); }
static uint64_t call_records(struct fake_record *out, uint64_t room) { return read_records(out, room); }
*/
import "C"

import (
	"fmt"
	"os"
	"sync"
	"unsafe"
)

const canControl = true

// open finds the library that package cuda loads in this process.
var open = sync.OnceValue(func() error {
	path := C.CString(os.Getenv(libraryEnv))
	defer C.free(unsafe.Pointer(path))
	if C.fake_open(path) == 0 {
		return fmt.Errorf("%s=%q is no fake driver: see cudafake.Main", libraryEnv, os.Getenv(libraryEnv))
	}
	return nil
})

func set(s Setting) error {
	if err := open(); err != nil {
		return err
	}
	word := C.CString(string(s))
	defer C.free(unsafe.Pointer(word))
	if C.call_set(word) != 0 {
		return fmt.Errorf("the fake driver knows no setting %q", s)
	}
	return nil
}

func reset() {
	if open() == nil {
		C.call_reset()
	}
}

func now() Accounts {
	var a Accounts
	if open() == nil {
		C.call_accounts((*C.int64_t)(unsafe.Pointer(&a)))
	}
	return a
}

func launches() []Launch {
	if open() != nil {
		return nil
	}
	records := make([]C.struct_fake_record, 1024)
	records = records[:C.call_records(&records[0], C.uint64_t(len(records)))]
	list := make([]Launch, len(records))
	for i := range records {
		r := &records[i]
		l := Launch{Name: C.GoString(&r.name[0]), SharedBytes: uint32(r.shared_bytes), SMs: uint32(r.sms), Stream: uintptr(r.stream), Priority: int(r.priority)}
		for k := range 3 {
			l.Grid[k], l.Block[k] = uint32(r.grid[k]), uint32(r.block[k])
		}
		rest := C.GoBytes(unsafe.Pointer(&r.arguments[0]), C.int(r.argument_bytes))
		for k := range r.count {
			size := int(r.sizes[k])
			if size > len(rest) {
				break
			}
			l.Arguments = append(l.Arguments, rest[:size:size])
			rest = rest[size:]
		}
		list[i] = l
	}
	return list
}
