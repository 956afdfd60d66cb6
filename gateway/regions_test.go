package gateway

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	rpcstatus "google.golang.org/grpc/status"

	"github.com/penstock/penstock/gateway/openinference/inference"
	"github.com/penstock/penstock/internal/testing/clienttest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/wire"
)

// sharedFile makes a file of shared memory. The key is its name for shm_open.
func sharedFile(t *testing.T, content []byte) (f *os.File, key string) {
	t.Helper()
	f, err := os.CreateTemp(regionDir, "penstock-test-")
	must.OK(t, err)
	t.Cleanup(func() { f.Close(); os.Remove(f.Name()) })
	_, err = f.Write(content)
	must.OK(t, err)
	return f, "/" + filepath.Base(f.Name())
}

// ask sends JSON to a server's path.
func ask(t *testing.T, s *server, method, path string, body any) (status int, answer string) {
	t.Helper()
	text, err := json.Marshal(body)
	must.OK(t, err)
	w := httptest.NewRecorder()
	ownAccess(t).guard(s.routes()).ServeHTTP(w, httptest.NewRequest(method, "http://localhost"+path, bytes.NewReader(text)))
	return w.Code, strings.TrimSpace(w.Body.String())
}

// TestRegions registers regions over HTTP and gRPC, by one set.
func TestRegions(t *testing.T) {
	client, s := dial(t, oneBox, ownAccess(t))
	s.regions.permitted = true
	file, key := sharedFile(t, make([]byte, 100))
	link, pipe := file.Name()+".link", file.Name()+".pipe"
	must.OK(t, os.Symlink(file.Name(), link))
	must.OK(t, unix.Mkfifo(pipe, 0o600))
	t.Cleanup(func() { os.Remove(link); os.Remove(pipe) })

	for _, c := range []struct {
		name         string
		region       region
		status, code int
		err          string
	}{
		{"all", region{Name: "r", Key: key, Size: 100}, 200, 0, ""},
		{"end", region{Name: "r", Key: key[1:], Offset: 90, Size: 10}, 200, 0, ""},
		{"beyond the end", region{Name: "r", Key: key, Offset: 91, Size: 10}, 400, 0, "has 100 bytes, want a file with 10 bytes from offset 91 on"},
		{"too large", region{Name: "r", Key: key, Size: 101}, 400, 0, "has 100 bytes"},
		{"overflow", region{Name: "r", Key: key, Offset: math.MaxUint64, Size: 2}, 400, 0, "has 100 bytes"},
		{"empty", region{Name: "r", Key: key}, 400, 0, "has 100 bytes"},
		{"no file", region{Name: "r", Key: key + "x", Size: 1}, 400, 0, "no such file"},
		{"no key", region{Name: "r", Size: 1}, 400, 0, "is a directory"},
		{"folder", region{Name: "r", Key: "..", Size: 1}, 400, 0, "is a directory"},
		{"other folder", region{Name: "r", Key: "../../etc/passwd", Size: 1}, 400, 0, "want a file in /dev/shm/"},
		{"link", region{Name: "r", Key: filepath.Base(link), Size: 1}, 400, 0, "too many levels of symbolic links"},
		{"pipe", region{Name: "r", Key: filepath.Base(pipe), Size: 1}, 400, 0, "want a file with 1 bytes"},
		{"long name", region{Name: strings.Repeat("r", maxRegionName+1), Key: key, Size: 1}, 400, 0, "a name of at most 64 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, text := ask(t, s, "POST", "/v2/systemsharedmemory/region/"+c.region.Name+"/register", c.region)
			if status != c.status || !strings.Contains(text, c.err) {
				t.Errorf("HTTP: %d %s, want %d %s", status, text, c.status, c.err)
			}
			list, err := client.SystemSharedMemoryStatus(t.Context(), &inference.SystemSharedMemoryStatusRequest{})
			must.OK(t, err)
			if r := list.Regions["r"]; (r != nil) != (c.status == 200) || r != nil && (r.Name != "r" || r.Key != c.region.Key || r.Offset != c.region.Offset || r.ByteSize != c.region.Size) {
				t.Errorf("gRPC has %v", list)
			}
			_, err = client.SystemSharedMemoryUnregister(t.Context(), &inference.SystemSharedMemoryUnregisterRequest{Name: c.region.Name})
			must.OK(t, err)
			_, err = client.SystemSharedMemoryRegister(t.Context(), &inference.SystemSharedMemoryRegisterRequest{Name: c.region.Name, Key: c.region.Key, Offset: c.region.Offset, ByteSize: c.region.Size})
			if (err == nil) != (c.status == 200) || err != nil && (rpcstatus.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("gRPC: %v, want %s", err, c.err)
			}
			want := "[]"
			if c.status == 200 {
				want = fmt.Sprintf(`[{"name":"r","key":%q,"offset":%d,"byte_size":%d}]`, c.region.Key, c.region.Offset, c.region.Size)
			}
			if _, text := ask(t, s, "GET", "/v2/systemsharedmemory/status", nil); text != want {
				t.Errorf("status is %s, want %s", text, want)
			}
			if status, text := ask(t, s, "POST", "/v2/systemsharedmemory/unregister", nil); status != 200 || len(s.regions.list) > 0 {
				t.Errorf("unregister: %d %s, %d are left", status, text, len(s.regions.list))
			}
		})
	}

	for i := range maxRegions {
		status, text := ask(t, s, "POST", fmt.Sprintf("/v2/systemsharedmemory/region/%d/register", i), region{Key: key, Size: 1})
		if status != 200 {
			t.Fatalf("region %d: %d %s", i, status, text)
		}
	}
	for _, name := range []string{"0", "more"} {
		if status, text := ask(t, s, "POST", "/v2/systemsharedmemory/region/"+name+"/register", region{Key: key, Size: 1}); status != 400 || !strings.Contains(text, "there are 64 regions") {
			t.Errorf("region %s: %d %s", name, status, text)
		}
	}
	if status, text := ask(t, s, "GET", "/v2/systemsharedmemory/region/7/status", nil); status != 200 || strings.Count(text, `"name":"7"`) != 1 {
		t.Errorf("region 7: %d %s", status, text)
	}
	_, err := client.SystemSharedMemoryUnregister(t.Context(), &inference.SystemSharedMemoryUnregisterRequest{})
	must.OK(t, err)
	open, err := filepath.Glob("/proc/self/fd/*")
	must.OK(t, err)
	count := 0
	for _, fd := range open {
		if to, _ := os.Readlink(fd); to == file.Name() {
			count++
		}
	}
	if count != 1 {
		t.Errorf("%d descriptors of the file are open, want the test's own", count)
	}
}

// TestRegionTensors infers with tensors in regions, over HTTP and gRPC, also when their producer changes them.
func TestRegionTensors(t *testing.T) {
	sent := make(chan []byte, 1)
	client, s := dial(t, func(q clienttest.Request) (wire.Result, []byte, bool) {
		sent <- q.Picture
		return oneBox(q)
	}, ownAccess(t))
	s.regions.permitted = true
	picture := []byte(strings.Repeat("0123456789ab", 4))
	content := append(append([]byte("before"), picture...), make([]byte, 16+5)...)
	file, key := sharedFile(t, content)
	must.OK(t, s.regions.register(context.WithValue(t.Context(), keyOfRequest{}, ownAccess(t).everyone), region{Name: "r", Key: key, Offset: 2, Size: uint64(len(content)) - 2}))

	ways := map[string]func(input, output part) (string, error){
		"HTTP": func(input, output part) (string, error) {
			status, text := ask(t, s, "POST", "/v2/models/finder/infer", map[string]any{
				"inputs":  []any{map[string]any{"name": "image", "datatype": "UINT8", "shape": []int{4, 4, 3}, "parameters": input}},
				"outputs": []any{map[string]any{"name": "boxes", "parameters": output}, map[string]any{"name": "classes"}},
			})
			if status != 200 {
				return "", fmt.Errorf("%d %s", status, text)
			}
			return text, nil
		},
		"gRPC": func(input, output part) (string, error) {
			parameters := func(p part) map[string]*inference.InferParameter {
				number := func(n uint64) *inference.InferParameter {
					return &inference.InferParameter{ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: int64(n)}}
				}
				return map[string]*inference.InferParameter{
					"shared_memory_region":    {ParameterChoice: &inference.InferParameter_StringParam{StringParam: p.Region}},
					"shared_memory_byte_size": number(p.Size), "shared_memory_offset": number(p.Offset),
				}
			}
			a, err := client.ModelInfer(t.Context(), &inference.ModelInferRequest{
				ModelName: "finder",
				Inputs:    []*inference.ModelInferRequest_InferInputTensor{{Name: "image", Datatype: "UINT8", Shape: []int64{4, 4, 3}, Parameters: parameters(input)}},
				Outputs:   []*inference.ModelInferRequest_InferRequestedOutputTensor{{Name: "boxes", Parameters: parameters(output)}, {Name: "classes"}},
			})
			if err != nil {
				return "", err
			}
			if len(a.RawOutputContents) != 2 || len(a.RawOutputContents[0]) != 0 || len(a.RawOutputContents[1]) != 4 {
				t.Errorf("raw contents %v, want none and a class", a.RawOutputContents)
			}
			return fmt.Sprintf(`"name":%q,"shape":[1,1,4],"datatype":%q}`, a.Outputs[0].Name, a.Outputs[0].Datatype), nil
		},
	}
	box := binary.LittleEndian.AppendUint32(nil, math.Float32bits(0.25))
	for way, infer := range ways {
		_, err := file.WriteAt(content, 0)
		must.OK(t, err)
		text, err := infer(part{"r", 4, 48}, part{"r", 4 + 48, 20})
		must.OK(t, err)
		if got := <-sent; !bytes.Equal(got, picture) {
			t.Errorf("%s: the function got %q", way, got)
		}
		if want := `"name":"boxes","shape":[1,1,4],"datatype":"FP32"}`; !strings.Contains(text, want) {
			t.Errorf("%s: %s, want %s", way, text, want)
		}
		now, err := os.ReadFile(file.Name())
		must.OK(t, err)
		if !bytes.Equal(now[:54], content[:54]) || !bytes.Equal(now[54:58], box) || !bytes.Equal(now[70:], content[70:]) {
			t.Errorf("%s: the file has %q", way, now)
		}

		for _, c := range []struct {
			name          string
			input, output part
			want          string
		}{
			{"unknown", part{"x", 0, 48}, part{"r", 0, 16}, "want one that is registered"},
			{"outside", part{"r", 26, 48}, part{"r", 0, 16}, "it has 73 bytes, want 48 from offset 26 on"},
			{"overflow", part{"r", math.MaxInt64, 48}, part{"r", 0, 16}, "it has 73 bytes"},
			{"wrong size", part{"r", 4, 47}, part{"r", 0, 16}, "has 47 bytes, the shape wants 48"},
			{"short output", part{"r", 4, 48}, part{"r", 0, 15}, "has 16 bytes, its shared_memory_byte_size is 15"},
			{"output outside", part{"r", 4, 48}, part{"r", 60, 16}, "it has 73 bytes, want 16 from offset 60 on"},
		} {
			if _, err := infer(c.input, c.output); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %s: %v, want %s", way, c.name, err, c.want)
			}
			if strings.Contains(c.name, "output") {
				<-sent
			}
		}

		must.OK(t, file.Truncate(20))
		if _, err := infer(part{"r", 4, 48}, part{"r", 0, 16}); err == nil || !strings.Contains(err.Error(), "whose file must keep its length") {
			t.Errorf("%s: a file that became shorter: %v", way, err)
		}
	}
}

// TestRegionsAccess uses regions without the configuration's permission, and with keys.
func TestRegionsAccess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys.yaml")
	writeKeys(t, file, keyLine("finder", "finder", "infer"), keyLine("looks", `"*"`, "look"), keyLine("all", `"*"`, "infer"))
	client, s := dial(t, oneBox, publicAccess(t, file, zerolog.Nop()))
	_, key := sharedFile(t, make([]byte, 48))
	calls := map[string]func(context.Context) error{
		"register": func(ctx context.Context) error {
			_, err := client.SystemSharedMemoryRegister(ctx, &inference.SystemSharedMemoryRegisterRequest{Name: "r", Key: key, ByteSize: 48})
			return err
		},
		"infer": func(ctx context.Context) error {
			m := pictureMessage(1)
			m.RawInputContents = nil
			m.Inputs[0].Parameters = map[string]*inference.InferParameter{
				"shared_memory_region":    {ParameterChoice: &inference.InferParameter_StringParam{StringParam: "r"}},
				"shared_memory_byte_size": {ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: 48}},
			}
			_, err := client.ModelInfer(ctx, m)
			return err
		},
		"status": func(ctx context.Context) error {
			_, err := client.SystemSharedMemoryStatus(ctx, &inference.SystemSharedMemoryStatusRequest{})
			return err
		},
		"unregister": func(ctx context.Context) error {
			_, err := client.SystemSharedMemoryUnregister(ctx, &inference.SystemSharedMemoryUnregisterRequest{})
			return err
		},
	}
	for _, c := range []struct {
		key       string
		permitted bool
		code      codes.Code
	}{{"all", false, codes.PermissionDenied}, {"looks", true, codes.PermissionDenied}, {"finder", true, codes.PermissionDenied}, {"all", true, codes.OK}} {
		s.regions.permitted = c.permitted
		for _, name := range []string{"register", "infer", "status", "unregister"} {
			err := calls[name](metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+c.key))
			if rpcstatus.Code(err) != c.code {
				t.Errorf("%s, permitted %v, %s: %v, want %v", c.key, c.permitted, name, err, c.code)
			}
		}
	}
}

// part is a tensor's place, as JSON says it.
type part struct {
	Region string `json:"shared_memory_region"`
	Offset uint64 `json:"shared_memory_offset"`
	Size   uint64 `json:"shared_memory_byte_size"`
}
