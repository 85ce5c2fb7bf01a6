package breaker

import (
	"context"
	"time"
)

// What a process says of its successes when nobody waits for it: so that a rule
// which several processes' failures met finds what each of them knows.

// tellLater has the tallies told soon: a rule that others' reports meet must
// find them within Settle.
func (s *RedisStore) tellLater(key string, p *Policy, l *ledger, later *background) {
	tell := s.hearing("tell", key, p, l, later)
	tell.atClose = true
	later.after(s.tellDelay(), tell)
}

// tellDelay is how long successes are gathered before they are told.
func (s *RedisStore) tellDelay() time.Duration {
	if s.settle == 0 {
		return 50 * time.Millisecond
	}
	return s.settle / 3
}

// settleLater looks again, once it is due, at a rule that a report met. If this
// process dies before, whoever comes next does.
func (s *RedisStore) settleLater(key string, p *Policy, d time.Duration, later *background) {
	later.after(d, s.hearing("settle", key, p, s.ledger(key), later))
}

// speakUp says what this process knows of a circuit that may be about to open.
func (s *RedisStore) speakUp(key string, l *ledger, later *background) {
	if p := l.toSay(); p != nil {
		later.after(0, s.hearing("hear", key, p, l, later))
	}
}

// askLater looks whether a success ended a run of failures that began during
// its call.
func (s *RedisStore) askLater(key string, p *Policy, l *ledger, generation uint64, later *background) {
	later.after(0, job{op: "ask", key: key, do: func(ctx context.Context) (t *Transition, err error) {
		defer clientPanicked(&err)
		h, err := s.head(ctx, l.keys[0])
		if err != nil || !l.mustClear(&h, generation) {
			return nil, err
		}
		return s.hear(ctx, key, p, l, later)
	}})
}

func (s *RedisStore) hearing(op, key string, p *Policy, l *ledger, later *background) job {
	return job{op: op, key: key, do: func(ctx context.Context) (*Transition, error) {
		return s.hear(ctx, key, p, l, later)
	}}
}

// hear has the server hear what this process knows, and settle what is due.
func (s *RedisStore) hear(ctx context.Context, key string, p *Policy, l *ledger, later *background) (*Transition, error) {
	sent, epoch := s.now(), l.epoch()
	reply, err := s.texts(ctx, s.scripts.hear, l.keys, s.args(ctx, p, l, s.id()))
	if err == nil && len(reply) == 0 {
		err = garbled("hear", reply)
	}
	if err != nil || reply[0] == "" {
		l.wrote() // perhaps
	}
	if err != nil {
		l.untold()
		return nil, err
	}
	if h := parseHead(reply[0]); reply[0] != "" {
		s.see(l, key, p, sent, later, sight{generation: h.generation, recorded: true, streak: h.streak, changed: true, epoch: epoch, view: h.view(sent)})
	}
	return s.transition(reply[1:], key, InstanceOf(ctx)), nil
}
