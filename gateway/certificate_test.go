package gateway

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/penstock/penstock/configs"
	"github.com/penstock/penstock/gateway/openinference/inference"
	"github.com/penstock/penstock/internal/freeport"
	"github.com/penstock/penstock/internal/testing/logtest"
	"github.com/penstock/penstock/internal/testing/must"
	"github.com/penstock/penstock/internal/testing/wait"
)

// writeCertificate replaces the files of a certificate that signs itself, and adds it to those that clients know.
func writeCertificate(t *testing.T, files configs.TLS, serial int64, end time.Time, known *x509.CertPool) {
	t.Helper()
	private := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	form := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotBefore: end.Add(-time.Hour), NotAfter: end, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	certificate := must.Get(x509.CreateCertificate(rand.Reader, form, form, private.Public(), private))(t)
	key := must.Get(x509.MarshalPKCS8PrivateKey(private))(t)
	for file, block := range map[string]*pem.Block{files.Certificate: {Type: "CERTIFICATE", Bytes: certificate}, files.Key: {Type: "PRIVATE KEY", Bytes: key}} {
		must.OK(t, os.WriteFile(file+".new", pem.EncodeToMemory(block), 0o600))
		must.OK(t, os.Rename(file+".new", file))
	}
	known.AddCert(must.Get(x509.ParseCertificate(certificate))(t))
}

func tlsFiles(t *testing.T) configs.TLS {
	dir := t.TempDir()
	return configs.TLS{Certificate: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
}

// runTLS runs a gateway with a certificate and the key "client". It returns its address.
func runTLS(t *testing.T, files configs.TLS, log zerolog.Logger) string {
	t.Helper()
	keys := filepath.Join(t.TempDir(), "keys.yaml")
	writeKeys(t, keys, keyLine("client", `"*"`, "infer, look"))
	o := Options{Address: must.Get(freeport.Find())(t), Dir: fakeNode(t, oneBox), Keys: keys, TLS: files, Log: log}
	ready, ended := make(chan netip.AddrPort, 1), make(chan error, 1)
	ctx := t.Context()
	go func() { ended <- Run(ctx, o, func(a netip.AddrPort) { ready <- a }) }()
	t.Cleanup(func() { must.OK(t, <-ended) })
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	return o.Address.String()
}

// get sends a request with the key "client" on a new connection, and returns the number of the gateway's certificate.
func get(ctx context.Context, known *x509.CertPool, address string) (serial int64, protocol string, err error) {
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: known}, ForceAttemptHTTP2: true, DisableKeepAlives: true}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/v2/models/finder", nil)
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Authorization", "Bearer client")
	response, err := transport.RoundTrip(r)
	if err != nil {
		return 0, "", err
	}
	response.Body.Close()
	return response.TLS.PeerCertificates[0].SerialNumber.Int64(), response.Proto + " " + response.Status, nil
}

// HTTP and gRPC share the certificate, and a renewed one replaces it without a failed request.
func TestRenewCertificate(t *testing.T) {
	files, known, log := tlsFiles(t), x509.NewCertPool(), &logtest.Log{}
	writeCertificate(t, files, 1, time.Now().Add(time.Hour), known)
	address := runTLS(t, files, zerolog.New(log))
	if serial, answer, err := get(t.Context(), known, address); serial != 1 || answer != "HTTP/2.0 200 OK" {
		t.Fatalf("certificate %d, %s, %v", serial, answer, err)
	}
	connection := must.Get(grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: known}))))(t)
	defer connection.Close()
	call := func() error {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer client")
		_, err := inference.NewGRPCInferenceServiceClient(connection).ModelInfer(ctx, pictureMessage(1))
		return err
	}
	must.OK(t, call())
	wait.For(t, "watch", func() bool { return log.Count("certificate in force") == 1 })

	renewed := x509.NewCertPool()
	writeCertificate(t, files, 2, time.Now().Add(time.Hour), renewed)
	both := known.Clone()
	both.AddCert(must.Get(x509.ParseCertificate(must.Get(tls.LoadX509KeyPair(files.Certificate, files.Key))(t).Certificate[0]))(t))
	var sent atomic.Int64
	var load sync.WaitGroup
	seen := make(chan struct{})
	for range 4 {
		load.Go(func() {
			for {
				serial, answer, err := get(t.Context(), both, address)
				if err != nil || answer != "HTTP/2.0 200 OK" {
					t.Errorf("certificate %d, %s, %v", serial, answer, err)
				}
				sent.Add(1)
				if serial == 2 || err != nil {
					return
				}
			}
		})
	}
	go func() { load.Wait(); close(seen) }()
	select {
	case <-seen:
	case <-time.After(wait.Patience):
		t.Fatalf("the renewed certificate was not used in %d requests", sent.Load())
	}
	must.OK(t, call()) // on the connection with the old certificate

	// Wrong files change nothing, with one line in the log.
	must.OK(t, os.WriteFile(files.Key, []byte("no key"), 0o600))
	wait.For(t, "rejected certificate", func() bool { return log.Count("certificate rejected; keeping the last one") == 1 })
	if serial, answer, err := get(t.Context(), both, address); serial != 2 || answer != "HTTP/2.0 200 OK" {
		t.Errorf("after wrong files: certificate %d, %s, %v", serial, answer, err)
	}
}

// An expired certificate keeps the gateway running: only its clients refuse it.
func TestExpiredCertificate(t *testing.T) {
	files, known, log := tlsFiles(t), x509.NewCertPool(), &logtest.Log{}
	writeCertificate(t, files, 1, time.Now().Add(-time.Minute), known)
	address := runTLS(t, files, zerolog.New(log).Level(zerolog.InfoLevel))
	if _, _, err := get(t.Context(), known, address); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("an expired certificate: %v", err)
	}
	wait.For(t, "watch", func() bool { return log.Count("certificate has expired") == 1 })
	if log.Count("handshake") != 0 {
		t.Error(log.String())
	}
	writeCertificate(t, files, 2, time.Now().Add(time.Hour), known)
	wait.For(t, "renewed certificate", func() bool {
		serial, _, _ := get(t.Context(), known, address)
		return serial == 2
	})
}

func TestWrongCertificate(t *testing.T) {
	files, other := tlsFiles(t), tlsFiles(t)
	writeCertificate(t, files, 1, time.Now().Add(time.Hour), x509.NewCertPool())
	writeCertificate(t, other, 2, time.Now().Add(time.Hour), x509.NewCertPool())
	for name, c := range map[string]struct {
		files configs.TLS
		want  string
	}{
		"missing":   {configs.TLS{Certificate: files.Certificate, Key: files.Key + "x"}, "no such file"},
		"other key": {configs.TLS{Certificate: files.Certificate, Key: other.Key}, "private key does not match public key"},
		"swapped":   {configs.TLS{Certificate: files.Key, Key: files.Certificate}, "failed to find certificate PEM data"},
	} {
		o := Options{Address: netip.MustParseAddrPort("127.0.0.1:0"), Dir: t.TempDir(), TLS: c.files, Log: zerolog.Nop()}
		err := Run(t.Context(), o, nil)
		if err == nil || !strings.HasPrefix(err.Error(), "read certificate ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}
