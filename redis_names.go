package breaker

import (
	"context"
	"iter"
	"time"
)

// Names are said by each process for the circuits it uses, so that healthy
// ones, of which the server knows nothing else, are listed too.
const (
	namesDelay = time.Second        // names said together in one command
	namesEvery = 10 * time.Minute   // said again while in use
	namesKept  = 7 * 24 * time.Hour // unsaid for so long, a name is dropped
	namesMax   = 100_000            // the longest unsaid go first
	namesBatch = 500                // names in one command
)

// say sees to it that the name of a circuit is said soon, by Keys if by nobody else.
func (s *RedisStore) say(key string, later *background) {
	s.namesMu.Lock()
	s.namesSeq++
	s.names[key] = s.namesSeq
	now := s.now()
	arm := later != nil && !now.Before(s.namesDue)
	if arm {
		s.namesDue = now.Add(2 * namesDelay) // should the store fail then, the next name tries again
	}
	s.namesMu.Unlock()
	if arm {
		s.sayLater(namesDelay, later)
	}
}

// sayLater says the names that are due, a batch at a time.
func (s *RedisStore) sayLater(delay time.Duration, later *background) {
	later.after(delay, job{op: "names", aside: true, atClose: true, do: func(ctx context.Context) (*Transition, error) {
		more, err := s.sayDue(ctx)
		switch {
		case err != nil:
			s.sayLater(2*namesDelay, later)
		case more:
			s.sayLater(0, later)
		}
		return nil, err
	}})
}

// sayDue says a batch of the names that are due and reports whether there are
// more. A name is due until it has been said: who lists names meanwhile says it
// too, and misses none.
func (s *RedisStore) sayDue(ctx context.Context) (more bool, err error) {
	s.namesMu.Lock()
	batch := make([]string, 0, min(len(s.names), namesBatch))
	seqs := make([]uint64, 0, cap(batch))
	for key, seq := range s.names {
		if len(batch) == namesBatch {
			break
		}
		batch, seqs = append(batch, key), append(seqs, seq)
	}
	s.namesMu.Unlock()
	if len(batch) > 0 {
		if err = s.sayNames(ctx, batch...); err != nil {
			return true, err
		}
	}
	s.namesMu.Lock()
	defer s.namesMu.Unlock()
	for i, key := range batch {
		if s.names[key] == seqs[i] { // not to be said again since
			delete(s.names, key)
		}
	}
	if len(s.names) > 0 {
		return true, nil
	}
	s.namesDue = time.Time{}
	return false, nil
}

// sayNames says names in one command.
func (s *RedisStore) sayNames(ctx context.Context, names ...string) error {
	args := []any{namesMax, namesKept.Milliseconds()}
	for _, name := range names {
		args = append(args, name)
	}
	_, err := s.run(ctx, s.scripts.names, []string{s.prefix + "names"}, args)
	return err
}

// Keys implements Lister. It reads the names and nothing else, so that other
// tenants' keys on the server cost nothing.
func (s *RedisStore) Keys(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for more := true; more; {
			var err error
			if more, err = s.sayDue(ctx); err != nil {
				yield("", err)
				return
			}
		}
		seen := make(map[string]struct{}) // a scan may show a name twice
		for cursor, more := uint64(0), true; more; more = cursor != 0 {
			page, next, err := s.scanNames(ctx, cursor)
			if err != nil {
				yield("", err)
				return
			}
			for i := 0; i+1 < len(page); i += 2 { // name, score
				if _, dup := seen[page[i]]; dup {
					continue
				}
				seen[page[i]] = struct{}{}
				if !yield(page[i], nil) {
					return
				}
			}
			cursor = next
		}
	}
}

func (s *RedisStore) scanNames(ctx context.Context, cursor uint64) (page []string, next uint64, err error) {
	defer clientPanicked(&err)
	return s.client.ZScan(ctx, s.prefix+"names", cursor, "", namesBatch).Result()
}
