package gateway

import (
	"context"
	"crypto/tls"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/internal/follow"
)

// certificate is a certificate in files that may be renewed. Any goroutine may use it.
type certificate struct {
	files   configs.TLS
	current atomic.Pointer[tls.Certificate]
	end     prometheus.Gauge
	log     zerolog.Logger
}

func newCertificate(files configs.TLS, log zerolog.Logger) (*certificate, error) {
	c := &certificate{files: files, log: log, end: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "penstock_gateway_certificate_end_timestamp_seconds", Help: "When the certificate expires, in seconds since 1970.",
	})}
	return c, c.read()
}

// read reads the files.
func (c *certificate) read() error {
	pair, err := tls.LoadX509KeyPair(c.files.Certificate, c.files.Key)
	if err != nil {
		return fmt.Errorf("read certificate %s: %w", c.files.Certificate, err)
	}
	c.current.Store(&pair)
	c.end.Set(float64(pair.Leaf.NotAfter.Unix()))
	return nil
}

// follow reads the files after each edit, until ctx ends. Wrong files change nothing. An expired certificate is used, too:
// clients refuse it, and all else goes on.
func (c *certificate) follow(ctx context.Context) {
	follow.Files(ctx, c.log, "certificate rejected; keeping the last one", func() error {
		if err := c.read(); err != nil {
			return err
		}
		end := c.current.Load().Leaf.NotAfter
		if time.Now().After(end) {
			c.log.Error().Str("file", c.files.Certificate).Time("end", end).Msg("certificate has expired; clients refuse it until it is renewed")
		} else {
			c.log.Info().Str("file", c.files.Certificate).Time("end", end).Msg("certificate in force")
		}
		return nil
	}, c.files.Certificate, c.files.Key)
}
