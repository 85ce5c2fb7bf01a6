package main

import (
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/breakerkit/breaker"
	"github.com/breakerkit/breaker/storetest"
)

// A clock stands still until it is told to move on.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// open returns the store in file as one process has it: a database handle of its own.
func open(t *testing.T, file string) *Store {
	t.Helper()
	s, err := Open(t.Context(), file)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

func TestTheStoreConforms(t *testing.T) {
	storetest.Run(t, storetest.Config{New: func(t *testing.T) storetest.Harness {
		file, c := filepath.Join(t.TempDir(), "circuits #1?.db"), &clock{now: time.UnixMilli(1_800_000_000_000)}
		process := func() breaker.Store {
			s := open(t, file)
			s.now = c.read
			return s
		}
		return storetest.Harness{Store: process(), Advance: c.add, Another: process}
	}})
}

func TestADatabaseThatCannotBeOpenedIsAnError(t *testing.T) {
	_, err := Open(t.Context(), filepath.Join(t.TempDir(), "no such folder", "circuits.db"))
	assert.ErrorContains(t, err, "circuits.db")
}

func TestACircuitThatCannotBeReadIsAnError(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "circuits.db"))
	_, err := s.db.Exec(`INSERT INTO circuits VALUES (?, '{')`, []byte("k"))
	require.NoError(t, err)
	b, err := breaker.New(s, breaker.Config{OnStoreError: breaker.FailClosed})
	require.NoError(t, err)
	defer b.Close()
	_, err = b.Allow(t.Context(), "k")
	assert.ErrorIs(t, err, breaker.ErrStore)
	_, err = b.Snapshot(t.Context(), "k")
	assert.ErrorIs(t, err, breaker.ErrStore)
	_, err = b.History(t.Context(), "k")
	assert.ErrorIs(t, err, breaker.ErrStore)
}
