package wire

import (
	"slices"
	"testing"
)

func TestDecodeHelloErrors(t *testing.T) {
	hello, data := exampleHello(TypeHello), exampleData(2, 0, nil)
	long := slices.Concat(hello, []byte{0})
	long[12], long[20] = helloBytes+1, helloBytes+1
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"picture": {data, ErrType},
		"cut":     {hello[:HelloSize-1], ErrLength},
		"larger":  {long, ErrLength},
		"flag":    {append([]byte{'P', 'S', Version<<4 | byte(TypeHello), byte(FlagLast | FlagExtension)}, hello[4:]...), ErrFlags},
	} {
		if _, _, err := DecodeHello(c.b); err != c.want {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
}

func TestHelloSigned(t *testing.T) {
	_, proof, err := DecodeHello(exampleHello(TypeProof))
	if err != nil || !proof.Signed([]byte(exampleKey)) {
		t.Fatalf("the example does not pass: %v", err)
	}
	for name, change := range map[string]func(*Hello){
		"nonce": func(h *Hello) { h.Nonce[NonceBytes-1] ^= 1 },
		"value": func(h *Hello) { h.Value ^= 1 << 63 },
		"proof": func(h *Hello) { h.Proof[31] ^= 1 },
	} {
		other := proof
		change(&other)
		if other.Signed([]byte(exampleKey)) {
			t.Errorf("a proof with another %s passes", name)
		}
	}
}
