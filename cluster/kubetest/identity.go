package kubetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// authority signs the certificates of a cluster: the API server's and those of all users.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

// pair is a certificate and its key, in PEM.
type pair struct{ certificate, key []byte }

func newAuthority() (*authority, error) {
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "penstock test cluster"},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}

	a := &authority{}
	p, key, err := sign(template, template, nil)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(p.certificate)
	a.key, a.pem = key, p.certificate
	a.certificate, err = x509.ParseCertificate(block.Bytes)
	return a, err
}

// server returns the certificate of a server with these names and addresses.
func (a *authority) server(names []string, addresses ...net.IP) (pair, error) {
	p, _, err := sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: names[0]},
		DNSNames:    names,
		IPAddresses: addresses,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a.certificate, a.key)
	return p, err
}

// user returns a certificate that the API server takes for a user in groups.
func (a *authority) user(name string, groups []string) (pair, error) {
	p, _, err := sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: name, Organization: groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, a.certificate, a.key)
	return p, err
}

// sign makes a key and signs its certificate with the parent's key, or with its own if that is nil.
func sign(template, parent *x509.Certificate, signer *ecdsa.PrivateKey) (pair, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, nil, fmt.Errorf("make a key: %w", err)
	}
	if signer == nil {
		signer = key
	}

	// The clocks of a cluster are one clock. An hour covers a step of it.
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(7*24*time.Hour)
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return pair{}, nil, fmt.Errorf("draw a serial number: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return pair{}, nil, fmt.Errorf("sign the certificate of %s: %w", template.Subject.CommonName, err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return pair{}, nil, fmt.Errorf("encode the key of %s: %w", template.Subject.CommonName, err)
	}
	return pair{
		certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}),
	}, key, nil
}

// Admin returns the configuration of a user who may do everything.
func (c *Cluster) Admin() *rest.Config { return rest.CopyConfig(c.admin) }

// User returns the configuration of a user in groups. Without rules for the user or a group, it may do almost
// nothing: the cluster has role-based access control.
func (c *Cluster) User(name string, groups ...string) (*rest.Config, error) {
	p, err := c.authority.user(name, groups)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host:            c.server,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.authority.pem, CertData: p.certificate, KeyData: p.key},
		QPS:             -1, // tests measure the operator's limits, not the client's
	}, nil
}

// ServiceAccount returns a configuration with exactly the rights of a service account, which need not exist.
func (c *Cluster) ServiceAccount(namespace, name string) (*rest.Config, error) {
	return c.User("system:serviceaccount:"+namespace+":"+name, "system:serviceaccounts", "system:serviceaccounts:"+namespace)
}

// WriteKubeconfig writes a configuration to a file, for programs.
func WriteKubeconfig(config *rest.Config, path string) error {
	const name = "test"
	err := clientcmd.WriteToFile(api.Config{
		Clusters: map[string]*api.Cluster{name: {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos: map[string]*api.AuthInfo{
			name: {ClientCertificateData: config.CertData, ClientKeyData: config.KeyData},
		},
		Contexts:       map[string]*api.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}, path)
	if err != nil {
		return fmt.Errorf("write kubeconfig %s: %w", path, err)
	}
	return nil
}
