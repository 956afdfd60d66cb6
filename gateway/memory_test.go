package gateway

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/jpeg"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/coder/websocket"

	"github.com/penstock/penstock/gateway/openinference"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
)

// Bodies that do not come take no memory from others.
func TestPromisedBodies(t *testing.T) {
	s := newTestServer(t, oneBox)
	web := httptest.NewServer(ownAccess(t).guard(s.routes()))
	defer web.Close()
	for i := range 40 {
		c, err := net.Dial("tcp", strings.TrimPrefix(web.URL, "http://"))
		must.OK(t, err)
		defer c.Close()
		length := "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"
		if i%2 == 0 {
			length = fmt.Sprintf("Content-Length: %d\r\n\r\nx", maxBody)
		}
		io.WriteString(c, "POST /v2/models/finder/infer HTTP/1.1\r\nHost: localhost\r\n"+length)
	}
	for range 3 {
		time.Sleep(10 * time.Millisecond) // the bodies begin
		if response, text := post(t, web.URL+"/v2/models/finder/infer", "image/jpeg", photo(t, 400, 200)); response.StatusCode != 200 {
			t.Error(response.Status, text)
		}
	}
}

func TestReadBody(t *testing.T) {
	for _, size := range []int{0, 1, firstBytes - 1, firstBytes, firstBytes + 1, 5*firstBytes + 7} {
		for _, most := range []int64{-1, int64(size), int64(size) + 100} {
			m := newMemory()
			want := bytes.Repeat([]byte{7}, size)
			b, err := m.read(t.Context(), iotest.OneByteReader(bytes.NewReader(want)), most)
			if err != nil || !bytes.Equal(b.data, want) {
				t.Fatalf("%d bytes, at most %d: %v", size, most, err)
			}
			if !m.bodies.TryAcquire(maxBodies - int64(cap(b.data))) {
				t.Errorf("%d bytes, at most %d: more than %d are held", size, most, cap(b.data))
			}
			if b.release(); !m.bodies.TryAcquire(1) {
				t.Errorf("%d bytes, at most %d: are held after their release", size, most)
			}
		}
	}
	m := newMemory()
	if err := (&buffer{memory: m, data: make([]byte, maxBody)}).reserve(t.Context(), maxBodies-maxBody+1); statusOf(err) != http.StatusRequestEntityTooLarge {
		t.Errorf("more than there is: %v", err)
	}
	if _, err := m.read(t.Context(), io.MultiReader(bytes.NewReader(make([]byte, 2*firstBytes)), iotest.ErrReader(io.ErrUnexpectedEOF)), -1); err != io.ErrUnexpectedEOF {
		t.Error(err)
	}
	if !m.bodies.TryAcquire(maxBodies) {
		t.Error("memory of a body that broke off is held")
	}
	// Alone, the largest body is read, also if its length is not known.
	m.bodies.Release(maxBodies)
	if b, err := m.read(t.Context(), io.LimitReader(zeros{}, maxBody), -1); err != nil || len(b.data) != maxBody {
		t.Error(err)
	}
}

// If the memory is used, the oldest body waits for it and later ones are refused, so that some end.
func TestOldestBodyWaits(t *testing.T) {
	m := newMemory()
	for range 3 {
		const bodies = 6
		ended := make(chan error, bodies)
		for range bodies {
			go func() {
				b, err := m.read(t.Context(), io.LimitReader(zeros{}, maxBody-1), -1)
				if err == nil {
					b.release()
				}
				ended <- err
			}()
		}
		read := 0
		for range bodies {
			if err := <-ended; err == nil {
				read++
			} else if statusOf(err) != http.StatusServiceUnavailable {
				t.Error(err)
			}
		}
		if read == 0 {
			t.Error("no body was read")
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// The docs promise photos of 64 Mpixel.
func TestLargestPhoto(t *testing.T) {
	var b bytes.Buffer
	must.OK(t, jpeg.Encode(&b, image.NewGray(image.Rect(0, 0, 8192, 8192)), &jpeg.Options{Quality: 1}))
	response, text := post(t, newGateway(t, oneBox).URL+"/v2/models/finder/infer", "image/jpeg", b.Bytes())
	if response.StatusCode != 200 || !strings.Contains(text, `"data":[2048,2048,6144,6144]`) {
		t.Error(response.Status, text)
	}
}

// Few photos are decoded at once. The others wait, and a client that leaves frees its place.
func TestDecoders(t *testing.T) {
	m := newMemory()
	decoders := max(1, runtime.GOMAXPROCS(0)/2)
	ctx, leave := context.WithCancel(t.Context())
	running, end, ended := make(chan bool), make(chan bool), make(chan error)
	decode := func(ctx context.Context) {
		ended <- m.decode(ctx, 1, func() error {
			running <- true
			<-end
			return nil
		})
	}
	for range decoders {
		go decode(t.Context())
		<-running
	}
	for range maxQueued - decoders {
		go decode(ctx)
	}
	wait.For(t, "all to wait", func() bool {
		room := m.queue.TryAcquire(1)
		if room {
			m.queue.Release(1)
		}
		return !room
	})
	if err := m.decode(t.Context(), 1, func() error { return nil }); statusOf(err) != http.StatusServiceUnavailable {
		t.Errorf("with a full queue: %v", err)
	}
	select {
	case <-running:
		t.Errorf("more than %d decoders run", decoders)
	default:
	}
	leave()
	for range maxQueued - decoders {
		if err := <-ended; err != context.Canceled {
			t.Fatal(err)
		}
	}
	close(end)
	for range decoders {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if err := m.decode(t.Context(), maxDecoded+1, func() error { return nil }); statusOf(err) != http.StatusRequestEntityTooLarge {
		t.Errorf("too large: %v", err)
	}
}

// A shape alone allocates nothing.
func TestShapeWithoutData(t *testing.T) {
	card := finder
	card.Input.Height, card.Input.Width = 1000, 1000
	body := []byte(`{"inputs":[{"name":"image","datatype":"UINT8","shape":[256,1000,1000,3],"data":[1]}]}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := openinference.DecodeRequest(body, "", &card, nil)
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; err == nil || used > 1<<20 {
		t.Errorf("%d bytes, %v", used, err)
	}
}

// A new camera takes the place of one that sends nothing, and of none that sends frames.
func TestIdleCamera(t *testing.T) {
	s := newTestServer(t, oneBox)
	web := httptest.NewServer(ownAccess(t).guard(s.routes()))
	defer web.Close()
	url := strings.Replace(web.URL, "http", "ws", 1) + "/api/camera?function=finder"
	var conns []*websocket.Conn
	for range maxCameras {
		conn, _, err := websocket.Dial(t.Context(), url, nil)
		must.OK(t, err)
		defer conn.CloseNow()
		conns = append(conns, conn)
	}
	frame := func(conn *websocket.Conn) error {
		if err := conn.Write(t.Context(), websocket.MessageBinary, photo(t, 4, 4)); err != nil {
			return err
		}
		_, _, err := conn.Read(t.Context())
		return err
	}
	if _, response, err := websocket.Dial(t.Context(), url, nil); err == nil || response == nil || response.StatusCode != 503 {
		t.Errorf("%v, %v, want 503 while all are active", response, err)
	}

	s.cameras.mu.Lock()
	for c := range s.cameras.open {
		c.active = c.active.Add(-cameraIdle)
	}
	s.cameras.mu.Unlock()
	for _, conn := range conns[1:] {
		must.OK(t, frame(conn))
	}
	newest, _, err := websocket.Dial(t.Context(), url, nil)
	must.OK(t, err)
	defer newest.CloseNow()
	for i, conn := range append(conns[1:], newest) {
		if err := frame(conn); err != nil {
			t.Errorf("active camera %d: %v", i, err)
		}
	}
	if _, _, err := conns[0].Read(t.Context()); websocket.CloseStatus(err) != websocket.StatusTryAgainLater {
		t.Errorf("the idle camera: %v", err)
	}
}

// The page's pictures have a bound in all.
func TestWallIsBounded(t *testing.T) {
	w := newWall()
	for i := range 40 {
		w.show(fmt.Sprint(i), make([]byte, 1<<20, 3<<20), 0, nil, 0)
	}
	sum := 0
	for _, p := range w.pictures {
		sum += cap(p.file)
	}
	if sum > maxWallSum || sum < maxWallSum/2 || w.pictures["39"] == nil {
		t.Errorf("%d bytes in %d pictures", sum, len(w.pictures))
	}
}

// The wall keeps nothing of a body but the picture.
func TestWallCopies(t *testing.T) {
	w, body := newWall(), make([]byte, 1000)
	w.show("a", body[100:200:200], 0, nil, 0)
	body[100] = 1
	if file := w.pictures["a"].file; len(file) != 100 || file[0] != 0 {
		t.Errorf("the wall shows %d bytes of the body", len(file))
	}
}
