package libml

import (
	"sync"
	"time"

	"github.com/penstock/penstock/control/budget"
)

// balance is the device time that may still be used at the guaranteed levels (package budget). The
// members of a worker share one, because the guarantee is the worker's. It saves up as much as the
// member may that may save up most.
type balance struct {
	mu         sync.Mutex // guards what follows
	left       budget.Balance
	capacities map[*account]time.Duration
}

// join adds an account. The first one finds a full balance.
func (b *balance) join(a *account, now int64, guarantee float64, capacity time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.capacities) == 0 {
		b.left = budget.NewBalance(now, guarantee, capacity)
		b.capacities = map[*account]time.Duration{}
	}
	b.setLocked(a, now, guarantee, capacity)
}

// set follows a change of an account.
func (b *balance) set(a *account, now int64, guarantee float64, capacity time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setLocked(a, now, guarantee, capacity)
}

func (b *balance) setLocked(a *account, now int64, guarantee float64, capacity time.Duration) {
	b.capacities[a] = capacity
	for _, c := range b.capacities {
		capacity = max(capacity, c)
	}
	b.left.Set(now, guarantee, capacity)
}

// leave removes an account.
func (b *balance) leave(a *account) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.capacities, a)
}

func (b *balance) guaranteed(now int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.left.Guaranteed(now)
}

func (b *balance) wait(now int64) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.left.Wait(now)
}

func (b *balance) charge(now int64, cost time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left.Charge(now, cost)
}
