package weights

import (
	"errors"
	"log/slog"
	"slices"
	"sync"

	"github.com/penstock/penstock/cuda"
)

// HostMemory limits how many bytes of files the Residents of a process keep pinned together. Pages that are
// not pinned stay in the page cache while the kernel has room for them.
//
// A load pins its file. If that exceeds the limit, other files are unpinned: first those whose bytes are
// on the GPU, because they need no load before their eviction, the oldest load first. A file for which that
// makes no room is read at each load, and one that the driver refuses to pin, too.
//
// Any goroutine may call the methods, on a thread that is bound to the Residents' context.
type HostMemory struct {
	limit int64 // 0: none
	log   *slog.Logger

	mu     sync.Mutex  // guards the fields from host on of the Residents as well
	pinned []*Resident // the one that was loaded last comes last
	bytes  int64       // of the pinned files
	warned bool        // a file could not be pinned
}

// NewHostMemory returns a limit in bytes; 0 is none. The log gets a line for the first file that cannot be
// pinned: the reason is mostly that of all others, too.
func NewHostMemory(limit int64, log *slog.Logger) *HostMemory {
	return &HostMemory{limit: limit, log: log}
}

// pin pins the file of a Resident, and keeps it pinned until done. It returns the mapped file, or nil
// if the file is not pinned. If unpin is set, it unpins other files to stay within the limit.
func (h *HostMemory) pin(r *Resident, unpin bool) ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.host == nil && !r.unpinnable {
		fits, err := h.freeLocked(r.id.Bytes, unpin)
		if err != nil || !fits {
			return nil, err
		}
		switch err := r.pin(); {
		case errors.Is(err, cuda.ErrLost):
			return nil, err
		case err != nil:
			r.unpinnable = true
			if !h.warned {
				h.warned = true
				h.log.Warn("cannot pin weights in host memory; loads read their files, which is slower", "error", err, "file", r.file.Name())
			}
		default:
			h.bytes += r.id.Bytes
		}
	}
	if r.host == nil {
		return nil, nil
	}
	h.pinned = append(slices.DeleteFunc(h.pinned, func(o *Resident) bool { return o == r }), r)
	r.copying = true
	return r.host, nil
}

// done ends a copy. Then the bytes are on the GPU or not.
func (h *HostMemory) done(r *Resident, onGPU bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.copying, r.onGPU = false, onGPU
}

// freeLocked reports whether there is room for more bytes. With unpin it makes room.
func (h *HostMemory) freeLocked(bytes int64, unpin bool) (bool, error) {
	if h.limit == 0 || h.bytes+bytes <= h.limit {
		return true, nil
	}
	if !unpin {
		return false, nil
	}
	var victims []*Resident
	left := h.bytes
	for _, onGPU := range []bool{true, false} {
		for _, r := range h.pinned {
			if r.onGPU == onGPU && !r.copying && left+bytes > h.limit {
				victims = append(victims, r)
				left -= r.id.Bytes
			}
		}
	}
	if left+bytes > h.limit {
		return false, nil
	}
	var errs []error
	for _, r := range victims {
		errs = append(errs, h.unpinLocked(r))
	}
	return true, errors.Join(errs...)
}

// unpin releases a Resident's pages, if they are pinned.
func (h *HostMemory) unpin(r *Resident) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unpinLocked(r)
}

func (h *HostMemory) unpinLocked(r *Resident) error {
	if r.host == nil {
		return nil
	}
	h.pinned = slices.DeleteFunc(h.pinned, func(o *Resident) bool { return o == r })
	h.bytes -= r.id.Bytes
	return r.release()
}
