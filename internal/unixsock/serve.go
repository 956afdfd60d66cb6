package unixsock

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// acceptPause is the time until the next try after a connection could not be accepted.
const acceptPause = 100 * time.Millisecond

// Serve calls handle in a goroutine for each connection, which has the type C. It returns when the listener is closed and all calls have
// ended. The end of ctx closes the listener, and the connections that are being handled. Serve closes connections beyond
// most at once. It calls failed if it cannot accept one: most likely no descriptors are left. handle owns its connection.
func Serve[C net.Conn](ctx context.Context, l net.Listener, most int, failed func(error), handle func(C)) {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	slots := make(chan struct{}, most)
	var handlers sync.WaitGroup
	defer handlers.Wait()
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			failed(err)
			time.Sleep(acceptPause)
			continue
		}
		select {
		case slots <- struct{}{}:
			handlers.Go(func() {
				defer func() { <-slots }()
				defer context.AfterFunc(ctx, func() { c.Close() })()
				handle(c.(C))
			})
		default:
			c.Close()
		}
	}
}
