package gate

import (
	"sync"
	"time"

	"github.com/penstock/penstock/control/budget"
)

// Balance is the device time that may still be used at the guaranteed levels (package budget). The
// members of a worker share one, because the guarantee is the worker's. It saves up as much as the
// member may that may save up most.
type Balance struct {
	mu         sync.Mutex // guards what follows
	left       budget.Balance
	capacities map[*Account]time.Duration
}

// join adds an account. The first one finds a full balance.
func (b *Balance) join(a *Account, now int64, guarantee float64, capacity time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.capacities) == 0 {
		b.left = budget.NewBalance(now, guarantee, capacity)
		b.capacities = map[*Account]time.Duration{}
	}
	b.setLocked(a, now, guarantee, capacity)
}

// set follows a change of an account.
func (b *Balance) set(a *Account, now int64, guarantee float64, capacity time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setLocked(a, now, guarantee, capacity)
}

func (b *Balance) setLocked(a *Account, now int64, guarantee float64, capacity time.Duration) {
	b.capacities[a] = capacity
	for _, c := range b.capacities {
		capacity = max(capacity, c)
	}
	b.left.Set(now, guarantee, capacity)
}

// Accounts is how many accounts share the balance.
func (b *Balance) Accounts() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.capacities)
}

// leave removes an account.
func (b *Balance) leave(a *Account) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.capacities, a)
}

func (b *Balance) guaranteed(now int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.left.Guaranteed(now)
}

func (b *Balance) wait(now int64) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.left.Wait(now)
}

// Charge takes the cost of a batch.
func (b *Balance) Charge(now int64, cost time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left.Charge(now, cost)
}
