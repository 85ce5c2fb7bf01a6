package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	randv2 "math/rand/v2"
	"net/url"
	"slices"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite", in pure Go

	"github.com/breakerkit/breaker"
)

// A Store keeps circuits in a table, for all processes that open the same
// database. Each step is one transaction: it loads a breaker.Circuit, calls the
// method of its own name and saves it. The rules are all in the Circuit.
//
// For another database, change what is SQLite's here: Open, the transaction
// that must lock the row it reads (elsewhere SELECT ... FOR UPDATE), and the
// clock. One machine has one clock; a database server should be asked for its.
type Store struct {
	db  *sql.DB
	now func() time.Time
}

var (
	_ breaker.Store      = (*Store)(nil)
	_ breaker.Controller = (*Store)(nil)
	_ breaker.Lister     = (*Store)(nil)
	_ breaker.Historian  = (*Store)(nil)
)

// Open opens the store in file, and makes both if need be.
func Open(ctx context.Context, file string) (*Store, error) {
	// immediate: a transaction takes the lock for writing before it reads, so
	// that no other can come in between.
	settings := url.Values{"_txlock": {"immediate"},
		"_pragma": {"busy_timeout(5000)", "journal_mode(wal)", "synchronous(normal)"}}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: file}).EscapedPath()+"?"+settings.Encode())
	if err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(ctx,
		`CREATE TABLE IF NOT EXISTS circuits (name BLOB PRIMARY KEY, circuit TEXT NOT NULL) WITHOUT ROWID`); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", file, err), db.Close())
	}
	return &Store{db: db, now: time.Now}, nil
}

// Close closes the database. Close the Breaker first.
func (s *Store) Close() error { return s.db.Close() }

// load returns the circuit of key and its text; a circuit never heard of is
// the zero one, and has none.
func load(ctx context.Context, db interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}, key string) (c *breaker.Circuit, text []byte, err error) {
	c = new(breaker.Circuit)
	err = db.QueryRowContext(ctx, `SELECT circuit FROM circuits WHERE name = ?`, []byte(key)).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return c, nil, nil
	}
	if err == nil {
		err = json.Unmarshal(text, c)
	}
	return c, text, err
}

func (s *Store) update(ctx context.Context, instance, key string, do func(*breaker.Circuit, breaker.Moment)) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // nothing is left to do after Commit
	c, before, err := load(ctx, tx, key)
	if err != nil {
		return err
	}
	do(c, breaker.Moment{Now: s.now(), Jitter: randv2.Float64(), Instance: instance})
	after, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if !bytes.Equal(before, after) { // most calls of a healthy circuit write nothing
		if _, err := tx.ExecContext(ctx, `INSERT INTO circuits (name, circuit) VALUES (?, ?)
			ON CONFLICT (name) DO UPDATE SET circuit = excluded.circuit`, []byte(key), string(after)); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// Acquire decides on one call.
func (s *Store) Acquire(ctx context.Context, key string, p breaker.Policy) (pm breaker.Permit, err error) {
	var rejected *breaker.RejectedError
	err = s.update(ctx, breaker.InstanceOf(ctx), key, func(c *breaker.Circuit, m breaker.Moment) {
		pm, rejected = c.Acquire(m, p, rand.Text())
	})
	if err != nil {
		return breaker.Permit{}, err
	}
	for i := range pm.Transitions {
		pm.Transitions[i].Key = key
	}
	if rejected != nil {
		rejected.Key = key
		return pm, rejected
	}
	return pm, nil
}

// Report takes in the result of a permitted call.
func (s *Store) Report(ctx context.Context, key string, p breaker.Policy, pm breaker.Permit, r breaker.Result) (*breaker.Transition, error) {
	return s.change(ctx, r.Instance, key, func(c *breaker.Circuit, m breaker.Moment) *breaker.Transition {
		return c.Report(m, p, pm, r)
	})
}

// Force puts an override on a circuit.
func (s *Store) Force(ctx context.Context, key string, p breaker.Policy, o breaker.Override) (*breaker.Transition, error) {
	return s.change(ctx, breaker.InstanceOf(ctx), key, func(c *breaker.Circuit, m breaker.Moment) *breaker.Transition {
		return c.Force(m, p, o)
	})
}

// ClearOverride ends it.
func (s *Store) ClearOverride(ctx context.Context, key string, p breaker.Policy, by string) (*breaker.Transition, error) {
	return s.change(ctx, breaker.InstanceOf(ctx), key, func(c *breaker.Circuit, m breaker.Moment) *breaker.Transition {
		return c.ClearOverride(m, p, by)
	})
}

// Reset closes a circuit.
func (s *Store) Reset(ctx context.Context, key string, p breaker.Policy, by string) (*breaker.Transition, error) {
	return s.change(ctx, breaker.InstanceOf(ctx), key, func(c *breaker.Circuit, m breaker.Moment) *breaker.Transition {
		return c.Reset(m, p, by)
	})
}

// change is update for a step that may make a transition.
func (s *Store) change(ctx context.Context, instance, key string,
	do func(*breaker.Circuit, breaker.Moment) *breaker.Transition) (t *breaker.Transition, err error) {
	err = s.update(ctx, instance, key, func(c *breaker.Circuit, m breaker.Moment) { t = do(c, m) })
	if err != nil || t == nil {
		return nil, err
	}
	t.Key = key
	return t, nil
}

// Snapshot reads a circuit.
func (s *Store) Snapshot(ctx context.Context, key string, p breaker.Policy) (breaker.Snapshot, error) {
	c, _, err := load(ctx, s.db, key)
	if err != nil {
		return breaker.Snapshot{}, err
	}
	snap := c.Snapshot(breaker.Moment{Now: s.now()}, p)
	snap.Key = key
	return snap, nil
}

// History returns the last events of a circuit, newest first.
func (s *Store) History(ctx context.Context, key string) ([]breaker.Event, error) {
	c, _, err := load(ctx, s.db, key)
	slices.Reverse(c.Log)
	for _, e := range c.Log {
		if e.Transition != nil {
			e.Transition.Key = key
		}
	}
	return c.Log, err
}

// Keys ranges over the names of all circuits.
func (s *Store) Keys(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		rows, err := s.db.QueryContext(ctx, `SELECT name FROM circuits`)
		if err != nil {
			yield("", err)
			return
		}
		defer rows.Close()
		for rows.Next() {
			var name []byte
			if err = rows.Scan(&name); err != nil || !yield(string(name), nil) {
				break
			}
		}
		if err = errors.Join(err, rows.Err()); err != nil {
			yield("", err)
		}
	}
}
