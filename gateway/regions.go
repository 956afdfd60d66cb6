package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/gateway/openinference"
)

const (
	maxRegions    = 64
	maxRegionName = 64 // bytes
	regionDir     = "/dev/shm/"
)

// regions are parts of shared memory that clients of this machine have registered. They are read and written by system
// calls: a mapping would kill the gateway if a client made its file shorter. The gateway may open files that a client may not, so the
// configuration permits them, and then keys that infer with all functions.
type regions struct {
	permitted bool
	mu        sync.Mutex
	list      []*region
}

// region is a region of the protocol.
type region struct {
	Name   string `json:"name"`
	Key    string `json:"key"` // of shm_open
	Offset uint64 `json:"offset"`
	Size   uint64 `json:"byte_size"`
	file   *os.File
}

func (rs *regions) permit(ctx context.Context) error {
	if !rs.permitted {
		return &httpError{http.StatusForbidden, errors.New("gateway uses no shared memory; `gateway: {shared_memory: true}` in the configuration permits it")}
	}
	return permit(ctx, configs.OperationInfer, configs.AllFunctions)
}

// register opens a region's file.
func (rs *regions) register(ctx context.Context, r region) error {
	if err := rs.permit(ctx); err != nil {
		return err
	}
	file := strings.TrimPrefix(r.Key, "/")
	if r.Name == "" || len(r.Name) > maxRegionName || strings.Contains(file, "/") {
		return badRequest(fmt.Errorf("register region: key is %.*q, want a file in %s, and a name of at most %d bytes", maxRegionName, r.Key, regionDir, maxRegionName))
	}
	var err error
	if r.file, err = os.OpenFile(regionDir+file, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err == nil {
		err = rs.add(&r)
	}
	if err != nil {
		r.file.Close() // nil is fine
		return badRequest(fmt.Errorf("register region %s: %w", r.Name, err))
	}
	return nil
}

func (rs *regions) add(r *region) error {
	info, err := r.file.Stat()
	if err != nil {
		return err
	}
	if end := uint64(info.Size()); !info.Mode().IsRegular() || r.Size == 0 || r.Size > end || r.Offset > end-r.Size {
		return fmt.Errorf("%s has %d bytes, want a file with %d bytes from offset %d on", r.file.Name(), end, r.Size, r.Offset)
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if len(rs.list) == maxRegions || slices.ContainsFunc(rs.list, func(other *region) bool { return other.Name == r.Name }) {
		return fmt.Errorf("there are %d regions, want a new name and at most %d; unregister others first", len(rs.list), maxRegions)
	}
	rs.list = append(rs.list, r)
	return nil
}

// find returns a region, if it is there; all if the name is empty.
func (rs *regions) find(ctx context.Context, name string) ([]*region, error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	others := func(r *region) bool { return name != "" && r.Name != name }
	return slices.DeleteFunc(append([]*region{}, rs.list...), others), rs.permit(ctx)
}

func (rs *regions) status(ctx context.Context, name, _ string) (any, error) {
	return rs.find(ctx, name)
}

// unregister removes a region; all if the name is empty. A request that reads it meanwhile fails.
func (rs *regions) unregister(ctx context.Context, name, _ string) (any, error) {
	if err := rs.permit(ctx); err != nil {
		return nil, err
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.list = slices.DeleteFunc(rs.list, func(r *region) bool {
		if name != "" && r.Name != name {
			return false
		}
		r.file.Close() // nothing is buffered
		return true
	})
	return nil, nil
}

// tensors are the regions for the tensors of a request. Inputs count as its body does.
func (rs *regions) tensors(ctx context.Context, body *buffer) openinference.Regions {
	return func(name string, offset, size uint64, write []byte) (read []byte, err error) {
		found, err := rs.find(ctx, name)
		switch {
		case err != nil:
		case len(found) != 1:
			err = errors.New("want one that is registered")
		case size > found[0].Size || offset > found[0].Size-size:
			err = fmt.Errorf("it has %d bytes, want %d from offset %d on", found[0].Size, size, offset)
		case write != nil:
			_, err = found[0].file.WriteAt(write, int64(found[0].Offset+offset))
		default:
			if err = body.reserve(ctx, int(min(size, maxBodies+1))); err == nil { // of more it says that it is too large
				read = make([]byte, size)
				_, err = found[0].file.ReadAt(read, int64(found[0].Offset+offset))
			}
		}
		if err != nil {
			err = badRequest(fmt.Errorf("use region %.*q, whose file must keep its length: %w", maxRegionName, name, err))
		}
		return read, err
	}
}

func (s *server) registerRegion(w http.ResponseWriter, r *http.Request) error {
	var q region
	if err := s.readJSON(w, r, &q); err != nil {
		return err
	}
	q.Name = r.PathValue("name")
	return s.regions.register(r.Context(), q)
}
