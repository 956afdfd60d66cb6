package gpu

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

func TestFmaIsRoundedOnce(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	exact := func(a, b, c float32) float32 {
		wide := func(f float32) *big.Float { return new(big.Float).SetPrec(1000).SetFloat64(float64(f)) }
		product := new(big.Float).SetPrec(1000).Mul(wide(a), wide(b))
		sum, _ := new(big.Float).SetPrec(1000).Add(product, wide(c)).Float32()
		return sum
	}
	for range 500_000 {
		a, b := math.Float32frombits(random.Uint32()), math.Float32frombits(random.Uint32())
		c := math.Float32frombits(random.Uint32())
		switch random.IntN(3) {
		case 0: // near the product, so that bits cancel
			c = -a * b * (1 + float32(random.IntN(5)-2)*0x1p-23)
		case 1: // far below it, where a second rounding shows
			a, b = float32(1+random.IntN(1<<24)), float32(1+random.IntN(1<<24))
			c = float32(random.IntN(3)-1) * 0x1p-60
		}
		if a-a != 0 || b-b != 0 || c-c != 0 {
			continue // infinities and NaNs
		}
		if got, want := fma(a, b, c), exact(a, b, c); got != want {
			t.Fatalf("%x * %x + %x = %x, want %x", a, b, c, got, want)
		}
	}
}

// Multiplication instead of division has the same results for the usual normalisations.
func TestNormalisation(t *testing.T) {
	for _, c := range []struct{ mean, std float32 }{
		{123.675, 58.395}, {116.28, 57.12}, {103.53, 57.375}, {127.5, 127.5}, {0, 255}, {127.5, 128}, {0, 1}, {104, 1},
	} {
		if inverse, ok := byMultiplying(c.mean, c.std); !ok || inverse != 1/c.std {
			t.Errorf("mean %v, std %v: %v, %v", c.mean, c.std, inverse, ok)
		}
	}
	// If the quotient overflows, a division is necessary.
	if _, ok := byMultiplying(0, 1e-38); ok {
		t.Error("255 / 1e-38 without a division")
	}
}
