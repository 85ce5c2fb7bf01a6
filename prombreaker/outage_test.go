package prombreaker_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/breakertest"
	"github.com/breakerkit/breaker/prombreaker"
)

// Whatever the store does, a scrape ends in time; it shows no state that it
// could not read, and counts on.
func TestAScrapeDoesNotHangWithTheStore(t *testing.T) {
	for name, trouble := range map[string]func(*breakertest.FlakyStore){
		"fails": func(s *breakertest.FlakyStore) { s.Fail(nil) },
		"hangs": func(s *breakertest.FlakyStore) { s.Hang() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := breakertest.NewFlakyStore(nil)
				p := join(t, store, prombreaker.Config{ScrapeTimeout: 2 * time.Second}, breaker.Policy{})
				for i := range 50 {
					p.calls(1, fmt.Sprint(i), nil)
				}
				require.Len(t, keysOf(p.scrape(t), "breaker_circuit_state"), 50)
				trouble(store)
				p.calls(1, "0", nil) // unprotected
				for range 5 {
					began := time.Now()
					got := p.scrape(t)
					assert.LessOrEqual(t, time.Since(began), 2*time.Second)
					assert.Empty(t, keysOf(got, "breaker_circuit_state"))
					assert.Contains(t, got, "breaker_scrape_complete")
					assert.Zero(t, got["breaker_scrape_complete"])
					assert.EqualValues(t, 1, got["breaker_store_degraded"])
					assert.EqualValues(t, 2, got[`breaker_calls_total{key="0",outcome="success"}`])
				}
				store.Recover()
				time.Sleep(10 * time.Second)
				p.calls(1, "0", nil)
				got := p.scrape(t)
				assert.EqualValues(t, 1, got["breaker_scrape_complete"])
				assert.Len(t, keysOf(got, "breaker_circuit_state"), 50)
				assert.Zero(t, got["breaker_store_degraded"])
				assert.EqualValues(t, 1, got["breaker_store_degradations_total"])
			})
		})
	}
}

// failingSnapshots lists its circuits and can read none of them.
type failingSnapshots struct{ *breaker.MemoryStore }

func (failingSnapshots) Snapshot(context.Context, string, breaker.Policy) (breaker.Snapshot, error) {
	return breaker.Snapshot{}, errDown
}

func TestAScrapeGivesUpOnAStoreThatCanNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := join(t, failingSnapshots{breaker.NewMemoryStore(breaker.MemoryConfig{})}, prombreaker.Config{}, breaker.Policy{})
		p.calls(1, "k", nil)
		got := p.scrape(t)
		assert.Empty(t, keysOf(got, "breaker_circuit_state"))
		assert.Zero(t, got["breaker_scrape_complete"])
		assert.EqualValues(t, 1, got["breaker_circuits"])
	})
}

func TestTheTimeWithoutTheStoreRisesAndIsNeverTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := breakertest.NewFlakyStore(nil)
		p := join(t, store, prombreaker.Config{}, breaker.Policy{})
		store.Fail(nil)
		p.calls(1, "k", nil)
		p.scrape(t)
		time.Sleep(30 * time.Second)
		assert.EqualValues(t, 30, p.scrape(t)["breaker_store_degraded_seconds_total"])
		store.Recover()
		time.Sleep(10 * time.Second)
		p.calls(1, "k", nil)
		time.Sleep(time.Hour)
		assert.EqualValues(t, 40, p.scrape(t)["breaker_store_degraded_seconds_total"])
	})
}

// onlyStore can't list.
type onlyStore struct{ breaker.Store }

func TestAStoreThatCanNotListShowsTheCircuitsCalledHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := join(t, onlyStore{breaker.NewMemoryStore(breaker.MemoryConfig{})}, prombreaker.Config{}, breaker.Policy{})
		p.calls(5, "k", errDown)
		assertState(t, p, "k", "open")
		assertState(t, p, "k", "open")
	})
}
