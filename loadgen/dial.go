package loadgen

import (
	"cmp"
	"context"

	"github.com/penstock/penstock/client"
	"github.com/penstock/penstock/shm"
)

// DialClient returns a Dialer that opens clients of package client. Each stream
// uses the options, except for two of them. The Dialer sets Deliver. The timeout is
// at least replyGrace of the function's objective: a client that gave up earlier
// would hide late answers.
//
// The run's Clock must be SystemClock.
func DialClient(options client.Options) Dialer {
	return func(ctx context.Context, f Function, stream int, deliver func(*client.Result)) (Sender, error) {
		o := options
		o.Deliver = deliver
		o.KeyFile = cmp.Or(o.KeyFile, f.KeyFile)
		o.Timeout = max(o.Timeout, replyGrace(f.SLO))
		c, err := client.Dial(ctx, f.Addr, o)
		if err != nil {
			return nil, err
		}
		return &clientSender{client: c, request: client.RequestOptions{Deadline: f.Deadline, Priority: f.Priority}}, nil
	}
}

type clientSender struct {
	client  *client.Client
	request client.RequestOptions
}

func (s *clientSender) Send(picture []byte, intended int64, tag uint64) error {
	request := s.request
	request.Intended, request.Tag = shm.Time(intended), tag
	_, err := s.client.Send(picture, request)
	return err
}

func (s *clientSender) Close() error { return s.client.Close() }
